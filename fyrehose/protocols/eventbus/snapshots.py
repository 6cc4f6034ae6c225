"""Who is owed a part of the past: one snapshot for each client, a few at once, the others in a row.

    SYNCSTART -> waiting -> active: read the journal piece by piece -> SYNC ... SYNC -> SYNCEND -> gone
                    ^         |
                    +- aside <+  while the client does not read

A snapshot ends where the stream ended when it became active; what came later is broadcast.  Nothing of it is held but
the piece that is being sent.  A second request of the same client takes the place of its first.

in: requests, pieces of the journal, the time      out: the next message of each snapshot in its turn
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

import attrs

from fyrehose.protocols.eventbus.encoding import Frames, event_frames
from fyrehose.protocols.eventbus.frames import SYNC, Dialect, SyncEnd, SyncStart
from fyrehose.protocols.eventbus.lent import Account
from fyrehose.records import Run

#: What a request takes besides its subtrees, and each byte of these with what is made of them, in bytes.
COST = 1_024
COST_BYTE = 3


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
    :ivar account: what its messages take until the client has them
    :ivar host: the client's address
    :ivar descriptor: that of the client's connection, or -1
    :ivar held: what the socket held for the client when it was last looked at, in bytes
    :ivar starved: whether it is others that keep its messages from being sent
    :ivar given: what was sent of it since it has its place, in bytes
    """

    identity: bytes
    request: SyncStart
    delimiter: bool
    dialect: Dialect
    account: Account
    host: str = ""
    descriptor: int = -1
    next: int = attrs.field(init=False)
    last: int = attrs.field(default=0, init=False)
    highest: int = attrs.field(init=False)
    moved: float = attrs.field(default=0.0, init=False)
    held: int = attrs.field(default=0, init=False)
    starved: bool = attrs.field(default=False, init=False)
    given: int = attrs.field(default=0, init=False)
    _messages: Iterator[tuple[int, Frames]] = attrs.field(factory=lambda: iter(()), init=False)
    _peeked: tuple[int, Frames] | None = attrs.field(default=None, init=False)
    _ending: bool = attrs.field(default=False, init=False)
    ended: bool = attrs.field(default=False, init=False)
    _started: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.highest = self.request.sequence
        self.next = self.request.sequence + 1

    def start(self, last: int, now: float) -> None:
        """Begin to send, or go on; the stream ended at number ``last`` when it began.

        A client that asks with a larger number has it from another journal, or from before a backup was restored here.
        With its own number in SYNCEND it would discard everything that is published from now on.
        """
        self.given = 0
        if not self._started:
            self._started, self.moved = True, now
            self.last, self.highest = last, min(self.highest, last)

    @property
    def network(self) -> str:
        return self.account.network

    @property
    def cost(self) -> int:
        """Memory that the request takes while it waits, in bytes."""
        return COST + COST_BYTE * len(self.request.subtrees.spec)

    def drop(self) -> None:
        """Forget what was read of the journal; it is read again from the first message that was not sent."""
        if self._started and self.peek() is not None and not self._ending:
            assert self._peeked is not None
            self.next = self._peeked[0]
        self._peeked, self._messages = None, iter(())

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
        self.next = runs[-1].last_seq + 1 if runs else self.last + 1
        self._messages = self._select(runs)
        if self.peek() is None:
            self.moved = now  # it gets on, though there is nothing for its client

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

    Requests wait in a row for each network, and the networks take turns.  A snapshot whose client does not read gives
    its place to one that waits, and is aside, with nothing read of the journal, until its client has taken something.

    :ivar at_once: how many are sent at a time
    :ivar memory: what requests may take, in bytes; those of one network half of it
    :ivar used: what they take
    """

    at_once: int
    memory: int
    used: int = attrs.field(default=0, init=False)
    active: OrderedDict[bytes, Snapshot] = attrs.field(factory=OrderedDict, init=False)
    aside: dict[bytes, Snapshot] = attrs.field(factory=dict, init=False)
    _rows: OrderedDict[str, OrderedDict[bytes, Snapshot]] = attrs.field(factory=OrderedDict, init=False)
    _all: dict[bytes, Snapshot] = attrs.field(factory=dict, init=False)
    _networks: Counter[str] = attrs.field(factory=Counter, init=False)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def waiting(self) -> bool:
        """Whether any snapshot waits for a place."""
        return bool(self._rows)

    def add(self, snapshot: Snapshot) -> Snapshot | None:
        """Put *snapshot* at the end of its network's row; return the one of the same client that it replaces.

        :raises OverflowError: requests take too much memory
        """
        replaced = self._all.get(snapshot.identity)
        more = snapshot.cost - (replaced.cost if replaced is not None else 0)
        # A client that asks again was counted with the network that it came from.
        if self.used + more > self.memory or self._networks[snapshot.network] + more > self.memory // 2:
            raise OverflowError("requests for snapshots take too much memory")
        if replaced is not None:
            self.forget(replaced)
        self._all[snapshot.identity] = snapshot
        self.used += snapshot.cost
        self._networks[snapshot.network] += snapshot.cost
        self.wait(snapshot)
        return replaced

    def wait(self, snapshot: Snapshot) -> None:
        """Have *snapshot* wait, or wait again, for a place."""
        self._leave(snapshot)
        self._rows.setdefault(snapshot.network, OrderedDict())[snapshot.identity] = snapshot

    def retry(self, snapshot: Snapshot) -> None:
        """Have *snapshot* wait for a place again, unless it has ended meanwhile."""
        if self.aside.get(snapshot.identity) is snapshot:
            self.wait(snapshot)

    def step_aside(self, snapshot: Snapshot) -> None:
        """Take the place of *snapshot* away until its client has read something."""
        self._leave(snapshot)
        self.aside[snapshot.identity] = snapshot

    def admit(self, last: int, now: float) -> None:
        """Let those begin, or go on, for whom there is a place; the stream ends at number ``last``."""
        while self._rows and len(self.active) < self.at_once:
            network, row = next(iter(self._rows.items()))
            identity, snapshot = row.popitem(last=False)
            self._rows.move_to_end(network)
            if not row:
                del self._rows[network]
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
        if self._all.get(snapshot.identity) is not snapshot:
            return
        self._leave(snapshot)
        del self._all[snapshot.identity]
        self.used -= snapshot.cost
        self._networks[snapshot.network] -= snapshot.cost
        if not self._networks[snapshot.network]:
            del self._networks[snapshot.network]

    def clear(self) -> None:
        """Nobody is owed anything any more."""
        for snapshot in list(self._all.values()):
            self.forget(snapshot)

    def _leave(self, snapshot: Snapshot) -> None:
        identity = snapshot.identity
        self.active.pop(identity, None)
        self.aside.pop(identity, None)
        snapshot.drop()
        row = self._rows.get(snapshot.network)
        if row is not None and row.pop(identity, None) is not None and not row:
            del self._rows[snapshot.network]
