"""The measurements of all contestants in all cases, and their JSON.

Figures beside those of :mod:`fyrehose.bench.results`: ``seconds`` to the first accepted message after a start, and
``each``, the bytes of memory for each idle connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from fyrehose.bench.results import Sample, Spread


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
