"""Recognize events that a writer sends again although they are stored (``resent = "drop"``), without I/O.

    in:  the runs that a connection is about to publish, what became durable or was refused, ends of connections
    out: the runs without the events that are stored already, and how many records are durable in the writer's order

A writer sends an event again if it has received no acknowledgement.  The server may acknowledge such an event without
storing it only if *each record stands for one event at most*: otherwise two different events would be acknowledged, and
one of them lost.  The events themselves prove it:

1. **Identity.**  An event that says which process read it, from which file, at which offset and when
   (``agent.ephemeral_id``, ``log.file.path``, ``log.offset``, ``@timestamp``), or that has an ``@metadata._id``, is one
   event.  A record of its stream with the same bytes is that event, no matter who has sent it and whether it was
   acknowledged.  Twins, clones behind one address and programs that log the same line again have other identities, or
   none.  Old Beats encode an event anew each time, with keys in another order, so the same JSON counts as equal.
2. **Bytes decide, and the index only searches.**  The index has a hash of each identity.  A hit is compared with the
   record itself: in memory while it is not durable, otherwise as the journal reads it.  So the event is stored after a
   collision or an error while reading, and if its stream was retired, or retention has deleted the record.
3. **In flight.**  Records that are not durable are found as well.  A repetition is acknowledged when its original is
   durable, and in the order of its own connection; if the original cannot be written, neither is the repetition
   acknowledged (:class:`_Turn`).
4. **Lost connections.**  A connection keeps the numbers of its last :data:`WINDOWS` acknowledged windows, and
   of those that are not acknowledged: their acknowledgements may be lost.  Nothing is hashed.  Only when the connection
   has ended do its records become *lost*: events of other connections are compared with them, until they are ``age``
   old.  A start of the server counts the end of the log as lost.
5. **Half-open connections.**  A writer may connect again before the server notices that it has lost its connection, and
   what it sent on the first one may still arrive.  So while a network has several connections, and for ``age`` after
   the last one was opened, their last windows are searched for as well.
6. **Bounds.**  Both tables have room for ``capacity`` events, or a KiB of payload each.  When one is full, the network
   with the most forgets its oldest.  What is forgotten, and what a writer sends again after ``age``, is stored twice.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from fyrehose.broker.fairness import FairShare
from fyrehose.errors import JournalCorrupt
from fyrehose.kernels import lumberjack as kernel
from fyrehose.options import one_of
from fyrehose.protocols.lumberjack.columns import JSON
from fyrehose.records import Buffer, Run

#: The values of the option ``resent``, and its converter.
STORE, DROP = "store", "drop"
choice = one_of(STORE, DROP)
#: The fields that identify an event: all fields of one of these lines.
IDENTITIES = (
    ((b"agent", b"ephemeral_id"), (b"log", b"file", b"path"), (b"log", b"offset"), (b"@timestamp",)),
    ((b"@metadata", b"_id"),),
)
#: Acknowledged windows of a connection whose acknowledgements may be lost.  A writer with at most n unacknowledged
#: windows (``pipelining``) may send n + 2 again, so this is enough for n = 6.
WINDOWS = 8
#: Memory that is charged for each event in the index, in bytes.
ENTRY = 256
#: How many stretches (see :class:`Stretch`) all connections may have together, and how many each may always have.
STRETCHES, LEAST_STRETCHES = 65_536, 32
#: How many bytes one read of the journal returns at most, and how many reads there are for one run that is compared.
READ, MOST_READS = 1 << 20, 16
#: The largest event that is compared as JSON, in bytes.
MOST_JSON = 64 << 10


@attrs.define(eq=False, slots=True)
class Stretch:
    """Consecutive records of one stream that one turn of a connection has published.

    :ivar payload: the size of the events, in bytes
    :ivar size: how much of the capacity of its table the stretch takes
    :ivar window: ordinal, on its connection, of the last window that has some of the events
    :ivar run: the records while they are not durable
    :ivar keys: the hash of each event's identity, or None; empty: the events are not in the index
    :ivar until: when the records are forgotten, in seconds
    :ivar waiting: the turns of other connections that repeat some of the events, and wait until the events are durable
    """

    stream: str
    first: int
    count: int
    payload: int
    size: int
    network: str
    window: int = 0
    run: Run | None = None
    keys: Sequence[int | None] = ()
    until: float = 0.0
    waiting: list[_Turn] = attrs.field(factory=list)


@attrs.define(eq=False, slots=True)
class _Turn:
    """The records of one turn, which are reported as durable together, and not before those of the turns before.

    :ivar records: number of records, including repetitions
    :ivar stored: number of records that are published and not yet durable
    :ivar originals: number of stretches with the originals of its repetitions that are not yet durable; -1: an original
        was refused
    """

    sender: Sender
    records: int
    stored: int
    originals: int


#: The default for a hash that is not in the index.
_NOBODY: tuple[Stretch | None, int] = (None, 0)


def _stretch_of(run: Run, network: str) -> Stretch:
    size = max(len(run), len(run.payload) >> 10, 1)
    return Stretch(run.stream, run.first_seq, len(run), len(run.payload), size, network)


def _keys(run: Run) -> list[int | None]:
    """Return a hash of the identity of each event of *run*, or None for an event that has no identity."""
    identities = kernel.identify(run.lengths, run.payload, IDENTITIES)
    return [None if identity is None else hash(identity) for identity in identities]


@attrs.define(eq=False)
class Repetitions:
    """Table of the events that writers may send again, shared by listeners.

    :ivar read: the journal's ``read``
    :ivar seconds: returns the monotonic time, in seconds
    :ivar capacity: how many events of lost connections are kept; as many more are kept of connections that may be
        half-open
    :ivar age: how long these events are searched for, in seconds
    :ivar charge: called with the change of the memory that the index takes, in bytes
    :ivar forgot: called with the number of events that are forgotten early, because a table is full
    :ivar stretches: how many stretches all connections may have together
    """

    read: Callable[[str, int, int], tuple[Run, ...]]
    seconds: Callable[[], float]
    capacity: int
    age: float
    charge: Callable[[int], object] = lambda size: None
    forgot: Callable[[int], object] = lambda count: None
    stretches: int = STRETCHES
    _index: dict[int, tuple[Stretch, int]] = attrs.field(factory=dict, init=False)
    _lost: FairShare[Stretch] = attrs.field(init=False)
    _live: FairShare[Stretch] = attrs.field(init=False)
    #: the stretches of lost connections, in the order in which they are forgotten
    _ages: OrderedDict[Stretch, None] = attrs.field(factory=OrderedDict, init=False)
    #: the stretches of both tables whose events are not in the index yet
    _unread: dict[Stretch, None] = attrs.field(factory=dict, init=False)
    _senders: dict[str, dict[Sender, None]] = attrs.field(factory=dict, init=False)
    _connections: int = attrs.field(default=0, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    #: until when the connections of a network may be half-open
    _overlaps: dict[str, float] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._lost, self._live = FairShare(self.capacity), FairShare(self.capacity)

    @property
    def suspects(self) -> int:
        """Return the number of events in the index: those that may arrive again."""
        return len(self._index)

    def connected(self, network: str, settled: Callable[[Exception | None], object]) -> Sender:
        """Return the state of a new connection of *network*.

        :param settled: called with None when the original of a repetition has become durable, and with the error if it
            was refused
        """
        others = self._senders.setdefault(network, {})
        if others:
            if network not in self._overlaps:  # if it is there, the other connections are watched already
                for stretch in [stretch for other in others for stretch in other.recent]:
                    self.watch(stretch)
            self._overlaps[network] = self.seconds() + self.age
        sender = Sender(self, network, settled)
        others[sender] = None
        self._connections += 1
        return sender

    def recover(self, run: Run, network: str) -> None:
        """Treat *run*, of a writer of *network*, as sent on a lost connection; call this for the newest runs first."""
        if run.content_type != JSON:
            return
        stretch = _stretch_of(run, network)
        keys = _keys(run)
        if not any(key is not None and key not in self._index for key in keys) or not self._admit_older(stretch):
            return
        stretch.until = self.seconds() + self.age
        self._ages[stretch] = None
        self._ages.move_to_end(stretch, last=False)
        self._enter(stretch, [None if key in self._index else key for key in keys])

    def open(self) -> None:
        """Undo :meth:`close`, because a listener is open again."""
        self._closed = False

    def close(self) -> None:
        """Forget all events as soon as the last connection has ended, because no listener is open any more."""
        self._closed = True
        self._forget_if_closed()

    # Called by senders.

    def disconnected(self, sender: Sender) -> None:
        """Treat the last records of *sender* as records that may be sent again."""
        others = self._senders[sender.network]
        del others[sender]
        self._connections -= 1
        for stretch in sender.recent:
            self._lose(stretch)
        if len(others) < 2:  # no second connection is left on which records of the first could arrive
            self._end_overlap(sender.network)
        if not others:
            del self._senders[sender.network]
            self._forget_if_closed()

    def is_watched(self, sender: Sender) -> bool:
        """Return whether *sender* may send something again; bring the index up to date if so."""
        ages, until = self._ages, self._overlaps.get(sender.network)
        if not ages and until is None:
            return False
        now = self.seconds()
        while ages and (oldest := next(iter(ages))).until <= now:
            self.forget(oldest)
        if until is not None and until <= now:
            self._end_overlap(sender.network)
        self._read_all()
        return bool(ages) or sender.network in self._overlaps

    def watches(self, network: str) -> bool:
        """Return whether connections of *network* may be half-open."""
        return network in self._overlaps

    def watch(self, stretch: Stretch) -> None:
        """Compare events with the records of *stretch*, although its connection is still open."""
        self._admit(stretch, self._live)

    def forget(self, stretch: Stretch) -> None:
        """Stop comparing events with the records of *stretch*."""
        self._lost.discard(stretch)
        self._live.discard(stretch)
        self._ages.pop(stretch, None)
        self._unread.pop(stretch, None)
        index = self._index
        before = len(index)
        for key in stretch.keys:
            if key is not None and index.get(key, _NOBODY)[0] is stretch:
                del index[key]
        self.charge(ENTRY * (len(index) - before))
        stretch.keys = ()

    @property
    def most_stretches(self) -> int:
        """Return how many stretches each connection may keep."""
        return max(LEAST_STRETCHES, self.stretches // max(1, self._connections))

    def originals(self, run: Run) -> list[Stretch | None] | None:
        """Return, for each event of *run*, the stretch that stores it already, or None; no list if all are new."""
        if run.content_type != JSON:
            return None
        index = self._index
        hits = [None if key is None else index.get(key) for key in _keys(run)]
        if not any(hits):
            return None
        stored = _Stored(self.read)
        found: list[Stretch | None] = []
        for hit, payload in zip(hits, run.payloads(), strict=True):
            found.append(None)
            if hit is not None and hit[0].stream == run.stream and is_same(stored.payload(*hit), payload):
                found[-1] = hit[0]
        return found if any(found) else None

    def renew(self, stretch: Stretch) -> None:
        """Remember *stretch* for another ``age``: it was sent again, and its new acknowledgement may be lost, too."""
        if stretch in self._ages:
            stretch.until = self.seconds() + self.age
            self._ages.move_to_end(stretch)
            self._lost.renew(stretch)

    # Private.

    def _forget_if_closed(self) -> None:
        if self._closed and not self._senders:  # only stretches of lost connections are left
            for stretch in list(self._ages):
                self.forget(stretch)

    def _lose(self, stretch: Stretch) -> None:
        self._live.discard(stretch)
        stretch.until = self.seconds() + self.age
        self._ages[stretch] = None
        self._admit(stretch, self._lost)

    def _admit(self, stretch: Stretch, table: FairShare[Stretch]) -> None:
        if stretch in table:
            return
        for oldest in table.make_room(stretch.network, stretch.size):
            self.forgot(oldest.count)
            self.forget(oldest)
        if not table.fits(stretch.size):
            self.forgot(stretch.count)
            self.forget(stretch)
            return
        table.add(stretch, stretch.network, stretch.size)
        if not stretch.keys:
            self._unread[stretch] = None

    def _admit_older(self, stretch: Stretch) -> bool:
        """Add *stretch*, which is older than all others, to the lost stretches; return False if there is no room.

        The stretch displaces only stretches of a network that has more in the table than the stretch's own network will
        have.
        """
        table, size = self._lost, stretch.size
        while not table.fits(size):
            oldest = table.first_out(stretch.network)
            if oldest is None or table.used_by(stretch.network) + size > table.used_by(oldest.network):
                self.forgot(stretch.count)
                return False
            self.forgot(oldest.count)
            self.forget(oldest)
        table.add(stretch, stretch.network, size)
        table.of(stretch.network).move_to_end(stretch, last=False)
        return True

    def _end_overlap(self, network: str) -> None:
        if self._overlaps.pop(network, None) is not None:
            for stretch in list(self._live.of(network)):
                self.forget(stretch)

    def _read_all(self) -> None:
        """Enter the stretches that are not in the index yet; read their events for this."""
        unread, self._unread = self._unread, {}
        for stretch in unread:
            keys: list[int | None] = []
            try:
                for run in [stretch.run] if stretch.run is not None else self._runs(stretch):
                    keys += _keys(run)
            except JournalCorrupt:
                pass  # events after the damage are not recognized; the journal reports it when a peer reads there
            self._enter(stretch, keys)
            if not any(stretch.keys):
                self.forget(stretch)

    def _enter(self, stretch: Stretch, keys: Sequence[int | None]) -> None:
        """Enter the events of *stretch*, whose hashes are *keys*, in the index."""
        stretch.keys = keys
        before = len(self._index)
        for at, key in enumerate(keys):
            if key is not None:
                self._index[key] = stretch, at
        self.charge(ENTRY * (len(self._index) - before))

    def _runs(self, stretch: Stretch) -> Iterable[Run]:
        """Yield the records of *stretch* from the journal, up to the first one that the journal lacks."""
        at, end, left = stretch.first, stretch.first + stretch.count, stretch.payload
        while at < end:
            for run in self.read(stretch.stream, at, min(left, READ)) or (None,):
                if run is None or run.first_seq != at:
                    return
                part = run.slice(0, end - at)
                yield part
                at += len(part)
                left -= len(part.payload)
                if at == end:
                    return


@attrs.define(eq=False)
class _Stored:
    """The stored records that are compared with one run; a few reads, each of consecutive records, fetch them."""

    read: Callable[[str, int, int], tuple[Run, ...]]
    _left: int = MOST_READS
    #: for each stretch: the position in the stretch at which the read payloads begin, and the payloads
    _found: dict[Stretch, tuple[int, list[memoryview]]] = attrs.field(factory=dict)

    def payload(self, stretch: Stretch, at: int) -> Buffer | None:
        """Return the payload of record *at* of *stretch*; None if it cannot be read."""
        begin, payloads = self._found.get(stretch, (0, []))
        if not begin <= at < begin + len(payloads):
            in_flight = stretch.run
            begin = 0 if in_flight is not None else at
            payloads = self._payloads(stretch, at) if in_flight is None else list(in_flight.payloads())
            self._found[stretch] = begin, payloads
        return payloads[at - begin] if at - begin < len(payloads) else None

    def _payloads(self, stretch: Stretch, at: int) -> list[memoryview]:
        """Return the payloads from record *at* of *stretch* on, as many as one read finds."""
        found: list[memoryview] = []
        if not self._left:
            return found
        self._left -= 1
        try:
            for run in self.read(stretch.stream, stretch.first + at, min(stretch.payload, READ)):
                if run.first_seq != stretch.first + at + len(found) or run.content_type != JSON:
                    break
                found += run.payloads()
        except JournalCorrupt:
            pass  # the record cannot be compared, so the event is stored
        return found


def is_same(stored: Buffer | None, payload: Buffer) -> bool:
    """Return whether *payload* equals *stored*, byte for byte or as the same JSON with keys in another order."""
    if stored is None or len(stored) != len(payload):
        return False
    if stored == payload:
        return True
    return len(stored) <= MOST_JSON and _canonical(stored) == _canonical(payload)


def _canonical(document: Buffer) -> Any:
    """Return a value that is equal for two documents if they differ only in the order of keys."""
    return json.loads(
        bytes(document),
        object_pairs_hook=lambda pairs: ("object", sorted(pairs, key=lambda pair: pair[0])),
        parse_int=lambda text: ("number", text),
        parse_float=lambda text: ("number", text),
    )


@attrs.define(eq=False)
class Sender:
    """The records that one connection has sent lately, and which of them are durable.

    :ivar settled: see :meth:`Repetitions.connected`
    :ivar recent: the stretches whose acknowledgements may be lost, the oldest first
    """

    repetitions: Repetitions
    network: str
    settled: Callable[[Exception | None], object]
    recent: deque[Stretch] = attrs.field(factory=deque, init=False)
    #: the stretches that are not durable yet, by the id of their run
    _flying: dict[int, Stretch] = attrs.field(factory=dict, init=False)
    _turns: deque[_Turn] = attrs.field(factory=deque, init=False)
    _open: bool = attrs.field(default=True, init=False)

    def sift(self, runs: list[Run]) -> tuple[list[Run], dict[Stretch, None]]:
        """Return *runs* without the events that are stored already, and the stretches that store those."""
        originals: dict[Stretch, None] = {}
        if not self.repetitions.is_watched(self):
            return runs, originals
        fresh = []
        for run in runs:
            found = self.repetitions.originals(run)
            if found is None:
                fresh.append(run)
                continue
            originals.update(dict.fromkeys(filter(None, found)))
            if not all(found):
                fresh.append(_without(run, bytes(original is not None for original in found)))
        for stretch in originals:
            self.repetitions.renew(stretch)
        return fresh, originals

    def begin(self, records: int, stored: int, originals: Iterable[Stretch]) -> bool:
        """Begin a turn with *records* records, of which *stored* are about to be published.

        :param originals: the stretches that store the other records
        :return: whether an original is not durable, so that :attr:`settled` will be called for this turn
        """
        waited = [stretch for stretch in originals if stretch.run is not None]
        turn = _Turn(self, records, stored, len(waited))
        self._turns.append(turn)
        for stretch in waited:
            stretch.waiting.append(turn)
        return bool(waited)

    def publishing(self, runs: Iterable[Run], windows: int, acknowledged: int) -> None:
        """Record that *runs* are about to be published; call :meth:`refused` for those that are refused.

        :param windows: the number of windows that have begun on the connection
        :param acknowledged: how many of them are acknowledged
        """
        watched = self.repetitions.watches(self.network)
        for run in runs:
            if run.content_type == JSON and id(run) not in self._flying:
                made = self._flying[id(run)] = _stretch_of(run, self.network)
                made.run, made.window = run, windows
                if self._open:
                    self.recent.append(made)
                    if watched:
                        self.repetitions.watch(made)
        oldest, most = acknowledged - WINDOWS, self.repetitions.most_stretches
        while self.recent and (self.recent[0].window <= oldest or len(self.recent) > most):
            self.repetitions.forget(self.recent.popleft())

    def durable(self, runs: Iterable[Run]) -> int:
        """Record that *runs* are durable.

        :return: how many of the oldest records have become durable since the last call
        """
        records = 0
        for run in runs:
            records += len(run)
            stretch = self._flying.pop(id(run), None)
            if stretch is not None:
                stretch.first, stretch.run = run.first_seq, None
                self._settle(stretch, None)
        for turn in self._turns:
            if not records:
                break
            part = min(records, turn.stored)
            turn.stored -= part
            records -= part
        return self.take_durable()

    def take_durable(self) -> int:
        """Return how many of the oldest records have become durable since the last call."""
        records = 0
        while self._turns and not self._turns[0].stored and not self._turns[0].originals:
            records += self._turns.popleft().records
        return records

    def refused(self, runs: Iterable[Run], error: Exception) -> None:
        """Forget *runs*, because they were refused, and will not become durable."""
        for run in runs:
            stretch = self._flying.pop(id(run), None)
            if stretch is not None:
                self.repetitions.forget(stretch)
                if stretch in self.recent:
                    self.recent.remove(stretch)
                self._settle(stretch, error)

    def close(self) -> None:
        """End the sender, because the connection has ended and nothing more is read from it."""
        if self._open:
            self._open = False
            self.repetitions.disconnected(self)
            self.recent.clear()

    def _settle(self, stretch: Stretch, error: Exception | None) -> None:
        """Notify the turns of other connections that wait until *stretch* is durable or refused."""
        waiting, stretch.waiting = stretch.waiting, []
        for turn in waiting:
            if turn.originals > 0:
                turn.originals = -1 if error is not None else turn.originals - 1
                if turn.originals <= 0:
                    turn.sender.settled(error)


def _without(run: Run, repeated: bytes) -> Run:
    """Return *run* without the events for which *repeated* has the byte 1."""
    assert run.producer_seq is not None, "each event has a sequence"
    _, sequences, lengths, payload = kernel.scatter(repeated, 2, run.producer_seq, run.lengths, run.payload)[0]
    return attrs.evolve(run, lengths=lengths, payload=payload, producer_seq=sequences)
