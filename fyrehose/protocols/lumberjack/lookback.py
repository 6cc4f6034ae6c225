"""Find the records in the log that writers may send again, when the first listener with ``resent = "drop"`` opens.

    open -> the newest runs of the log, in turns -> Repetitions.recover -> ready: the turns of listeners begin

The server that wrote the end of the log may have been lost with connections whose acknowledgements were lost, too.  So
until the end of the log has been searched, nobody knows what is a repetition: listeners accept connections, and their
turns wait (:meth:`~fyrehose.protocols.lumberjack.turns.Turns.hold`).  The search is bounded by size, by runs and by
time, and has turns of a millisecond or two, so that other connections are served meanwhile.

The listeners of one server that remember equally much for equally long share one table, because a writer that loses its
connection to one of them may send again to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from weakref import WeakValueDictionary

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import JournalCorrupt
from fyrehose.identity import network_of
from fyrehose.interfaces import IBroker
from fyrehose.protocols.lumberjack.frames import PROTOCOL
from fyrehose.protocols.lumberjack.resent import ENTRY, Repetitions
from fyrehose.records import Run

log = Logger()

#: How much of the end of the log is searched at most, in bytes, and in runs of all protocols.
READ_BACK, MOST_RUNS = 128 << 20, 65_536
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
    """

    turn_runs: int = TURN_RUNS
    turn_bytes: int = TURN_BYTES
    runs: int = MOST_RUNS


@attrs.define(eq=False)
class SharedRepetitions:
    """The table of events that writers may send again, shared by listeners, and the search that fills it.

    :ivar broker: the server's broker
    :ivar table: the events that writers may send again
    :ivar limits: how much of the log is searched
    """

    broker: IBroker
    table: Repetitions
    limits: SearchLimits
    _listeners: dict[Callable[[], object], None] = attrs.field(factory=dict, init=False)
    #: the rest of the search; None: the search is complete, or no listener is open
    _runs: Iterator[Run] | None = attrs.field(default=None, init=False)
    _left: int = attrs.field(default=0, init=False)  #: how many runs the search may still read
    _queued: bool = attrs.field(default=False, init=False)  #: whether the broker will give the search a turn
    _oldest: int | None = attrs.field(default=None, init=False)  #: older runs are not searched; in microseconds

    @classmethod
    def of(
        cls, broker: IBroker, clock: IReactorTime, events: int, age: float, limits: SearchLimits | None = None
    ) -> SharedRepetitions:
        """Return the shared object of *broker* for listeners that remember *events* events for *age* seconds."""
        most = max(1, min(events, broker.budget.limit // 32 // ENTRY))
        found = _SHARED.get((id(broker), most, age))
        if found is None:
            forgot = partial(broker.counters.add, PROTOCOL, "resent-forgotten")
            table = Repetitions(broker.read, clock.seconds, most, age, broker.budget.charge, forgot)
            found = _SHARED[id(broker), most, age] = cls(broker, table, limits or SearchLimits())
        return found

    @property
    def ready(self) -> bool:
        """Return whether the end of the log has been searched."""
        return self._runs is None

    def open(self, ready: Callable[[], object]) -> None:
        """Search the log for the first listener.

        :param ready: called when the search is complete; it also names the listener, see :meth:`close`
        """
        if not self._listeners:
            self.table.open()
            self._runs, self._left, self._oldest = self.broker.latest(READ_BACK), self.limits.runs, None
        self._listeners[ready] = None
        if len(self._listeners) == 1:
            self._search()
        elif self.ready:
            ready()

    def close(self, ready: Callable[[], object]) -> None:
        """Forget all events as soon as the last connection has ended, if no other listener is open."""
        del self._listeners[ready]
        if not self._listeners:
            self._runs = None
            self.table.close()

    def take_turn(self) -> int:
        """Search the next runs, and return how many bytes were read; called by the server's turns."""
        self._queued = False
        return self._search()

    def failed(self, failure: Failure) -> None:
        """Log the failure of a turn, by which the search has ended; the listeners go on without it."""
        log.failure(
            "lumberjack: events that are sent again may be stored twice, because searching the log failed; please "
            "report this bug",
            failure,
        )

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
                if run.source == PROTOCOL:
                    self.table.recover(run, _network(run))
        except JournalCorrupt as damage:
            log.warn("lumberjack: events that are sent again may be stored twice: {damage}", damage=str(damage))
            self._finish()
        except Exception:
            self._finish()  # end the search after an error, or the listeners would wait for ever
            raise
        if self._runs is not None and not self._queued:
            self._queued = True
            self.broker.turns.ready(self)
        return size

    def _is_old(self, run: Run) -> bool:
        if self._oldest is None:
            self._oldest = run.time - int((self.table.age + CLOCK_STEP) * 1e6)
        return run.time < self._oldest

    def _finish(self) -> None:
        self._runs = None
        log.info("lumberjack: {count} events are recognized if they are sent again", count=self.table.suspects)
        for ready in list(self._listeners):
            ready()


#: The objects that listeners share, by the broker's id and their limits; kept while a listener uses them.
_SHARED: WeakValueDictionary[tuple[int, int, float], SharedRepetitions] = WeakValueDictionary()


def _network(run: Run) -> str:
    """Return the network of the writer of *run*, whose producer is HOST:PORT or NAME (HOST:PORT)."""
    return network_of((run.producer or "").rpartition("(")[2].rpartition(":")[0])
