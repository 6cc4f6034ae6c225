"""Sample the counters of the server once per second: message rates, and the lag of the reactor.

    counters, cursors, histograms -> one Sample per second -> rates, quantiles of the last minute

Sampling adds no work per message; the cost of one sample grows with the number of protocols only.
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

#: The number of samples kept, which is also the time that they cover, in seconds.
KEPT_SAMPLES = 300
#: The time that :meth:`Sampler.recent_quantile` covers, in seconds.
RECENT = 60
#: Retired streams that :class:`StreamRates` may remember, beside as many as there are streams.
SPARE = 10_000
#: :class:`StreamRates` computes no new rates before this time has passed, in seconds.
MIN_INTERVAL = 0.5
#: :class:`StreamRates` reports no rates over a longer time than this, in seconds.
MAX_INTERVAL = 30.0
#: The interval of the timer that measures the lag of the reactor, in seconds.
TICK = 0.1

Rates = dict[str, tuple[float, float]]
Totals = Mapping[str, tuple[int, int]]


@attrs.frozen(slots=True, kw_only=True)
class Sample:
    """The rates of one second.

    :ivar time: end of the second, in seconds since 1970 UTC
    :ivar published: messages and bytes published per second, by protocol; both count once they are durable
    :ivar delivered: messages and bytes delivered per second, by protocol
    :ivar lag: the largest delay of a timer, in seconds
    """

    time: float
    published: Rates
    delivered: Rates
    lag: float


@attrs.define(eq=False)
class Sampler:
    """Samples *broker* once per second, from :meth:`start` to :meth:`stop`.

    :ivar clock: the reactor, for timers and its monotonic clock
    :ivar now: the wall clock, in seconds since 1970 UTC
    :ivar lag: delays of timers, in seconds
    :ivar samples: the last :data:`KEPT_SAMPLES` samples, the oldest first
    :ivar census: the lags of subscribers
    """

    clock: Any
    broker: Broker
    now: Callable[[], float]
    lag: Histogram = attrs.field(factory=lambda: Histogram(SECONDS))
    samples: deque[Sample] = attrs.field(factory=lambda: deque(maxlen=KEPT_SAMPLES))
    census: Census = attrs.field(init=False)
    _watchers: set[Callable[[Sample], None]] = attrs.field(factory=set, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)
    _due: float = attrs.field(default=0.0, init=False)
    _sampled_at: float = attrs.field(default=0.0, init=False)
    _max_lag: float = attrs.field(default=0.0, init=False)
    _last_totals: tuple[Totals, Totals] = attrs.field(default=({}, {}), init=False)
    #: the counts of every histogram at each sample of the last minute
    _counts: deque[tuple[tuple[int, ...], ...]] = attrs.field(factory=lambda: deque(maxlen=RECENT), init=False)

    def __attrs_post_init__(self) -> None:
        self.census = Census(self.broker, self.clock.seconds)

    def start(self) -> None:
        """Start sampling."""
        self._sampled_at = self.clock.seconds()
        self._last_totals = self._totals()
        self._arm()

    def stop(self) -> None:
        """Stop sampling; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def watch(self, watcher: Callable[[Sample], None]) -> Callable[[], None]:
        """Call *watcher* with each new sample.

        :return: a function that ends this; idempotent
        """
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    def recent_quantile(self, which: int, share: float) -> float | None:
        """Return a quantile of one histogram over the last minute, or None if it has no observations.

        :param which: 0: sizes of commits, in bytes; 1: durations of commits; 2: durations of syncs; 3: lag of the
            reactor, all in seconds
        :param share: from 0 to 1
        """
        histograms = self._histograms()
        if which >= len(histograms):
            return None
        now = histograms[which]
        then = self._counts[0][which] if self._counts else (0,) * len(now.counts)
        recent = Histogram(now.bounds)
        recent.counts = [after - before for after, before in zip(now.counts, then, strict=True)]
        return recent.quantile(share)

    def _arm(self) -> None:
        self._due = self.clock.seconds() + TICK
        self._timer = self.clock.callLater(TICK, self._tick)

    def _tick(self) -> None:
        now = self.clock.seconds()
        late = max(0.0, now - self._due)
        self.lag.observe(late)
        self._max_lag = max(self._max_lag, late)
        self._arm()
        self.census.step()
        if now - self._sampled_at >= 1.0 - TICK / 2:
            self._sample(now)

    def _sample(self, now: float) -> None:
        published, delivered = self._totals()
        elapsed = now - self._sampled_at
        sample = Sample(
            time=self.now(),
            published=_rates(self._last_totals[0], published, elapsed),
            delivered=_rates(self._last_totals[1], delivered, elapsed),
            lag=self._max_lag,
        )
        self._sampled_at, self._last_totals, self._max_lag = now, (published, delivered), 0.0
        self.samples.append(sample)
        self._counts.append(tuple(tuple(histogram.counts) for histogram in self._histograms()))
        for watcher in list(self._watchers):
            watcher(sample)

    def _histograms(self) -> list[Histogram]:
        meters = meters_of(self.broker)
        return [meters.commit_bytes, meters.commit_seconds, meters.sync_seconds, self.lag]

    def _totals(self) -> tuple[Totals, Totals]:
        return published_by_protocol(self.broker), delivered_by_protocol(self.broker)


