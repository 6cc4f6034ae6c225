"""Recognize events that a writer sends again although they are stored (``resent = "drop"``), without I/O.

    in:  the runs that a connection is about to publish, what became durable or was refused, ends of connections
    out: the runs without the events that are stored already, and how many records are durable in the writer's order

A writer sends an event again if it has received no acknowledgement.  The server may acknowledge such an event without
storing it only if *each record stands for one event at most*: otherwise two different events would be acknowledged, and
one of them lost.  The events themselves prove it:

1. **Identity.**  An event that says which process read it, from which file, at which offset and when
   (``agent.ephemeral_id``, ``log.file.path``, ``log.offset``, ``@timestamp``), or that has an ``@metadata._id``, is one
   event.  A record of its stream with the same content is that event, no matter who has sent it and whether it was
   acknowledged.  Twins, clones behind one address and programs that log the same line again have other identities, or
   none.  The option ``identity`` may name other fields, which then decide alone.
2. **Fingerprints.**  Beats encode an event anew at each attempt, with its members in another order.  So events are
   compared by a keyed hash that the order of members does not change (ledger.py).  An event is stored if its stream was
   retired since, or retention has deleted the record.
3. **In flight.**  Records that are not durable are found as well.  A repetition is acknowledged when its original is
   durable, and in the order of its own connection; if the original cannot be written, neither is the repetition
   acknowledged (:class:`_Turn`).
4. **Lost connections.**  A connection keeps the numbers of its last :data:`WINDOWS` acknowledged windows, and
   of those that are not acknowledged: their acknowledgements may be lost.  Nothing is hashed.  Only when the connection
   has ended do its records become *lost*: events of other connections are compared with them, until they are ``age``
   old.  A start of the server counts the last windows of each connection at the end of the log as lost.
5. **Half-open connections.**  A writer may connect again before the server notices that it has lost its connection, and
   what it sent on the first one may still arrive.  So while a network has several connections, and for ``age`` after
   the last one was opened, their last windows are searched for as well.
6. **Bounds.**  The table has room for ``capacity`` events.  A writer with ``pipelining`` of 2, the default, asks for
   its last :data:`LIKELY` windows at most; older ones take only what is free, and are forgotten first.  When the table
   is full, those found at the start, those of lost connections and those of half-open ones have guaranteed shares
   (:data:`SHARES`): which is most beyond its own forgets the oldest of the network that has most of it.  So nothing
   that was first seen after the start takes the share of what was found there.  What is forgotten, and what a writer
   sends again after ``age``, is stored twice.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

import attrs

from fyrehose.broker.fairness import FairShare
from fyrehose.errors import JournalCorrupt
from fyrehose.kernels import lumberjack as kernel
from fyrehose.kernels.pure.lumberjack import FINGERPRINT
from fyrehose.options import one_of
from fyrehose.protocols.lumberjack.columns import JSON
from fyrehose.protocols.lumberjack.ledger import Fingerprints, Ledger
from fyrehose.records import Run

#: The values of the option ``resent``, and its converter.
STORE, DROP = "store", "drop"
choice = one_of(STORE, DROP)
#: Acknowledged windows of a connection whose acknowledgements may be lost.  A writer with at most n unacknowledged
#: windows (``pipelining``) may send n + 2 again, so this is enough for n = 6.
WINDOWS = 8
#: The last windows of a connection that its writer probably sends again: the acknowledgements of two windows that are
#: on their way, each of them in two parts, may not have arrived, although they were written.
LIKELY = 4
#: The eighths of the table for events found at the start, of lost connections, and of half-open ones; one is for those
#: that were forgotten, and still take places.
SHARES = 3, 3, 1
#: How many stretches (see :class:`Stretch`) all connections may have together, and how many each may always have.
STRETCHES, LEAST_STRETCHES = 65_536, 32
#: How many stretches that are too old one turn forgets at most.
EXPIRED = 256
#: How many bytes one read of the journal returns at most.
READ = 256 << 10


@attrs.define(eq=False, slots=True)
class Stretch:
    """Consecutive records of one stream that one turn of a connection has published.

    :ivar payload: the size of the events, in bytes
    :ivar window: ordinal, on its connection, of the last window that has some of the events
    :ivar run: the records while they are not durable
    :ivar until: when the records are forgotten, in seconds
    :ivar waiting: the turns of other connections that repeat some of the events, and wait until the events are durable
    """

    stream: str
    first: int
    count: int
    payload: int
    network: str
    window: int = 0
    run: Run | None = None
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


def _stretch_of(run: Run, network: str) -> Stretch:
    return Stretch(run.stream, run.first_seq, len(run), len(run.payload), network)


@attrs.define(eq=False)
class Repetitions:
    """Table of the events that writers may send again, shared by listeners.

    :ivar read: the journal's ``read``
    :ivar bounds: the journal's ``bounds``: the first and the last number of a stream
    :ivar seconds: returns the monotonic time, in seconds
    :ivar capacity: how many events are kept
    :ivar age: how long these events are searched for, in seconds
    :ivar fingerprints: makes the fingerprints of events
    :ivar charge: called with the change of the memory that the table takes, in bytes
    :ivar forgot: called with the number of events that are forgotten early, because the table is full
    :ivar stretches: how many stretches all connections may have together
    :ivar unread: called when :meth:`read_more` has work
    """

    read: Callable[[str, int, int], tuple[Run, ...]]
    bounds: Callable[[str], tuple[int, int]]
    seconds: Callable[[], float]
    capacity: int
    age: float
    fingerprints: Fingerprints = attrs.field(factory=Fingerprints)
    charge: Callable[[int], object] = lambda size: None
    forgot: Callable[[int], object] = lambda count: None
    stretches: int = STRETCHES
    unread: Callable[[], object] = lambda: None
    _ledger: Ledger[Stretch] = attrs.field(init=False)
    #: the stretches that writers probably send again, as they have shares; and those that they may send again, too
    _started: FairShare[Stretch] = attrs.field(factory=FairShare, init=False)
    _lost: FairShare[Stretch] = attrs.field(factory=FairShare, init=False)
    _live: FairShare[Stretch] = attrs.field(factory=FairShare, init=False)
    _spare: FairShare[Stretch] = attrs.field(factory=FairShare, init=False)
    #: the stretches that were found at the start, and those of lost connections, in the order in which they are
    #: forgotten
    _ages: OrderedDict[Stretch, None] = attrs.field(factory=OrderedDict, init=False)
    #: the stretches whose events are not in the table yet, with what was read of each so far
    _unread: OrderedDict[Stretch, int] = attrs.field(factory=OrderedDict, init=False)
    _senders: dict[str, dict[Sender, None]] = attrs.field(factory=dict, init=False)
    _connections: int = attrs.field(default=0, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    #: until when the connections of a network may be half-open
    _overlaps: dict[str, float] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._ledger = Ledger(self.capacity, self.charge)

    @property
    def suspects(self) -> int:
        """Return about how many events may arrive again, and are recognized."""
        return len(self._ledger)

    def connected(self, network: str, settled: Callable[[], object]) -> Sender:
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

    def recover(self, run: Run, network: str, newer: int = 0) -> None:
        """Treat *run*, of a writer of *network*, as sent on a lost connection; call this for the newest runs first.

        :param newer: how many windows began on the same connection after those of *run*
        """
        found = self.fingerprints.of(run)
        if not any(found):
            return
        stretch, table = _stretch_of(run, network), self._started if newer < LIKELY else self._spare
        while self._is_full(stretch):  # the windows that were found before are newer
            oldest = self._spare.first_out(network)
            if table is self._spare or oldest is None:
                self.forgot(stretch.count)
                return
            self._evict(oldest)
        if self._ledger.enter(stretch, found):
            table.add(stretch, network, stretch.count)
            table.of(network).move_to_end(stretch, last=False)
            stretch.until = self.seconds() + self.age
            self._ages[stretch] = None

    def open(self) -> None:
        """Undo :meth:`close`, because a listener is open again."""
        self._closed = False

    def close(self) -> None:
        """Forget all events as soon as the last connection has ended, because no listener is open any more."""
        self._closed = True
        self._forget_if_closed()

    # Called by senders.

    def disconnected(self, sender: Sender, received: int) -> None:
        """Treat the last records of *sender* as records that may be sent again.

        :param received: of how many of its windows it has surely received the acknowledgements
        """
        others = self._senders[sender.network]
        del others[sender]
        self._connections -= 1
        for stretch in sender.recent:
            self._lose(stretch, self._spare if stretch.window <= received else self._lost)
        if len(others) < 2:  # no second connection is left on which records of the first could arrive
            self._end_overlap(sender.network)
        if not others:
            del self._senders[sender.network]
            self._forget_if_closed()

    def is_watched(self, sender: Sender) -> bool:
        """Return whether *sender* may send something again."""
        ages, until = self._ages, self._overlaps.get(sender.network)
        if not ages and until is None:
            return False
        now = self.seconds()
        for oldest in list(islice(ages, EXPIRED)):
            if oldest.until > now:
                break
            self.forget(oldest)
        if until is not None and until <= now:
            self._end_overlap(sender.network)
        return bool(ages) or sender.network in self._overlaps

    def watches(self, network: str) -> bool:
        """Return whether connections of *network* may be half-open."""
        return network in self._overlaps

    def watch(self, stretch: Stretch, found: bytes | None = None) -> None:
        """Compare events with the records of *stretch*, although its connection is still open.

        :param found: the fingerprints of the records; None: they have to be read
        """
        if found is not None and not any(found):
            return
        if self._make_room(stretch, self._live):
            self._live.add(stretch, stretch.network, stretch.count)
            self._enter(stretch, found)

    def forget(self, stretch: Stretch) -> None:
        """Stop comparing events with the records of *stretch*."""
        for table in self._tables:
            table.discard(stretch)
        self._ages.pop(stretch, None)
        self._unread.pop(stretch, None)
        self._ledger.forget((stretch,))

    @property
    def most_stretches(self) -> int:
        """Return how many stretches each connection may keep."""
        return max(LEAST_STRETCHES, self.stretches // max(1, self._connections))

    def originals(self, found: bytes) -> list[Stretch | None] | None:
        """Return, for each of the fingerprints *found*, the stretch that stores that event already, or None.

        :return: no list if all events are new
        """
        originals = self._ledger.find(found)
        if originals is None:
            return None
        gone = {stretch for stretch in set(originals) if stretch is not None and not self._is_stored(stretch)}
        if gone:
            originals = [None if stretch in gone else stretch for stretch in originals]
        return originals if any(originals) else None

    def renew(self, stretch: Stretch) -> None:
        """Remember *stretch* for another ``age``: it was sent again, and its new acknowledgement may be lost, too."""
        if stretch in self._ages:
            stretch.until = self.seconds() + self.age
            self._ages.move_to_end(stretch)
            next(table for table in self._tables if stretch in table).renew(stretch)

    def read_more(self) -> None:
        """Read some of the events that have to be recognized and are not in the table yet, if there are any."""
        if not self._unread:
            return
        stretch, done = next(iter(self._unread.items()))
        runs: Iterable[Run] = (stretch.run,) if stretch.run is not None else self._runs(stretch, done)
        part = 0
        for run in runs:
            part += len(run)
            found = self.fingerprints.of(run)
            if any(found) and not self._ledger.enter(stretch, found):
                self.forgot(len(run))
        if part and done + part < stretch.count:
            self._unread[stretch] = done + part
        else:  # all was read, or the journal has no more of it
            self._unread.pop(stretch, None)
            if stretch not in self._ledger:
                self.forget(stretch)

    @property
    def has_unread(self) -> bool:
        """Return whether :meth:`read_more` has work."""
        return bool(self._unread)

    # Private.

    def _forget_if_closed(self) -> None:
        if self._closed and not self._senders:  # only stretches of lost connections are left
            for stretch in list(self._ages):
                self.forget(stretch)

    def _lose(self, stretch: Stretch, table: FairShare[Stretch]) -> None:
        """Treat *stretch* as records of a lost connection, and enter it in *table*."""
        self._live.discard(stretch)
        stretch.until = self.seconds() + self.age
        self._ages[stretch] = None
        if not self._make_room(stretch, table):
            self.forget(stretch)
            return
        table.add(stretch, stretch.network, stretch.count)
        if stretch not in self._ledger:
            self._enter(stretch, None)

    def _make_room(self, stretch: Stretch, table: FairShare[Stretch]) -> bool:
        """Let others give way until *stretch* fits in; return False if it does not fit into *table*."""
        while self._is_full(stretch):
            gives = self._spare if self._spare or table is self._spare else self._most_beyond_share(stretch, table)
            oldest = gives.first_out(stretch.network)
            if oldest is None:
                self.forgot(stretch.count)
                return False
            self._evict(oldest)
        return True

    def _most_beyond_share(self, stretch: Stretch, table: FairShare[Stretch]) -> FairShare[Stretch]:
        """Return the table that would have most for its share, if *stretch* were in *table*."""
        shares = zip(self._tables, SHARES, strict=False)
        return max(shares, key=lambda each: (each[0].used + (each[0] is table) * stretch.count) / each[1])[0]

    @property
    def _tables(self) -> tuple[FairShare[Stretch], ...]:
        return self._started, self._lost, self._live, self._spare

    def _is_full(self, stretch: Stretch) -> bool:
        """Return whether *stretch* fits in only if others give way; an eighth is for those that have given way."""
        used = sum(table.used for table in self._tables)
        return used + stretch.count > self.capacity - self.capacity // 8

    def _evict(self, oldest: Stretch) -> None:
        self.forgot(oldest.count)
        self.forget(oldest)

    def _enter(self, stretch: Stretch, found: bytes | None) -> None:
        if found is None:
            before = bool(self._unread)
            self._unread[stretch] = 0
            if not before:
                self.unread()
        elif not self._ledger.enter(stretch, found):
            self.forget(stretch)

    def _is_stored(self, stretch: Stretch) -> bool:
        """Return whether the records of *stretch* are in the journal, or on their way there."""
        if stretch.run is not None:
            return True
        first, last = self.bounds(stretch.stream)
        return first <= stretch.first and stretch.first + stretch.count - 1 <= last

    def _end_overlap(self, network: str) -> None:
        if self._overlaps.pop(network, None) is not None:
            for stretch in list(self._live.of(network)):
                self.forget(stretch)

    def _runs(self, stretch: Stretch, done: int) -> Iterator[Run]:
        """Yield records of *stretch* behind the first *done* ones, as one read of the journal finds them."""
        at, end = stretch.first + done, stretch.first + stretch.count
        try:
            for run in self.read(stretch.stream, at, min(stretch.payload, READ)):
                if run.first_seq != at or at == end:
                    return
                part = run.slice(0, end - at)
                yield part
                at += len(part)
        except JournalCorrupt:
            pass  # events behind the damage are not recognized; the journal reports it when a peer reads there


@attrs.define(eq=False)
class Sender:
    """The records that one connection has sent lately, and which of them are durable.

    :ivar settled: see :meth:`Repetitions.connected`
    :ivar recent: the stretches whose acknowledgements may be lost, the oldest first
    """

    repetitions: Repetitions
    network: str
    settled: Callable[[], object]
    recent: deque[Stretch] = attrs.field(factory=deque, init=False)
    #: the stretches that are not durable yet, by the id of their run
    _flying: dict[int, Stretch] = attrs.field(factory=dict, init=False)
    _turns: deque[_Turn] = attrs.field(factory=deque, init=False)
    #: the fingerprints of runs that are about to be published, by the id of the run
    _found: dict[int, bytes] = attrs.field(factory=dict, init=False)
    _open: bool = attrs.field(default=True, init=False)

    def sift(
        self, runs: list[Run], permits: Callable[[str], bool] = lambda stream: True
    ) -> tuple[list[Run], dict[Stretch, None]]:
        """Return *runs* without the events that are stored already, and the stretches that store those.

        :param permits: whether the writer may publish into a stream; the broker refuses all events of other streams
        """
        originals: dict[Stretch, None] = {}
        repetitions = self.repetitions
        self._found.clear()
        if not repetitions.is_watched(self):
            return runs, originals
        fresh = []
        for run in runs:
            searched = run.content_type == JSON and permits(run.stream)
            found = repetitions.fingerprints.of(run) if searched else b""
            stored = repetitions.originals(found)
            if stored is not None:
                originals.update(dict.fromkeys(filter(None, stored)))
                repeated = bytes(original is not None for original in stored)
                if all(repeated):
                    continue
                run, found = _without(run, found, repeated)
            fresh.append(run)
            self._found[id(run)] = found
        for stretch in originals:
            repetitions.renew(stretch)
        return fresh, originals

    def begin(self, records: int, stored: int, originals: Collection[Stretch]) -> bool:
        """Begin a turn with *records* records, of which *stored* are about to be published.

        :param originals: the stretches that store the other records
        :return: whether an original is not durable, so that :attr:`settled` will be called for this turn
        """
        waited = [stretch for stretch in originals if stretch.run is not None] if originals else []
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
                        self.repetitions.watch(made, self._found.get(id(run)) or self.repetitions.fingerprints.of(run))
        oldest, most = acknowledged - WINDOWS, self.repetitions.most_stretches
        while self.recent and (self.recent[0].window <= oldest or len(self.recent) > most):
            stretch = self.recent.popleft()
            if watched:
                self.repetitions.forget(stretch)

    def durable(self, runs: Iterable[Run]) -> int:
        """Record that *runs* are durable.

        :return: how many of the oldest records have become durable since the last call
        """
        records = 0
        for run in runs:
            records += len(run.lengths) // 4
            stretch = self._flying.pop(id(run), None)
            if stretch is not None:
                stretch.first, stretch.run = run.first_seq, None
                if stretch.waiting:
                    self._settle(stretch)
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

    def refused(self, runs: Iterable[Run]) -> None:
        """Forget *runs*, because they were refused at once, and will not become durable."""
        for run in runs:
            stretch = self._flying.pop(id(run), None)
            if stretch is not None:
                self.repetitions.forget(stretch)
                if stretch in self.recent:
                    self.recent.remove(stretch)

    def close(self, windows: int, acknowledged: int) -> None:
        """End the sender, because the connection has ended and nothing more is read from it.

        :param windows: the number of windows that have begun on the connection
        :param acknowledged: how many of them are acknowledged, which the writer need not have received
        """
        if self._open:
            self._open = False
            self.repetitions.disconnected(self, min(acknowledged, windows - LIKELY))
            self.recent.clear()

    def _settle(self, stretch: Stretch) -> None:
        """Notify the turns of other connections that wait until *stretch* is durable."""
        waiting, stretch.waiting = stretch.waiting, []
        for turn in waiting:
            turn.originals -= 1
            if not turn.originals:
                turn.sender.settled()


def _without(run: Run, found: bytes, repeated: bytes) -> tuple[Run, bytes]:
    """Return *run*, and its fingerprints, without the events for which *repeated* has the byte 1."""
    assert run.producer_seq is not None, "each event has a sequence"
    _, sequences, lengths, payload = kernel.scatter(repeated, 2, run.producer_seq, run.lengths, run.payload)[0]
    left = [found[at * FINGERPRINT : (at + 1) * FINGERPRINT] for at, each in enumerate(repeated) if not each]
    return attrs.evolve(run, lengths=lengths, payload=payload, producer_seq=sequences), b"".join(left)
