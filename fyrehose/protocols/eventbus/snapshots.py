"""Who is owed a part of the past: one snapshot for each client, a few at once, the others in a row.

    SYNCSTART -> waiting -> active: read the journal piece by piece -> SYNC ... SYNC -> SYNCEND -> gone

A snapshot ends where the stream ended when it became active; what came later is broadcast.  Nothing of it is held but
the piece that is being sent.  A second request of the same client takes the place of its first.

in: requests, pieces of the journal, the time      out: the next message of each snapshot in its turn
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import attrs

from fyrehose.protocols.eventbus.encoding import Frames, event_frames
from fyrehose.protocols.eventbus.frames import SYNC, Dialect, SyncEnd, SyncStart
from fyrehose.protocols.eventbus.lent import Lent
from fyrehose.records import Run

#: What large events may take that wait for one client, in bytes.
MEMORY = 8 << 20


@attrs.define(eq=False)
class Snapshot:
    """What one client is owed.

    :ivar identity: its routing id
    :ivar delimiter: whether its messages have an empty frame in front
    :ivar dialect: how its sequences are written
    :ivar next: the number to read from
    :ivar last: the number to stop at
    :ivar highest: the greatest number sent, or the one that the client asked with; never beyond the stream's end
    :ivar moved: when it last got on, in seconds
    :ivar lent: what its large messages take
    """

    identity: bytes
    request: SyncStart
    delimiter: bool
    dialect: Dialect
    next: int = attrs.field(init=False)
    last: int = attrs.field(default=0, init=False)
    highest: int = attrs.field(init=False)
    moved: float = attrs.field(default=0.0, init=False)
    lent: Lent = attrs.field(factory=lambda: Lent(MEMORY), init=False)
    _messages: Iterator[tuple[int, Frames]] = attrs.field(factory=lambda: iter(()), init=False)
    _peeked: tuple[int, Frames] | None = attrs.field(default=None, init=False)
    _ending: bool = attrs.field(default=False, init=False)
    ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.highest = self.request.sequence
        self.next = self.request.sequence + 1

    def start(self, last: int, now: float) -> None:
        """Begin to send; the stream ends at number ``last``.

        A client that asks with a larger number has it from another journal, or from before a backup was restored here.
        With its own number in SYNCEND it would discard everything that is published from now on.
        """
        self.last, self.moved = last, now
        self.highest = min(self.highest, last)

    def peek(self) -> Frames | None:
        """The next message for the client, without its routing id; None where a piece of the journal is needed."""
        if self._peeked is None:
            self._peeked = next(self._messages, None)
        if self._peeked is None and self.next > self.last:
            self._ending = True
            end = SyncEnd(subtrees=self.request.subtrees.spec, sequence=self.highest, dialect=self.dialect)
            self._peeked = self.highest, tuple(end.serialize())
        return None if self._peeked is None else self._peeked[1]

    def sent(self, now: float) -> None:
        """What :meth:`peek` showed has gone."""
        assert self._peeked is not None
        self.highest = self._peeked[0]
        self.ended = self._ending
        self._peeked, self.moved = None, now

    def feed(self, runs: Sequence[Run], now: float) -> None:
        """The records from :attr:`next` on, or nothing where there are no more."""
        self.moved = now
        self.next = runs[-1].last_seq + 1 if runs else self.last + 1
        self._messages = self._select(runs)

    def _select(self, runs: Sequence[Run]) -> Iterator[tuple[int, Frames]]:
        for run in runs:
            if run.first_seq > self.last:
                return
            if not self.request.subtrees.match(run.topic):
                continue
            wanted = run.slice(0, self.last - run.first_seq + 1)
            for seq, frames in enumerate(event_frames(wanted, self.dialect), wanted.first_seq):
                yield seq, (SYNC, *frames)


@attrs.define(eq=False)
class Snapshots:
    """All snapshots of a server.

    :ivar at_once: how many are sent at a time
    :ivar most_waiting: how many more may wait
    """

    at_once: int
    most_waiting: int
    active: OrderedDict[bytes, Snapshot] = attrs.field(factory=OrderedDict, init=False)
    waiting: OrderedDict[bytes, Snapshot] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self.active) + len(self.waiting)

    def add(self, snapshot: Snapshot) -> Snapshot | None:
        """Put ``snapshot`` at the end of the row; the one of the same client that it replaces, if any.

        :raises OverflowError: too many wait
        """
        identity = snapshot.identity
        if identity in self.waiting:
            replaced = self.waiting[identity]
            self.waiting[identity] = snapshot
            return replaced
        # The row may be longer by those who leave it for a place that is free.
        if identity not in self.active and len(self) >= self.at_once + self.most_waiting:
            raise OverflowError("too many snapshots wait")
        self.waiting[identity] = snapshot
        return self.active.pop(identity, None)

    def admit(self, last: int, now: float) -> None:
        """Let those begin for whom there is a place; the stream ends at number ``last``."""
        while self.waiting and len(self.active) < self.at_once:
            identity, snapshot = self.waiting.popitem(last=False)
            snapshot.start(last, now)
            self.active[identity] = snapshot

    def in_turn(self) -> list[Snapshot]:
        """Those that are active; who comes first this time comes last the next."""
        row = list(self.active.values())
        if row:
            self.active.move_to_end(row[0].identity)
        return row

    def forget(self, snapshot: Snapshot) -> None:
        """``snapshot`` is over, or its client has left."""
        if self.active.get(snapshot.identity) is snapshot:
            del self.active[snapshot.identity]

    def clear(self) -> None:
        """Nobody is owed anything any more."""
        self.active.clear()
        self.waiting.clear()
