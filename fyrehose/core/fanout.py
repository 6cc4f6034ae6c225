"""Fan-out: from the journal to whoever subscribed.

A subscriber is a cursor: one integer.  When a commit is durable the cursors that wait at the end of its streams read
it; a cursor that is further behind reads older records by the very same loop.  Those that stand at the same place
share one delivery, so each protocol encodes it once.  A cursor that is paused is not looked at; one that has left is
gone; one whose sink fails ends alone.

    in: durable(ends), resumeProducing()      out: ISink.deliver(Delivery), .skipped(first, last), .ended(reason)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Protocol

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


class Owner(Protocol):
    """A peer that subscriptions are counted for."""

    def unsubscribed(self) -> None:
        """Note that one of its subscriptions has ended."""


@attrs.define(eq=False, weakref_slot=False)
class Tally:
    """Totals of the subscriptions of one protocol.

    :ivar protocol: its protocol's name; empty for sinks that do not say it
    :ivar subscriptions: how many there are
    :ivar messages: delivered since the server started, to those that have ended, too
    :ivar bytes: their payload
    """

    protocol: str
    subscriptions: int = 0
    messages: int = 0
    bytes: int = 0


@attrs.define(eq=False, weakref_slot=False)
class Place:
    """State that all cursors of one stream share; it exists as long as the stream has cursors.

    :ivar last: the last number of the stream that is durable
    :ivar count: how many cursors there are
    :ivar waiting: cursors that wait at the end of the stream; None: none ever waited since the last of them was woken
    """

    stream: str
    last: int
    fanout: Fanout
    count: int = 0
    waiting: dict[Cursor, None] | None = None


@implementer(ISubscription)
@attrs.define(eq=False, weakref_slot=False)
class Cursor:
    """One subscriber's place in one stream.

    There may be hundreds of thousands, so it has nothing that its stream or its protocol can have for all of them.
    """

    position: int
    sink: ISink
    place: Place
    tally: Tally
    owner: Owner | None
    paused: bool = attrs.field(default=True, init=False)
    stopped: bool = attrs.field(default=False, init=False)
    #: in the queue or at the end of its stream, so that resuming twice does not queue it twice
    placed: bool = attrs.field(default=False, init=False)
    #: how many records it was given
    delivered: int = attrs.field(default=0, init=False)

    @property
    def stream(self) -> str:
        """The name of its stream."""
        return self.place.stream

    @property
    def lag(self) -> int:
        """How many numbers it is behind the end of its stream."""
        return max(0, self.place.last - self.position)

    @property
    def reader(self) -> tuple[str, str]:
        """Who reads: the protocol's name, and the peer, as far as the sink says it."""
        return _reader(self.sink)

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        self.place.fanout.ready(self)

    def stopProducing(self) -> None:
        self.stopped = True
        self.place.fanout.forget(self)

    def end(self, reason: Exception) -> None:
        """Nothing more is to be delivered, and the sink is told why."""
        self.place.fanout.end(self, reason)