_NO_METERS = JournalMeters()


def meters_of(broker: Broker) -> JournalMeters:
    """Return the meters of the journal; empty ones if a journal of another kind has none."""
    meters: JournalMeters = getattr(broker.journal, "meters", _NO_METERS)
    return meters


def published_by_protocol(broker: Broker) -> Totals:
    """Return the messages and bytes that were published and became durable, by protocol.

    A protocol's own records, whose source is named PROTOCOL-SOMETHING, do not count.
    """
    own = ("server-", *(f"{listener.protocol}-" for listener in broker.listeners))
    return {
        protocol: (published.messages, published.bytes)
        for protocol, published in broker.published.items()
        if not protocol.startswith(own)
    }


def delivered_by_protocol(broker: Broker) -> Totals:
    """Return the messages and bytes that were delivered, by protocol."""
    return {protocol: (tally.messages, tally.bytes) for protocol, tally in broker.tallies().items()}


def _rates(before: Totals, after: Totals, elapsed: float) -> Rates:
    rates = {}
    for protocol, totals in after.items():
        old = before.get(protocol, (0, 0))
        rates[protocol] = ((totals[0] - old[0]) / elapsed, (totals[1] - old[1]) / elapsed)
    return rates


@attrs.define(eq=False)
class StreamRates:
    """Computes the message rates of streams on demand.

    Its cost grows with the number of streams that changed since the last call; only the first call visits all streams.

    :ivar seconds: the monotonic clock
    :ivar growth: the streams that grew between the last two updates, and by how many records
    """

    seconds: Callable[[], float]
    broker: Broker
    growth: dict[str, int] = attrs.field(factory=dict, init=False)
    #: the last sequence number of each stream at the last update
    _last_seqs: dict[str, int] = attrs.field(factory=dict, init=False)
    #: time of the last update, and the interval between the last two, in seconds
    _updated_at: float | None = attrs.field(default=None, init=False)
    _elapsed: float | None = attrs.field(default=None, init=False)

    def current(self) -> Callable[[str], float | None]:
        """Update the rates if the last update is old enough, and return a function that looks one up.

        :return: maps a stream to its messages per second between the last two updates; None if these are unknown,
            because this is the first update or the last one was longer than :data:`MAX_INTERVAL` ago
        """
        now = self.seconds()
        if self._updated_at is None or now - self._updated_at >= MIN_INTERVAL:
            ends, grown = self.broker.journal.ends(), self.broker.grown
            elapsed = None if self._updated_at is None else now - self._updated_at
            self._elapsed = None if elapsed is None or elapsed > MAX_INTERVAL else elapsed
            self._updated_at, self.broker.grown = now, set()
            if grown is None:
                self._last_seqs = dict(ends)
            else:
                last_seqs = self._last_seqs
                growth = {stream: ends[stream] - self._last_seq(stream) for stream in grown if stream in ends}
                last_seqs.update((stream, ends[stream]) for stream in growth)
                if len(last_seqs) > 2 * len(ends) + SPARE:  # Most of them belong to retired streams.
                    self._last_seqs = {stream: last for stream, last in last_seqs.items() if stream in ends}
                self.growth = {} if self._elapsed is None else growth
        elapsed, growth = self._elapsed, self.growth
        if elapsed is None:
            return lambda stream: None
        return lambda stream: growth.get(stream, 0) / elapsed

    def _last_seq(self, stream: str) -> int:
        """Return the last number of *stream* at the last update; if it was created since, the one before its first."""
        last = self._last_seqs.get(stream)
        return self.broker.bounds(stream)[0] - 1 if last is None else last
