"""Read the records that writers may send again: those at the end of the log, and later those of lost connections.

    open -> the newest runs of the log, in turns -> Repetitions.recover --+-> ready: parked input proceeds
    a connection is lost -> its last records, in turns -> read_more ------+

The server that wrote the end of the log may have been lost with connections whose acknowledgements were lost, too.  So
until the end of the log has been searched, nobody knows what is a repetition: listeners accept connections, and the
input of these waits (:meth:`SharedRepetitions.park`).  It also waits while the records of a connection that was lost
are read.  The search is bounded by size, by runs and by time, and has turns of a millisecond or two, so that other
connections are served meanwhile.  Only the last windows of each connection are hashed; all other runs are passed over,
and most of those of other protocols are not even decoded, which takes about 0.3 s a GiB, so the search reaches far
behind what the table has room for.

The listeners of one server that have the same identity of events share one table, because a writer that loses its
connection to one of them may send again to another.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from weakref import WeakMethod, WeakValueDictionary

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import JournalCorrupt
from fyrehose.identity import network_of
from fyrehose.interfaces import IBroker
from fyrehose.net.turns import SteppedWork
from fyrehose.protocols.lumberjack.columns import JSON
from fyrehose.protocols.lumberjack.frames import PROTOCOL
from fyrehose.protocols.lumberjack.ledger import ENTRY, EventIdentity, Fingerprints
from fyrehose.protocols.lumberjack.resent import WINDOWS, Repetitions
from fyrehose.records import Run

log = Logger()

#: How much of the end of the log is searched at most: runs that are decoded, and bytes as a multiple of server.memory.
#: A writer that was away while others went on sends windows again that lie as far back as what the others have written.
MOST_RUNS, REACH = 131_072, 8
#: The share of server.memory that the table may take.
SHARE = 8
#: Runs that are older than ``resent_age`` and this many seconds are not searched; clocks may step by an hour.
CLOCK_STEP = 3600.0


@attrs.frozen
class SearchLimits:
    """How much of the log is searched.

    :ivar runs: how many runs are decoded
    :ivar reach: how many bytes are read, as a multiple of ``server.memory``
    """

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
    #: the search, or the reading of records of lost connections; None: neither is under way
    _work: SteppedWork | None = attrs.field(default=None, init=False)

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
            self._begin(self._search()).begin()
        self._listeners[listener] = None

    def close(self, listener: object) -> None:
        """Forget all events as soon as the last connection has ended, if no other listener is open."""
        del self._listeners[listener]
        if not self._listeners:
            self.table.close()
            self._resume()

    def read_unread(self) -> None:
        """Read the records of a lost connection in turns, while input waits."""
        if self._work is None:
            self.broker.turns.ready(self._begin(self._read()))

    def _begin(self, steps: Iterator[None]) -> SteppedWork:
        """Return work that lets input wait until its *steps* have ended."""
        self.ready, self._work = False, SteppedWork(self.broker.turns, steps)
        self._work.done.addErrback(self._failed).addCallback(lambda _: self._resume())
        return self._work

    def _failed(self, failure: Failure) -> None:
        """Log *failure*, by which the search has ended; the listeners go on without it."""
        log.failure(
            "lumberjack: events that are sent again may be stored twice, because searching the log failed; please "
            "report this bug",
            failure,
        )

    def _resume(self) -> None:
        work, self._work, self.ready = self._work, None, True
        if work is not None:
            work.stop()
        parked, self._parked = self._parked, []
        for proceed in parked:
            proceed()

    def _search(self) -> Iterator[None]:
        """Search the end of the log, one decoded run in each step; then read what has to be read meanwhile."""
        windows = dict[str | None, int]()
        oldest: int | None = None
        try:
            latest = self.broker.latest(self.limits.reach * self.broker.budget.limit, PROTOCOL)
            for run in islice(latest, self.limits.runs):
                if oldest is None:
                    oldest = run.time - int((self.table.age + CLOCK_STEP) * 1e6)
                if run.time < oldest:
                    break
                self._recover(run, windows)
                yield
        except JournalCorrupt as damage:
            log.warn("lumberjack: events that are sent again may be stored twice: {damage}", damage=str(damage))
        log.info("lumberjack: {count} events are recognized if they are sent again", count=self.table.suspects)
        yield from self._read()

    def _read(self) -> Iterator[None]:
        """Read the records of lost connections, those of one in each step."""
        while self.table.has_unread:
            self.table.read_more()
            yield

    def _recover(self, run: Run, windows: dict[str | None, int]) -> None:
        """Remember the events of *run*, if they may be of the last windows of their connection.

        :param windows: for each connection whose runs were found: how many of its windows have begun in them
        """
        if run.source != PROTOCOL or run.content_type != JSON:
            return
        newer = windows.get(run.producer, 0)
        if newer < WINDOWS:
            windows[run.producer] = newer + _begun(run)
            self.table.recover(run, _network(run), newer)


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
