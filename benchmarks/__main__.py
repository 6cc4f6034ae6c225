"""Run benchmarks: ``python -m benchmarks``, from a checkout."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

import click

from fyrehose.errors import FyrehoseError, MissingExtra

#: A file that is written.
_OUTPUT = click.Path(path_type=Path, dir_okay=False)
#: A file that is there.
_INPUT = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command("benchmarks")
@click.argument("patterns", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="Name the cases, and run none.")
@click.option("--quick", is_flag=True, help="Whether it works: few messages, one round.")
@click.option("--alone", is_flag=True, help="Without the servers of others.")
@click.option("--metrics", is_flag=True, help="Beside it one with metrics, scraped each second.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="How often each is run.")
@click.option("--scale", type=click.FloatRange(0.0001, 1000), default=1.0, help="Times the messages.  [default: 1]")
@click.option("--durability", default="batch", show_default=True, metavar="MODE", help="batch, interval:MS or never.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where servers write: a real disk.")
@click.option("--json", "output", type=_OUTPUT, help="Write every sample there.")
@click.option("--plot", "picture", type=_OUTPUT, help="Draw a picture there (.svg or .png).")
@click.option("--show", "earlier", type=_INPUT, multiple=True, help="Measure nothing: show that JSON.")
@click.option("--markdown", is_flag=True, help="Show the tables as Markdown.")
@click.option("--install-peers", is_flag=True, help="First get the others, from apt and PyPI.")
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
    markdown: bool,
    install_peers: bool,
) -> None:
    """Measure the server on the cases whose names match PATTERNS, or on all.

    \b
        python -m benchmarks --list
        python -m benchmarks figg 'relink/live/*' --rounds 9
        python -m benchmarks --quick --json /tmp/bench.json
    """
    try:
        import numpy as _  # noqa: F401
    except ImportError:
        raise MissingExtra("the benchmarks count with numpy: pip install 'fyrehose[bench]'") from None
    from benchmarks import command, peers

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
        # However it is ended, servers and load makers end with it, and what was measured is shown.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with tempfile.TemporaryDirectory(prefix="fyrehose-bench-", dir=directory) as place:
            report = command.measure(cases, Path(place), wanted)
    command.show(report, for_page=markdown)
    if output is not None:
        output.write_text(report.dumps() + "\n", encoding="utf-8")
    if picture is not None:
        command.draw(report, picture)
    if any(trouble.startswith(case.name) for trouble in report.failed for case in cases):
        raise click.exceptions.Exit(1)


def run() -> None:
    """Run :func:`main`; an error ends the process with one line and a status."""
    try:
        main()
    except FyrehoseError as error:
        click.echo(f"benchmarks: {error}", err=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    run()
