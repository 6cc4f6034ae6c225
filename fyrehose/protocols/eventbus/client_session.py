"""The state of a client of the event bus without I/O: it requests missed events, and delivers each event once.

    subscribe -> SYNCSTART -> SYNC ... SYNCEND, while broadcasts are held back -> broadcasts as they arrive

(The specification, "State Synchronization", subscribes after SYNCEND, and loses events that are broadcast in between.)

``position`` is the sequence up to which every event that the client wants was delivered or is lost.  Consecutive
broadcasts advance it.  A client without subtrees notices a gap at once: it holds the events after the gap back until a
SYNCSTART from ``position`` has filled it.  With subtrees gaps are normal, so the client repeats its SYNCSTART every
``EventBusOptions.recheck`` seconds; events that no broadcast brought are delivered late.  The client also sends a
SYNCSTART after silence, after a new connection, and after it had to drop held broadcasts.

A broadcast whose sequence is not greater than the last one comes from another server, or from one that has lost its
journal.  Then the client requests everything again.

A published event is sent again after a timeout, until a BROADCAST or SYNC with its UUID confirms it.

Specification: event-bus.md, "State Synchronization" and "Client-to-Server Updates".  Times are monotonic, in seconds,
and passed as arguments.

in: messages, the time      out: events; data_to_send() -> (target, message) pairs
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from math import inf
from random import Random
from typing import Any

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.eventbus.frames import (
    SYNCEND,
    Broadcast,
    Dialect,
    Pub,
    Subtrees,
    Sync,
    SyncEnd,
    SyncStart,
    check_event,
)
from fyrehose.records import LAST_SEQ, Buffer


@attrs.frozen(slots=True, kw_only=True)
class PubConfirmed:
    """A published event was received, so it is durable on the server, with this ``sequence``."""

    handle: Any
    sequence: int


@attrs.frozen(slots=True, kw_only=True)
class PubTimedOut:
    """A published event was not received in time; it may or may not be published."""

    handle: Any


@attrs.define(slots=True)
class _Pending:
    frames: list[Buffer]
    handle: Any
    sent: float
    tries: int = 1
    #: whether the connection by which it was sent has ended
    lost: bool = False


@attrs.define(eq=False)
class Confirmations:
    """Published events that are not confirmed.

    :ivar timeout: seconds to wait for a confirmation before an event is sent again
    :ivar retries: how often an event is sent again before it fails
    """

    timeout: float
    retries: int
    #: the events by UUID, in the order in which they were sent
    _pending: OrderedDict[bytes, _Pending] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, uuid: bytes, frames: list[Buffer], handle: Any, now: float) -> None:
        """Track an event whose *frames* are sent now.

        :raises LocalProtocolError: an event with this UUID is not confirmed yet
        """
        if uuid in self._pending:
            raise LocalProtocolError(f"an event with the UUID {uuid.decode()!r} is not confirmed yet; use another UUID")
        self._pending[uuid] = _Pending(frames, handle, now)

    def received(self, uuid: bytes, sequence: int) -> PubConfirmed | None:
        """Return the confirmation of the event with *uuid*; None if no such event is tracked."""
        pending = self._pending.pop(uuid, None)
        return None if pending is None else PubConfirmed(handle=pending.handle, sequence=sequence)

    def resend(self, now: float) -> tuple[list[list[Buffer]], list[PubTimedOut]]:
        """Return the frames of the events to send again now, and a PubTimedOut for each event without a retry left."""
        frames, given_up = [], []
        for uuid, pending in list(self._pending.items()):
            if not pending.lost and now - pending.sent < self.timeout:
                continue
            if pending.tries > self.retries:
                del self._pending[uuid]
                given_up.append(PubTimedOut(handle=pending.handle))
                continue
            pending.tries += 1
            pending.sent, pending.lost = now, False
            self._pending.move_to_end(uuid)
            frames.append(pending.frames)
        return frames, given_up

    def connection_lost(self, unsent: Collection[int]) -> None:
        """Note that all events but the *unsent* ones have to be sent again, with all their retries.

        :param unsent: the identities of the frames that were never sent
        """
        for pending in self._pending.values():
            if id(pending.frames) not in unsent:
                pending.lost, pending.tries = True, 0

    def abandon(self) -> list[PubTimedOut]:
        """Stop tracking all events, and return them as PubTimedOut."""
        pending, self._pending = self._pending, OrderedDict()
        return [PubTimedOut(handle=each.handle) for each in pending.values()]

    def next_due(self) -> float:
        """Return the time at which :meth:`resend` has to be called next; infinity if no event is tracked."""
        first = next(iter(self._pending.values()), None)
        return inf if first is None else -inf if first.lost else first.sent + self.timeout


#: Broadcasts that may be held back during a synchronization, in events and bytes; more are dropped and requested again.
MOST_HELD = 10_000
MOST_HELD_BYTES = 16 << 20
#: Upper bound of delivered sequences beyond ``position`` that are remembered; with more the client synchronizes.
MOST_AHEAD = 100_000


class ServerPort(Enum):
    """The port of the server that a message is sent to."""

    SNAPSHOT = "snapshot"
    NEW_SNAPSHOT = "new-snapshot"  #: SNAPSHOT by a new connection: answers on the old one must not arrive
    COLLECTOR = "collector"


@attrs.frozen(kw_only=True)
class EventBusOptions:
    """Options of a client.

    :ivar subtrees: topics to subscribe to, such as ``("/a/", "/b/c/")``; empty: all topics
    :ivar subscribe: whether events are delivered; otherwise the client only publishes
    :ivar after: start after this sequence (0: with the oldest event); None: with events published from now on
    :ivar dialect: encoding of the sequence in SYNCSTART, which the server uses for SYNC and SYNCEND, too
    :ivar window: how many events may be unconfirmed at a time
    :ivar confirm: seconds until an unconfirmed event is sent again
    :ivar retries: how often an unconfirmed event is sent again before it fails
    :ivar quiet: seconds without a broadcast after which the client asks for missed events
    :ivar recheck: with ``subtrees``, seconds between requests for missed events; 0: never
    :ivar answer: seconds without a message after which an answer to SYNCSTART has failed
    """

    subtrees: tuple[str, ...] = ()
    subscribe: bool = True
    after: int | None = None
    dialect: Dialect = Dialect.BINARY
    window: int = 1_000
    confirm: float = 5.0
    retries: int = 5
    quiet: float = 15.0
    recheck: float = 60.0
    answer: float = 10.0


@attrs.frozen(slots=True, kw_only=True)
class Events:
    """Events to deliver, in order, each once; ``late``: whether events with greater sequences were delivered before."""

    events: tuple[Broadcast, ...]
    late: bool = False


@attrs.frozen(slots=True, kw_only=True)
class EventsExpired:
    """The server no longer keeps the events ``first`` to ``last``; only a client without subtrees can notice that."""

    first: int
    last: int


@attrs.frozen(slots=True, kw_only=True)
class Synchronised:
    """A synchronization has ended: every event up to ``position`` was delivered."""

    position: int | None


@attrs.frozen(slots=True, kw_only=True)
class Restarted:
    """The server has another journal, because its sequences went back; all events of that journal follow.

    :ivar end: the last sequence of that journal, as far as the client knows
    :ivar position: the last sequence of which the client had the event
    """

    end: int
    position: int = attrs.field(default=0, eq=False)


@attrs.frozen(slots=True, kw_only=True)
class SyncUnanswered:
    """The server has not answered a SYNCSTART in time; the client repeats the SYNCSTART."""


@attrs.frozen(slots=True, kw_only=True)
class Ignored:
    """A message is invalid; ``cause`` is that of the RemoteProtocolError."""

    cause: str


Event = Events | EventsExpired | Synchronised | Restarted | SyncUnanswered | Ignored | PubConfirmed | PubTimedOut


class EventBusClientSession:
    """The protocol state of a client.

    :ivar pubs: published events that are not confirmed
    :ivar position: the sequence up to which every event was delivered or is lost
    :param random: spreads the requests of many clients over time
    :raises LocalProtocolError: a server would refuse ``options.subtrees``
    """

    def __init__(self, options: EventBusOptions, random: Random, now: float) -> None:
        self.options = options
        self.position: int | None = options.after if options.subscribe else None
        self._subtrees = Subtrees.of(options.subtrees)
        self._random = random
        self.pubs = Confirmations(options.confirm, options.retries)
        #: the highest delivered sequence, and all delivered sequences beyond `position`
        self._highest = 0
        self._ahead: set[int] = set()
        #: broadcasts that wait for the end of the synchronization, and whether some were dropped
        self._held: list[Broadcast] = []
        self._held_bytes = 0
        self._overflowed = False
        self._last_broadcast: int | None = None
        # Broadcasts are held back from the beginning, because the events before them have to be delivered first.
        self._syncing = True
        self._unanswered = False
        self._collector = False  #: whether COLLECTOR is connected
        #: the sequence in the last SYNCSTART, and that of the last broadcast that arrived before that SYNCSTART
        self._requested = 0
        self._covered = 0
        #: time of the last message, and of the last SYNCEND
        self._progressed = self._checked = now
        self._spread = self._jitter()
        self._now = now
        #: the events to return next, and the broadcasts to deliver after these events
        self._events: list[Event] = []
        self._out: list[Broadcast] = []
        self._to_send: list[tuple[ServerPort, list[Buffer]]] = []

    # Called by the owner of the connections.

    def connected(self, now: float) -> None:
        """Handle that SNAPSHOT and PUBLISHER are both connected, for the first time or again."""
        # If only PUBLISHER was disconnected, an answer may still arrive that looks like the answer to this request.
        self._now = now
        self._request_sync(ServerPort.NEW_SNAPSHOT if self._unanswered else ServerPort.SNAPSHOT)

    def disconnected(self, now: float) -> None:
        """Hold broadcasts back until SNAPSHOT and PUBLISHER are both connected again, because one of them was lost."""
        self._syncing = True
        self._progressed = now

    def collector_connected(self, now: float) -> None:
        """Send the events again that were sent on an earlier connection to COLLECTOR, and are not confirmed."""
        self._now, self._collector = now, True
        if self.pubs.next_due() <= now and not self._syncing:
            self._resend_or_sync()

    def collector_lost(self, unsent: Collection[int]) -> None:
        """Handle that the connection to COLLECTOR has ended, so that retries wait for another one.

        :param unsent: the identities of the frames of events that were never sent
        """
        self._collector = False
        self.pubs.connection_lost(unsent)

    def resumed(self, now: float) -> None:
        """Handle that the owner reads again after a pause, in which broadcasts may have been dropped."""
        self._now = now
        self._request_sync(ServerPort.NEW_SNAPSHOT)

    def publish(self, event: Pub, handle: Any, now: float) -> None:
        """Send *event*; a later PubConfirmed or PubTimedOut has *handle*.

        :raises LocalProtocolError: a server would refuse *event*
        """
        frames = event.serialize()
        try:
            check_event(frames)
        except RemoteProtocolError as error:
            raise LocalProtocolError(f"a server would refuse the event: {error}") from error
        self.pubs.add(event.uuid, frames, handle, now)
        self._to_send.append((ServerPort.COLLECTOR, frames))

    def data_to_send(self) -> list[tuple[ServerPort, list[Buffer]]]:
        """Return the messages to send, each once, in order."""
        to_send, self._to_send = self._to_send, []
        return to_send

    def receive_broadcasts(self, messages: Iterable[Sequence[bytes]], now: float) -> list[Event]:
        """Process messages from PUBLISHER."""
        return self._receive(messages, now, lambda frames: self._broadcast(Broadcast.parse(frames)))

    def receive_syncs(self, messages: Iterable[Sequence[bytes]], now: float) -> list[Event]:
        """Process messages from SNAPSHOT."""
        return self._receive(messages, now, self._answer)

    def _receive(
        self, messages: Iterable[Sequence[bytes]], now: float, receive: Callable[[Sequence[bytes]], None]
    ) -> list[Event]:
        self._now = now
        for frames in messages:
            try:
                receive(frames)
            except RemoteProtocolError as error:
                self._events.append(Ignored(cause=error.cause))
        return self._take()

    def tick(self, now: float) -> list[Event]:
        """Run all actions that are due at *now*: requests for missed events, and repeated PUBs."""
        self._now = now
        if self._syncing:
            if now - self._progressed >= self.options.answer:
                self._emit(SyncUnanswered())
                self._request_sync(ServerPort.NEW_SNAPSHOT)
        elif now >= self._sync_due():
            self._request_sync()
        if self._pubs_due() <= now and not self._syncing:
            self._resend_or_sync()
        return self._take()

    def next_due(self) -> float:
        """Return the time at which :meth:`tick` has to be called."""
        due = self._progressed + self.options.answer if self._syncing else self._sync_due()
        return due if self._syncing else min(due, self._pubs_due())

    def _pubs_due(self) -> float:
        """Return when events have to be sent again; only over a connection, so that no retry is lost without one."""
        return self.pubs.next_due() if self._collector else inf

    def _resend_or_sync(self) -> None:
        """Send the unconfirmed events again, at once or after a synchronization.

        An event without a timely confirmation may be published nevertheless.  The synchronization confirms such events,
        and _end_sync sends the others again.
        """
        if self.position is None:
            self._resend()
        else:
            self._request_sync()

    # Received messages.

    def _broadcast(self, broadcast: Broadcast) -> None:
        """Process a BROADCAST: confirm an own event, notice another journal, then hold or deliver the event."""
        self._confirm(broadcast)
        seq = broadcast.sequence
        if not self._syncing:
            self._progressed = self._now
        previous, self._last_broadcast = self._last_broadcast, seq
        if not self.options.subscribe or not self._subtrees.match(broadcast.topic):
            return
        if previous is not None and seq <= previous:
            self._restart(seq)
        if self.position is None:
            self.position = seq - 1
        if self._syncing:
            self._hold(broadcast)
        else:
            self._deliver(broadcast)

    def _deliver(self, broadcast: Broadcast) -> None:
        """Deliver a broadcast, or request the events that are missing before it."""
        assert self.position is not None
        seq = broadcast.sequence
        if seq <= self.position:
            return
        follows = seq == self.position + 1
        if follows:
            self.position = seq
        if seq in self._ahead:
            return  # another server of the cluster has broadcast this event before
        if follows:
            self._out.append(broadcast)
        elif self.options.subtrees:
            self._ahead.add(seq)
            self._out.append(broadcast)
            if len(self._ahead) >= MOST_AHEAD:
                self._request_sync()
        else:
            self._hold(broadcast)
            self._request_sync()

    def _answer(self, frames: Sequence[bytes]) -> None:
        if frames and frames[0] == SYNCEND:
            self._end_sync(SyncEnd.parse(frames))
        else:
            self._sync(Sync.parse(frames))

    def _sync(self, sync: Sync) -> None:
        """Process a SYNC: confirm an own event, and deliver a new event; mark it as late if it is out of order."""
        self._confirm(sync)
        if not self._syncing or self.position is None:
            return
        self._progressed = self._now
        seq = sync.sequence
        if seq <= self.position:
            return
        if seq > self.position + 1 and not self.options.subtrees:
            self._emit(EventsExpired(first=self.position + 1, last=seq - 1))
        self.position = seq
        if seq in self._ahead:
            return  # the event was delivered when it was broadcast
        if seq < self._highest:
            self._emit(Events(events=(sync,), late=True))
        else:
            self._out.append(sync)

    def _end_sync(self, end: SyncEnd) -> None:
        """End a synchronization: deliver the broadcasts that were held back, up to the next gap."""
        if not self._syncing:
            return
        self._syncing = self._unanswered = False
        since = self._requested  # a copy, because releasing broadcasts may start another request
        if end.sequence < since != LAST_SEQ:
            # The stream ends before the client's position: it is another journal, or an older copy of it.
            self._restart(end.sequence)
            return
        self._progressed = self._checked = self._now
        self._spread = self._jitter()
        self._resend()
        held, self._held, self._held_bytes = self._held, [], 0
        overflowed, self._overflowed = self._overflowed, False
        for broadcast in held:
            self._release(broadcast)
        if self.position is not None and since != LAST_SEQ:  # LAST_SEQ: the request was without a position
            self.position = max(self.position, end.sequence)
            self._ahead = {seq for seq in self._ahead if seq > self.position}
            if self._last_broadcast is None:
                self._last_broadcast = since
        self._emit(Synchronised(position=self.position))
        if overflowed and not self._syncing:
            self._request_sync()

    def _release(self, broadcast: Broadcast) -> None:
        """Deliver a broadcast that was held back, or hold it further if a new synchronization has begun."""
        assert self.position is not None
        seq = broadcast.sequence
        if self._syncing:
            self._hold(broadcast)
            return
        missing = seq > self.position + 1 and not self.options.subtrees
        if missing and seq <= self._covered:
            # The broadcast arrived before the request, so the answer would have had the missing events.
            self._emit(EventsExpired(first=self.position + 1, last=seq - 1))
            self.position = seq - 1
        self._deliver(broadcast)

    def _restart(self, end: int) -> None:
        """Start again with the first event of another journal, which ends at sequence *end*."""
        self._emit(Restarted(end=end, position=self.position or 0))
        self.position = self._highest = 0
        self._ahead.clear()
        self._held, self._held_bytes = [], 0
        self._request_sync(ServerPort.NEW_SNAPSHOT)

    def _hold(self, broadcast: Broadcast) -> None:
        size = len(broadcast.data)
        if len(self._held) >= MOST_HELD or self._held_bytes + size > MOST_HELD_BYTES:
            self._overflowed = True
            return
        self._held.append(broadcast)
        self._held_bytes += size

    def _confirm(self, broadcast: Broadcast) -> None:
        confirmed = self.pubs.received(broadcast.uuid, broadcast.sequence)
        if confirmed is not None:
            self._events.append(confirmed)

    def _emit(self, event: Event) -> None:
        """Report *event*, but first all events that were delivered and are not reported yet."""
        self._flush()
        self._events.append(event)

    def _flush(self) -> None:
        if self._out:
            self._events.append(Events(events=tuple(self._out)))
            self._highest = max(self._highest, self._out[-1].sequence)
            self._out = []

    def _take(self) -> list[Event]:
        self._flush()
        events, self._events = self._events, []
        return events

    # Requests.

    def _request_sync(self, to: ServerPort = ServerPort.SNAPSHOT) -> None:
        """Send a SYNCSTART for all events after ``position``.

        A client without a position sends the largest possible sequence: the answer has no events, and only shows that
        the server is alive.
        """
        self._syncing = self._unanswered = True
        self._progressed = self._now
        self._covered = self._last_broadcast or 0
        self._requested = LAST_SEQ if self.position is None else self.position
        request = SyncStart(subtrees=self._subtrees, sequence=self._requested, dialect=self.options.dialect)
        self._to_send.append((to, [*request.serialize()]))

    def _resend(self) -> None:
        if not self._collector:
            return
        again, given_up = self.pubs.resend(self._now)
        self._to_send += [(ServerPort.COLLECTOR, frames) for frames in again]
        self._events += given_up

    def _sync_due(self) -> float:
        due = self._progressed + self.options.quiet * self._spread
        if self._ahead and self.options.recheck:
            due = min(due, self._checked + self.options.recheck * self._spread)
        return due

    def _jitter(self) -> float:
        return 1 + self._random.random() / 4
