"""A look at the server each second: rates, for the last minutes, and how late the reactor is.

    counters, cursors, histograms -> Sample, one a second -> rates, quantiles of the last minute

Nothing is done for a message; what a look costs depends on how many protocols there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from twisted.internet.interfaces import IDelayedCall

from fyrehose.admin.census import Census
from fyrehose.core.broker import Broker
from fyrehose.observe.meters import SECONDS, Histogram, JournalMeters

#: How long is remembered, in seconds.
MEMORY = 300
#: What "of late" means for quantiles, in seconds.
LATELY = 60
#: Retired streams that may be remembered beside as many as there are.
SPARE = 10_000
#: Looks at streams that are no further apart see the same, in seconds.
HALF = 0.5
#: A rate over more than this says little of now, in seconds.
LONG = 30.0
#: How often it is seen how late the reactor is, in seconds.
BEAT = 0.1

Rates = dict[str, tuple[float, float]]
Totals = Mapping[str, tuple[int, int]]


@attrs.frozen(slots=True, kw_only=True)
class Sample:
    """One second.

    :ivar time: when, in seconds since 1970 UTC
    :ivar taken: messages and bytes that became durable, a second, by protocol
    :ivar given: messages and bytes that were delivered, a second, by protocol
    :ivar lag: how late the reactor was at most, in seconds
    """

    time: float
    taken: Rates
    given: Rates
    lag: float


@attrs.define(eq=False)
class Sampler:
    """Looks at ``broker`` each second, from :meth:`start` to :meth:`stop`.

    :ivar clock: the reactor: timers, and a monotonic clock
    :ivar now: the wall clock, in seconds since 1970 UTC
    :ivar lag: how late timers were, in seconds
    :ivar census: how far subscribers are behind
    """

    clock: Any
    broker: Broker
    now: Callable[[], float]
    lag: Histogram = attrs.field(factory=lambda: Histogram(SECONDS))
    samples: deque[Sample] = attrs.field(factory=lambda: deque(maxlen=MEMORY))
    census: Census = attrs.field(init=False)
    _watchers: set[Callable[[Sample], None]] = attrs.field(factory=set, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)
    _due: float = attrs.field(default=0.0, init=False)
    _looked: float = attrs.field(default=0.0, init=False)
    _worst: float = attrs.field(default=0.0, init=False)
    _before: tuple[Totals, Totals] = attrs.field(default=({}, {}), init=False)
    _counts: deque[tuple[tuple[int, ...], ...]] = attrs.field(factory=lambda: deque(maxlen=LATELY), init=False)

    def __attrs_post_init__(self) -> None:
        self.census = Census(self.broker, self.clock.seconds)

    def start(self) -> None:
        """Begin to look."""
        self._looked = self.clock.seconds()
        self._before = self._totals()
        self._arm()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def watch(self, watcher: Callable[[Sample], None]) -> Callable[[], None]:
        """Tell ``watcher`` of each sample, until what this returns is called."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    def lately(self, which: int, share: float) -> float | None:
        """A quantile of the last minute: of commits' bytes (0), their seconds (1), syncs' seconds (2), or lag (3)."""
        histograms = self._histograms()
        if which >= len(histograms):
            return None
        now = histograms[which]
        then = self._counts[0][which] if self._counts else (0,) * len(now.counts)
        recent = Histogram(now.bounds)
        recent.counts = [after - before for after, before in zip(now.counts, then, strict=True)]
        return recent.quantile(share)

    def _arm(self) -> None:
        self._due = self.clock.seconds() + BEAT
        self._timer = self.clock.callLater(BEAT, self._beat)

    def _beat(self) -> None:
        now = self.clock.seconds()
        late = max(0.0, now - self._due)
        self.lag.observe(late)
        self._worst = max(self._worst, late)
        self._arm()
        self.census.step()
        if now - self._looked >= 1.0 - BEAT / 2:
            self._look(now)

    def _look(self, now: float) -> None:
        taken, given = self._totals()
        elapsed = now - self._looked
        sample = Sample(
            time=self.now(),
            taken=_rates(self._before[0], taken, elapsed),
            given=_rates(self._before[1], given, elapsed),
            lag=self._worst,
        )
        self._looked, self._before, self._worst = now, (taken, given), 0.0
        self.samples.append(sample)
        self._counts.append(tuple(tuple(histogram.counts) for histogram in self._histograms()))
        for watcher in list(self._watchers):
            watcher(sample)

    def _histograms(self) -> list[Histogram]:
        meters = meters_of(self.broker)
        return [meters.commit_bytes, meters.commit_seconds, meters.sync_seconds, self.lag]

    def _totals(self) -> tuple[Totals, Totals]:
        return taken_by_protocol(self.broker), given_by_protocol(self.broker)


