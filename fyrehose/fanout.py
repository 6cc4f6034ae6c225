"""Fan-out: from the journal to whoever subscribed.

A subscriber is a cursor: one integer.  When a commit is durable the cursors that wait at the end of its streams read
it; a cursor that is further behind reads older records by the very same loop.  Those that stand at the same place
share one delivery, so each protocol encodes it once.  A cursor that is paused is not looked at; one that has left is
gone; one whose sink fails ends alone.

    in: durable(ends), resumeProducing()      out: ISink.deliver(Delivery), .skipped(first, last), .ended(reason)
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.errors import JournalCorrupt
from fyrehose.interfaces import ISink, ISubscription
from fyrehose.records import Delivery, Run

log = Logger()

#: What one cursor delivers before the next has its turn, in bytes of payload.
TURN = 256 << 10
#: What all cursors together deliver before the reactor does, in bytes of payload.
ROUND = 4 << 20
#: What is kept of the latest deliveries, for those who come to the same place a little later, in bytes of payload.
SHARED = 4 << 20
#: How many of them: each may keep alive the batch that it is a small part of.
SHARED_COUNT = 256


@implementer(ISubscription)
@attrs.define(eq=False)
class Cursor:
    """One subscriber's place in one stream."""

    stream: str
    position: int
    sink: ISink
    _fanout: Fanout
    paused: bool = attrs.field(default=True, init=False)
    stopped: bool = attrs.field(default=False, init=False)
    #: in the queue or at the end of its stream, so that resuming twice does not queue it twice
    placed: bool = attrs.field(default=False, init=False)
    #: what it was given, in records and in bytes of payload
    delivered: int = attrs.field(default=0, init=False)
    delivered_bytes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._fanout.cursors.add(self)

    @property
    def reader(self) -> tuple[str, str]:
        """Who reads: the kit's name, and the peer, as far as the sink says it."""
        return getattr(self.sink, "reader", ("", ""))

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        self._fanout.ready(self)

    def stopProducing(self) -> None:
        self.stopped = True
        self._fanout.forget(self)

    def end(self, reason: Exception) -> None:
        """Nothing more is to be delivered, and the sink is told why."""
        self._fanout.end(self, reason)


