"""A client of the event bus without a socket: what was missed is asked for, what came twice is handed out once.

    subscribe first; then SYNCSTART -> SYNC ... SYNCEND, while broadcasts are held back; then broadcasts as they come

(The text has it the other way round, and loses what is broadcast between SYNCEND and the subscription.)

``position`` is the number up to which everything that was asked for has been handed out, or is gone.  Broadcasts carry
it on as long as they follow on; where the client wants everything a number that is missing shows at once, and the
part behind it is held back until a SYNCSTART from ``position`` has mended it.  Where it wants some subtrees, gaps are
normal, so it asks now and then for what it has seen since, and whatever that brings which no broadcast brought is
handed out late.  It asks, too, after silence, after a new connection, and when it could not hold any more.

A number that is not greater than that of the broadcast before it comes of another server, or of one that has lost its
journal: then everything is asked for again.

Specification: event-bus.md.  Times are monotonic, in seconds, and arguments.

in: messages, the time      out: events; data_to_send() -> messages, each with the port that it goes to
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from random import Random
from typing import Any, TypeVar

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.confirmations import Confirmations, Confirmed, Unconfirmed
from fyrehose.protocols.eventbus.frames import (
    SYNCEND,
    Broadcast,
    Dialect,
    Pub,
    Subtrees,
    Sync,
    SyncEnd,
    SyncStart,
)
from fyrehose.records import LAST_SEQ, Buffer

#: What may be held back while the past comes, in events and bytes; what is more is asked for again.
MOST_HELD = 10_000
MOST_HELD_BYTES = 16 << 20
#: How many numbers are remembered that came before it was sure that nothing is missing between them.
MOST_AHEAD = 100_000

M = TypeVar("M")


class To(Enum):
    """Where a message goes."""

    SNAPSHOT = "snapshot"
    ANEW = "anew"  #: to SNAPSHOT, by a new connection: what comes by the old one is not wanted any more
    COLLECTOR = "collector"


@attrs.frozen(kw_only=True)
class Options:
    """What a client wants.

    :ivar subtrees: such as ``("/a/", "/b/c/")``; empty: everything
    :ivar subscribe: whether events are wanted at all; without it the client publishes only
    :ivar after: begin with what follows this number (0: with the oldest); None: with what is published from now on
    :ivar dialect: how it writes sequences, and has SYNC written
    :ivar window: events under way to the server
    :ivar confirm: how long one may take to come back before it is sent again, in seconds, and how often it is
    :ivar quiet: after so long without a word it asks whether it has missed some, in seconds
    :ivar recheck: with ``subtrees``, so often it asks for what it has seen, in seconds; 0: never
    :ivar answer: how long an answer may take to go on, in seconds
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
    """Events that are wanted, in order, none twice; ``late`` when greater numbers were handed out before."""

    events: tuple[Broadcast, ...]
    late: bool = False


@attrs.frozen(slots=True, kw_only=True)
class Lost:
    """The numbers ``first`` to ``last`` are not in the journal any more; only seen where everything is wanted."""

    first: int
    last: int


@attrs.frozen(slots=True, kw_only=True)
class Synchronised:
    """Everything up to ``position`` has been handed out."""

    position: int | None


@attrs.frozen(slots=True, kw_only=True)
class Restarted:
    """The server's numbers went back: it has another journal.  Everything in it comes, from the start."""


@attrs.frozen(slots=True, kw_only=True)
class Silent:
    """The server has not answered in time; it is asked again."""


@attrs.frozen(slots=True, kw_only=True)
class Ignored:
    """A message was none that a server sends."""

    cause: str


Event = Events | Lost | Synchronised | Restarted | Silent | Ignored | Confirmed | Unconfirmed


