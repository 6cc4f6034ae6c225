"""``fyrehose journal backup`` and ``restore``: a copy of a journal in another directory, and the way back."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fyrehose.cli.progress import progress_bar
from fyrehose.cli.values import Duration
from fyrehose.errors import ConfigError

if TYPE_CHECKING:
    from fyrehose.journal.offline.replica import Replica

_TOKEN = click.option("--token-file", metavar="FILE", help="Its first line is the token of the server at URL.")
_TARGET = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C or SIGTERM.")
@click.option("--every", type=Duration(), default="1s", show_default=True, help="With --follow, look so often.")
@click.option("--mirror", is_flag=True, help="Delete segments that the source does not keep any more.")
@click.option("--hold", metavar="NAME", help="Have retention wait for this backup.")
@_TOKEN
@click.argument("source", metavar="DIR|URL")
@click.argument("target", metavar="TO", type=_TARGET)
def backup(
    follow: bool, every: float, mirror: bool, hold: str | None, token_file: str | None, source: str, target: Path
) -> None:
    """Copy a journal into TO, verified; the next call copies what is new.

    DIR may be in use by a server; URL is that of `fyrehose journal serve`.

    \b
        fyrehose journal backup data /mnt/backup
        fyrehose journal backup http://HOST:8120 /mnt/backup --follow
    """
    from fyrehose.journal import holds
    from fyrehose.journal.files import Files
    from fyrehose.journal.offline.backup import Backup, check_target
    from fyrehose.journal.offline.places import place
    from fyrehose.journal.offline.replica import Replica

    if hold is not None:
        holds.checked_name(hold)
    if every <= 0:
        raise ConfigError("--every should be more than 0, such as 1s")
    if follow:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    where = place(source, token_file)
    check_target(where, target)
    with Replica(target, Files()) as replica:
        copying = Backup(where, replica, mirror=mirror, hold=hold)
        if not follow:
            with progress_bar(f"backing up {source}") as copying.progress:
                copying.run()
            click.echo(_figures(replica))
            return
        try:
            with progress_bar(f"backing up {source}") as copying.progress:
                copying.run_patiently(every, _warn)
            click.echo(_figures(replica))
            copying.progress = lambda done, total: None
            copying.follow(every, _warn)
        except KeyboardInterrupt:
            click.echo(f"ended: {_figures(replica)}")


@click.command()
@_TOKEN
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="DIR", type=_TARGET)
def restore(token_file: str | None, source: str, target: Path) -> None:
    """Make a journal in DIR of the backup in FROM, verified, to start a server.

    FROM may also be the URL of `fyrehose journal serve`; DIR has to be empty, or not there. If it is interrupted, the
    same command goes on, and until then no server starts in DIR.

    \b
        fyrehose journal restore /mnt/backup data
        twistd -n fyrehose --data-dir data
    """
    from fyrehose.journal.files import Files
    from fyrehose.journal.offline.backup import restore as restored
    from fyrehose.journal.offline.places import place

    with progress_bar(f"restoring {target}") as progress:
        replica = restored(place(source, token_file), target, Files(), progress)
    click.echo(_figures(replica))


def _warn(line: str) -> None:
    click.echo(f"fyrehose: {line}", err=True)


def _figures(replica: Replica) -> str:
    done = replica.done
    deleted = f", old segments deleted: {done.deleted:,}" if done.deleted else ""
    return (
        f"{done.records:,} records in {done.batches:,} batches ({done.size:,} bytes) copied and verified{deleted}; "
        f"{replica.directory} is complete up to position {replica.position}"
    )
