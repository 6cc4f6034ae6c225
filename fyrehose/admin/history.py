"""Keep the rates of the last five minutes, the last hour and the last day in a bounded number of samples.

    one Sample per second -> 5min: the samples; 1h: means of 10 seconds; 24h: means of 5 minutes

However long the server runs, there are 948 samples in total, whose size depends on the number of protocols.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

Rates = dict[str, tuple[float, float]]


@attrs.frozen(slots=True, kw_only=True)
class Sample:
    """A sample: rates of one second, or mean rates over several seconds.

    :ivar time: end of the time that the sample covers, in seconds since 1970 UTC
    :ivar published: messages and bytes published per second, by protocol; a message counts once it is durable
    :ivar delivered: messages and bytes sent to clients per second, by protocol
    :ivar written: bytes appended to the journal per second
    :ivar lag: the largest delay of a timer, in seconds
    """

    time: float
    published: Rates
    delivered: Rates
    written: float = 0.0
    lag: float


@attrs.define(eq=False)
class Series:
    """The samples of one span of time, such as the last hour, as means over a step, such as 10 seconds.

    :ivar step: the time that one sample covers, in seconds
    :ivar kept: complete samples, the oldest first
    """

    step: int
    most: int
    kept: deque[Sample] = attrs.field(init=False)
    #: The samples of the present step, whose mean is kept when the step ends.
    _current: list[Sample] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.kept = deque(maxlen=self.most)

    def add(self, sample: Sample) -> None:
        """Add the sample of one second."""
        if self.step == 1:
            self.kept.append(sample)
            return
        # A step ends by the clock, not after a number of samples, because samples may be late and the wall clock may be
        # set.
        if self._current and sample.time // self.step != self._current[0].time // self.step:
            self.kept.append(mean(self._current))
            self._current = []
        self._current.append(sample)

    def samples(self) -> list[Sample]:
        """Return all samples, the oldest first; the last one may cover only a part of its step."""
        return [*self.kept, mean(self._current)] if self._current else list(self.kept)


#: The spans that a history covers: for each, the time that a sample covers, in seconds, and the number of samples.
SPANS = {"5min": (1, 300), "1h": (10, 360), "24h": (300, 288)}


@attrs.define(eq=False)
class History:
    """The samples of every span of :data:`SPANS`."""

    spans: dict[str, Series] = attrs.field(
        factory=lambda: {name: Series(step, most) for name, (step, most) in SPANS.items()}, init=False
    )

    def add(self, sample: Sample) -> None:
        """Add the sample of one second."""
        for series in self.spans.values():
            series.add(sample)

    def samples(self, span: str) -> list[Sample]:
        """Return the samples of the span *span*, a key of :data:`SPANS`, the oldest first."""
        return self.spans[span].samples()


def mean(samples: Sequence[Sample]) -> Sample:
    """Return one sample for the whole time of *samples*, at least one: with mean rates and the largest lag."""
    return Sample(
        time=samples[-1].time,
        published=_mean([sample.published for sample in samples]),
        delivered=_mean([sample.delivered for sample in samples]),
        written=sum(sample.written for sample in samples) / len(samples),
        lag=max(sample.lag for sample in samples),
    )


def _mean(rates: Sequence[Rates]) -> Rates:
    totals: dict[str, tuple[float, float]] = {}
    for each in rates:
        for protocol, (messages, size) in each.items():
            before = totals.get(protocol, (0.0, 0.0))
            totals[protocol] = (before[0] + messages, before[1] + size)
    count = len(rates)
    return {protocol: (messages / count, size / count) for protocol, (messages, size) in totals.items()}
