"""``fyrehose bench``: measure what the disk and the CPU of this machine will carry, and print a table."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fyrehose.cli import candidates
from fyrehose.cli.client.values import DURATION, FORMAT, Parsed
from fyrehose.cli.console import bar, table, terminal, write_json
from fyrehose.errors import ConfigError
from fyrehose.imports import Extra
from fyrehose.journal.settings import Durability
from fyrehose.journal.settings import durability as durability_of
from fyrehose.options import shown_size

if TYPE_CHECKING:
    from fyrehose.bench.results import Spread
    from fyrehose.bench.trial import Trial, TrialReport

#: The extra with numpy, which counts received messages without a Python object for each message.
NUMPY = Extra("bench", "numpy", "numpy")
#: Free space that the journals of the measurement need, in bytes for each second.
SPACE = 64 << 20
#: Load average for each core above which the figures are worse than they could be; and CPU use of a load maker (a
#: client process), as a part of a core, above which it is the limit of the measured rate.
LOADED, BUSY = 0.3, 0.9


@click.command(short_help="Measure what this disk and this CPU will carry.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), default=".", help="The disk to measure.")
@click.option("--seconds", type=DURATION, default="60", show_default=True, help="About how long it takes.")
@click.option("--protocol", "wanted", multiple=True, metavar="NAME", shell_complete=candidates.protocols)
@click.option(
    "--durability",
    type=Parsed("mode", durability_of),
    default="batch",
    show_default=True,
    help="As journal.durability of a server.",
)
@FORMAT
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
def bench(data_dir: Path, seconds: float, wanted: tuple[str, ...], durability: Durability, form: str) -> None:
    """Measure what the disk of --data-dir and this CPU will carry.

    Each protocol has a server of its own on loopback, whose journal is in a folder that is deleted at the end. A server
    that is running is left alone, but both slow each other down.

    \b
        fyrehose bench --data-dir /var/lib/fyrehose
        fyrehose bench --seconds 20 --protocol figg --json
    """
    NUMPY.require("fyrehose bench")
    from fyrehose.bench.trial import NAMES, measure

    mode = str(durability)
    protocols = _protocols(wanted, list(NAMES))
    if not data_dir.is_dir():
        raise ConfigError(f"there is no directory {data_dir}; pass --data-dir DIR on the disk to measure")
    free, needed = shutil.disk_usage(data_dir).free, int(seconds * SPACE)
    if free < needed:
        raise ConfigError(f"{data_dir} has {shown_size(free)} free, and the measurement may need {shown_size(needed)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM then stops the servers, too
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=data_dir) as folder, bar("measuring") as progress:
        report = measure(
            Path(folder), protocols, seconds, mode, lambda passed, what: progress(min(passed, seconds), seconds)
        )
    if form == "json":
        write_json(as_json(report, data_dir, mode))
    else:
        show(report, data_dir, mode)


def _protocols(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the protocols to measure.

    :raises ConfigError: one of *wanted* is unknown
    """
    for name in wanted:
        if name not in known:
            raise ConfigError(f"invalid --protocol {name!r}: expected {', '.join(known)}")
    return list(wanted or known)


