"""Deliver the records of the journal to subscribers.

A subscriber is a cursor: its position in a stream is one integer.  When a commit is durable, the cursors that wait at
the end of its streams read it; a cursor that is further behind reads older records in the same loop.  Cursors at the
same position share one delivery, so each protocol encodes it once.  A paused cursor costs nothing, and a sink that
fails ends only its own cursor.

    in: durable(ends), resumeProducing()      out: ISink.deliver(Delivery), .skipped(first, last), .ended(reason)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import JournalCorrupt
from fyrehose.interfaces import IConnectedSink, IRelay, ISink, ISubscription
from fyrehose.net.turns import Turns
from fyrehose.records import Delivery, Run

if TYPE_CHECKING:
    from fyrehose.broker.peer import Peer

log = Logger()

#: How much one cursor delivers in its turn, in bytes of payload.
TURN = 256 << 10
#: How much of the latest deliveries is kept for cursors that reach the same position later, in bytes of payload.
SHARED = 4 << 20
#: The number of deliveries that are kept, because each may keep a much larger batch in memory.
SHARED_COUNT = 256


@attrs.define(eq=False, weakref_slot=False)
class Tally:
    """Totals of the subscriptions of one protocol.

    :ivar protocol: the name of the protocol; empty for sinks without one
    :ivar subscriptions: subscriptions at present
    :ivar messages: messages delivered since the server started, including those to subscriptions that have ended, but
        without those to relays
    :ivar bytes: the payload of these messages, in bytes
    :ivar relays: the subscriptions whose sinks have clients of their own, see :class:`fyrehose.interfaces.ISink`
    """

    protocol: str
    subscriptions: int = 0
    messages: int = 0
    bytes: int = 0
    relays: tuple[Cursor, ...] = ()

    @property
    def subscribers(self) -> int:
        """Return the number of clients that receive messages at present."""
        return self.subscriptions + sum(relay.audience - 1 for relay in self.relays)

    @property
    def delivered(self) -> tuple[int, int]:
        """Return the number of messages sent to clients since the server started, and their payload in bytes."""
        messages, size = self.messages, self.bytes
        for relay in self.relays:
            messages, size = messages + relay.sent[0], size + relay.sent[1]
        return messages, size


@attrs.define(eq=False, weakref_slot=False)
class StreamCursors:
    """The state that all cursors of one stream share; it exists while the stream has cursors.

    :ivar last: the last durable number of the stream
    :ivar count: cursors of the stream
    :ivar waiting: cursors that wait at the end of the stream; None if there are none
    """

    stream: str
    last: int
    fanout: Fanout
    count: int = 0
    waiting: dict[Cursor, None] | None = None


@implementer(ISubscription)
@attrs.define(eq=False, weakref_slot=False)
class Cursor:
    """A subscriber's position in one stream.

    A server may have hundreds of thousands of cursors, so everything that cursors of a stream or of a protocol share
    is in :class:`StreamCursors` and :class:`Tally`.
    """

    position: int
    sink: ISink
    place: StreamCursors
    tally: Tally
    owner: Peer | None
    #: the network of the subscriber; empty: the server itself
    network: str
    paused: bool = attrs.field(default=True, init=False)
    stopped: bool = attrs.field(default=False, init=False)
    #: True while the cursor is in the queue or waits at the end of its stream, so that it is not queued twice
    placed: bool = attrs.field(default=False, init=False)
    #: records delivered so far
    delivered: int = attrs.field(default=0, init=False)

    @property
    def stream(self) -> str:
        """Return the name of the stream."""
        return self.place.stream

    @property
    def lag(self) -> int:
        """Return how many records the cursor is behind the end of its stream."""
        return max(0, self.place.last - self.position)

    @property
    def subscriber(self) -> tuple[str, str]:
        """Return the name of the subscriber's protocol, and the peer; empty where the sink has none."""
        return subscriber_of(self.sink)

    def __str__(self) -> str:
        who = " ".join(filter(None, self.subscriber))
        return f"the subscription {f'of {who} ' if who else ''}to stream {self.stream!r}"

    @property
    def closes_in(self) -> float | None:
        """Return the seconds until the subscriber is disconnected because it does not read; None while it reads."""
        connected: Any = self.sink
        return connected.connection.closes_in if IConnectedSink.providedBy(connected) else None

    @property
    def audience(self) -> int:
        """Return the number of clients that receive the records: 1, unless the sink is a relay."""
        relay: Any = self.sink
        return relay.audience if IRelay.providedBy(relay) else 1

    @property
    def sent(self) -> tuple[int, int]:
        """Return the number of messages that a relay has sent to its clients, and their payload in bytes."""
        relay: Any = self.sink
        sent: tuple[int, int] = relay.sent
        return sent

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        self.place.fanout.ready(self)

    def stopProducing(self) -> None:
        self.stopped = True
        self.place.fanout.forget(self)

    def end(self, reason: Exception) -> None:
        """End the subscription; the sink receives the reason."""
        self.place.fanout.end(self, reason)

    def take_turn(self) -> int:
        """Hand the next delivery to the sink; return its size in bytes, 0 if there is none."""
        self.placed = False
        if self.paused or self.stopped:
            return 0
        place, fanout = self.place, self.place.fanout
        delivery = fanout._delivery(self) if self.position < place.last else None
        if delivery is None:
            fanout._skip_rest(self)
            return 0
        expected = self.position + 1
        last = self.position = delivery.last_seq
        try:
            if delivery.first_seq > expected:
                self.sink.skipped(expected, delivery.first_seq - 1)
            self.delivered += delivery.count
            tally = self.tally
            if self not in tally.relays:
                tally.messages += delivery.count
                tally.bytes += delivery.payload_size
            taken = self.sink.deliver(delivery)
            if taken is not None and taken < last:
                self._take_back(delivery, taken)
        except BaseException as failure:
            fanout._sink_failed(self, failure)
        if not self.paused:
            fanout.ready(self)
        return delivery.size

    def failed(self, failure: Failure) -> None:
        """End the subscription, because its turn failed."""
        log.failure("{subscription} ends: its turn failed; please report this bug", failure, subscription=str(self))
        self.end(RuntimeError(f"a turn of the subscription failed: {failure.getErrorMessage()}"))

    def _take_back(self, delivery: Delivery, taken: int) -> None:
        """Move the cursor back to number *taken*, because the sink has not taken the rest of *delivery*."""
        rest = [run.slice(max(0, taken + 1 - run.first_seq), len(run)) for run in delivery.runs if run.last_seq > taken]
        if not rest:
            return
        left = Delivery(tuple(rest))
        self.position = taken
        self.delivered -= left.count
        if self not in self.tally.relays:
            self.tally.messages -= left.count
            self.tally.bytes -= left.payload_size
        self.place.fanout._share(left)
        if self.place.fanout._stop_waiting(self):  # the sink has resumed this cursor within deliver()
            self.place.fanout.ready(self)


