"""How the cost of a message grows with the number of subscribers, connections, streams, bytes: a slope for each.

A slope of 0 means that the cost stays the same, of 1 that it grows in proportion: it is fitted to the logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import attrs

from benchmarks.results import Results
from fyrehose.bench.results import Spread

#: The dimensions, by their name in the names of cases: their name on the page, the figure that grows, and its unit.
DIMENSIONS = {
    "subscribers": ("subscribers", "micros", "us of CPU a message"),
    "connections": ("connections, one in a hundred active", "micros", "us of CPU a message"),
    "streams": ("streams, in turn", "micros", "us of CPU a message"),
    "size": ("bytes of a message", "micros", "us of CPU a message"),
    "journal": ("GB of journal", "seconds", "s to start after kill -9"),
}


@attrs.frozen(kw_only=True)
class Growth:
    """The cost at each number of one dimension."""

    name: str
    what: str
    unit: str
    #: number, and the cost there
    points: Sequence[tuple[int, Spread]]

    @property
    def slope(self) -> float:
        """Return the slope that fits all points best."""
        return fitted([(number, cost.median) for number, cost in self.points])

    @property
    def last_slope(self) -> float:
        """Return the slope between the two points with the largest numbers."""
        return fitted([(number, cost.median) for number, cost in self.points[-2:]])


def fitted(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line through the logarithms of ``points`` with the least squares.

    >>> round(fitted([(1, 5), (10, 50), (100, 500)]), 6)
    1.0
    """
    xs, ys = ([math.log(point[place]) for point in points] for place in (0, 1))
    middle, height = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - middle) * (y - height) for x, y in zip(xs, ys, strict=True)) / sum((x - middle) ** 2 for x in xs)


def growths(results: Results) -> Iterator[Growth]:
    """Return each dimension that was measured at two numbers or more."""
    for name, (what, figure, unit) in DIMENSIONS.items():
        points = sorted(
            (int(one.case.rpartition("/")[2]), one.spread(figure))
            for one in results.all
            if one.case.startswith(f"growth/{name}/") and figure in one.figures
        )
        if len(points) > 1:
            yield Growth(name=name, what=what, unit=unit, points=points)
