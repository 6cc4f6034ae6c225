"""Compare two runs: which figures changed by more than the noise of their rounds.

A figure has changed if no round of one run lies within the range of the other's rounds: by chance, two runs of five
rounds each differ like this once in 126 times.  With a single round there is no range, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from benchmarks.results import Measurement, Results
from fyrehose.bench.results import Spread

#: The figures that are compared: cost, speed, latency, memory.  Other figures, such as the cost of load makers, say
#: nothing about a server.
FIGURES = (
    "micros",
    "rate",
    "acknowledged.50",
    "acknowledged.99",
    "arrived.50",
    "arrived.99",
    "seconds",
    "each",
    "peak",
)
#: Figures of which more is better.
MORE = {"rate"}


@attrs.frozen(kw_only=True)
class Change:
    """One figure of one contestant in two runs."""

    case: str
    contestant: str
    figure: str
    before: Spread
    after: Spread

    @property
    def times(self) -> float:
        """Return the median of the later run, divided by that of the earlier one."""
        return self.after.median / self.before.median

    @property
    def better(self) -> bool:
        return (self.times > 1) == (self.figure in MORE)


def compared(before: Results, after: Results) -> tuple[list[Change], int]:
    """Return the figures that changed, in the order of the later run's cases, and how many figures both runs have."""
    pairs = list(_pairs(before, after))
    return [change for change in pairs if apart(change.before, change.after)], len(pairs)


def apart(one: Spread, other: Spread) -> bool:
    """Return True if the ranges do not overlap."""
    return one.most < other.least or other.most < one.least


def _pairs(before: Results, after: Results) -> Iterator[Change]:
    for now in after.all:
        then = before.get(now.case, now.contestant)
        if then is None or min(len(now.samples), len(then.samples)) < 2:
            continue
        for figure in FIGURES:
            if figure in now.figures and figure in then.figures and then.median(figure):
                yield _change(then, now, figure)


def _change(then: Measurement, now: Measurement, figure: str) -> Change:
    before, after = then.spread(figure), now.spread(figure)
    return Change(case=now.case, contestant=now.contestant, figure=figure, before=before, after=after)