class ClientSession:
    """All state of a client.

    :param random: keeps clients from asking all at once
    :raises LocalProtocolError: ``options.subtrees`` is not what a server takes
    """

    def __init__(self, options: Options, random: Random, now: float) -> None:
        self.options = options
        self.position: int | None = options.after if options.subscribe else None
        self._subtrees = Subtrees.of(options.subtrees)
        self._random = random
        self._pubs = Confirmations(options.confirm, options.retries)
        self._highest = 0
        self._ahead: set[int] = set()
        self._held: list[Broadcast] = []
        self._held_bytes = 0
        self._overflowed = False
        self._heard: int | None = None
        # Nothing is handed out before the past is, so broadcasts are held back until it has been asked for.
        self._asking = True
        self._unanswered = False
        self._since = 0
        self._covered = 0
        self._moved = self._checked = now
        self._spread = self._jitter()
        self._out: list[Broadcast] = []
        self._to_send: list[tuple[To, list[Buffer]]] = []

    # What the owner calls.

    def connected(self, now: float) -> None:
        """Both SNAPSHOT and PUBLISHER are connected, for the first time or again."""
        # If only PUBLISHER was away, an answer may still be on its way, and nobody could tell it from the next one.
        self._ask(now, To.ANEW if self._unanswered else To.SNAPSHOT)

    def disconnected(self, now: float) -> None:
        """One of them is not; what comes by the other is held back until both are."""
        self._asking = True
        self._moved = now

    def resumed(self, now: float) -> None:
        """Nothing was read for a while."""
        self._ask(now, To.ANEW)

    def publish(self, event: Pub, handle: Any, now: float) -> None:
        """Send ``event``; Confirmed or Unconfirmed will come for ``handle``."""
        frames = event.serialize()
        self._pubs.add(event.uuid, frames, handle, now)
        self._to_send.append((To.COLLECTOR, frames))

    def abandon(self) -> list[Event]:
        """Nobody waits for anything any more."""
        return list(self._pubs.abandon())

    def data_to_send(self) -> list[tuple[To, list[Buffer]]]:
        """Messages and where they go, each once."""
        to_send, self._to_send = self._to_send, []
        return to_send

    @property
    def pending(self) -> int:
        """Events under way to the server."""
        return len(self._pubs)

    def receive_broadcasts(self, messages: Iterable[Sequence[bytes]], now: float) -> list[Event]:
        """What came from PUBLISHER."""
        events: list[Event] = []
        for frames in messages:
            broadcast = _parsed(Broadcast.parse, frames, events)
            if broadcast is not None:
                self._broadcast(broadcast, events, now)
        self._flush(events)
        return events

    def receive_syncs(self, messages: Iterable[Sequence[bytes]], now: float) -> list[Event]:
        """What came from SNAPSHOT."""
        events: list[Event] = []
        for frames in messages:
            if frames and frames[0] == SYNCEND:
                end = _parsed(SyncEnd.parse, frames, events)
                if end is not None:
                    self._end(end, events, now)
            else:
                sync = _parsed(Sync.parse, frames, events)
                if sync is not None:
                    self._sync(sync, events, now)
        self._flush(events)
        return events

    def tick(self, now: float) -> list[Event]:
        """The time is ``now``."""
        events: list[Event] = []
        if self._asking:
            if now - self._moved >= self.options.answer:
                events.append(Silent())
                self._ask(now, To.ANEW)
        elif now >= self._due():
            self._ask(now)
        if self._pubs.next_due() <= now and not self._asking:
            if self.position is None:
                self._resend(events, now)
            else:
                self._ask(now)  # they may be published all the same: the past says, and _end sends the rest again
        return events

    def next_due(self) -> float:
        """When :meth:`tick` has something to do, at the latest."""
        due = self._moved + self.options.answer if self._asking else self._due()
        return due if self._asking else min(due, self._pubs.next_due())

    # Inside: what comes.

    def _broadcast(self, broadcast: Broadcast, events: list[Event], now: float) -> None:
        self._confirm(broadcast, events)
        seq = broadcast.sequence
        if not self._asking:
            self._moved = now
        heard, self._heard = self._heard, seq
        if not self.options.subscribe or not self._subtrees.match(broadcast.topic):
            return
        if heard is not None and seq <= heard:
            self._restart(events, now)
        if self.position is None:
            self.position = seq - 1
        if self._asking:
            self._hold(broadcast)
        else:
            self._take(broadcast, now)

    def _take(self, broadcast: Broadcast, now: float) -> None:
        """A broadcast that need not wait."""
        assert self.position is not None
        seq = broadcast.sequence
        if seq <= self.position:
            return
        if seq == self.position + 1:
            self.position = seq
            self._out.append(broadcast)
        elif self.options.subtrees:
            self._ahead.add(seq)
            self._out.append(broadcast)
            if len(self._ahead) >= MOST_AHEAD:
                self._ask(now)
        else:
            self._hold(broadcast)
            self._ask(now)

    def _sync(self, sync: Sync, events: list[Event], now: float) -> None:
        self._confirm(sync, events)
        if not self._asking or self.position is None:
            return
        self._moved = now
        seq = sync.sequence
        if seq <= self.position:
            return
        if seq > self.position + 1 and not self.options.subtrees:
            self._lose(self.position + 1, seq - 1, events)
        self.position = seq
        if seq in self._ahead:
            return  # it was handed out when it was broadcast
        if seq < self._highest:
            self._flush(events)
            events.append(Events(events=(sync,), late=True))
        else:
            self._out.append(sync)

    def _end(self, end: SyncEnd, events: list[Event], now: float) -> None:
        """Everything up to ``end`` has come; now what was held back, as far as it follows on."""
        if not self._asking:
            return
        self._asking = self._unanswered = False
        since = self._since  # what is held back may make us ask again
        if end.sequence < since != LAST_SEQ:
            # The stream ends before the number that we have: it is another journal, or an older copy of it.
            self._restart(events, now)
            return
        self._moved = self._checked = now
        self._spread = self._jitter()
        self._resend(events, now)
        held, self._held, self._held_bytes = self._held, [], 0
        overflowed, self._overflowed = self._overflowed, False
        for broadcast in held:
            self._release(broadcast, events, now)
        if self.position is not None and since != LAST_SEQ:  # who knows no position asks for nothing; see _ask
            self.position = max(self.position, end.sequence)
            self._ahead = {seq for seq in self._ahead if seq > self.position}
            if self._heard is None:
                self._heard = since
        self._flush(events)
        events.append(Synchronised(position=self.position))
        if overflowed and not self._asking:
            self._ask(now)

    def _release(self, broadcast: Broadcast, events: list[Event], now: float) -> None:
        assert self.position is not None
        seq = broadcast.sequence
        if self._asking:
            self._hold(broadcast)
            return
        missing = seq > self.position + 1 and not self.options.subtrees
        if missing and seq <= self._covered:
            # It came before the question, and the answer did not have what is missing: nobody has.
            self._lose(self.position + 1, seq - 1, events)
            self.position = seq - 1
        self._take(broadcast, now)

    def _restart(self, events: list[Event], now: float) -> None:
        self._flush(events)
        events.append(Restarted())
        self.position = self._highest = 0
        self._ahead.clear()
        self._held, self._held_bytes = [], 0
        self._ask(now, To.ANEW)

    def _hold(self, broadcast: Broadcast) -> None:
        size = len(broadcast.data)
        if len(self._held) >= MOST_HELD or self._held_bytes + size > MOST_HELD_BYTES:
            self._overflowed = True
            return
        self._held.append(broadcast)
        self._held_bytes += size

    def _confirm(self, broadcast: Broadcast, events: list[Event]) -> None:
        confirmed = self._pubs.came_back(broadcast.uuid, broadcast.sequence)
        if confirmed is not None:
            events.append(confirmed)

    def _lose(self, first: int, last: int, events: list[Event]) -> None:
        self._flush(events)
        events.append(Lost(first=first, last=last))

    def _flush(self, events: list[Event]) -> None:
        if self._out:
            events.append(Events(events=tuple(self._out)))
            self._highest = max(self._highest, self._out[-1].sequence)
            self._out = []

    # Inside: what is asked.

    def _ask(self, now: float, to: To = To.SNAPSHOT) -> None:
        """Ask for what follows ``position``.  One who has none asks for what cannot be: the answer says who lives."""
        self._asking = self._unanswered = True
        self._moved = now
        self._covered = self._heard or 0
        self._since = LAST_SEQ if self.position is None else self.position
        request = SyncStart(subtrees=self._subtrees, sequence=self._since, dialect=self.options.dialect)
        self._to_send.append((to, [*request.serialize()]))

    def _resend(self, events: list[Event], now: float) -> None:
        for frames in self._pubs.resend(now):
            self._to_send.append((To.COLLECTOR, frames))
        events += self._pubs.given_up()

    def _due(self) -> float:
        due = self._moved + self.options.quiet * self._spread
        if self._ahead and self.options.recheck:
            due = min(due, self._checked + self.options.recheck * self._spread)
        return due

    def _jitter(self) -> float:
        return 1 + self._random.random() / 4


def _parsed(parse: Any, frames: Sequence[bytes], events: list[Event]) -> Any:
    try:
        return parse(frames)
    except RemoteProtocolError as error:
        events.append(Ignored(cause=error.cause))
        return None