@attrs.define(eq=False)
class Fanout:
    """The delivery of records to all cursors of a server.

    :ivar turns: gives each cursor its turns, which count for the network of its subscriber
    :ivar read: see :meth:`fyrehose.interfaces.IJournal.read`
    :ivar expired: see :meth:`fyrehose.interfaces.IJournal.expired`
    :ivar cursors: all cursors, in the order of their subscription
    :ivar tallies: totals of the subscriptions, by protocol
    """

    turns: Turns
    read: Callable[[str, int, int], tuple[Run, ...]]
    expired: Callable[[str, int], bool] = lambda stream, time: False
    cursors: dict[Cursor, None] = attrs.field(factory=dict, init=False)
    tallies: dict[str, Tally] = attrs.field(factory=dict, init=False)
    _places: dict[str, StreamCursors] = attrs.field(factory=dict, init=False)
    _recent: OrderedDict[tuple[str, int], Delivery] = attrs.field(factory=OrderedDict, init=False)
    _recent_size: int = attrs.field(default=0, init=False)
    #: why the fan-out was closed; None while it is open
    _ended: Exception | None = attrs.field(default=None, init=False)

    def subscribe(self, stream: str, position: int, last: int, sink: ISink, owner: Peer | None = None) -> Cursor:
        """Return a new, paused cursor of *stream*.

        :param position: the number after which the cursor delivers
        :param last: the last durable number of the stream
        """
        protocol = subscriber_of(sink)[0]
        tally = self.tallies.get(protocol)
        if tally is None:
            tally = self.tallies[protocol] = Tally(protocol)
        place = self._places.get(stream)
        if place is None:
            place = self._places[stream] = StreamCursors(stream, last, self)
        cursor = Cursor(position, sink, place, tally, owner, "" if owner is None else owner.network)
        tally.subscriptions += 1
        if IRelay.providedBy(sink):
            tally.relays = (*tally.relays, cursor)
        place.count += 1
        self.cursors[cursor] = None
        return cursor

    def subscribers(self, stream: str) -> int:
        """Return the number of clients that receive the records of *stream*."""
        place = self._places.get(stream)
        if place is None:
            return 0
        relays = (relay for tally in self.tallies.values() for relay in tally.relays if relay.place is place)
        return place.count + sum(relay.audience - 1 for relay in relays)

    def durable(self, ends: Mapping[str, int]) -> None:
        """Resume the cursors that wait at the end of streams that grew.

        :param ends: the last durable number of each stream that grew
        """
        found: list[Cursor] = []
        for stream, last in ends.items():
            place = self._places.get(stream)
            if place is not None:
                place.last = last
                waiting, place.waiting = place.waiting, None
                found += waiting or ()
        for cursor in found[:-1]:
            self.turns.add(cursor, cursor.network)
        if found:
            self.turns.run(found[-1], found[-1].network)

    def forget_stream(self, stream: str) -> None:
        """Drop the kept deliveries of *stream*, because it was retired; its cursors remain."""
        for key in [key for key in self._recent if key[0] == stream]:
            self._recent_size -= self._recent.pop(key).size

    def ready(self, cursor: Cursor) -> None:
        """Queue *cursor* for its next delivery; at the end of its stream it waits for new records."""
        if cursor.placed or cursor.stopped:
            return
        place = cursor.place
        if self._ended is not None:
            self._end(cursor, self._ended)
        elif cursor.position < place.last:
            cursor.placed = True
            self.turns.ready(cursor, cursor.network)
        else:
            cursor.placed = True
            if place.waiting is None:
                place.waiting = {}
            place.waiting[cursor] = None

    def _stop_waiting(self, cursor: Cursor) -> bool:
        """Remove *cursor* from the cursors that wait at the end of a stream, and return whether it was one of them."""
        place = cursor.place
        if place.waiting is None or cursor not in place.waiting:
            return False
        del place.waiting[cursor]
        if not place.waiting:
            place.waiting = None
        cursor.placed = False
        return True

    def forget(self, cursor: Cursor) -> None:
        """Remove *cursor*, whose subscription was stopped."""
        self._stop_waiting(cursor)
        self._remove(cursor)

    def end(self, cursor: Cursor, reason: Exception) -> None:
        """End the subscription of *cursor*, because of *reason*."""
        self.forget(cursor)
        self._end(cursor, reason)

    def close(self, reason: Exception) -> None:
        """End every subscription, because of *reason*; a paused subscription ends when it is resumed."""
        self._ended = reason
        cursors = [cursor for cursor in self.cursors if cursor.placed]
        for place in self._places.values():
            place.waiting = None
        for cursor in cursors:
            self._end(cursor, reason)
        self.turns.close()

    def _delivery(self, cursor: Cursor) -> Delivery | None:
        """Return the next delivery of *cursor*; None if nothing is left to read, or the cursor has ended."""
        stream, start = cursor.place.stream, cursor.position + 1
        delivery = self._recent.get((stream, start))
        try:
            if delivery is None or self.expired(stream, delivery.runs[0].time):
                runs = self.read(stream, start, TURN)
                if not runs:
                    return None
                delivery = Delivery(runs)
                self._share(delivery, start)
        except JournalCorrupt as damage:
            log.error("{subscription} ends: {damage}", subscription=str(cursor), damage=str(damage))
            self._end(cursor, damage)
            return None
        except Exception as failure:  # an error of one cursor must not affect the others
            log.failure("{subscription} ends: reading failed; please report this bug", subscription=str(cursor))
            self._end(cursor, failure)
            return None
        return delivery

    def _skip_rest(self, cursor: Cursor) -> None:
        """Move *cursor* to the end of its stream, because no read finds the rest: it is too old to be served."""
        first, last = cursor.position + 1, cursor.place.last
        if first <= last and not cursor.stopped:
            cursor.position = last
            try:
                cursor.sink.skipped(first, last)
            except BaseException as failure:
                self._sink_failed(cursor, failure)
        self.ready(cursor)

    def _sink_failed(self, cursor: Cursor, failure: BaseException) -> None:
        # GeneratorExit and asyncio's CancelledError, too: this call is part of a commit, whose publishers wait.
        log.failure("{subscription} ends: its sink failed; please report this bug", subscription=str(cursor))
        self._end(cursor, failure if isinstance(failure, Exception) else RuntimeError(repr(failure)))

    def _share(self, delivery: Delivery, start: int = 0) -> None:
        """Keep *delivery* for cursors whose next number is *start*, or the first number of *delivery*."""
        key = delivery.runs[0].stream, start or delivery.first_seq
        before = self._recent.pop(key, None)
        if before is not None:
            self._recent_size -= before.size
        self._recent[key] = delivery
        self._recent_size += delivery.size
        while self._recent_size > SHARED or len(self._recent) > SHARED_COUNT:
            self._recent_size -= self._recent.popitem(last=False)[1].size

    def _end(self, cursor: Cursor, reason: Exception) -> None:
        if cursor.stopped:
            return
        cursor.stopped = True
        self._remove(cursor)
        try:
            cursor.sink.ended(reason)
        except BaseException:  # see Cursor.take_turn
            log.failure("the sink of {subscription} failed while it ended", subscription=str(cursor))

    def _remove(self, cursor: Cursor) -> None:
        if cursor not in self.cursors:
            return
        del self.cursors[cursor]
        tally = cursor.tally
        tally.subscriptions -= 1
        if cursor in tally.relays:
            tally.relays = tuple(relay for relay in tally.relays if relay is not cursor)
            tally.messages += cursor.sent[0]
            tally.bytes += cursor.sent[1]
        place = cursor.place
        place.count -= 1
        if not place.count:
            del self._places[place.stream]
        if cursor.owner is not None:
            cursor.owner.unsubscribed()


def subscriber_of(sink: ISink) -> tuple[str, str]:
    """Return the name of the protocol, and the peer, that *sink* serves; empty where it names none."""
    named: Any = sink
    served: tuple[str, str] = ("", "")
    if IConnectedSink.providedBy(named):
        served = named.connection.subscriber
    elif IRelay.providedBy(named):
        served = named.subscriber
    return served
