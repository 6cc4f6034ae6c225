"""The journal of one server of a cluster: read-only while it follows, and writable while it leads.

    follow:  apply(position, bytes) -> written and synced -> the observer
    lead:    append -> written here -> hand_over(position, batches) \
                                    -> synced(position)             -> release(position) -> the observer, the Deferreds

Everything else is as in :class:`~fyrehose.journal.journal.FileJournal`.  Who leads, and what may be released, is
decided by the owner (:mod:`fyrehose.replication`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import JournalFailed, PublishError, Unreplicated
from fyrehose.interfaces import JournalState
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.commit import Commit, settle
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.packing import grouped
from fyrehose.journal.recovery import Recovered, recover
from fyrehose.journal.replica import REPLICA, Applied, ReplicaWriter, cut_at_mark, set_aside_beyond
from fyrehose.journal.writer import Committed, Writer
from fyrehose.observe.meters import JournalStatus
from fyrehose.records import Buffer, Publish, Run

log = Logger()


@attrs.define(eq=False)
class _Waiting:
    """Something that was written here, and is not released.

    :ivar end: the position behind it
    :ivar items: its publishes, if it is a commit
    :ivar acknowledged: those of them that :meth:`ReplicaJournal.acknowledge` has settled
    """

    end: int
    release: Callable[[], object]
    fail: Callable[[], object]
    items: Sequence[Publish] = ()
    acknowledged: list[Publish] = attrs.field(factory=list)


@attrs.define(eq=False)
class ReplicaJournal(FileJournal):
    """The journal in *directory*, as one of several identical ones.

    :ivar member: name of this server, which is kept in the file REPLICA
    :ivar hand_over: called while this server leads, with what it has written: a position, and the bytes of whole
        batches; they may not be on disk yet
    :ivar synced: called while this server leads, with the position up to which the log is on disk
    :ivar returning: whether the directory has been that of a server of a cluster before it was opened
    :ivar refusal: why publishing is refused, for people; empty while this server leads
    """

    member: str = attrs.field(default="", kw_only=True)
    hand_over: Callable[[int, Sequence[Buffer]], object] = attrs.field(
        default=lambda position, batches: None, kw_only=True
    )
    synced: Callable[[int], object] = attrs.field(default=lambda position: None, kw_only=True)
    refusal: str = attrs.field(default="this server follows, and accepts nothing", init=False)
    returning: bool = attrs.field(default=False, init=False)
    _leading: bool = attrs.field(default=False, init=False)
    _waiting: deque[_Waiting] = attrs.field(factory=deque, init=False)
    #: Number of commits, counted from the oldest that is not released, whose publishers were told already.
    _acknowledged: int = attrs.field(default=0, init=False)
    #: Whether appends are refused although this server leads.
    _suspended: bool = attrs.field(default=False, init=False)
    #: Where the log was cut when this server led last: what was committed before counts, although it leads no more.
    _kept: int = attrs.field(default=0, init=False)
    #: Whether MARK is about to be written in the writer thread.
    _marking: bool = attrs.field(default=False, init=False)

    @property
    def leading(self) -> bool:
        """Return whether this journal accepts appends of its own."""
        return self._leading

    @property
    def replica(self) -> ReplicaWriter:
        """Return the writer of an open journal."""
        assert isinstance(self._writer, ReplicaWriter)
        return self._writer

    # Opening.

    def _recover_files(self) -> Recovered:
        self.returning = (self.directory / REPLICA).exists()
        notes = cut_at_mark(self.directory, self.files)
        found = super()._recover_files()
        found.notes += notes
        return found

    def _start_writing(self, found: Recovered) -> Writer:
        writer = self._writer_of(found)
        self.files.store(self.directory / REPLICA, f"{self.member}\n".encode())
        return writer

    def _writer_of(self, found: Recovered) -> ReplicaWriter:
        writer = ReplicaWriter(
            self.directory, found, self.settings.segment_size, True, self.files, self.meters.sync_seconds
        )
        try:
            writer.open(self._clock.start(found.time))
        except Exception:
            writer.close(in_order=False)
            raise
        writer.wrote = self._wrote
        return writer

    def _wrote(self) -> None:
        """Hand over what is being synced in the writer thread; after a commit in the reactor's, that follows anyway."""
        if self._leading and self._worker is not None and not self._worker.idle:
            self.reactor.callFromThread(self._hand_over)

    def _opened(self, writer: Writer) -> Mapping[str, int]:
        ends = super()._opened(writer)
        self.state = JournalState.READ_ONLY
        return ends

    def _writable(self, _: None) -> None:
        if self._leading and not self._suspended:
            super()._writable(_)

    def _refusal(self) -> PublishError:
        follows = self.state is JournalState.READ_ONLY and (self._suspended or not self._leading)
        return Unreplicated(self.refusal) if follows else super()._refusal()

    # Follow.

    def apply(self, position: int, data: bytes) -> Deferred[int]:
        """Write batches of the leader at the end of the log, sync them, and deliver them.

        :return: fires with the position behind them; fails with :class:`~fyrehose.journal.format.Damage` if they do not
            continue this log, and with :class:`~fyrehose.journal.writer.NoRoom` if the disk is full, after which the
            same call is repeated
        """
        return self._call(lambda: self.replica.apply(position, data)).addCallback(self._applied)

    def _applied(self, applied: Applied) -> int:
        if applied.rolled is not None:
            self._rolled(applied.rolled)
        ends: dict[str, int] = {}
        for header, runs, entries in applied.batches:
            self._store.wrote(header, grouped(runs))
            for run in runs:
                self._streams.wrote(run.stream, run.first_seq, run.last_seq)
                ends[run.stream] = run.last_seq
            if entries:
                self._streams.replay(header.kind, entries)
        if ends:
            self._observer.durable(ends)
        return self.replica.position

    def differs(self, position: int, data: bytes) -> Deferred[bool]:
        """Return whether the log differs from *data* at *position*, as far as both reach and the log was kept."""

        return self._call(lambda: self._differs(position, data))

    def _differs(self, position: int, data: bytes) -> bool:
        for segment in reversed(scan.segments(self.directory)):
            if segment.base <= position:
                size = min(len(data), min(self.replica.position, segment.end) - position)
                reader = scan.SegmentReader(segment.path, segment.base, self.files)
                try:
                    return reader.read(position, size) != data[:size]
                finally:
                    reader.close()
        return False  # retention has deleted it

    # Lead.

    def lead(self) -> Deferred[None]:
        """Accept appends from now on; each is handed over, and waits for :meth:`release`."""
        return self._call(lambda: self.replica.lead(self._clock.now())).addCallback(self._leads)

    def _leads(self, _: None) -> None:
        self._leading, self.refusal = True, ""
        self._commits.failed = False
        self._hand_over()
        self.synced(self.replica.durable)
        if self.state is JournalState.READ_ONLY:
            self.state = JournalState.WRITABLE
            self._announcement = "this server leads"
        self._settle()

    def _hand_over(self) -> None:
        if not self._leading:
            return
        for position, batches in self.replica.take_outgoing():
            self.hand_over(position, batches)

    def _settle_commit(self, commit: Commit) -> None:
        if not self._leading and isinstance(commit.result, Committed) and commit.result.end <= self._kept:
            super()._settle_commit(commit)
            return
        if not self._leading or isinstance(commit.result, Failure) or self.state is JournalState.FAILED:
            self._fail_commit(commit)
            return
        self._hand_over()
        if isinstance(commit.result, Committed):
            self._commits.schedule()
            acknowledged: list[Publish] = []
            release = partial(self._release_commit, commit, acknowledged)
            drop = partial(self._drop_commit, commit, acknowledged)
            self._waiting.append(_Waiting(commit.result.end, release, drop, commit.items, acknowledged))
            self.synced(commit.result.durable)
        elif commit.items:
            super()._settle_commit(commit)
        else:
            self._go_on()

    def _release_commit(self, commit: Commit, acknowledged: Sequence[Publish]) -> None:
        super()._settle_commit(self._unacknowledged(commit, acknowledged))

    def _drop_commit(self, commit: Commit, acknowledged: Sequence[Publish]) -> None:
        self._fail_commit(self._unacknowledged(commit, acknowledged))

    def _unacknowledged(self, commit: Commit, acknowledged: Sequence[Publish]) -> Commit:
        """Return *commit*, which is settled now, without the publishes that :meth:`acknowledge` has settled."""
        if not acknowledged:
            return commit
        self._unsettled -= len(acknowledged)
        settled = set(acknowledged)
        return attrs.evolve(commit, items=[item for item in commit.items if item not in settled])

    def _fail_commit(self, commit: Commit) -> None:
        if isinstance(commit.result, Failure):
            super()._settle_commit(commit)
            return
        if isinstance(commit.result, Committed):
            self._keep_confirmed(commit.result)
        super()._settle_commit(attrs.evolve(commit, result=None))

    def _keep_confirmed(self, committed: Committed) -> None:
        """Process the part of a commit in front of the position where the log was cut: it stays, and counts."""
        rolled = committed.rolled if committed.rolled is not None and committed.rolled.base < self._kept else None
        batches = [(header, runs) for header, runs in committed.batches if header.end <= self._kept]
        if rolled is not None or batches:
            self._committed(attrs.evolve(committed, batches=batches, rolled=rolled, bare=False, many=False))

    def _settle_retired(self, result: list[fmt.Entry] | Failure) -> Failure | Deferred[None] | None:  # type: ignore[override]
        self._hand_over()
        if isinstance(result, Failure) or not result:
            return super()._settle_retired(result)
        done: Deferred[None] = Deferred()

        def release() -> None:
            FileJournal._settle_retired(self, result)
            done.callback(None)

        def refuse() -> None:
            self._unsettled -= 1
            done.errback(Unreplicated(self.refusal))
            self._settle()

        if not self._leading or self.state is JournalState.FAILED:
            refuse()
        else:
            self._waiting.append(_Waiting(self.replica.position, release, refuse))
            self.synced(self.replica.durable)
        return done

    def _break(self, failure: Failure) -> None:
        super()._break(failure)
        if self.state is JournalState.FAILED:
            self._drop_waiting()  # nothing releases them any more, and the failure is announced when nothing waits

    def _drop_waiting(self) -> None:
        if lost := sum(map(len, self.unconfirmed)):
            log.warn(
                "replication: the shared log has not confirmed {lost} of the messages that this server "
                'has acknowledged alone (acknowledge = "local"); those that it has not accepted are lost to readers',
                lost=lost,
            )
        waiting, self._waiting, self._acknowledged = self._waiting, deque(), 0
        for each in waiting:
            each.fail()

    @property
    def unconfirmed(self) -> list[Run]:
        """Return what :meth:`acknowledge` has acknowledged, and is not released, with its numbers."""
        return [run for each in self._waiting for item in each.acknowledged for run in item.runs]

    def acknowledge(self, position: int) -> None:
        """Tell publishers that everything below *position* is on disk here, before it is released; deliver nothing.

        Appends with records of the server itself still wait for :meth:`release`: links, keys and the positions of
        subscriptions promise "exactly once", which no later leader could keep.
        """
        while self._acknowledged < len(self._waiting) and self._waiting[self._acknowledged].end <= position:
            waiting = self._waiting[self._acknowledged]
            self._acknowledged += 1
            for item in waiting.items:
                if not any(run.stream.startswith(".") for run in item.runs):
                    waiting.acknowledged.append(item)
            settle(waiting.acknowledged[:], None)

    def release(self, position: int) -> None:
        """Acknowledge and deliver everything below *position*: it is accepted by the shared log, too."""
        durable = self.replica.durable
        assert position <= durable, f"{position} is to be released, and the log is on disk up to {durable}"
        self.replica.released = max(self.replica.released, position)
        self._release_waiting(position)
        if not self._marking and self._worker is not None:
            self._marking = True
            self._call(self._write_mark).addErrback(self._broke)
        self._go_on()

    def _release_waiting(self, position: int) -> None:
        while self._waiting and self._waiting[0].end <= position:
            self._acknowledged = max(0, self._acknowledged - 1)
            self._waiting.popleft().release()

    def _go_on(self) -> None:
        """Schedule the commit that waits because it begins a segment, once everything before it is released."""
        if self._leading and self.replica.released >= self.replica.position:
            self._commits.schedule()

    def _write_mark(self) -> None:
        self._marking = False
        self.replica.write_mark()

    def suspend(self, reason: str) -> bool:
        """Refuse further appends for a while; those that were accepted are still released.

        :return: whether appends were accepted until now
        """
        suspends = self._leading and self.state is JournalState.WRITABLE
        if suspends:
            self.refusal = reason
            self.state, self._announcement = JournalState.READ_ONLY, reason
            self._suspended = True
            self._settle()
        return suspends

    def resume(self) -> bool:
        """Accept appends again after :meth:`suspend`; return whether anything has changed."""
        if not self._suspended:
            return False
        self._suspended, self.refusal = False, ""
        if self._leading and self.state is JournalState.READ_ONLY and not self._commits.failed:
            self.state = JournalState.WRITABLE
            if self._announcement is not None or not self._unsettled:
                self._announcement = "the shared log answers again"
            self._settle()
        return True

    def break_off(self, reason: str) -> None:
        """Fail for good: this journal must not be written any more."""
        self._broke(Failure(JournalFailed(reason)))

    def follow(self, position: int, reason: str) -> Deferred[None]:
        """Accept nothing any more, and set aside what the log has beyond *position*.

        Appends that are not released fail.

        :param reason: for people
        :return: fires when the log ends at *position*
        """
        led, self._leading, self.refusal, self._kept = self._leading, False, reason, position
        self._suspended = False
        self._commits.failed = True
        self._release_waiting(position)
        if led and self.state is not JournalState.FAILED:
            self.state, self._announcement = JournalState.READ_ONLY, reason
        self._drop_waiting()
        self._commits.schedule()  # which fails what is pending
        return self._call(lambda: self._cut(position)).addCallback(lambda _: self._settle())

    def _cut(self, position: int) -> None:
        """Set aside what lies beyond *position*, and start again there (called in the writer thread)."""
        old = self.replica
        old.take_outgoing()
        old.sync()
        if old.position == position:
            return
        old.released = min(old.released, position)
        old.note()
        old.close(in_order=False)
        for note in set_aside_beyond(self.directory, position, self.files):
            self.report.notes.append(note)
        self._writer = self._commits.writer = self._writer_of(recover(self.directory, self.files))

    def note(self) -> Deferred[int]:
        """Sync MARK; fires with the position that it has."""
        return self._call(lambda: self.replica.note())

    def status(self) -> JournalStatus:
        return attrs.evolve(super().status(), durable=min(self.replica.durable, self.replica.released))

    def retire(self, streams: Sequence[str]) -> Deferred[None]:
        return super().retire(streams) if self.state is JournalState.WRITABLE else fail(self._refusal())
