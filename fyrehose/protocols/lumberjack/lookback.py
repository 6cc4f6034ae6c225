"""Read the records that writers may send again: those at the end of the log, and later those of lost connections.

    open -> the newest runs of the log, in turns -> Repetitions.recover --+-> ready: parked input proceeds
    a connection is lost -> its last records, in turns -> read_more ------+

The server that wrote the end of the log may have been lost with connections whose acknowledgements were lost, too.  So
until the end of the log has been searched, nobody knows what is a repetition: listeners accept connections, and the
input of these waits (:meth:`SharedRepetitions.park`).  It also waits while the records of a connection that was lost
are read.  The search is bounded by size, by runs and by time, and has turns of a millisecond or two, so that other
connections are served meanwhile.  Only the last windows of each connection are hashed; all other runs are passed over,
which takes about 0.3 s a GiB, so the search reaches far behind what the table has room for.

The listeners of one server that have the same identity of events share one table, because a writer that loses its
connection to one of them may send again to another.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from weakref import WeakMethod, WeakValueDictionary

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import JournalCorrupt
from fyrehose.identity import network_of
from fyrehose.interfaces import IBroker
from fyrehose.protocols.lumberjack.columns import JSON
from fyrehose.protocols.lumberjack.frames import PROTOCOL
from fyrehose.protocols.lumberjack.ledger import ENTRY, EventIdentity, Fingerprints
from fyrehose.protocols.lumberjack.resent import WINDOWS, Repetitions
from fyrehose.records import Run

log = Logger()

#: How much of the end of the log is searched at most: runs of all protocols, and bytes as a multiple of server.memory.
#: A writer that was away while others went on sends windows again that lie as far back as what the others have written.
MOST_RUNS, REACH = 262_144, 8
#: The share of server.memory that the table may take.
SHARE = 8
#: Runs that are older than ``resent_age`` and this many seconds are not searched; clocks may step by an hour.
CLOCK_STEP = 3600.0
#: Bounds of what one turn reads: the number of runs, and about how many bytes.
TURN_RUNS, TURN_BYTES = 64, 256 << 10


@attrs.frozen
class SearchLimits:
    """How much of the log is searched.

    :ivar turn_runs: how many runs one turn reads
    :ivar turn_bytes: after how many bytes a turn ends
    :ivar runs: how many runs all turns read together
    :ivar reach: how many bytes all turns read together, as a multiple of ``server.memory``
    """

    turn_runs: int = TURN_RUNS
    turn_bytes: int = TURN_BYTES
    runs: int = MOST_RUNS
    reach: int = REACH


@attrs.define(eq=False)
class SharedRepetitions:
    """The table of events that writers may send again, shared by listeners, and the search that fills it.

    :ivar broker: the server's broker
    :ivar table: the events that writers may send again
    :ivar limits: how much of the log is searched
    :ivar ready: whether the end of the log has been searched, and the records of lost connections have been read
    """

    broker: IBroker
    table: Repetitions
    limits: SearchLimits
    ready: bool = attrs.field(default=True, init=False)
    _listeners: dict[object, None] = attrs.field(factory=dict, init=False)
    #: continues each input that waits until this is ready
    _parked: list[Callable[[], object]] = attrs.field(factory=list, init=False)
    #: for each connection whose runs were found: how many of its windows have begun in them
    _windows: dict[str | None, int] = attrs.field(factory=dict, init=False)
    #: the rest of the search; None: the search is complete, or no listener is open
    _runs: Iterator[Run] | None = attrs.field(default=None, init=False)
    _left: int = attrs.field(default=0, init=False)  #: how many runs the search may still read
    _queued: bool = attrs.field(default=False, init=False)  #: whether the broker will give the search a turn
    _oldest: int | None = attrs.field(default=None, init=False)  #: older runs are not searched; in microseconds

    @classmethod
    def of(
        cls,
        broker: IBroker,
        clock: IReactorTime,
        events: int,
        age: float,
        identity: EventIdentity = EventIdentity(),  # noqa: B008 - it is frozen
        limits: SearchLimits | None = None,
    ) -> SharedRepetitions:
        """Return the shared object of *broker* for listeners that remember *events* events for *age* seconds."""
        most = max(1, min(events, broker.budget.limit // SHARE // ENTRY))
        key = (id(broker), most, age, identity)
        found = _SHARED.get(key)
        if found is None:
            forgot = partial(broker.counters.add, PROTOCOL, "resent-forgotten")
            table = Repetitions(
                broker.read,
                broker.bounds,
                clock.seconds,
                most,
                age,
                Fingerprints(identity),
                charge=broker.budget.charge,
                forgot=forgot,
            )
            found = _SHARED[key] = cls(broker, table, limits or SearchLimits())
            reading = WeakMethod(found.read_unread)  # the table must not keep the object that keeps it
            table.unread = lambda: (method := reading()) and method()
        return found

    def park(self, proceed: Callable[[], object]) -> bool:
        """Return False if input may be handled; else call *proceed* as soon as it may."""
        if self.ready:
            return False
        self._parked.append(proceed)
        return True

    def open(self, listener: object) -> None:
        """Search the log, if *listener* is the first one."""
        if not self._listeners:
            self.table.open()
            self._runs = self.broker.latest(self.limits.reach * self.broker.budget.limit)
            self._left, self._oldest = self.limits.runs, None
            self._windows.clear()
            self.ready = False
            self._work()
        self._listeners[listener] = None

    def close(self, listener: object) -> None:
        """Forget all events as soon as the last connection has ended, if no other listener is open."""
        del self._listeners[listener]
        if not self._listeners:
            self._runs = None
            self.table.close()
            self._resume()

    def read_unread(self) -> None:
        """Read the records of a lost connection in turns, while input waits."""
        self.ready = False
        self._queue()

    def take_turn(self) -> int:
        """Search the next runs, and return how many bytes were read; called by the server's turns."""
        self._queued = False
        return self._work()

    def failed(self, failure: Failure) -> None:
        """Log the failure of a turn, by which the search has ended; the listeners go on without it."""
        log.failure(
            "lumberjack: events that are sent again may be stored twice, because searching the log failed; please "
            "report this bug",
            failure,
        )

    def _work(self) -> int:
        """Search and read for one turn; return how many bytes were read."""
        try:
            size = self._search() if self._runs is not None else self.table.read_more(self.limits.turn_bytes)
        except Exception:
            self._runs = None  # end the search after an error, or the listeners would wait for ever
            self._resume()
            raise
        if self._runs is None and not self.table.has_unread:
            self._resume()
        else:
            self._queue()
        return size

    def _queue(self) -> None:
        if not self._queued:
            self._queued = True
            self.broker.turns.ready(self)

    def _resume(self) -> None:
        self.ready = True
        parked, self._parked = self._parked, []
        for proceed in parked:
            proceed()

    def _search(self) -> int:
        size, runs = 0, 0
        try:
            while self._runs is not None and runs < self.limits.turn_runs and size < self.limits.turn_bytes:
                run = next(self._runs, None)
                if run is None or not self._left or self._is_old(run):
                    self._finish()
                    break
                self._left -= 1
                runs, size = runs + 1, size + len(run.payload)
                self._recover(run)
        except JournalCorrupt as damage:
            log.warn("lumberjack: events that are sent again may be stored twice: {damage}", damage=str(damage))
            self._finish()
        return size

    def _recover(self, run: Run) -> None:
        """Remember the events of *run*, if they may be of the last windows of their connection."""
        if run.source != PROTOCOL or run.content_type != JSON:
            return
        newer = self._windows.get(run.producer, 0)
        if newer < WINDOWS:
            self._windows[run.producer] = newer + _begun(run)
            self.table.recover(run, _network(run), newer)

    def _is_old(self, run: Run) -> bool:
        if self._oldest is None:
            self._oldest = run.time - int((self.table.age + CLOCK_STEP) * 1e6)
        return run.time < self._oldest

    def _finish(self) -> None:
        self._runs = None
        self._windows.clear()
        log.info("lumberjack: {count} events are recognized if they are sent again", count=self.table.suspects)


#: The objects that listeners share, by the broker's id, limits and identity; kept while a listener uses them.
_SHARED: WeakValueDictionary[tuple[int, int, float, EventIdentity], SharedRepetitions] = WeakValueDictionary()


def _network(run: Run) -> str:
    """Return the network of the writer of *run*, whose producer is HOST:PORT or NAME (HOST:PORT)."""
    return network_of((run.producer or "").rpartition("(")[2].rpartition(":")[0])


def _begun(run: Run) -> int:
    """Return how many windows of Beats, whose sequences begin at 1, begin in *run*."""
    sequences = run.producer_seq
    if isinstance(sequences, int):
        return int(sequences == 1)
    return 0 if sequences is None else array("Q", bytes(sequences)).count(1)
