"""``fyrehose journal backup`` and ``restore``: copy a journal into another directory, and restore it from there."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fyrehose.cli.client.values import DURATION
from fyrehose.cli.console import progress_bar
from fyrehose.errors import ConfigError
from fyrehose.options import counted

if TYPE_CHECKING:
    from fyrehose.offline.mirror import Replica

_TOKEN = click.option(
    "--token-file", metavar="FILE", help="File with the token of the server at URL.", type=click.Path()
)
_ACCEPT = click.option(
    "--accept-unknown-end", is_flag=True, help="Also copy a source that may lack its newest records."
)
_TARGET = click.Path(file_okay=False, path_type=Path)


@click.command(short_help="Copy a journal that may be in use, and verify the copy.")
@click.option("--follow", is_flag=True, help="Keep copying new records until Ctrl-C or SIGTERM.")
@click.option("--every", type=DURATION, default="1s", show_default=True, help="Poll interval of --follow.")
@click.option("--mirror", is_flag=True, help="Delete segments that the source has deleted.")
@click.option(
    "--subscription",
    metavar="NAME",
    help="Named subscription: retention keeps what was not copied.",
)
@_ACCEPT
@_TOKEN
@click.argument("source", metavar="DIR|URL", type=click.Path(file_okay=False))
@click.argument("target", metavar="TO", type=_TARGET)
def backup(
    follow: bool,
    every: float,
    mirror: bool,
    subscription: str | None,
    accept_unknown_end: bool,
    token_file: str | None,
    source: str,
    target: Path,
) -> None:
    """Copy a journal into TO and verify the copy; later calls copy only new data.

    DIR may be in use by a server; URL is that of `fyrehose journal serve`.

    \b
        fyrehose journal backup data /mnt/backup
        fyrehose journal backup http://HOST:8120 /mnt/backup --follow
    """
    from fyrehose.journal import subscriptions
    from fyrehose.journal.files import Files
    from fyrehose.offline.backup import Backup, check_target
    from fyrehose.offline.mirror import Replica
    from fyrehose.offline.places import place

    if subscription is not None:
        subscriptions.checked_name(subscription)
    if every <= 0:
        raise ConfigError("invalid --every: expected more than 0, such as 1s")
    if follow:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    origin = place(source, token_file)
    check_target(origin, target)
    with Replica(target, Files()) as replica:
        copying = Backup(
            origin, replica, mirror=mirror, subscription=subscription, accept_unknown_end=accept_unknown_end
        )
        try:
            with progress_bar(f"backing up {source}") as copying.progress:
                copying.run_patiently(warn) if follow else copying.run()
            click.echo(figures(replica))
            if follow:
                copying.progress = lambda done, total: None
                copying.follow(every, warn)
        except KeyboardInterrupt:
            if not follow:
                raise
            click.echo(f"stopped: {figures(replica)}")


@click.command(short_help="Restore a backup, and verify it.")
@click.option("--exact", is_flag=True, help="Skip no numbers: for a copy in which no server will accept messages.")
@_ACCEPT
@_TOKEN
@click.argument("source", metavar="FROM", type=click.Path(file_okay=False))
@click.argument("target", metavar="DIR", type=_TARGET)
def restore(exact: bool, accept_unknown_end: bool, token_file: str | None, source: str, target: Path) -> None:
    """Restore the backup in FROM into DIR and verify it, so that a server can start in DIR.

    Every stream skips 2^36 numbers, so that no number is used twice, whatever the server accepted after the backup.

    FROM may also be the URL of `fyrehose journal serve`. DIR must be empty or missing. Run the same command again to
    resume an interrupted restore; no server starts in DIR before it is complete.

    \b
        fyrehose journal restore /mnt/backup data
        fyrehose serve --data-dir data
    """
    from fyrehose.journal.files import Files
    from fyrehose.offline.backup import restore as restored
    from fyrehose.offline.places import place

    with progress_bar(f"restoring {target}") as progress:
        replica = restored(
            place(source, token_file), target, Files(), progress, exact=exact, accept_unknown_end=accept_unknown_end
        )
    numbers = "" if exact else "; every stream skips numbers that the lost server may have given out"
    click.echo(figures(replica) + numbers)


def warn(line: str) -> None:
    """Write a line to standard error."""
    click.echo(f"fyrehose: {line}", err=True)


def figures(replica: Replica) -> str:
    """Return as text how much *replica* has copied, and up to which position it is complete."""
    done = replica.done
    deleted = f", old segments deleted: {done.deleted:,}" if done.deleted else ""
    return (
        f"{counted(done.records, 'record')} in {counted(done.batches, 'batch', 'batches')} "
        f"({counted(done.size, 'byte')}) copied and verified{deleted}; "
        f"{replica.directory} is complete up to position {replica.position}"
    )
