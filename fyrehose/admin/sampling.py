"""Sample the counters of the server once per second: message rates, and the lag of the reactor.

    counters, cursors, histograms -> one Sample per second -> a History of rates, quantiles of the last minute

Sampling adds no work per message; the cost of one sample grows with the number of protocols only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.interfaces import IDelayedCall

from fyrehose.admin.history import History, Rates, Sample
from fyrehose.admin.subscriber_lags import SubscriberLags
from fyrehose.broker.broker import Broker
from fyrehose.interfaces import JournalState
from fyrehose.observe.meters import SECONDS, Histogram, JournalStatus
from fyrehose.periodic import Isolation

#: The time that :meth:`Sampler.recent_quantile` covers, in seconds.
RECENT = 60
#: :class:`StreamRates` forgets retired streams when it remembers more than this many plus twice the existing streams.
SPARE = 10_000
#: :class:`StreamRates` computes new rates at most once in this time, in seconds.
MIN_INTERVAL = 0.5
#: :class:`StreamRates` reports no rates if more than this time has passed since the last update, in seconds.
MAX_INTERVAL = 30.0
#: The interval of the timer that measures the lag of the reactor, in seconds.
TICK = 0.1

Totals = Mapping[str, tuple[int, int]]


@attrs.define(eq=False)
class Sampler:
    """A sampler of *broker*, which takes one sample per second from :meth:`start` to :meth:`stop`.

    :ivar clock: the reactor, for timers and its monotonic clock
    :ivar now: the wall clock, in seconds since 1970 UTC
    :ivar lag: delays of timers, in seconds
    :ivar history: the samples of the last minutes, of the last hour, and of the last day
    :ivar subscriber_lags: the lags of subscribers
    """

    clock: Any
    broker: Broker
    now: Callable[[], float]
    lag: Histogram = attrs.field(factory=lambda: Histogram(SECONDS))
    history: History = attrs.field(factory=History)
    subscriber_lags: SubscriberLags = attrs.field(init=False)
    _isolation: Isolation = attrs.field(factory=Isolation, init=False)
    _watchers: set[Callable[[Sample], None]] = attrs.field(factory=set, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)
    _due: float = attrs.field(default=0.0, init=False)
    _sampled_at: float = attrs.field(default=0.0, init=False)
    _max_lag: float = attrs.field(default=0.0, init=False)
    _last_totals: tuple[Totals, Totals] = attrs.field(default=({}, {}), init=False)
    _last_position: int | None = attrs.field(default=None, init=False)
    #: For each sample of the last minute, the counts of every histogram, by the histogram's key.
    _counts: deque[dict[int | str, tuple[int, ...]]] = attrs.field(factory=lambda: deque(maxlen=RECENT), init=False)
    #: For each protocol, the producers that published in the last full minute.
    _producers: dict[str, set[str]] = attrs.field(factory=dict, init=False)
    _minute: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.subscriber_lags = SubscriberLags(self.broker, self.clock.seconds)

    @property
    def samples(self) -> deque[Sample]:
        """Return the samples of the last five minutes, one per second, the oldest first."""
        return self.history.spans["5min"].kept

    def start(self) -> None:
        """Start sampling."""
        self._sampled_at = self.clock.seconds()
        self._last_totals = self._totals()
        self._note_counts()  # observations before the first sample belong to the last minute, too
        self._arm()

    def stop(self) -> None:
        """Stop sampling; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def watch(self, watcher: Callable[[Sample], None]) -> Callable[[], None]:
        """Call *watcher* with each new sample.

        :return: a function that ends the calls; calling it again does nothing
        """
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    def recent_quantile(self, which: int | str, share: float) -> float | None:
        """Return a quantile of one histogram over the last minute, or None if that has no observations.

        :param which: 0: sizes of commits, in bytes; 1: durations of commits; 2: durations of syncs; 3: lag of the
            reactor; the name of a protocol: time until its publishes are acknowledged; all of them in seconds
        :param share: from 0 to 1
        """
        now = self._histograms().get(which)
        if now is None:
            return None
        then = self._counts[0].get(which) if self._counts else None
        recent = Histogram(now.bounds)
        recent.counts = [
            after - before for after, before in zip(now.counts, then or (0,) * len(now.counts), strict=True)
        ]
        return recent.quantile(share)

    def publishers(self, protocol: str) -> int:
        """Return the number of producers that have published with *protocol* in the current and the previous minute."""
        published = self.broker.published.get(protocol)
        present: set[str] = set() if published is None else published.producers
        return len(present | self._producers.get(protocol, set()))

    def written(self) -> float | None:
        """Return the mean growth of the journal over the last hour in bytes per second; None if it is not known yet."""
        samples = self.history.samples("1h")
        return sum(sample.written for sample in samples) / len(samples) if samples else None

    def _arm(self) -> None:
        self._due = self.clock.seconds() + TICK
        self._timer = self.clock.callLater(TICK, self._tick)

    def _tick(self) -> None:
        now = self.clock.seconds()
        late = max(0.0, now - self._due)
        self.lag.observe(late)
        self._max_lag = max(self._max_lag, late)
        self._arm()
        self._isolation.call("lags of subscribers", self.subscriber_lags.step)
        if now - self._sampled_at >= 1.0 - TICK / 2:
            self._isolation.call("samples", self._sample, now)

    def _sample(self, now: float) -> None:
        published, delivered = self._totals()
        elapsed = now - self._sampled_at
        sample = Sample(
            time=self.now(),
            published=_rates(self._last_totals[0], published, elapsed),
            delivered=_rates(self._last_totals[1], delivered, elapsed),
            written=self._growth() / elapsed,
            lag=self._max_lag,
        )
        self._sampled_at, self._last_totals, self._max_lag = now, (published, delivered), 0.0
        self.history.add(sample)
        self._note_counts()
        if now // 60 != self._minute:
            self._minute = int(now // 60)
            self._producers = {protocol: each.producers for protocol, each in self.broker.published.items()}
            for each in self.broker.published.values():
                each.producers = set()
        for watcher in list(self._watchers):
            self._isolation.call(f"watcher {watcher!r}", watcher, sample)

    def _note_counts(self) -> None:
        self._counts.append({key: tuple(histogram.counts) for key, histogram in self._histograms().items()})

    def _growth(self) -> int:
        """Return the number of bytes that were appended to the journal since the last call."""
        status = journal_status(self.broker)
        before, position = self._last_position, None if status is None else status.position
        self._last_position = position
        return 0 if before is None or position is None else position - before

    def _histograms(self) -> dict[int | str, Histogram]:
        meters = self.broker.journal.meters
        found: dict[int | str, Histogram] = {
            0: meters.commit_bytes,
            1: meters.commit_seconds,
            2: meters.sync_seconds,
            3: self.lag,
        }
        found.update((protocol, published.seconds) for protocol, published in self.broker.published.items())
        return found

    def _totals(self) -> tuple[Totals, Totals]:
        return published_by_protocol(self.broker), delivered_by_protocol(self.broker)


def journal_status(broker: Broker) -> JournalStatus | None:
    """Return the status of the journal; None if it is not open, or of a kind that has no status."""
    if broker.journal.state in (JournalState.CLOSED, JournalState.FAILED):
        return None
    status: JournalStatus | None = broker.journal.status()
    return status


def published_by_protocol(broker: Broker) -> Totals:
    """Return, by protocol, the numbers of messages and bytes that were published and became durable.

    Records that a protocol writes for itself, with a source named PROTOCOL-SOMETHING, do not count.
    """
    own = ("server-", *(f"{listener.protocol}-" for listener in broker.listeners))
    return {
        protocol: (published.messages, published.bytes)
        for protocol, published in broker.published.items()
        if not protocol.startswith(own)
    }


def delivered_by_protocol(broker: Broker) -> Totals:
    """Return, by protocol, the numbers of messages and bytes that were delivered to clients."""
    return {protocol: tally.delivered for protocol, tally in broker.fanout.tallies.items()}


def _rates(before: Totals, after: Totals, elapsed: float) -> Rates:
    rates = {}
    for protocol, totals in after.items():
        old = before.get(protocol, (0, 0))
        rates[protocol] = ((totals[0] - old[0]) / elapsed, (totals[1] - old[1]) / elapsed)
    return rates


@attrs.define(eq=False)
class StreamRates:
    """The message rates of streams, computed on demand.

    The cost of a call grows with the number of streams that changed since the last call; the first call visits all.

    :ivar seconds: the monotonic clock
    :ivar spare: how many streams are remembered besides twice the existing ones
    :ivar growth: the streams that grew between the last two updates, and by how many records
    :ivar growth_bytes: the payload of these records, in bytes
    """

    seconds: Callable[[], float]
    broker: Broker
    spare: int = SPARE
    growth: dict[str, int] = attrs.field(factory=dict, init=False)
    growth_bytes: dict[str, int] = attrs.field(factory=dict, init=False)
    #: For each stream, its last number at the last update.
    _last_seqs: dict[str, int] = attrs.field(factory=dict, init=False)
    #: time of the last update, and the interval between the last two, in seconds
    _updated_at: float | None = attrs.field(default=None, init=False)
    _elapsed: float | None = attrs.field(default=None, init=False)

    def current(self) -> Callable[[str], float | None]:
        """Update the rates if the last update is old enough; return a function that maps a stream to its rate.

        :return: maps a stream to its messages per second between the last two updates; None if these are unknown,
            because this is the first update or the last one was longer than :data:`MAX_INTERVAL` ago
        """
        now = self.seconds()
        if self._updated_at is None or now - self._updated_at >= MIN_INTERVAL:
            ends, grown = self.broker.journal.ends(), self.broker.grown
            elapsed = None if self._updated_at is None else now - self._updated_at
            self._elapsed = None if elapsed is None or elapsed > MAX_INTERVAL else elapsed
            self._updated_at, self.broker.grown = now, set()
            sizes, self.broker.grown_bytes = self.broker.grown_bytes, {}
            self.growth_bytes = {} if self._elapsed is None else sizes
            if grown is None:
                self._last_seqs = dict(ends)
            else:
                last_seqs = self._last_seqs
                growth = {stream: ends[stream] - self._last_seq(stream) for stream in grown if stream in ends}
                last_seqs.update((stream, ends[stream]) for stream in growth)
                if len(last_seqs) > 2 * len(ends) + self.spare:  # Most of them belong to retired streams.
                    self._last_seqs = {stream: last for stream, last in last_seqs.items() if stream in ends}
                self.growth = {} if self._elapsed is None else growth
        elapsed, growth = self._elapsed, self.growth
        if elapsed is None:
            return lambda stream: None
        return lambda stream: growth.get(stream, 0) / elapsed

    def bytes_rate(self, stream: str) -> float | None:
        """Return the payload published to *stream* between the last two updates, in bytes per second; None: unknown."""
        return None if self._elapsed is None else self.growth_bytes.get(stream, 0) / self._elapsed

    def _last_seq(self, stream: str) -> int:
        """Return the last number of *stream* at the last update; for a stream created since, that before its first."""
        last = self._last_seqs.get(stream)
        return self.broker.bounds(stream)[0] - 1 if last is None else last


@attrs.define(eq=False)
class WorkRates:
    """How fast shared subscriptions settle records, and when they will be empty, computed on demand.

    :ivar seconds: the monotonic clock
    """

    seconds: Callable[[], float]
    #: For each subscription, counts of the last minute, the oldest first: their time, settled and open records.
    _counts: dict[str, deque[tuple[float, int, int]]] = attrs.field(factory=dict, init=False)

    def added(self, every: Sequence[dict[str, Any]], listed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the subscriptions *listed*; the shared ones with ``settled_rate`` and ``empty_in``.

        ``settled_rate`` is in records per second since the first look in the last minute; None: this is the first one.
        ``empty_in`` is the time in which the last record will be settled if the number of open ones goes on falling as
        in that time, in seconds; None: it does not fall, or is not known.

        :param every: all subscriptions; others are forgotten
        """
        names = {each["name"] for each in every}
        self._counts = {name: counts for name, counts in self._counts.items() if name in names}
        return [self._with_rates(each) if each["kind"] == "shared" else each for each in listed]

    def _with_rates(self, each: dict[str, Any]) -> dict[str, Any]:
        now, settled = self.seconds(), each["settled_total"]
        left = each["lag"] + each["in_flight"] + each["waiting"] + each["delayed"]
        counts = self._counts.setdefault(each["name"], deque())
        if not counts or now - counts[-1][0] >= RECENT / 12:
            counts.append((now, settled, left))
        while now - counts[0][0] > RECENT:
            counts.popleft()
        then, settled_then, left_then = counts[0]
        elapsed, fallen = now - then, left_then - left
        rate = None if elapsed < MIN_INTERVAL else max(0, settled - settled_then) / elapsed
        empty = 0.0 if not left else None if rate is None or fallen <= 0 else left * elapsed / fallen
        return {**each, "settled_rate": rate, "empty_in": empty}