@attrs.define(eq=False)
class Fanout:
    """All cursors of a server.

    :ivar clock: gives the others their turn between two rounds
    :ivar read: see :meth:`fyrehose.interfaces.IJournal.read`
    :ivar expired: see :meth:`fyrehose.interfaces.IJournal.expired`
    :ivar cursors: every subscription, in the order in which they were made
    :ivar tallies: what the subscriptions of each protocol come to, counted as it changes
    """

    clock: IReactorTime
    read: Callable[[str, int, int], tuple[Run, ...]]
    expired: Callable[[str, int], bool] = lambda stream, time: False
    cursors: dict[Cursor, None] = attrs.field(factory=dict, init=False)
    tallies: dict[str, Tally] = attrs.field(factory=dict, init=False)
    _places: dict[str, Place] = attrs.field(factory=dict, init=False)
    _queue: deque[Cursor] = attrs.field(factory=deque, init=False)
    _next_round: IDelayedCall | None = attrs.field(default=None, init=False)
    _recent: OrderedDict[tuple[str, int], Delivery] = attrs.field(factory=OrderedDict, init=False)
    _recent_size: int = attrs.field(default=0, init=False)
    #: why there is nothing more to come
    _ended: Exception | None = attrs.field(default=None, init=False)

    def subscribe(self, stream: str, position: int, last: int, sink: ISink, owner: Owner | None = None) -> Cursor:
        """Return a new cursor of *stream*, paused, which has been given everything up to number *position*.

        :param last: the last number of the stream that is durable
        """
        protocol = _reader(sink)[0]
        tally = self.tallies.get(protocol)
        if tally is None:
            tally = self.tallies[protocol] = Tally(protocol)
        place = self._places.get(stream)
        if place is None:
            place = self._places[stream] = Place(stream, last, self)
        cursor = Cursor(position, sink, place, tally, owner)
        tally.subscriptions += 1
        place.count += 1
        self.cursors[cursor] = None
        return cursor

    def subscribers(self, stream: str) -> int:
        """Return the number of cursors of *stream*."""
        place = self._places.get(stream)
        return 0 if place is None else place.count

    def durable(self, ends: Mapping[str, int]) -> None:
        """These streams grew to these numbers: the cursors that wait at their end go on."""
        for stream, last in ends.items():
            place = self._places.get(stream)
            if place is not None:
                place.last = last
                if place.waiting:
                    self._queue.extend(place.waiting)
                    place.waiting = None
        if self._next_round is None:
            self._round()

    def forget_stream(self, stream: str) -> None:
        """Drop the deliveries of *stream* that are kept, because it is retired; its cursors stay."""
        for key in [key for key in self._recent if key[0] == stream]:
            self._recent_size -= self._recent.pop(key).size

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
        waiting = cursor.place.waiting
        if waiting is not None:
            waiting.pop(cursor, None)
            if not waiting:
                cursor.place.waiting = None
        self._depart(cursor)

    def end(self, cursor: Cursor, reason: Exception) -> None:
        """``cursor`` gets nothing more, because of ``reason``."""
        self.forget(cursor)
        self._end(cursor, reason)

    def close(self, reason: Exception) -> None:
        """Nothing more will be durable: every subscription ends, one that is paused when it is resumed."""
        self._ended = reason
        if self._next_round is not None:
            self._next_round.cancel()
            self._next_round = None
        cursors = list(self._queue)
        for place in self._places.values():
            cursors += place.waiting or ()
            place.waiting = None
        self._queue.clear()
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
        place = cursor.place
        try:
            delivery = self._delivery(place.stream, cursor.position + 1)
        except JournalCorrupt as damage:
            log.error("subscriber of stream {stream!r} ended: {damage}", stream=place.stream, damage=str(damage))
            self._end(cursor, damage)
            return None
        except Exception as failure:  # whatever it is, it is this cursor's alone
            log.failure("reading stream {stream!r} failed; a subscription to it ends", stream=place.stream)
            self._end(cursor, failure)
            return None
        if delivery is None:
            cursor.placed = True
            if place.waiting is None:
                place.waiting = {}
            place.waiting[cursor] = None
        return delivery

    def _deliver(self, cursor: Cursor, delivery: Delivery) -> None:
        expected = cursor.position + 1
        cursor.position = delivery.last_seq
        try:
            if delivery.first_seq > expected:
                cursor.sink.skipped(expected, delivery.first_seq - 1)
            count, size = delivery.encoded(_measured)
            cursor.delivered += count
            tally = cursor.tally
            tally.messages += count
            tally.bytes += size
            cursor.sink.deliver(delivery)
        except Exception as failure:
            log.failure("a sink failed; its subscription to {stream!r} ends", stream=cursor.stream)
            self._end(cursor, failure)

    def _delivery(self, stream: str, start: int) -> Delivery | None:
        delivery = self._recent.get((stream, start))
        if delivery is not None and not self.expired(stream, delivery.runs[0].time):
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
        if cursor not in self.cursors:
            return
        del self.cursors[cursor]
        cursor.tally.subscriptions -= 1
        place = cursor.place
        place.count -= 1
        if not place.count:
            del self._places[place.stream]
        if cursor.owner is not None:
            cursor.owner.unsubscribed()


def _measured(runs: tuple[Run, ...]) -> tuple[int, int]:
    return sum(map(len, runs)), sum(len(run.payload) for run in runs)


def _reader(sink: ISink) -> tuple[str, str]:
    reader: tuple[str, str] = getattr(sink, "reader", ("", ""))
    return reader
