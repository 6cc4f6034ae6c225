"""Run benchmarks: ``python -m benchmarks``, from a checkout."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

import click

from fyrehose.errors import FyrehoseError, MissingExtra

_OUTPUT = click.Path(path_type=Path, dir_okay=False)
_INPUT = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command("benchmarks")
@click.argument("patterns", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="List the cases and exit.")
@click.option("--quick", is_flag=True, help="Smoke test: few messages, one round.")
@click.option("--alone", is_flag=True, help="Measure Fyrehose only.")
@click.option("--metrics", is_flag=True, help="Also measure with metrics, scraped each second.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Rounds of each case.")
@click.option("--scale", type=click.FloatRange(0.0001, 1000), default=1.0, help="Factor of the messages.  [default: 1]")
@click.option("--durability", default="batch", show_default=True, metavar="MODE", help="batch, interval:MS or never.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Directory for the servers, on a real disk.")
@click.option("--json", "output", type=_OUTPUT, help="Write every sample to this file.")
@click.option("--plot", "picture", type=_OUTPUT, help="Plot the results to this file (.svg or .png).")
@click.option("--show", "earlier", type=_INPUT, multiple=True, help="Show an earlier JSON instead of measuring.")
@click.option("--compare", "pair", type=_INPUT, nargs=2, help="Compare two JSON files instead of measuring.")
@click.option("--markdown", is_flag=True, help="Show the tables as Markdown.")
@click.option("--touch-memory", is_flag=True, help="First use nine tenths of the free memory once, on a new machine.")
@click.option("--install-peers", is_flag=True, help="First install the other servers, from apt and PyPI.")
def main(
    patterns: tuple[str, ...],
    only_list: bool,
    quick: bool,
    alone: bool,
    metrics: bool,
    rounds: int,
    scale: float,
    durability: str,
    directory: Path | None,
    output: Path | None,
    picture: Path | None,
    earlier: tuple[Path, ...],
    pair: tuple[Path, Path] | None,
    markdown: bool,
    touch_memory: bool,
    install_peers: bool,
) -> None:
    """Measure the server with the cases whose names match PATTERNS, or with all cases.

    \b
        python -m benchmarks --list
        python -m benchmarks figg 'relink/live/*' --rounds 9
        python -m benchmarks --quick --json /tmp/bench.json
    """
    try:
        import numpy as _  # noqa: F401
    except ImportError:
        raise MissingExtra("the benchmarks count with numpy: pip install 'fyrehose[bench]'") from None
    from benchmarks import command, memory, peers

    if pair is not None:
        command.compare(*(command.Report.loads(path.read_text(encoding="utf-8")) for path in pair))
        return
    cases = command.choose(patterns)
    if only_list:
        command.show_list(cases)
        return
    if install_peers:
        try:
            peers.install()
        except FyrehoseError as error:
            click.echo(f"benchmarks: {error}", err=True)
    if earlier:
        report = command.joined([command.Report.loads(path.read_text(encoding="utf-8")) for path in earlier])
    else:
        wanted = command.Wanted(
            rounds=1 if quick else rounds,
            scale=scale / 20 if quick else scale,
            durability=durability,
            alone=alone,
            metrics=metrics,
        )
        # However this process is ended, it stops its servers and load makers, and shows what it has measured.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if touch_memory:
            memory.touch(memory.free_memory() // 10 * 9)
        with tempfile.TemporaryDirectory(prefix="fyrehose-bench-", dir=directory) as place:
            report = command.measure(cases, Path(place), wanted)
    command.show(report, for_page=markdown)
    if output is not None:
        output.write_text(report.dumps() + "\n", encoding="utf-8")
    if picture is not None:
        command.draw(report, picture)
    if any(trouble.startswith(case.name) for trouble in report.failed for case in cases):
        raise click.exceptions.Exit(1)


def run(arguments: list[str] | None = None) -> None:
    """Run :func:`main`; an error ends the process with one line and a status.

    :param arguments: those of the command line; None: those of this process
    """
    try:
        main(arguments)
    except FyrehoseError as error:
        click.echo(f"benchmarks: {error}", err=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    run()
