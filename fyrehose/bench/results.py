"""Results: figures of each round, their medians and spread, comparisons of servers, and their JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

#: Unit of every figure.  CPU figures count all threads of the server; the CPU of load makers is another figure.
UNITS = {
    "rate": "messages/s",
    "micros": "us of CPU a message",
    "user": "us of CPU a message, in user mode",
    "system": "us of CPU a message, in the kernel",
    "maker": "us of the busiest load maker's CPU a message",
    "busy": "part of the time that the busiest load maker was busy",
    "peak": "bytes, the most that the server had in memory",
    "grown": "bytes that the server's memory grew by",
    "sent": "messages that all subscribers together should get",
    "received": "messages that they got",
    "lost": "messages",
    "acknowledged": "s to the acknowledgement",
    "arrived": "s to the arrival at a subscriber",
    "seconds": "s",
    "each": "bytes for each connection",
}
#: The percentiles of latencies; ``acknowledged.99`` is the name of such a figure.
PERCENTILES = (50.0, 99.0, 99.9)

#: The figures of one round: name -> value.
Sample = Mapping[str, float]


def latency(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the percentiles ``values`` as figures called ``name.PERCENTILE``."""
    return {f"{name}.{percentile:g}": value for percentile, value in zip(PERCENTILES, values, strict=True)}


def unit(figure: str) -> str:
    """Return the unit of ``figure``."""
    return UNITS[figure.partition(".")[0]]


@attrs.frozen
class Spread:
    """Median and range of some numbers."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Spread:
        found = sorted(numbers)
        return cls(statistics.median(found), found[0], found[-1])


@attrs.frozen(kw_only=True)
class Measurement:
    """All rounds of one contestant in one case."""

    case: str
    contestant: str
    samples: Sequence[Sample]

    @property
    def figures(self) -> list[str]:
        """Return the figures that every round has."""
        return [name for name in self.samples[0] if all(name in sample for sample in self.samples)]

    def spread(self, figure: str) -> Spread:
        """Return the median and range of one figure."""
        return Spread.of(sample[figure] for sample in self.samples)

    def median(self, figure: str) -> float:
        return self.spread(figure).median


class Results:
    """All measurements, indexed by case and contestant."""

    def __init__(self, measured: Iterable[Measurement]) -> None:
        self.all = list(measured)
        self._by_name = {(one.case, one.contestant): one for one in self.all}

    def get(self, case: str, contestant: str) -> Measurement | None:
        return self._by_name.get((case, contestant))

    def median(self, case: str, figure: str, contestant: str = "fyrehose") -> float | None:
        """Return the median of a figure, or None if it was not measured."""
        one = self.get(case, contestant)
        return one.median(figure) if one is not None and figure in one.figures else None

    def times(self, one: Measurement, ours: str, figure: str = "micros") -> float | None:
        """Return the figure of ``one`` divided by that of ``ours`` in the same case; None if one of them is missing."""
        mine = self.median(one.case, figure, ours)
        return one.median(figure) / mine if mine and figure in one.figures else None


def as_json(measured: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Return every sample, with medians and ranges, for a JSON file."""
    return [
        {
            "case": one.case,
            "contestant": one.contestant,
            "figures": {name: attrs.asdict(one.spread(name)) for name in one.figures},
            "samples": [dict(sample) for sample in one.samples],
        }
        for one in measured
    ]


def from_json(found: Iterable[Mapping[str, Any]]) -> list[Measurement]:
    """Parse the result of :func:`as_json`."""
    return [Measurement(case=one["case"], contestant=one["contestant"], samples=one["samples"]) for one in found]
