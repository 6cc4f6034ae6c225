"""The figures of a round, their median and range.

rate                  messages a second
micros, user, system  us of the server's CPU for each message: all of it, in user mode, in the kernel
maker, busy           us of the busiest load maker's CPU for each message, and the part of the time that it was busy
peak, grown           the most memory that the server had, and by how much it grew, in bytes
sent, received, lost  messages that all subscribers together should get, that they got, and that were lost
acknowledged, arrived s from when a message was due to its acknowledgement, or to its arrival at a subscriber
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import attrs

#: The percentiles of latencies; ``acknowledged.99`` is the name of such a figure.
PERCENTILES = (50.0, 99.0, 99.9)

#: The figures of one round: name -> value.
Sample = Mapping[str, float]


def latency(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the percentiles ``values`` as figures called ``name.PERCENTILE``."""
    return {f"{name}.{percentile:g}": value for percentile, value in zip(PERCENTILES, values, strict=True)}


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
