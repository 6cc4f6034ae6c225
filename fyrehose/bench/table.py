"""The results as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fyrehose.bench.cases import CASES
from fyrehose.bench.results import Measured, Sample, Spread


def short(number: float) -> str:
    """Three digits, and M or k for what is large."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def spread(values: Spread) -> str:
    """The median, and how far it goes."""
    return f"{short(values.median)} ({short(values.least)}-{short(values.most)})"


def table(measured: Sequence[Measured]) -> Table:
    """A line for each case and contestant."""
    found = Table(box=None, pad_edge=False, header_style="bold")
    found.add_column("case")
    found.add_column("server")
    for head in ("messages/s", "CPU us/message", "user+system", "target", "peak MiB", "maker us", "maker busy", "lost"):
        found.add_column(head, justify="right")
    targets = {case.name: case.target for case in CASES}
    before = ""
    for one in measured:
        cpu = one.spread(lambda sample: sample.micros)
        found.add_row(
            one.case if one.case != before else "",
            one.contestant,
            spread(one.spread(lambda sample: sample.rate)),
            spread(cpu),
            f"{share(one, lambda s: s.user):.2f}+{share(one, lambda s: s.system):.2f}",
            _target(cpu.median, targets.get(one.case, 0.0) if one.contestant == "fyrehose" else 0.0),
            f"{one.median(lambda s: s.peak) / (1 << 20):.0f}",
            f"{one.median(lambda sample: sample.maker_micros):.2f}",
            f"{one.median(lambda sample: sample.busy):.0%}",
            str(sum(sample.lost for sample in one.samples)),
        )
        before = one.case
    return found


def share(one: Measured, part: object) -> float:
    """A part of the CPU, in microseconds for a message."""
    assert callable(part)
    return one.median(lambda sample: part(sample) / sample.messages * 1e6)


def _target(found: float, target: float) -> str:
    if not target:
        return ""
    return f"<= {target:g} {'met' if found <= target else f'missed: x{found / target:.1f}'}"


__all__ = ["Sample", "share", "short", "spread", "table"]