@attrs.define(eq=False)
class Fanout:
    """All cursors of a server.

    :ivar clock: gives the others their turn between two rounds
    :ivar read: see :meth:`fyrehose.interfaces.IJournal.read`
    """

    clock: IReactorTime
    read: Callable[[str, int, int], tuple[Run, ...]]
    cursors: set[Cursor] = attrs.field(factory=set, init=False)
    #: what those were given that are not there any more
    _departed: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    _waiting: dict[str, dict[Cursor, None]] = attrs.field(factory=dict, init=False)
    _queue: deque[Cursor] = attrs.field(factory=deque, init=False)
    _next_round: IDelayedCall | None = attrs.field(default=None, init=False)
    _recent: OrderedDict[tuple[str, int], Delivery] = attrs.field(factory=OrderedDict, init=False)
    _recent_size: int = attrs.field(default=0, init=False)
    #: why there is nothing more to come
    _ended: Exception | None = attrs.field(default=None, init=False)

    def durable(self, streams: Iterable[str]) -> None:
        """These streams grew: whoever waits at their end goes on."""
        for stream in streams:
            self._queue.extend(self._waiting.pop(stream, ()))
        if self._next_round is None:
            self._round()

    def ready(self, cursor: Cursor) -> None:
        """``cursor`` wants to go on."""
        if cursor.placed or cursor.stopped:
            return
        if self._ended is not None:
            self._end(cursor, self._ended)
            return
        cursor.placed = True
        self._queue.append(cursor)
        self._schedule()

    def forget(self, cursor: Cursor) -> None:
        """``cursor`` has left."""
        self._depart(cursor)
        waiting = self._waiting.get(cursor.stream)
        if waiting is not None:
            waiting.pop(cursor, None)
            if not waiting:
                del self._waiting[cursor.stream]

    def end(self, cursor: Cursor, reason: Exception) -> None:
        """``cursor`` gets nothing more, because of ``reason``."""
        self.forget(cursor)
        self._end(cursor, reason)

    def delivered(self) -> Counter[tuple[str, str]]:
        """What was delivered, by (kit, "messages" or "bytes" of payload)."""
        total = self._departed.copy()
        for cursor in self.cursors:
            _count(total, cursor)
        return total

    def close(self, reason: Exception) -> None:
        """Nothing more will be durable: every subscription ends, one that is paused when it is resumed."""
        self._ended = reason
        if self._next_round is not None:
            self._next_round.cancel()
            self._next_round = None
        cursors = [*self._queue, *(cursor for waiting in self._waiting.values() for cursor in waiting)]
        self._queue.clear()
        self._waiting.clear()
        self._recent.clear()
        self._recent_size = 0
        for cursor in cursors:
            self._end(cursor, reason)

    def _schedule(self) -> None:
        if self._next_round is None:
            self._next_round = self.clock.callLater(0, self._later)

    def _later(self) -> None:
        self._next_round = None
        self._round()

    def _round(self) -> None:
        """Each cursor in the queue has one turn, until the reactor has waited long enough."""
        left = ROUND
        for _ in range(len(self._queue)):
            if left <= 0 or not self._queue:  # a sink that publishes may have caused a round within this one
                break
            left -= self._turn(self._queue.popleft())
        if self._queue:
            self._schedule()

    def _turn(self, cursor: Cursor) -> int:
        cursor.placed = False
        delivery = self._next(cursor)
        if delivery is None:
            return 0
        self._deliver(cursor, delivery)
        # After a small one nearly everybody stands at the end of the stream: that is seen now, not by another round.
        if (delivery.size > TURN // 2 or self._next(cursor) is not None) and not cursor.paused:
            self.ready(cursor)
        return delivery.size

    def _next(self, cursor: Cursor) -> Delivery | None:
        """What ``cursor`` is to be given; None if it takes nothing now, or waits for more from now on, or has ended."""
        if cursor.paused or cursor.stopped or cursor.placed:
            return None
        try:
            delivery = self._delivery(cursor.stream, cursor.position + 1)
        except JournalCorrupt as damage:
            log.error("subscriber of stream {stream!r} ended: {damage}", stream=cursor.stream, damage=str(damage))
            self._end(cursor, damage)
            return None
        except Exception as failure:  # whatever it is, it is this cursor's alone
            log.failure("reading stream {stream!r} failed; a subscription to it ends", stream=cursor.stream)
            self._end(cursor, failure)
            return None
        if delivery is None:
            cursor.placed = True
            self._waiting.setdefault(cursor.stream, {})[cursor] = None
        return delivery

    def _deliver(self, cursor: Cursor, delivery: Delivery) -> None:
        expected = cursor.position + 1
        cursor.position = delivery.last_seq
        try:
            if delivery.first_seq > expected:
                cursor.sink.skipped(expected, delivery.first_seq - 1)
            count, size = delivery.encoded(_measured)
            cursor.delivered += count
            cursor.delivered_bytes += size
            cursor.sink.deliver(delivery)
        except Exception as failure:
            log.failure("a sink failed; its subscription to {stream!r} ends", stream=cursor.stream)
            self._end(cursor, failure)

    def _delivery(self, stream: str, start: int) -> Delivery | None:
        delivery = self._recent.get((stream, start))
        if delivery is not None:
            return delivery
        runs = self.read(stream, start, TURN)
        if not runs:
            return None
        delivery = self._recent[stream, start] = Delivery(runs)
        self._recent_size += delivery.size
        while self._recent_size > SHARED or len(self._recent) > SHARED_COUNT:
            self._recent_size -= self._recent.popitem(last=False)[1].size
        return delivery

    def _end(self, cursor: Cursor, reason: Exception) -> None:
        if cursor.stopped:
            return
        cursor.stopped = True
        self._depart(cursor)
        try:
            cursor.sink.ended(reason)
        except Exception:
            log.failure("a sink failed as its subscription to {stream!r} ended", stream=cursor.stream)

    def _depart(self, cursor: Cursor) -> None:
        if cursor in self.cursors:
            self.cursors.remove(cursor)
            _count(self._departed, cursor)


def _measured(runs: tuple[Run, ...]) -> tuple[int, int]:
    return sum(map(len, runs)), sum(len(run.payload) for run in runs)


def _count(counts: Counter[tuple[str, str]], cursor: Cursor) -> None:
    kit, _ = cursor.reader
    counts[kit, "messages"] += cursor.delivered
    counts[kit, "bytes"] += cursor.delivered_bytes
