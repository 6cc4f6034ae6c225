"""Schedule snapshots: one for each client that has sent SYNCSTART, a few at a time.

    SYNCSTART -> waiting -> active: read the journal piece by piece -> SYNC ... SYNC -> SYNCEND -> forgotten
                    ^          |
                    +- parked <+  while the client does not read

A snapshot ends at the end of the stream at the time it became active; later records are broadcast.  Only the piece of
the journal that is being sent is in memory.  A second SYNCSTART of the same client replaces the first.

in: requests, pieces of the journal, the time      out: the next message of each snapshot in turn
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence

import attrs

from fyrehose.broker.fairness import FairShare
from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.columns import Frames, event_frames
from fyrehose.protocols.eventbus.frames import SYNC, Dialect, SyncEnd, SyncStart
from fyrehose.protocols.eventbus.queued_memory import QueuedMessages
from fyrehose.records import Run

#: Memory of a request besides its subtrees, and of each byte of the subtrees with their parsed form, in bytes.
COST = 1_024
COST_BYTE = 3


@attrs.define(eq=False)
class SnapshotAnswer:
    """The snapshot of one client.

    :ivar identity: routing id of the client
    :ivar request: the client's SYNCSTART
    :ivar delimiter: whether messages have an empty delimiter frame in front
    :ivar dialect: encoding of sequences
    :ivar account: memory that the socket holds for the client
    :ivar host: address of the client
    :ivar close: closes the client's connection
    :ivar next: the sequence to read from
    :ivar last: the last sequence of the snapshot
    :ivar highest: the greatest sequence sent, or that of the request; never beyond the end of the stream
    :ivar progressed: time of the last progress, in seconds
    :ivar held: memory that the socket held for the client at the last check, in bytes
    :ivar starved: whether messages cannot be sent because the socket holds too much for other clients
    :ivar turn_bytes: bytes sent since the snapshot last became active
    :ivar ended: whether SYNCEND was sent
    """

    identity: bytes
    request: SyncStart
    delimiter: bool
    dialect: Dialect
    account: QueuedMessages
    host: str = ""
    close: Callable[[], object] = lambda: None
    next: int = attrs.field(init=False)
    last: int = attrs.field(default=0, init=False)
    highest: int = attrs.field(init=False)
    progressed: float = attrs.field(default=0.0, init=False)
    held: int = attrs.field(default=0, init=False)
    starved: bool = attrs.field(default=False, init=False)
    turn_bytes: int = attrs.field(default=0, init=False)
    _messages: Iterator[tuple[int, Frames]] = attrs.field(factory=lambda: iter(()), init=False)
    _peeked: tuple[int, Frames] | None = attrs.field(default=None, init=False)
    _ending: bool = attrs.field(default=False, init=False)
    ended: bool = attrs.field(default=False, init=False)
    _started: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.highest = self.request.sequence
        self.next = self.request.sequence + 1

    def start(self, last: int, now: float) -> None:
        """Become active, for the first time or again.

        A client that requests a sequence beyond the end of the stream knows it from another journal, or from before a
        backup was restored.  SYNCEND has the end of the stream then; with its own sequence the client would discard
        every event that is published from now on.

        :param last: the end of the stream; the snapshot ends there if it becomes active for the first time
        """
        self.turn_bytes = 0
        if not self._started:
            self._started, self.progressed = True, now
            self.last, self.highest = last, min(self.highest, last)

    @property
    def network(self) -> str:
        return self.account.network

    @property
    def cost(self) -> int:
        """Return the memory of the request, in bytes."""
        return COST + COST_BYTE * len(self.request.subtrees.spec)

    def drop(self) -> None:
        """Free the piece of the journal in memory; later, reading continues with the first unsent message."""
        if self._started and self.peek() is not None and not self._ending:
            assert self._peeked is not None
            self.next = self._peeked[0]
        self._peeked, self._messages = None, iter(())

    def peek(self) -> Frames | None:
        """Return the next message without its routing id; None if :meth:`feed` has to be called first."""
        if self._peeked is None:
            self._peeked = next(self._messages, None)
        if self._peeked is None and self.next > self.last:
            self._ending = True
            end = SyncEnd(subtrees=self.request.subtrees.spec, sequence=self.highest, dialect=self.dialect)
            self._peeked = self.highest, tuple(end.serialize())
        return None if self._peeked is None else self._peeked[1]

    def sent(self, now: float) -> None:
        """Record that the message returned by :meth:`peek` was sent."""
        assert self._peeked is not None
        self.highest = self._peeked[0]
        self.ended = self._ending
        self._peeked, self.progressed = None, now

    def feed(self, runs: Sequence[Run], now: float) -> None:
        """Add the records from :attr:`next` on; if *runs* is empty, the journal has no more."""
        self.next = runs[-1].last_seq + 1 if runs else self.last + 1
        self._messages = self._select(runs)
        if self.peek() is None:
            self.progressed = now  # reading records that do not match the subtrees is progress, too

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

    Each network has a queue of waiting snapshots, and the networks take turns.  A snapshot whose client does not read
    is parked if another one waits: it keeps nothing of the journal in memory, and waits again when its client reads.

    :ivar at_once: number of active snapshots
    :ivar limit: upper bound of the memory of all requests, in bytes; those of one network may have half of it
    :ivar memory: the memory of all requests, in bytes
    :ivar active: snapshots that are being sent, in turn
    :ivar parked: snapshots whose clients do not read
    """

    at_once: int
    limit: int
    memory: FairShare[SnapshotAnswer] = attrs.field(init=False)
    active: OrderedDict[bytes, SnapshotAnswer] = attrs.field(factory=OrderedDict, init=False)
    parked: dict[bytes, SnapshotAnswer] = attrs.field(factory=dict, init=False)
    _rows: OrderedDict[str, OrderedDict[bytes, SnapshotAnswer]] = attrs.field(factory=OrderedDict, init=False)
    _all: dict[bytes, SnapshotAnswer] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.memory = FairShare(self.limit, each=self.limit // 2)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def waiting(self) -> bool:
        """Return whether any snapshot waits to become active."""
        return bool(self._rows)

    def add(self, snapshot: SnapshotAnswer) -> SnapshotAnswer | None:
        """Append *snapshot* to the queue of its network.

        :return: the earlier snapshot of the same client, which it replaces
        :raises RemoteProtocolError: the requests would use too much memory
        """
        replaced = self._all.get(snapshot.identity)
        # The memory of the client's earlier request counts for the network that it came from.
        if not self.memory.fits(snapshot.cost - (0 if replaced is None else replaced.cost), snapshot.network):
            used = f"{len(self)} snapshot requests use {self.memory.used} of {self.limit} bytes"
            raise RemoteProtocolError("too-many-snapshots", f"{used}, of which one network may use half")
        if replaced is not None:
            self.forget(replaced)
        self._all[snapshot.identity] = snapshot
        self.memory.add(snapshot, snapshot.network, snapshot.cost)
        self.wait(snapshot)
        return replaced

    def wait(self, snapshot: SnapshotAnswer) -> None:
        """Append *snapshot* to the queue of its network, although it was active or parked before."""
        self._leave(snapshot)
        self._rows.setdefault(snapshot.network, OrderedDict())[snapshot.identity] = snapshot

    def park(self, snapshot: SnapshotAnswer) -> None:
        """Park *snapshot* until its client has read something."""
        self._leave(snapshot)
        self.parked[snapshot.identity] = snapshot

    def admit(self, last: int, now: float) -> None:
        """Activate waiting snapshots up to :attr:`at_once`; the stream ends at *last*."""
        while self._rows and len(self.active) < self.at_once:
            network, row = next(iter(self._rows.items()))
            identity, snapshot = row.popitem(last=False)
            self._rows.move_to_end(network)
            if not row:
                del self._rows[network]
            snapshot.start(last, now)
            self.active[identity] = snapshot

    def next(self, served: Collection[bytes] = ()) -> SnapshotAnswer | None:
        """Return the next active snapshot whose routing id is not in *served*, and move it to the end of the queue."""
        found = next((identity for identity in self.active if identity not in served), None)
        if found is None:
            return None
        self.active.move_to_end(found)
        return self.active[found]

    def forget(self, snapshot: SnapshotAnswer) -> None:
        """Remove *snapshot*, which has ended or was cancelled."""
        if self._all.get(snapshot.identity) is not snapshot:
            return
        self._leave(snapshot)
        del self._all[snapshot.identity]
        self.memory.discard(snapshot)

    def clear(self) -> None:
        """Remove all snapshots."""
        for snapshot in list(self._all.values()):
            self.forget(snapshot)

    def _leave(self, snapshot: SnapshotAnswer) -> None:
        identity = snapshot.identity
        self.active.pop(identity, None)
        self.parked.pop(identity, None)
        snapshot.drop()
        row = self._rows.get(snapshot.network)
        if row is not None and row.pop(identity, None) is not None and not row:
            del self._rows[snapshot.network]
