"""What came out: samples, their medians and spread, and all of it as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Sample:
    """One round."""

    messages: int
    seconds: float
    #: CPU seconds of the server, and the user's and the kernel's part
    cpu: float
    user: float
    system: float
    #: CPU seconds of the load maker that spent most
    maker_cpu: float
    #: messages that all subscribers together received
    received: int
    lost: int
    #: the most that the server had in memory, in bytes
    peak: int
    latency: dict[str, list[float]] = attrs.field(factory=dict)

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def micros(self) -> float:
        """Microseconds of the server's CPU for a message."""
        return self.cpu / self.messages * 1e6

    @property
    def per_cpu(self) -> float:
        """Messages for a second of the server's CPU."""
        return self.messages / self.cpu

    @property
    def maker_micros(self) -> float:
        """Microseconds of the busiest load maker's CPU for a message."""
        return self.maker_cpu / self.messages * 1e6

    @property
    def busy(self) -> float:
        """How much of the time the busiest load maker was busy: near 1, it may be what was measured."""
        return self.maker_cpu / self.seconds


@attrs.frozen
class Spread:
    """The middle of some numbers, and how far they go."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Spread:
        found = sorted(numbers)
        return cls(statistics.median(found), found[0], found[-1])


@attrs.frozen(kw_only=True)
class Measured:
    """All rounds of one contestant at one case."""

    case: str
    contestant: str
    samples: Sequence[Sample]

    def spread(self, figure: Callable[[Sample], float]) -> Spread:
        """Median and spread of one figure."""
        return Spread.of(figure(sample) for sample in self.samples)

    def median(self, figure: Callable[[Sample], float]) -> float:
        return self.spread(figure).median


FIGURES: dict[str, Callable[[Sample], float]] = {
    "rate": lambda sample: sample.rate,
    "micros": lambda sample: sample.micros,
    "per_cpu": lambda sample: sample.per_cpu,
    "maker_micros": lambda sample: sample.maker_micros,
    "busy": lambda sample: sample.busy,
    "peak": lambda sample: float(sample.peak),
}


def as_json(measured: Iterable[Measured]) -> list[dict[str, Any]]:
    """For files: every sample, and the medians and spreads that come of them."""
    return [
        {
            "case": one.case,
            "contestant": one.contestant,
            **{name: attrs.asdict(one.spread(figure)) for name, figure in FIGURES.items()},
            "samples": [attrs.asdict(sample) for sample in one.samples],
        }
        for one in measured
    ]
