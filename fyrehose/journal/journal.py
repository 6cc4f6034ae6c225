"""The journal on disk: group commit, and the states of the journal.

    submit -> a commit (one at a time, see commit.py) -> synced -> the gate (see gate.py)
           -> release -> the observer, then the owners of the publishes

In a cluster, :meth:`FileJournal.apply` of a follower writes the bytes of the leader instead, and bytes that this server
has written as the leader may be cut off again (:meth:`FileJournal.truncate`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import (
    Closed,
    JournalError,
    JournalFailed,
    JournalFull,
    JournalLocked,
    OutcomeUnknown,
    PublishError,
    ReadOnly,
)
from fyrehose.interfaces import IJournal, IJournalObserver, JournalState
from fyrehose.journal import scan
from fyrehose.journal.clock import RecordClock, monotonic_clock, wall_clock
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
from fyrehose.journal.copies import refuse_copies
from fyrehose.journal.files import NO_ROOM, Files, lock, owns_lock
from fyrehose.journal.floors import Floors
from fyrehose.journal.follower import set_aside_beyond
from fyrehose.journal.gate import IGate, LocalGate
from fyrehose.journal.index import SegmentIndex
from fyrehose.journal.keeper import Keeper
from fyrehose.journal.packing import batch_of, grouped
from fyrehose.journal.quarantine import set_aside
from fyrehose.journal.recovery import Recovered, recover
from fyrehose.journal.retention import Deletion
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.store import Caches, Store
from fyrehose.journal.streams import StreamLimits, Streams
from fyrehose.journal.writer import Applied, Committed, NoRoom, Rolled, SyncFailed, Writer
from fyrehose.observe.meters import MOST_RECENT, JournalMeters, JournalStatus
from fyrehose.options import shown_size
from fyrehose.records import Publish, Run
from fyrehose.standing import Standing

log = Logger()
T = TypeVar("T")

#: How often the free space of the disk and the age of segments are checked, in seconds.
CHECK_INTERVAL = 1.0


@implementer(IJournal)
@attrs.define(eq=False)
class FileJournal:
    """The journal in *directory*; see :class:`IJournal` for the methods.

    :ivar reactor: runs timers, and calls from the writer thread
    :ivar files: the system calls
    :ivar now: the wall clock, in microseconds since 1970 UTC
    :ivar monotonic: a clock that never steps, in microseconds
    :ivar worker: runs blocking calls; None: a thread of its own, the writer thread
    :ivar pace: decides in which thread a commit runs; None: small commits run in the reactor's thread while the disk is
        fast or, if a *worker* is given, all commits run in the worker
    :ivar at_turn_end: calls a function when the reactor has read everything readable in this iteration; None: by a
        delayed call
    :ivar stream_age: returns the maximum age of a stream's records, in seconds, 0: no limit; older records are not
        served; None: no stream has a limit
    :ivar gate: the gate that decides when a synced commit is released, and whether publishes are accepted
    :ivar caches: how much the store keeps in memory
    :ivar stream_limits: how many streams are listed and remembered
    :ivar report: the result of recovery
    :ivar store: reads what is durable
    """

    reactor: Any
    directory: Path
    settings: JournalSettings = attrs.field(factory=JournalSettings)
    files: Files = attrs.field(factory=Files, kw_only=True)
    now: Callable[[], int] = attrs.field(default=wall_clock, kw_only=True)
    monotonic: Callable[[], int] = attrs.field(default=monotonic_clock, kw_only=True)
    worker: Worker | None = attrs.field(default=None, kw_only=True)
    pace: Pace | None = attrs.field(default=None, kw_only=True)
    at_turn_end: Callable[[Callable[[], object]], object] | None = attrs.field(default=None, kw_only=True)
    stream_age: Callable[[str], float] | None = attrs.field(default=None, kw_only=True)
    gate: IGate = attrs.field(factory=LocalGate, kw_only=True)
    caches: Caches = attrs.field(factory=Caches, kw_only=True)
    stream_limits: StreamLimits = attrs.field(factory=StreamLimits, kw_only=True)
    state: JournalState = attrs.field(default=JournalState.CLOSED, init=False)
    report: Recovered = attrs.field(init=False)
    meters: JournalMeters = attrs.field(factory=JournalMeters, init=False)
    #: Free space of the disk at the last check, in bytes; -1 if the directory was deleted, None if unknown.
    _free: int | None = attrs.field(default=None, init=False)
    _clock: RecordClock = attrs.field(init=False)
    store: Store = attrs.field(init=False)
    _floors: Floors | None = attrs.field(init=False)
    keeper: Keeper = attrs.field(init=False)
    _writer: Writer = attrs.field(init=False)
    _observer: IJournalObserver = attrs.field(init=False)
    #: How many records of other servers :meth:`apply` has written.
    applied: int = attrs.field(default=0, init=False)
    #: The streams as of the last durable commit; the writer's own streams also include commits that are under way.
    _streams: Streams = attrs.field(factory=Streams, init=False)
    _commits: Commits = attrs.field(init=False)
    #: Number of publishes and retirements that are not settled yet.
    _unsettled: int = attrs.field(default=0, init=False)
    _lock: int = attrs.field(default=-1, init=False)
    _checking: LoopingCall | None = attrs.field(default=None, init=False)
    _sync_later: IDelayedCall | None = attrs.field(default=None, init=False)
    _worker: Worker | None = attrs.field(default=None, init=False)
    #: Fires when the gate has prepared the opening (:meth:`.IGate.prepare`); None while the gate prepares nothing.
    _preparing: Deferred[None] | None = attrs.field(default=None, init=False)
    _opening: bool = attrs.field(init=False)
    _closers: list[Deferred[None]] = attrs.field(factory=list, init=False)
    #: Why the last write had no room; empty once there was room again.
    _full: str = attrs.field(default="", init=False)
    #: The last disk error that was logged, so that the same error is not logged every second.
    _disk_error: str = attrs.field(default="", init=False)
    #: The reason for a change of state, of which the observer is notified once all accepted publishes are settled.
    _announcement: str | None = attrs.field(default=None, init=False)
    #: Whether MARK is about to be written in the writer thread.
    _marking: bool = attrs.field(default=False, init=False)
    #: Fires when all publishes and retirements are settled; None unless the journal is being closed.
    _idle: Deferred[None] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._clock = RecordClock(self.now, self.monotonic)
        self.report = Recovered(directory=self.directory)
        self.store = Store(self.directory, self.files, self._store_index, self.caches)
        self._floors = None if self.stream_age is None else Floors(self.store, self.stream_age)
        deletion = Deletion(self.directory, self.files)
        self.keeper = Keeper(self.directory, self.settings, self.store, self._clock, deletion, self._call)
        self.gate.attach(self)

    def change(self, settings: JournalSettings, stream_age: Callable[[str], float] | None) -> None:
        """Change the retention and the limits of the ages of records, from now on.

        :param settings: the new settings; their durability, linger and segment size must be the present ones
        """
        self.settings = self.keeper.settings = settings
        if stream_age != self.stream_age:
            # Without earlier limits the time is not known yet; the journal's next check sets it.
            now = 0 if self._floors is None else self._floors.now
            self.stream_age = stream_age
            self._floors = None if stream_age is None else Floors(self.store, stream_age, now)

    @property
    def standing(self) -> Standing:
        """Return what this server is now; it accepts publishes if both its cluster and its own disk let it."""
        standing: Standing = self.gate.standing
        if self.state is JournalState.READ_ONLY:
            return standing.refusing(self._no_room())
        if self.state is not JournalState.WRITABLE:
            closed = Closed(f"the journal is {self.state.value}")
            return attrs.evolve(standing, caught_up=False, leads_alone=False, refusal=closed)
        return standing

    @property
    def writer(self) -> Writer:
        """Return the writer of an open journal."""
        return self._writer

    @property
    def idle(self) -> bool:
        """Return whether the writer thread has no job."""
        return self._worker is None or self._worker.idle

    @property
    def floor(self) -> int:
        """Return the number above which new streams begin, because forgotten retired streams had numbers up to it."""
        return self._streams.floor

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
        self._worker = self.worker or ThreadWorker(self.reactor.callFromThread, "fyrehose journal")
        opened = self._worker.call(self._recover).addCallbacks(self._opened, self._not_opened)
        return opened.addBoth(self._settled_open)

    def _settled_open(self, result: Any) -> Any:
        self._opening = False
        if not isinstance(result, Failure) and not self._closers:
            self.gate.opened()
        if self._closers:
            self._begin_close()
        return result

    def _recover(self) -> Writer:
        """Lock and recover the journal (called in the writer thread)."""
        try:
            self._lock = lock(self.directory)
            writer = self._start_writing(self._recover_files())
            self.gate.recovered()
            return writer
        except (NoRoom, OSError) as error:
            full = isinstance(error, NoRoom) or error.errno in NO_ROOM
            kind = JournalFull if full else JournalError
            hint = "free some space" if full else "check the disk, and the owner of the files"
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise kind(
                f"the journal {self.directory} cannot be opened: {why}; {hint}, or use another --data-dir"
            ) from error
        except SyncFailed as error:
            raise JournalFailed(f"the journal {self.directory} cannot be opened, its disk failed: {error}") from error

    def _recover_files(self) -> Recovered:
        notes = self.gate.before_recovery()
        refuse_copies(self.directory)
        notes += set_aside(self.directory, self.files) if self.settings.quarantine else []
        found = recover(self.directory, self.files, self.settings.verify)
        found.notes += notes
        self.report = found
        return found

    def _start_writing(self, found: Recovered) -> Writer:
        settings, sync_seconds = self.settings, self.meters.sync_seconds
        sync_each = settings.durability.mode == "batch"
        writer = Writer(
            self.directory,
            found,
            settings.segment_size,
            sync_each,
            self.files,
            sync_seconds,
            self.gate.handover,
            self.stream_limits,
        )
        try:
            writer.open(self._clock.start(found.time))
        except Exception:
            writer.close(in_order=False)
            raise
        return writer

    def _opened(self, writer: Writer) -> Mapping[str, int]:
        assert self._worker is not None
        self._writer = writer
        # If commits are not synced, or run in the worker of the caller, their duration says nothing about the disk.
        pace = self.pace or (Measured() if self.worker is None and writer.sync_each else Far())
        at_turn_end = self.at_turn_end or partial(self.reactor.callLater, 0)
        self._commits = Commits(
            writer, self._worker, pace, self._clock.now, self.gate.may_write, at_turn_end, self._settle_commit
        )
        self._streams = writer.streams.copy()
        rolled = writer.take_rolled()
        index = self.report.index or SegmentIndex(writer.base)
        index.end = writer.position if rolled is None else rolled.base
        self.store.open(self.report.sealed, index)
        if self._floors is not None:
            # Use the earlier of the two times, because a wall clock that is ahead must not make records count as too
            # old.
            self._floors.now = min(self.now(), self.report.time)
        if rolled is not None:
            self._rolled(rolled)
        self.state = JournalState.WRITABLE if self.gate.standing.may_write else JournalState.READ_ONLY
        self._checking = LoopingCall(self._check)
        self._checking.clock = self.reactor
        self._checking.start(CHECK_INTERVAL).addErrback(
            lambda f: log.failure("checking the disk failed; please report this bug", f)
        )
        return dict(self._streams.ends)

    def _not_opened(self, failure: Failure) -> Failure:
        self._unlock()
        return failure

    # Appending.

    def submit(self, publish: Publish) -> None:
        assert self.state is JournalState.WRITABLE, f"the journal is {self.state.value}; check it before you number"
        self._unsettled += 1
        self._commits.submit(publish)

    def _call(self, job: Callable[[], T]) -> Deferred[T]:
        assert self._worker is not None, "the journal is open"
        return self._worker.call(job)

    def _settle_commit(self, commit: Commit) -> None:
        """Pass the result of a commit to the gate."""
        if isinstance(commit.result, Committed) and self.state is not JournalState.FAILED:
            self.gate.synced(commit)
            return
        error: PublishError | None = None
        if isinstance(commit.result, Failure):
            self._break(commit.result)
            if not commit.result.check(NoRoom):
                error = OutcomeUnknown("the journal failed while it wrote; whether this is stored is unknown")
        self.gate.failed(commit, error or self.standing.refusal or self._no_room())

    # Called by the gate.

    def release(self, commit: Commit) -> None:
        """Let readers see the records of *commit*, notify the observer, and settle the publishes of *commit*."""
        committed = commit.result
        assert isinstance(committed, Committed), "only what is on disk is released"
        self._unsettled -= len(commit.items)
        if committed.batches:
            meters = self.meters
            meters.recent.append((committed.size, time.monotonic() - commit.began, committed.synced))
            if len(meters.recent) >= MOST_RECENT:
                meters.count()
        if committed.rolled is not None:
            self._rolled(committed.rolled)
        ends: dict[str, int] = {}
        known = self._streams.ends
        for batch in committed.batches:
            self.store.wrote(batch)
            for stream, runs in batch.streams.items():
                ends[stream] = runs[-1].last_seq
                if stream not in known:
                    self._streams.wrote(stream, runs[0].first_seq, runs[-1].last_seq)
        known.update(ends)
        if committed.retired:
            self._streams.apply(committed.retired)
        if self.settings.durability.mode == "interval" and self._sync_later is None:
            self._sync_later = self.reactor.callLater(self.settings.durability.seconds, self._sync)
        if committed.bare:
            self._call(self._writer.prepare).addErrback(self._broke)
        if committed.many:
            self._take_snapshot()
        if self._commits.waiting:
            self._commits.schedule()  # before the observer runs, so that the disk stays busy meanwhile
        if ends:
            self._observer.durable(ends)
        settle(commit.items, None)
        if self._announcement is not None or self._idle is not None:
            self._settle()

    def refuse(self, commit: Commit, error: Exception) -> None:
        """Settle the publishes of *commit* with *error*."""
        self._unsettled -= len(commit.items)
        settle(commit.items, error)
        self._commits.schedule()
        self._settle()

    def schedule(self) -> None:
        """Schedule a commit of the waiting appends."""
        self._commits.schedule()

    def mark(self) -> None:
        """Write MARK soon, because another commit was released."""
        if not self._marking and self._worker is not None:
            self._marking = True
            self._call(self._write_mark).addErrback(self._broke)

    def _write_mark(self) -> None:
        self._marking = False
        self._writer.write_mark()

    def note(self) -> Deferred[int]:
        """Write and sync the file MARK; return a Deferred that fires with the durable mark that the file then has."""
        return self._call(lambda: self._writer.note())

    def accept(self, reason: str) -> None:
        """Accept publishes, unless the disk is full.

        :param reason: for people
        """
        if self.state is JournalState.READ_ONLY and not self._commits.failed:
            self.state, self._announcement = JournalState.WRITABLE, reason
        self._settle()

    def forbid(self, reason: str) -> None:
        """Refuse further publishes; those that were accepted are still written.

        :param reason: for people
        """
        if self.state is not JournalState.FAILED:
            self.state, self._announcement = JournalState.READ_ONLY, reason
        self._settle()

    def halt(self) -> None:
        """Stop writing: the appends that wait fail."""
        self._commits.failed = True

    def break_off(self, reason: str) -> None:
        """Change the state to FAILED, for *reason*: this process must not write the journal any more."""
        self._broke(Failure(JournalFailed(reason)))

    # In a cluster.

    def lead(self) -> Deferred[None]:
        """Prepare for commits as the leader; return a Deferred that fires when :meth:`accept` may be called."""
        return self._call(lambda: self._writer.lead(self._clock.now())).addCallback(self._led)

    def _led(self, _: None) -> None:
        self._commits.failed = False

    def apply(self, position: int, data: bytes) -> Deferred[int]:
        """Write batches of the leader at *position*, the end of the log, sync them, and deliver their records.

        :return: fires with the position behind the batches; fails with :class:`~fyrehose.journal.format.Damage` if the
            batches do not continue this log, and with :class:`~fyrehose.journal.writer.NoRoom` if the disk is full,
            after which the caller may repeat the same call
        """
        return self._call(lambda: self._writer.apply(position, data)).addCallback(self._applied)

    def _applied(self, applied: Applied) -> int:
        if applied.rolled is not None:
            self._rolled(applied.rolled)
        ends: dict[str, int] = {}
        for header, runs, entries in applied.batches:
            self.applied += header.records
            self.store.wrote(batch_of(header, grouped(runs)))
            for run in runs:
                self._streams.wrote(run.stream, run.first_seq, run.last_seq)
                ends[run.stream] = run.last_seq
            if entries:
                self._streams.replay(header.kind, entries)
        if ends:
            self._observer.durable(ends)
        return self._writer.position

    def differs(self, position: int, data: bytes) -> Deferred[bool]:
        """Return whether the bytes of the log at *position* differ from *data*, as far as the log has them."""
        return self._call(lambda: self._differs(position, data))

    def _differs(self, position: int, data: bytes) -> bool:
        for segment in reversed(scan.segments(self.directory)):
            if segment.base <= position:
                size = min(len(data), min(self._writer.position, segment.end) - position)
                reader = scan.SegmentReader(segment.path, segment.base, self.files)
                try:
                    return reader.read(position, size) != data[:size]
                finally:
                    reader.close()
        return False  # retention has deleted the segment at *position*, so nothing can be compared

    def truncate(self, position: int) -> Deferred[None]:
        """Fail the appends that wait after :meth:`halt`, and set aside the bytes of the log beyond *position*.

        :return: fires when the log ends at *position*
        """
        self._commits.schedule()
        return self._call(lambda: self._cut(position)).addCallback(lambda _: self._settle())

    def _cut(self, position: int) -> None:
        """Set aside the bytes of the log beyond *position*, and open it again there (called in the writer thread)."""
        old = self._writer
        old.sync()
        if old.position == position:
            return
        old.released = min(old.released, position)
        old.note()
        old.close(in_order=False)
        for note in set_aside_beyond(self.directory, position, self.files):
            self.report.notes.append(note)
        self._writer = self._commits.writer = self._start_writing(recover(self.directory, self.files))

    # Segments and snapshots.

    def _rolled(self, rolled: Rolled) -> None:
        index = SegmentIndex(rolled.base, rolled.base)
        index.set_before(rolled.entries)
        sealed = self.store.roll(rolled.sealed, index)
        path = scan.index_path_of(self.directory, sealed.base)
        self._call(sealed.pack).addCallback(self._packed, sealed.base, path)
        self._retain()

    def _packed(self, packed: bytes, base: int, path: Path) -> None:
        if self.store.packed(base, packed):
            self._store_index(path, packed)

    def _store_index(self, path: Path, packed: bytes) -> None:
        if self._worker is not None:
            self._call(lambda: self.files.store(path, packed)).addErrback(
                lambda f: log.warn("cannot write {path}, which will be rebuilt later: {why}", path=path, why=f.value)
            )

    def _take_snapshot(self) -> None:
        """Write a snapshot of all streams in the writer thread, in steps, so that commits can run in between."""
        steps = self._writer.snapshot()

        def step(done: bool | None) -> None:
            if not done and self._worker is not None and self.state is JournalState.WRITABLE:
                self._call(lambda: next(steps, True)).addCallbacks(step, failed)

        def failed(failure: Failure) -> None:
            log.warn("cannot write a snapshot of the streams, so the next segment lists them: {why}", why=failure.value)

        step(False)

    def _sync(self) -> None:
        self._sync_later = None
        self._call(self._writer.sync).addErrback(self._broke)

    # Retiring streams.

    def retire(self, streams: Sequence[str]) -> Deferred[None]:
        """Retire *streams* by a separate commit, which keeps its place among the appends; see :class:`IJournal`."""
        if (refusal := self.standing.refusal) is not None:
            return fail(refusal)
        self._unsettled += 1
        done: Deferred[None] = Deferred()
        publish = Publish([], 0, DEFERREDS, done)
        self._call(lambda: self._retire(publish, streams)).addCallback(self._settle_commit).addErrback(
            lambda f: log.failure("processing a retirement failed; please report this bug", f)
        )
        return done

    def _retire(self, publish: Publish, streams: Sequence[str]) -> Commit:
        """Retire *streams* by a commit without records (called in the writer thread)."""
        writer, began = self._writer, time.monotonic()
        result: Committed | Failure
        try:
            retired = writer.retire(streams)
            result = Committed([], writer.position, writer.durable, None, retired=retired)
        except Exception:
            result = Failure()
        return Commit([publish], 0, began, time.monotonic(), result)

    def retired(self) -> Mapping[str, int]:
        return self._streams.retired

    # Failures.

    def _broke(self, failure: Failure) -> None:
        """Change the state, because a write or a check other than a commit failed."""
        self._break(failure)
        self._settle()

    def _break(self, failure: Failure) -> None:
        """Make the journal read-only if the disk is full, otherwise failed; pending appends are not written."""
        if self.state is JournalState.FAILED:
            return
        self.state = JournalState.READ_ONLY if failure.check(NoRoom) else JournalState.FAILED
        self._commits.failed = True  # the writer thread fails the commits that are scheduled already
        if self.state is JournalState.FAILED:
            self._cancel_sync()
            log.critical("the journal failed", log_failure=failure)
        if failure.check(NoRoom):
            self._full = failure.getErrorMessage()
            what = f"the disk of {self.directory} is full or read-only"
        else:
            what = f"{'the journal' if failure.check(JournalFailed) else 'the disk of'} {self.directory} failed"
        self._announcement = f"{what}: {failure.getErrorMessage()}"
        if self.state is JournalState.FAILED:
            self.gate.broke()

    def _settle(self) -> None:
        """If no append is under way, announce the change of state, and continue closing."""
        if self._unsettled:
            return
        if self._announcement is not None:
            reason, self._announcement = self._announcement, None
            self._observer.state_changed(self.state, reason)
        if self._idle is not None:
            idle, self._idle = self._idle, None
            idle.callback(None)

    def _no_room(self) -> ReadOnly:
        """Return the error for publishes while the disk has too little room, with the free space at the last check."""
        least, free = self.settings.min_free, self._free
        if free is None or self._full or free > _enough(least):
            what = f"the server's disk cannot be written: {self._full or 'its free space is unknown'}"
        else:
            below = f"less than journal.min-free ({shown_size(least)})" if free < least else "which is not enough yet"
            what = f"the server's disk has {shown_size(free)} free, {below}"
        return ReadOnly(
            f"{what}; messages are accepted again when more than {shown_size(_enough(least))} are free: "
            "`fyrehose doctor` on the server says what to do"
        )

    def _check(self) -> None:
        """Check the lock, the free space and the retention; called once a second."""
        for message in self._clock.messages():
            log.warn("{message}", message=message)
        self._count_ages()
        least = self.settings.min_free
        try:
            # A directory that is missing because it is not mounted may come back; a deleted one does not.
            deleted = not self.files.is_linked(self._lock)
            free = self._free = -1 if deleted else self.files.free(self.directory)
            if deleted or not owns_lock(self.directory, self._lock):
                self._broke(Failure(JournalFailed("its LOCK was deleted or replaced, perhaps with the directory")))
                return
            self._disk_error = ""
        except OSError as error:
            why = error.strerror or str(error)
            if why != self._disk_error:
                log.warn("cannot determine the free space of the disk, so none is assumed: {why}", why=why)
            self._disk_error = why
            free, self._free = -1, None
        if self.state is JournalState.WRITABLE and free < least:
            # Appends that were accepted are still committed: min-free reserves the space for them.
            self.state = JournalState.READ_ONLY
            self._announcement = str(self._no_room())
            self._settle()
        elif self.state is JournalState.READ_ONLY and free > _enough(least):
            self._call(self._writer.make_room).addCallbacks(self._writable, self._still_full)
        self._retain()

    def _retain(self) -> None:
        """Delete the segments that nothing keeps, but not before the broker has said what subscriptions need."""
        if not self._opening:
            self.keeper.check(self._writer.keep_from)

    def _writable(self, _: None) -> None:
        if self.state is JournalState.READ_ONLY and not self._unsettled and self.gate.standing.may_write:
            self.state, self._full = JournalState.WRITABLE, ""
            self._commits.failed = False
            self._announcement = f"the disk of {self.directory} has free space again"
            self._settle()

    def _still_full(self, failure: Failure) -> None:
        if not failure.check(NoRoom):
            self._broke(failure)

    def _count_ages(self) -> None:
        """Use the present time to judge the ages of records, unless the clock may be wrong."""
        if self._floors is not None:
            now = self._clock.now()
            if not self._clock.in_doubt:
                self._floors.now = now

    # Reading.

    def bounds(self, stream: str) -> tuple[int, int]:
        streams = self._streams
        last = streams.ends.get(stream)
        if last is None:
            last = streams.retired.get(stream, streams.floor)
            return last + 1, last
        oldest = max(self.store.oldest(stream), streams.starts.get(stream, 0) + 1)
        return (oldest if self._floors is None else max(oldest, self._floors.floor(stream, last))), last

    def expired(self, stream: str, time: int) -> bool:
        return self._floors is not None and self._floors.expired(stream, time)

    def ends(self) -> Mapping[str, int]:
        return self._streams.ends

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        """Return durable records of *stream* from *start* on, without those that were retired or have expired."""
        last = self._streams.ends.get(stream, 0)
        if start > last:
            return ()
        runs = self.store.read(stream, max(start, self._streams.starts.get(stream, 0) + 1), max_bytes)
        if self._floors is None or not runs or not self._floors.expired(stream, runs[0].time):
            return runs
        floor = self._floors.floor(stream, last)
        return self.store.read(stream, floor, max_bytes) if floor <= last else ()

    def latest(self, size: int) -> Iterator[Run]:
        return self.store.latest(size)

    def status(self) -> JournalStatus:
        """Return the figures of the open journal, for metrics and status pages."""
        position, bases = self._writer.position, self.store.bases
        return JournalStatus(
            directory=str(self.directory),
            durability=str(self.settings.durability),
            position=position,
            durable=self._writer.marked,
            segments=len(bases),
            size=position - bases[0],
            free=self._free,
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
        if self._checking is not None and self._checking.running:
            self._checking.stop()
        in_order = self.state is not JournalState.FAILED
        if in_order:
            self.state = JournalState.CLOSED
        self._idle = Deferred()
        self._idle.addCallback(lambda _: self._close(in_order)).addCallback(self._closed)
        self._settle()

    def _cancel_sync(self) -> None:
        if self._sync_later is not None:
            self._sync_later.cancel()
            self._sync_later = None

    def _close(self, in_order: bool) -> Deferred[None]:
        self._cancel_sync()  # only now: commits that were under way may have scheduled a sync
        # If a commit has failed meanwhile, the log must not end with a note that the journal was closed in order.
        failed = JournalState.FAILED
        closed = self._call(lambda: self._writer.close(in_order and self.state is not failed, self._clock.now()))
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
        self._worker = self._checking = None
        if self.state is not JournalState.FAILED:
            self.state = JournalState.CLOSED
        self.store.close()
        if self._lock >= 0:
            self.files.close(self._lock)
            self._lock = -1


def _enough(least: int) -> int:
    """Return how much free space lets publishes resume after it fell below *least*, in bytes."""
    return least + least // 10
