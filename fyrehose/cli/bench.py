"""``fyrehose bench``: from words to cases, and a table when they have run."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path

import click

from fyrehose.errors import MissingExtra


@click.command()
@click.argument("patterns", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="Name the cases, and run none.")
@click.option("--quick", is_flag=True, help="A twentieth of the messages, one round: whether it works, not how fast.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="How often each is run.")
@click.option(
    "--scale", type=click.FloatRange(0.0001, 1000), default=1.0, show_default=True, help="Times the messages."
)
@click.option("--durability", default="batch", show_default=True, metavar="MODE", help="batch, interval:MS or never.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where servers write: a real disk.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write every sample there.")
def bench(
    patterns: tuple[str, ...],
    only_list: bool,
    quick: bool,
    rounds: int,
    scale: float,
    durability: str,
    directory: Path | None,
    output: Path | None,
) -> None:
    """Measure the server, in processes of its own, on the cases whose names match PATTERNS (all of them without any).

    \b
        fyrehose bench --list
        fyrehose bench figg 'relink/live/*' --rounds 9
        fyrehose bench --quick --json /tmp/bench.json
    """
    try:
        import numpy as _  # noqa: F401
    except ImportError:
        raise MissingExtra("fyrehose bench counts with numpy: pip install 'fyrehose[bench]'") from None
    from fyrehose.bench import command

    cases = command.choose(patterns)
    if only_list:
        command.show_list(cases)
        return
    if quick:
        rounds, scale = 1, scale / 20
    # Servers and load makers end with it, however it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="fyrehose-bench-", dir=directory) as place:
        measured, failed = command.measure(cases, Path(place), rounds, scale, durability)
    if output is not None:
        output.write_text(json.dumps(command.report(measured), indent=1) + "\n", encoding="utf-8")
        click.echo(f"written: {output}")
    if failed:
        raise click.exceptions.Exit(1)