def show(report: TrialReport, directory: Path, durability: str) -> None:
    """Print the circumstances of the measurement, the table of results, and remarks on what limits the results."""
    console = terminal()
    for line in about(report, directory, durability):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print()
    heads = ("bytes", "messages/s", "CPU us\na message", "one core\ncarries/s", "alone:\np50 ms", "p99 ms")
    rows = [(trial.protocol, str(trial.full.size), *_cells(trial)) for trial in report.trials]
    p50, p99 = (_quantile(report.syncs, part) for part in (0.5, 0.99))
    rows.append(("disk", "128", f"{1 / p50:,.0f}", "", "", f"{p50 * 1000:.3g}", f"{p99 * 1000:.3g}"))
    console.print(table(("protocol", *heads), rows, right=heads, whole=("protocol",)))
    console.print()
    for line in remarks(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _cells(trial: Trial) -> tuple[str, ...]:
    rate, micros = trial.spread(trial.full, "rate"), trial.spread(trial.full, "micros")
    alone = [trial.spread(trial.single, f"acknowledged.{part}", f"arrived.{part}") for part in (50, 99)]
    assert rate is not None
    assert micros is not None
    limited = ">" if _limited(trial) else ""
    return (
        f"{limited}{_range(rate, ',.0f')}",
        _range(micros, ".2f"),
        f"{1e6 / micros.median:,.0f}",
        *("" if each is None else f"{each.median * 1000:.3g}" for each in alone),
    )


def _range(spread: Spread, form: str) -> str:
    """Return the median and the range as text, such as ``9,210 (8,900-9,400)``."""
    return f"{spread.median:{form}} ({spread.least:{form}}-{spread.most:{form}})"


def _limited(trial: Trial) -> bool:
    busy = trial.spread(trial.full, "busy")
    return busy is not None and busy.median > BUSY


def _quantile(syncs: Sequence[Sequence[float]], part: float) -> float:
    """Return the quantile *part* of the durations of syncs: the median over the rounds, in seconds."""
    found = sorted(times[int((len(times) - 1) * part)] for times in syncs)
    return found[len(found) // 2]


def about(report: TrialReport, directory: Path, durability: str) -> list[str]:
    """Return the parameters of the trial and the machine, as lines for people."""
    from fyrehose.bench import usage
    from fyrehose.bench.disk import VOLATILE, mount_of
    from fyrehose.bench.servers import fyrehose_version

    kind = mount_of(directory.resolve()).kind
    rounds = f"medians of {len(report.syncs)} rounds (least-most), {report.seconds:.0f} s"
    load = f"load average {report.load_before:.2f} before, {report.load_after:.2f} after"
    software = f"fyrehose {fyrehose_version()}; {usage.machine(kind)}"
    remark = ["a restart empties this file system, and syncs cost nothing on it"] * (kind in VOLATILE)
    return [software, f"durability {durability}; {rounds}; {load}", *remark]


def remarks(report: TrialReport) -> list[str]:
    """Return remarks for people: how to read the figures, and what limits the figures."""
    from fyrehose.bench.trial import cores

    lines = [
        "messages/s: one publisher with a full window (backbone, eventbus: and one subscriber), all on this machine.",
        "one core carries: a second divided by the server's CPU a message; the server uses little more than one core.",
        "alone: one message at a time, from sending to its acknowledgement (backbone, eventbus: to its arrival).",
        "disk: the same bytes by write and fdatasync, without a server: no message that is durable can be faster.",
    ]
    if report.load_before > LOADED * cores():
        load = f"load average {report.load_before:.2f}, {cores()} cores"
        lines.append(f"other programs were running ({load}): figures would be better without them.")
    limited = [trial.protocol for trial in report.trials if _limited(trial)]
    if limited:
        lines.append(f">: the load maker was the limit, and not the server: {', '.join(limited)}.")
    for trial in report.trials:
        lost = trial.spread(trial.full, "lost")
        if lost is not None and lost.most:
            lines.append(f"{trial.protocol}: up to {lost.most:,.0f} messages of a round did not reach the subscriber.")
    return lines


def as_json(report: TrialReport, directory: Path, durability: str) -> dict[str, Any]:
    """Return all samples, and the circumstances of the measurement, as an object for JSON."""
    from fyrehose.bench.trial import cores

    return {
        "about": about(report, directory, durability),
        "durability": durability,
        "cores": cores(),
        "load_before": report.load_before,
        "load_after": report.load_after,
        "seconds": report.seconds,
        "disk": [
            {"syncs": len(times), "p50": _quantile([times], 0.5), "p99": _quantile([times], 0.99)}
            for times in report.syncs
        ],
        "protocols": {
            trial.protocol: {case.name: [dict(sample) for sample in trial.samples[case.name]] for case in trial.cases}
            for trial in report.trials
        },
    }
