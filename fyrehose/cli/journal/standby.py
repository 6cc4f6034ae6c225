"""``fyrehose journal follow`` and ``promote``: keep a standby of a journal, and make it a journal of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fyrehose.cli.client.values import DURATION
from fyrehose.cli.console import moment, progress_bar, status_line
from fyrehose.cli.journal.backup import figures, warn
from fyrehose.errors import ConfigError
from fyrehose.imports import ADMIN
from fyrehose.options import counted, shown_size

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from fyrehose.offline.standby import Lag, Standby


@click.command(short_help="Keep a copy of a running server's journal up to date.")
@click.option("--every", type=DURATION, default="250ms", show_default=True, help="Poll interval.")
@click.option("--once", is_flag=True, help="End when the standby is up to date.")
@click.option("--keep", is_flag=True, help="Keep segments that the source has deleted.")
@click.option("--subscription", metavar="NAME", help="Named subscription: retention keeps what was not copied.")
@click.option("--metrics", metavar="FILE|HOST:PORT", help="Metrics for Prometheus, in FILE.prom.")
@click.option("--token-file", metavar="FILE", help="File with the token of the server at URL.")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def follow(
    every: float,
    once: bool,
    keep: bool,
    subscription: str | None,
    metrics: str | None,
    token_file: str | None,
    urls: tuple[str, ...],
    directory: Path,
) -> None:
    """Keep DIR an identical copy of the journal that `fyrehose journal serve` serves at URL.

    Several URLs are those of the members of a cluster: the next one is used while one cannot be reached. The command
    resumes after a kill. After a disaster, stop the command, and run `fyrehose journal promote DIR`.

    \b
        fyrehose journal follow http://10.0.0.5:8120 data --token-file token
    """
    from fyrehose.journal import subscriptions
    from fyrehose.journal.files import Files
    from fyrehose.offline.backup import Backup, check_directory
    from fyrehose.offline.mirror import Replica
    from fyrehose.offline.places import place
    from fyrehose.offline.standby import Standby

    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"invalid URL {url!r}: expected http://HOST:PORT of `fyrehose journal serve`")
    if every <= 0:
        raise ConfigError("invalid --every: expected more than 0, such as 250ms")
    if subscription is not None:
        subscriptions.checked_name(subscription)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    source, *others = (place(url, token_file) for url in urls)
    check_directory(directory)
    with Replica(directory, Files()) as replica:
        copying = Backup(source, replica, mirror=not keep, subscription=subscription, others=others)
        standby = Standby(copying)
        with _exported(metrics, standby):
            try:
                with progress_bar(f"copying {source}") as copying.progress:
                    standby.catch_up(copying.run if once else lambda: copying.run_patiently(warn))
                click.echo(figures(replica))
                if once:
                    return
                copying.progress = lambda done, total: None
                with status_line(lambda: _status(standby)):
                    standby.follow(every, warn)
            except KeyboardInterrupt:
                click.echo(f"stopped: {figures(replica)}")


@click.command(short_help="Make that copy a journal of its own.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation if the server still answers.")
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
def promote(yes: bool, directory: Path) -> None:
    """Make the standby in DIR, kept by `fyrehose journal follow`, an independent journal.

    Do this when the server that the standby followed is lost; then start a server in DIR. Every stream skips 2^36
    numbers, so that no number is used twice, whatever the lost server accepted in its last moments.

    \b
        fyrehose journal promote data
        fyrehose serve --data-dir data
    """
    from fyrehose.journal.copies import followed
    from fyrehose.journal.files import Files
    from fyrehose.offline import standby

    standby.check_standby(directory)
    url = followed(directory)
    if not yes and standby.answers(url):
        warn(f"{url} still answers: if its server runs, stop it first, or both accept messages that the other lacks")
        click.confirm("promote the standby all the same?", abort=True)
    end = standby.promote(directory, Files())
    click.echo(
        f"{directory} is a journal of its own now: it has {counted(end.streams, 'stream')} up to position "
        f"{end.position}, written at {moment(end.time)}; what the lost server accepted later is missing. "
        "Start a server there"
    )


def _status(standby: Standby) -> str:
    lag, position = standby.lag, standby.copying.replica.position
    away = "" if lag.reachable else "; the source is away"
    return f"complete up to position {position}, {shown_size(lag.size)} and {lag.seconds:.1f} s behind{away}"


@contextmanager
def _exported(where: str | None, standby: Standby) -> Iterator[None]:
    """Export the lag of a standby as a metric during the context, if *where* is not None."""
    if where is None:
        yield
        return
    ADMIN.require("--metrics")
    from fyrehose.observe.exporting import CommandMetrics, families

    class Metrics(CommandMetrics):
        def collect(self) -> Iterable[Metric]:
            """Yield the metric with the present lag."""
            lag = standby.lag
            gauges = {
                "standby_lag_bytes": ("Bytes that are durable at the source and not in the standby.", lag.size),
                "standby_lag_seconds": ("Since when the standby lacks something, as far as it knows.", lag.seconds),
                "standby_position": ("The standby has everything before this.", standby.copying.replica.position),
                "standby_source_reachable": ("Whether the source answers.", int(lag.reachable)),
            }
            copied = {"standby_copied_bytes": ("Bytes that were copied.", standby.copying.replica.done.size)}
            return families(gauges, copied)

    metrics = Metrics(where)
    metrics.start()
    metrics.write(strict=True)
    written = 0.0

    def observe(lag: Lag) -> None:
        nonlocal written
        if (now := time.monotonic()) - written >= 1:
            written = now
            metrics.write(strict=False)

    standby.observe = observe
    try:
        yield
    finally:
        metrics.write(strict=False)
        metrics.stop()