_NOTHING = JournalMeters()


def meters_of(broker: Broker) -> JournalMeters:
    """What the journal measures; a journal that is not ours may measure nothing."""
    meters: JournalMeters = getattr(broker.journal, "meters", _NOTHING)
    return meters


def taken_by_protocol(broker: Broker) -> Totals:
    """Messages and bytes that became durable, by protocol; not what one writes for itself, as PROTOCOL-SOMETHING."""
    own = tuple(f"{listener.protocol}-" for listener in broker.listeners)
    return {
        protocol: (published.messages, published.bytes)
        for protocol, published in broker.published.items()
        if not protocol.startswith(own)
    }


def given_by_protocol(broker: Broker) -> Totals:
    """Messages and bytes that were delivered, by protocol."""
    return {protocol: (tally.messages, tally.bytes) for protocol, tally in broker.tallies().items()}


def _rates(before: Totals, after: Totals, elapsed: float) -> Rates:
    rates = {}
    for protocol, totals in after.items():
        old = before.get(protocol, (0, 0))
        rates[protocol] = ((totals[0] - old[0]) / elapsed, (totals[1] - old[1]) / elapsed)
    return rates


@attrs.define(eq=False)
class StreamRates:
    """How fast streams grow, for those who ask.

    A look costs as much as there are streams that grew since the last one, and the first look as there are streams.

    :ivar seconds: the monotonic clock
    :ivar growth: the streams that grew between the last two looks, and by how many records
    """

    seconds: Callable[[], float]
    broker: Broker
    growth: dict[str, int] = attrs.field(factory=dict, init=False)
    _seen: dict[str, int] = attrs.field(factory=dict, init=False)
    #: when the last look was, and how long after the one before
    _time: float | None = attrs.field(default=None, init=False)
    _elapsed: float | None = attrs.field(default=None, init=False)

    def look(self) -> Callable[[str], float | None]:
        """The rate of each stream since it was looked at last, at least half a second ago; None: not known yet."""
        now = self.seconds()
        if self._time is None or now - self._time >= HALF:
            ends, grown = self.broker.journal.ends(), self.broker.grown
            self._elapsed = None if self._time is None or now - self._time > LONG else now - self._time
            self._time, self.broker.grown = now, set()
            if grown is None:
                self._seen = dict(ends)
            else:
                seen = self._seen
                growth = {stream: ends[stream] - self._before(stream) for stream in grown if stream in ends}
                seen.update((stream, ends[stream]) for stream in growth)
                if len(seen) > 2 * len(ends) + SPARE:  # of streams that are retired by now
                    self._seen = {stream: last for stream, last in seen.items() if stream in ends}
                self.growth = {} if self._elapsed is None else growth
        elapsed, growth = self._elapsed, self.growth
        if elapsed is None:
            return lambda stream: None
        return lambda stream: growth.get(stream, 0) / elapsed

    def _before(self, stream: str) -> int:
        """Return the last number of *stream* at the last look; of one that is new, or has returned, where it begins."""
        seen = self._seen.get(stream)
        return self.broker.bounds(stream)[0] - 1 if seen is None else seen
