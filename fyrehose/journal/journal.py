"""The journal on disk: group commit, and the states of the journal.

    submit -> a commit (one at a time, see commit.py) -> synced -> the gate (see gate.py)
           -> release -> the observer, then the owners of the publishes

What is submitted has two ends: it is durable, or the journal ends before.  While the disk has no room, commits wait,
and are tried again every second; publishes are refused meanwhile.

In a cluster, :meth:`FileJournal.apply` of a follower writes the bytes of the leader instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import (
    Closed,
    JournalFailed,
    JournalLocked,
)
from fyrehose.interfaces import IJournal, IJournalObserver, JournalState
from fyrehose.journal import scan
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.commit import (
    DEFERREDS,
    Commit,
    Commits,
    Far,
    Measured,
    Pace,
    ThreadWorker,
    Worker,
    settle,
)
from fyrehose.journal.files import Files
from fyrehose.journal.format import UNKNOWN
from fyrehose.journal.gate import IGate, LocalGate
from fyrehose.journal.index import SegmentIndex
from fyrehose.journal.keeper import Keeper
from fyrehose.journal.opening import OpenLog
from fyrehose.journal.readable import Readable
from fyrehose.journal.recovery import Recovered
from fyrehose.journal.retention import Deletion
from fyrehose.journal.room import Room
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.slow_disk import SlowDisk
from fyrehose.journal.store import Store
from fyrehose.journal.upkeep import Upkeep
from fyrehose.journal.writer import Applied, Committed, NoRoom, Rolled, SyncFailed, Writer
from fyrehose.net.turns import Turns
from fyrehose.observe.meters import MOST_RECENT, JournalMeters, JournalStatus
from fyrehose.periodic import Checks
from fyrehose.records import Publish, Run
from fyrehose.standing import Standing

log = Logger()
#: More bytes than can wait: a journal that is not writable refuses publishes at once, so their input need not wait.
UNLIMITED = 1 << 62
T = TypeVar("T")

#: How often the free space of the disk and the age of segments are checked, in seconds.
CHECK_INTERVAL = 1.0
#: How long a publish waits for a journal that cannot be written before the observer is told, in seconds.
PATIENCE = 5.0


@implementer(IJournal)
@attrs.define(eq=False)
class FileJournal:
    """The journal in *directory*; see :class:`IJournal` for the methods.

    :ivar reactor: runs timers, and calls from the writer thread
    :ivar files: the system calls
    :ivar clock: gives records their times
    :ivar worker: runs blocking calls; None: a thread of its own, the writer thread
    :ivar pace: decides in which thread a commit runs; None: small commits run in the reactor's thread while the disk is
        fast or, if a *worker* is given, all commits run in the worker
    :ivar at_turn_end: calls a function when the reactor has read everything readable in this iteration; None: by a
        delayed call
    :ivar turns: gives the periodic checks their turns
    :ivar stream_age: returns the maximum age of a stream's records, in seconds, 0: no limit; older records are not
        served; None: no stream has a limit
    :ivar gate: the gate that decides when a synced commit is released, and whether publishes are accepted
    :ivar meters: the measurements
    :ivar report: the result of recovery
    :ivar store: reads what is durable
    """

    reactor: Any
    directory: Path
    settings: JournalSettings = attrs.field(factory=JournalSettings)
    files: Files = attrs.field(factory=Files, kw_only=True)
    clock: RecordClock = attrs.field(factory=RecordClock, kw_only=True)
    worker: Worker | None = attrs.field(default=None, kw_only=True)
    pace: Pace | None = attrs.field(default=None, kw_only=True)
    at_turn_end: Callable[[Callable[[], object]], object] | None = attrs.field(default=None, kw_only=True)
    turns: Turns = attrs.field(default=attrs.Factory(lambda self: Turns(self.reactor), takes_self=True), kw_only=True)
    stream_age: Callable[[str], float] | None = attrs.field(default=None, kw_only=True)
    gate: IGate = attrs.field(factory=LocalGate, kw_only=True)
    state: JournalState = attrs.field(default=JournalState.CLOSED, init=False)
    meters: JournalMeters = attrs.field(factory=JournalMeters, kw_only=True)
    store: Store = attrs.field(init=False)
    keeper: Keeper = attrs.field(init=False)
    #: How many records of other servers :meth:`apply` has written.
    applied: int = attrs.field(default=0, init=False)
    #: The methods by which readers find records, those of :class:`Readable`: a method here would cost each read a call.
    bounds: Callable[[str], tuple[int, int]] = attrs.field(init=False)
    first_since: Callable[[str, int], int] = attrs.field(init=False)
    expired: Callable[[str, int], bool] = attrs.field(init=False)
    why_not_ready: Callable[[], str] = attrs.field(default=str, init=False)
    ends: Callable[[], Mapping[str, int]] = attrs.field(init=False)
    retired: Callable[[], Mapping[str, int]] = attrs.field(init=False)
    read: Callable[[str, int, int], tuple[Run, ...]] = attrs.field(init=False)
    latest: Callable[[int, str], Iterator[Run]] = attrs.field(init=False)
    _readable: Readable = attrs.field(init=False)
    _log: OpenLog = attrs.field(init=False)
    _room: Room = attrs.field(init=False)
    _slow_disk: SlowDisk = attrs.field(init=False)
    _upkeep: Upkeep = attrs.field(init=False)
    _commits: Commits = attrs.field(init=False)
    _observer: IJournalObserver = attrs.field(init=False)
    _checking: Checks = attrs.field(init=False)
    #: The writer thread; None while the journal is closed.
    _worker: Worker | None = attrs.field(default=None, init=False)
    #: Fires when the gate has prepared the opening (:meth:`.IGate.prepare`); None while the gate prepares nothing.
    _preparing: Deferred[None] | None = attrs.field(default=None, init=False)
    _opening: bool = attrs.field(init=False)
    _closers: list[Deferred[None]] = attrs.field(factory=list, init=False)
    #: When the state became READ_ONLY, in seconds of the reactor's clock.
    _read_only_at: float = attrs.field(default=0.0, init=False)
    #: Fires when all publishes and retirements are settled; None unless the journal is being closed.
    _idle: Deferred[None] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._log = OpenLog(
            self.directory,
            self.settings,
            self.files,
            self.gate,
            self.clock,
            self.meters.sync_seconds,
        )
        self._upkeep = Upkeep(self.reactor, self._log, self.files, self._call, self._broke)
        self.store = Store(self.directory, self.files, self._upkeep.store_index, self.settings.caches)
        self._readable = readable = Readable(self.store)
        readable.limit_ages(self.stream_age)
        self.bounds, self.expired, self.ends = readable.bounds, readable.expired, readable.ends
        self.first_since = readable.first_since
        self.retired, self.read, self.latest = readable.retired, readable.read, readable.latest
        self._room = Room(self.directory, self.files)
        self._slow_disk = SlowDisk(self.directory, self.meters)
        deletion = Deletion(self.directory, self.files)
        self.keeper = Keeper(self.directory, self.settings, self.store, self.clock, deletion, self._call)
        what = "the disk and the retention of the journal"
        self._checking = Checks(self.reactor, self._check, CHECK_INTERVAL, what, self.turns)
        self.gate.attach(self)

    def change(self, settings: JournalSettings, stream_age: Callable[[str], float] | None) -> None:
        """Change the retention and the limits of the ages of records, from now on.

        :param settings: the new settings; their durability, linger and segment size must be the present ones
        """
        self.settings = settings
        self.keeper.settings = settings
        if stream_age != self.stream_age:
            self.stream_age = stream_age
            self._readable.limit_ages(stream_age)

    @property
    def standing(self) -> Standing:
        """Return what this server is now; it accepts publishes if both its cluster and its own disk let it."""
        standing: Standing = self.gate.standing
        if self.state is JournalState.READ_ONLY:
            return standing.refusing(self._room.error(self.settings.min_free))
        if self.state is not JournalState.WRITABLE:
            closed = Closed(f"the journal is {self.state.value}")
            return attrs.evolve(standing, caught_up=False, leads_alone=False, refusal=closed)
        return standing

    @property
    def unsettled(self) -> bool:
        """Return whether publishes that were accepted are not settled yet."""
        return self._commits.unsettled > 0

    @property
    def lacks_room(self) -> bool:
        """Return whether the disk has too little room for publishes."""
        return self._room.lacks

    @property
    def report(self) -> Recovered:
        """Return the result of recovery."""
        return self._log.report

    @property
    def epoch(self) -> str:
        """Return the first half of the identity of an open journal as text; "" if it is closed, or has none yet."""
        if self.state is JournalState.CLOSED:
            return ""
        identity = self.writer.identity
        return "" if identity == UNKNOWN else identity[:8].hex()

    @property
    def writer(self) -> Writer:
        """Return the writer of an open journal."""
        return self._log.writer

    @property
    def idle(self) -> bool:
        """Return whether the writer thread has no job."""
        return self._worker is None or self._worker.idle

    @property
    def floor(self) -> int:
        """Return the number above which new streams begin, because forgotten retired streams had numbers up to it."""
        return self._readable.streams.floor

    # Opening.

    def open(self, observer: IJournalObserver) -> Deferred[Mapping[str, int]]:
        if self._worker is not None:
            return fail(JournalLocked(f"the journal {self.directory} is already open in this process"))
        self._observer = observer
        self._preparing = self.gate.prepare()
        return self._preparing.addCallback(lambda _: self._open()).addErrback(self._give_up)

    def cancel_open(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()

    def expect_close(self) -> None:
        self.gate.expect_stop()

    def _give_up(self, failure: Failure) -> Any:
        self._preparing = None
        if failure.check(CancelledError):
            failure = Failure(Closed("the server was stopped while it started"))
        return self.gate.stop().addBoth(lambda _: failure)

    def _open(self) -> Deferred[Mapping[str, int]]:
        self._opening, self._preparing = True, None
        self._worker = self.worker or ThreadWorker(self.reactor.callFromThread, "fyrehose journal", self.meters)
        opened = self._worker.call(self._log.open).addCallbacks(self._opened, self._not_opened)
        return opened.addBoth(self._settled_open)

    def _settled_open(self, result: Any) -> Any:
        self._opening = False
        if not isinstance(result, Failure) and not self._closers:
            self.gate.opened()
        if self._closers:
            self._begin_close()
        return result

    def _opened(self, writer: Writer) -> Mapping[str, int]:
        assert self._worker is not None
        # If commits are not synced, or run in the worker of the caller, their duration says nothing about the disk.
        pace = self.pace or (Measured() if self.worker is None and writer.sync_each else Far())
        at_turn_end = self.at_turn_end or partial(self.reactor.callLater, 0)
        self._commits = Commits(
            writer,
            self._worker,
            pace,
            self.clock,
            self.gate.may_write,
            at_turn_end,
            self.gate.synced,
            self._broke,
        )
        self._upkeep.open = True
        rolled = self._readable.open(writer, self.report, self.clock.wall())
        if rolled is not None:
            self._rolled(rolled)
        self.state = JournalState.WRITABLE if self.gate.standing.may_write else JournalState.READ_ONLY
        self._checking.start()
        self._checking.begin()
        return dict(self.ends())

    def _not_opened(self, failure: Failure) -> Failure:
        self._unlock()
        return failure

    # Appending.

    @property
    def window(self) -> int:
        """Return how many bytes may be on their way to the disk so that none waits long; see :class:`.IJournal`."""
        return 2 * self._commits.largest.most if self.state is JournalState.WRITABLE else UNLIMITED

    def submit(self, publish: Publish) -> None:
        assert self.state is JournalState.WRITABLE, f"the journal is {self.state.value}; check it before you number"
        self._commits.submit(publish)

    def retire(self, streams: Sequence[str]) -> Deferred[None]:
        """Retire *streams* by a separate commit, which keeps its place among the appends; see :class:`IJournal`."""
        if (refusal := self.standing.refusal) is not None:
            return fail(refusal)
        done: Deferred[None] = Deferred()
        self.submit(Publish([], 0, DEFERREDS, done, retires=streams))
        return done

    def _call(self, job: Callable[[], T]) -> Deferred[T]:
        assert self._worker is not None, "the journal is open"
        return self._worker.call(job)

    # Called by the gate.

    def release(self, commit: Commit) -> None:
        """Let readers see the records of *commit*, notify the observer, and settle the publishes of *commit*."""
        committed = commit.result
        assert isinstance(committed, Committed), "only what is on disk is released"
        if self._commits.stopped:
            return  # Nothing leaves a journal that ends.
        self._commits.unsettled -= len(commit.items)
        if committed.batches:
            meters = self.meters
            meters.recent.append((committed.size, (self.clock.monotonic() - commit.began) / 1e6, committed.synced))
            if len(meters.recent) >= MOST_RECENT:
                meters.count()
        if committed.rolled is not None:
            self._rolled(committed.rolled)
        ends = self._readable.released(committed)
        if self.settings.durability.mode == "interval" and self._upkeep.sync_later is None:
            self._upkeep.sync_in(self.settings.durability.seconds)
        if committed.bare:
            self._upkeep.prepare()
        if committed.many:
            self._upkeep.take_snapshot(lambda: self.state is JournalState.WRITABLE)
        waiting = self._commits.waiting
        if waiting.arrived or waiting.left:
            self._commits.schedule()  # before the observer runs, so that the disk stays busy meanwhile
        if ends:
            self._observer.durable(ends)
        settle(commit.items)
        if self._idle is not None:
            self._close_when_idle()

    def schedule(self) -> None:
        """Schedule a commit of the waiting appends."""
        self._commits.schedule()

    def mark(self) -> None:
        """Write MARK soon, because another commit was released."""
        self._upkeep.mark()

    def note(self) -> Deferred[int]:
        """Write and sync the file MARK; return a Deferred that fires with the durable mark that the file then has."""
        return self._call(lambda: self.writer.note())

    def accept(self, reason: str) -> None:
        """Accept publishes, unless the disk is full.

        :param reason: for people
        """
        if self.state is JournalState.READ_ONLY and not self._room.lacks:
            self._enter(JournalState.WRITABLE, reason)

    def forbid(self, reason: str) -> None:
        """Refuse further publishes; those that were accepted are still written.

        :param reason: for people
        """
        if self.state is JournalState.WRITABLE:
            self._read_only_at = self.reactor.seconds()
            self._enter(JournalState.READ_ONLY, reason)

    def end(self, reason: str) -> None:
        """Write and release nothing more, because this journal has to be closed and opened again.

        :param reason: for people
        """
        self._commits.stop()
        self.forbid(reason)
        self._observer.stuck(reason)

    def break_off(self, reason: str) -> None:
        """Change the state to FAILED, for *reason*: this process must not write the journal any more."""
        self._broke(Failure(JournalFailed(reason)))

    # In a cluster.

    def lead(self) -> Deferred[None]:
        """Prepare for commits as the leader; return a Deferred that fires when :meth:`accept` may be called."""
        return self._call(lambda: self.writer.lead(self.clock.lead(self.writer.time)))

    def apply(self, position: int, data: bytes) -> Deferred[int]:
        """Write batches of the leader at *position*, the end of the log, sync them, and deliver their records.

        :return: fires with the position behind the batches; fails with :class:`~fyrehose.journal.format.Damage` if the
            batches do not continue this log, and with :class:`~fyrehose.journal.writer.NoRoom` if the disk is full,
            after which the caller may repeat the same call
        """
        return self._call(lambda: self.writer.apply(position, data)).addCallback(self._applied)

    def _applied(self, applied: Applied) -> int:
        if applied.rolled is not None:
            self._rolled(applied.rolled)
        self.applied += sum(header.records for header, _, _ in applied.batches)
        ends = self._readable.applied(applied)
        if ends:
            self._observer.durable(ends)
        return self.writer.position

    def differs(self, position: int, data: bytes) -> Deferred[bool]:
        """Return whether the bytes of the log at *position* differ from *data*, as far as the log has them."""
        return self._call(lambda: self._log.differs(position, data))

    # Segments.

    def _rolled(self, rolled: Rolled) -> None:
        index = SegmentIndex(rolled.base, rolled.base)
        index.set_before(rolled.entries)
        sealed = self.store.roll(rolled.sealed, index)
        path = scan.index_path_of(self.directory, sealed.base)
        self._call(sealed.pack).addCallback(self._packed, sealed.base, path)
        self._checking.begin()

    def _packed(self, packed: bytes, base: int, path: Path) -> None:
        if self.store.packed(base, packed):
            self._upkeep.store_index(path, packed)

    # Failures.

    def _broke(self, failure: Failure) -> None:
        """Refuse publishes if the disk is full; else the journal has failed, and writes and releases nothing more."""
        if self.state is JournalState.FAILED:
            return
        why = failure.getErrorMessage()
        if failure.check(NoRoom):
            self._room.ran_out(why)
            self.forbid(f"the disk of {self.directory} is full or read-only: {why}")
            if self._idle is not None:  # It cannot wait for room while it is being closed.
                self._commits.stop()
                self._close_when_idle()
            return
        self._commits.stop()
        self._upkeep.cancel_sync()
        log.critical("the journal failed", log_failure=failure)
        what = "the disk of" if failure.check(SyncFailed, OSError) else "the journal"
        self._enter(JournalState.FAILED, f"{what} {self.directory} failed: {why}")

    def _enter(self, state: JournalState, reason: str) -> None:
        self.state = state
        self._observer.state_changed(state, reason)
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        """Continue closing if nothing is under way, or if what is under way will never be durable."""
        idle = self._idle
        if idle is not None and (self.state is not JournalState.CLOSED or self._commits.stopped or not self.unsettled):
            self._idle = None
            idle.callback(None)

    def _check(self) -> Iterator[None]:
        """Check the disk, the clock, the lock with the free space, and the retention; begun once a second."""
        call = self._checking.isolation.call
        call("how long syncs of the journal take", self._slow_disk.look)
        call("the clock and the ages of records", self._check_clock)
        call("the free space of the journal's disk", self._check_room)
        # Retention begins only when the broker has said what subscriptions need.
        if self.state is not JournalState.FAILED and not self._opening:
            yield from self.keeper.check(self.writer.keep_from)

    def _check_clock(self) -> None:
        for message in self.clock.messages():
            log.warn("{message}", message=message)
        now = self.clock.now()
        if not self.clock.in_doubt:
            self._readable.judge_ages(now)

    def _check_room(self) -> None:
        try:
            self._room.measure(self._log.lock, self.settings.min_free)
        except JournalFailed:
            self._broke(Failure())
            return
        if self._room.lacks:
            self._await_room()
        waits = self.state is JournalState.READ_ONLY and self.unsettled
        if waits and self.reactor.seconds() - self._read_only_at >= PATIENCE:
            self._observer.stuck(str(self.standing.refusal))

    def _await_room(self) -> None:
        """Refuse publishes while the disk has too little room, and try again to write when it has enough."""
        # Appends that were accepted are still committed: min-free reserves the space for them.
        self.forbid(str(self._room.error(self.settings.min_free)))
        if self._room.is_enough:
            self._call(self.writer.make_room).addCallbacks(self._has_room, self._broke)

    def _has_room(self, _: None) -> None:
        """Commit what waits for room; if nothing does, accept publishes again."""
        if self._commits.waiting:
            self._commits.schedule()
        elif self._room.lacks:
            self._room.is_back()
            if self.gate.standing.may_write:
                self.accept(f"the disk of {self.directory} has free space again")

    # Status.

    def status(self) -> JournalStatus:
        """Return the figures of the open journal, for metrics and status pages."""
        position, bases = self.writer.position, self.store.bases
        return JournalStatus(
            directory=str(self.directory),
            durability=str(self.settings.durability),
            position=position,
            durable=self.writer.marked,
            segments=len(bases),
            size=position - bases[0],
            free=self._room.free,
            held_by=self.keeper.held_by,
            overrun_subscriptions=self.keeper.overrun_subscriptions,
            damage=tuple(self.store.damage.values()),
            keep_bytes=self.settings.keep_bytes,
            keep_age=self.settings.keep_age,
            min_free=self.settings.min_free,
            meters=self.meters,
            cluster=self.gate.status(),
        )

    # Closing.

    def close(self) -> Deferred[None]:
        if self._worker is None:
            return succeed(None)
        closed: Deferred[None] = Deferred()
        self._closers.append(closed)
        if len(self._closers) == 1 and not self._opening:
            self._begin_close()
        return closed

    def _begin_close(self) -> None:
        if self._worker is None:  # the journal did not open
            self._closed(None)
            return
        self.gate.stop().addErrback(self._broke).addCallback(lambda _: self._finish())

    def _finish(self) -> None:
        self._checking.stop()
        in_order = self.state is not JournalState.FAILED
        if in_order:
            self.state = JournalState.CLOSED
        self._idle = Deferred()
        self._idle.addCallback(lambda _: self._close(in_order)).addCallback(self._closed)
        self._commits.schedule()  # what waits for room, for the last time
        self._close_when_idle()

    def _close(self, in_order: bool) -> Deferred[None]:
        self._upkeep.cancel_sync()  # only now: commits that were under way may have scheduled a sync
        # If a commit has failed meanwhile, the log must not end with a note that the journal was closed in order.
        failed = JournalState.FAILED
        closed = self._call(lambda: self.writer.close(in_order and self.state is not failed, self.clock.now()))
        return closed.addErrback(self._not_in_order).addCallback(lambda _: self._unlock())

    def _not_in_order(self, failure: Failure) -> None:
        if failure.check(NoRoom):
            log.warn("the journal was closed, but the disk is too full to note that: {why}", why=failure.value)
        else:
            self._broke(failure)

    def _closed(self, _: None) -> None:
        closers, self._closers = self._closers, []
        for closed in closers:
            closed.callback(None)

    def _unlock(self) -> None:
        assert self._worker is not None
        self._worker.stop()
        self._upkeep.open = False
        self._worker = None
        if self.state is not JournalState.FAILED:
            self.state = JournalState.CLOSED
        self.store.close()
        self._log.unlock()
