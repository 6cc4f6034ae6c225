"""The writing side of the journal: append to the active segment, sync it, and roll over to the next.

All functions of this module block, and run in the writer thread only.  A commit is written to one segment as a whole,
so that it can be truncated as a whole if the disk is full.

    in: numbered runs, in batches      out: bytes on disk; Committed
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import attrs

from fyrehose.journal import format as fmt
from fyrehose.journal import packing, scan, snapshots
from fyrehose.journal.exchange import Handover, parsed, start_of
from fyrehose.journal.files import NO_ROOM, Files
from fyrehose.journal.packing import RUN_COST, StoredBatch, batch_of
from fyrehose.journal.recovery import Recovered
from fyrehose.journal.streams import StreamLimits, Streams
from fyrehose.kernels.pure import commit
from fyrehose.observe.meters import SECONDS, Histogram
from fyrehose.records import LAST_SEQ, Buffer, Run, room_of

#: Commits of at most this many bytes are written with one call, over zeros written ahead; larger ones gain nothing by
#: it.
SMALL = 128 << 10
#: How many zeros are written ahead at once, in bytes.
AHEAD = 1 << 20
#: Unit of disk writes, in bytes: a commit also writes the rest of the page in which it ends.
PAGE = 4 << 10
_ZEROS = bytes(AHEAD)


class NoRoom(Exception):
    """The error for a full or read-only disk; nothing of the commit is in the journal."""


class SyncFailed(Exception):
    """The error for a failed sync, after which a later sync could succeed although the disk has lost data."""


@attrs.frozen(slots=True)
class Rolled:
    """A roll-over: the end of one segment and the beginning of the next.

    :ivar sealed: (base, end) of the previous segment
    :ivar base: the base of the new segment
    :ivar entries: the entries of the new segment's first batch: the streams and their last numbers so far
    """

    sealed: tuple[int, int]
    base: int
    entries: list[fmt.Entry]


@attrs.define(eq=False, slots=True)
class Committed:
    """The immutable result of one commit.

    :ivar batches: the batches that were written
    :ivar end: the position behind the last batch
    :ivar durable: everything below this position is on disk
    :ivar rolled: the roll-over before this commit, if any
    :ivar bare: whether few zeros are left ahead, so that :meth:`Writer.prepare` should be called before the next commit
    :ivar many: whether many streams have changed, so that :meth:`Writer.snapshot` should be called now
    :ivar size: of the bodies of the batches, in bytes
    :ivar synced: how long the sync of the commit took, in seconds; None if the commit was not synced, or the sync was
        counted already
    :ivar retired: the entries of the streams that this commit retired; such a commit has no batches of records
    """

    batches: list[StoredBatch]
    end: int
    durable: int
    rolled: Rolled | None
    bare: bool = False
    many: bool = False
    size: int = 0
    synced: float | None = None
    retired: Sequence[fmt.Entry] = ()


@attrs.frozen(slots=True)
class Applied:
    """The result of writing another server's batches.

    :ivar batches: the header of each batch, its runs, and its entries
    :ivar rolled: the roll-over before them, if any
    """

    batches: list[tuple[fmt.BatchHeader, list[Run], list[fmt.Entry]]]
    rolled: Rolled | None


@attrs.define(eq=False)
class Writer:
    """The writer of the journal in *directory*, which appends from the position at which *recovered* ends.

    The journals of the servers of a cluster have the same bytes, so a server adds none of its own unless it leads: with
    a *handover*, the log is opened and closed without a batch, and :meth:`apply` writes the bytes of another server.

    :ivar segment_size: size at which a segment is sealed and the next begins, in bytes
    :ivar sync_each: whether :meth:`commit` syncs; if not, the owner calls :meth:`sync`
    :ivar sync_seconds: durations of the syncs of segments
    :ivar handover: collects what is written for the other servers of a cluster; None: this server is alone
    :ivar limits: how many streams are listed and remembered
    :ivar position: where the next batch goes
    :ivar durable: everything below this position is on disk
    :ivar released: in a cluster, everything below this position may leave the server; MARK never goes beyond it
    :ivar base: position at which the active segment begins
    :ivar time: of the last commit, in microseconds since 1970 UTC; never goes back
    :ivar streams: all streams, with their last numbers
    """

    directory: Path
    recovered: Recovered
    segment_size: int
    sync_each: bool = True
    files: Files = attrs.field(factory=Files)
    sync_seconds: Histogram = attrs.field(factory=lambda: Histogram(SECONDS))
    handover: Handover | None = None
    limits: StreamLimits = attrs.field(factory=StreamLimits)
    position: int = attrs.field(init=False)
    durable: int = attrs.field(init=False)
    released: int = attrs.field(default=0, init=False)
    base: int = attrs.field(default=0, init=False)
    _chain: int = attrs.field(init=False)
    time: int = attrs.field(init=False)
    _clock: int = attrs.field(default=0, init=False)
    streams: Streams = attrs.field(init=False)
    _fd: int = attrs.field(default=-1, init=False)
    _mark_fd: int = attrs.field(default=-1, init=False)
    _start: int = attrs.field(default=0, init=False)  #: the position behind the first batch of the segment
    _zeroed: int = attrs.field(default=0, init=False)  #: the offset up to which the segment was written with zeros
    _rolled: Rolled | None = attrs.field(default=None, init=False)  #: a roll-over that was not reported yet
    #: The error of a failed sync, after which nothing may be written or synced any more; None without such a failure.
    _failure: SyncFailed | None = attrs.field(default=None, init=False)
    #: The position of the oldest segment that is kept.
    _begin: int = attrs.field(default=0, init=False)
    _identity: bytes = attrs.field(init=False)
    #: The base of the segment that was active when the last snapshot was written: one snapshot per segment is enough.
    _snapshot_base: int = attrs.field(default=-1, init=False)
    _mark_identity: tuple[int, int] = attrs.field(default=(0, 0), init=False)

    def __attrs_post_init__(self) -> None:
        found = self.recovered
        self.position, self.durable, self._chain, self.time = found.position, found.durable, found.chain, found.time
        self.streams = found.streams
        self.streams.limits = self.limits
        self.streams.close()  # numbers that were reserved but not written are gaps now
        self._begin = found.begin
        self._identity = found.identity

    def open(self, time: int) -> None:
        """Open the active segment; outside a cluster, also create the first segment, and append gaps for lost numbers.

        :param time: earliest time of the next record, in microseconds since 1970 UTC
        :raises NoRoom: the disk is full
        """
        self.time = max(self.time, time)
        try:
            self._mark_fd = self.files.open(self.directory / scan.MARK_NAME, os.O_RDWR | os.O_CREAT)
            self._mark_identity = self.files.identity(self._mark_fd)
            if self.recovered.index is not None:
                self.base = self.recovered.index.base
                self._fd = self.files.open(scan.path_of(self.directory, self.base), os.O_RDWR)
            if self.handover is None:
                self._open_alone()
            else:
                self.durable = self.released = self.position  # recovery has synced it
                self.note()
        except OSError as error:
            raise _no_room(error) from error

    def _open_alone(self) -> None:
        named = self._identity != fmt.UNKNOWN
        self._begin_log()
        if self.recovered.gaps:
            self.skip(self.recovered.gaps)
        if not named and self.recovered.index is not None:
            # An older version created the journal without an identity: the header of the next segment stores one.
            self._roll()
        self.sync()

    def skip(self, gaps: Sequence[fmt.Entry]) -> None:
        """Append a batch of kind GAP, which says that no records with the numbers of *gaps* exist or ever will."""
        self._control(fmt.Kind.GAP, gaps)
        self.streams.skip(gaps)

    def _begin_log(self) -> None:
        """Give an empty log an identity and its first segment; do nothing if the log has a segment."""
        if self._identity == fmt.UNKNOWN:
            self._identity = self.files.random(len(fmt.UNKNOWN))
        if self._fd < 0:
            self._begin_segment()

    @property
    def identity(self) -> bytes:
        """Return the identity of the journal, the same in every copy; UNKNOWN while it is empty."""
        return self._identity

    @property
    def chain(self) -> int:
        """Return the checksum from which the log continues at :attr:`position`."""
        return self._chain

    def lead(self, time: int) -> None:
        """Prepare for commits in a cluster: begin the first segment if there is none.

        :param time: earliest time of the next record, in microseconds since 1970 UTC
        :raises NoRoom: the disk is full
        """
        assert self.handover is not None, "only a server of a cluster leads"
        self.time = max(self.time, time)
        self.handover.take()
        self.streams.snapshot, self.streams.changed = 0, None  # other servers do not have the snapshot's file
        try:
            self._begin_log()
            self.make_room()
        except OSError as error:
            raise _no_room(error) from error

    def take_rolled(self) -> Rolled | None:
        """Return the roll-over that no call has returned yet, or None if there is none."""
        rolled, self._rolled = self._rolled, None
        return rolled

    def make_room(self) -> None:
        """Allocate disk space for the rest of the segment.

        :raises NoRoom: the disk is full
        :raises SyncFailed: an earlier sync failed
        """
        self._check()
        left = self.segment_size - (self.position - self.base)
        if left > 0 and self._fd >= 0:  # a follower may have no segment yet
            try:
                self.files.allocate(self._fd, self.position - self.base, left)
            except OSError as error:
                raise _no_room(error) from error

    def commit(self, batches: Sequence[Sequence[Run]], time: int, clock: int) -> Committed:
        """Append runs, and sync them if :attr:`sync_each` is set.

        :param batches: numbered runs; each sequence becomes one batch
        :param time: of the records, in microseconds since 1970 UTC
        :param clock: the wall clock, in microseconds since 1970 UTC
        :raises NoRoom: nothing was written, and the commit can be repeated
        :raises SyncFailed: a sync failed; after this, as after any other OSError, nothing more may be written
        """
        if self._failure is not None:
            raise self._failure
        self.time, self._clock = max(self.time, time), clock
        size = len(batches) * fmt.BATCH_HEADER.size
        for runs in batches:
            size += sum(map(room_of, runs))
        try:
            if self.position - self.base + size > self.segment_size and self.position > self._start:
                self._roll()
            if not self.sync_each:
                self._reserve(batches)
        except OSError as error:
            raise _no_room(error) from error
        synced: float | None = None
        if self.handover is None and self.sync_each and len(batches) == 1 and size <= SMALL:
            batch, synced = self._write_whole(batches[0])
            written = [batch]
        else:
            written = self._write_pieces(batches)
        length = -len(written) * fmt.BATCH_HEADER.size
        streams = self.streams
        tracked = streams.changed is not None or streams.changed_meanwhile is not None
        for batch in written:
            length += batch.end - batch.position
            for stream, of in batch.streams.items():
                if tracked or stream not in streams.ends:
                    streams.wrote(stream, of[0].first_seq, of[-1].last_seq)
                else:
                    streams.ends[stream] = of[-1].last_seq
        rolled, self._rolled = self._rolled, None
        filled = self.position - self.base
        bare = self._zeroed < filled + AHEAD // 2 and self._is_bare(size)
        due = filled >= self.segment_size // 8 * 7 and self._is_due()
        return Committed(written, self.position, self.durable, rolled, bare, due, length, synced)

    def _write_whole(self, runs: Sequence[Run]) -> tuple[StoredBatch, float]:
        """Write and sync a small batch with one call, and write MARK.

        :return: the batch, and how long the sync took in seconds
        """
        streams = self._grouped(runs)
        position = self.position
        length, checksum, _, seconds, step, failed = self.files.commit(
            self._fd,
            position - self.base,
            self._mark_fd,
            list(chain.from_iterable(streams.values())),
            packing.names,
            position,
            self.durable,
            self.time,
            self._clock,
            self._chain,
            self._begin,
            *self._mark_identity,
        )
        why = os.strerror(failed) if failed else ""
        if step == commit.WRITE:
            self._cut()
            raise _no_room(OSError(failed, why))
        assert position == self.position, f"a batch is at {position}, and the log ends at {self.position}"
        self.position, self._chain = position + fmt.BATCH_HEADER.size + length, checksum
        if step == commit.SYNC:
            raise self._failed(f"cannot sync the segment at position {self.base}: {why}")
        if step == commit.UNLINKED:
            raise self._deleted() if not failed else OSError(failed, why)
        self.durable = self.position
        if step != commit.DONE:
            raise OSError(failed, why)
        return StoredBatch(position, self.position, streams, length + RUN_COST * (1 + len(runs))), seconds

    def _write_pieces(self, batches: Sequence[Sequence[Run]]) -> list[StoredBatch]:
        """Write batches with one call for each large piece, and sync them if :attr:`sync_each` is set."""
        written: list[StoredBatch] = []
        data: list[Buffer] = []
        position, checksum = self.position, self._chain
        for runs in batches:
            streams = self._grouped(runs)
            header, encoded = packing.pieces(
                fmt.Kind.RECORDS,
                list(chain.from_iterable(streams.values())),
                position=position,
                durable=self.durable,
                time=self.time,
                clock=self._clock,
                chain=checksum,
            )
            position, checksum = header.end, header.checksum
            written.append(batch_of(header, streams))
            data += encoded
        self._append(data)
        for batch in written:
            assert batch.position == self.position, (
                f"a batch is at {batch.position}, and the log ends at {self.position}"
            )
            self.position = batch.end
        self._chain = checksum
        if self.sync_each:
            self.sync()
        return written

    def _grouped(self, runs: Sequence[Run]) -> dict[str, list[Run]]:
        """Return the runs of a batch by stream, after checking that none has a number that was written before."""
        grouped: dict[str, list[Run]] = {}
        ends = self.streams.ends
        for run in runs:
            stream = run.stream
            of = grouped.get(stream)
            if of is None:
                of, last = grouped.setdefault(stream, []), ends.get(stream, 0)
            else:
                last = of[-1].last_seq
            assert run.first_seq > last, f"number {run.first_seq} of stream {stream!r} follows {last}"
            of.append(run)
        return grouped

    def apply(self, position: int, data: bytes) -> Applied:
        """Write and sync batches of another server at the end of the log; their records count as released.

        :param data: whole batches; the header of a segment, with its first batch, can only be at the beginning
        :raises Damage: the batches do not continue this log, and nothing was written
        :raises NoRoom: the disk is full; another call with the same arguments continues
        :raises SyncFailed: a sync failed
        """
        self._check()
        identity = self._identity if self._fd >= 0 else fmt.UNKNOWN
        begun = self.position - position  # a call that failed may have begun the segment
        start, chain = start_of(position, data, identity, self._chain, begun != 0)
        if begun not in (0, start):
            raise fmt.Damage(f"the log ends at position {self.position}, and the next batch belongs at {position}")
        view = memoryview(data)
        batches = parsed(position + start, view[start:], chain)
        try:
            if start and not begun:
                self._follow_segment(data[:start])
            if len(view) > start:
                self._write([view[start:]])
        except OSError as error:
            raise _no_room(error) from error
        for header, runs, entries in batches:
            self.position, self._chain = header.end, header.checksum
            self.time = max(self.time, header.time)
            for run in runs:
                self.streams.wrote(run.stream, run.first_seq, run.last_seq)
            if entries or header.kind is fmt.Kind.CLOSED:
                self.streams.replay(header.kind, entries)
        self.released = self.position
        self.sync()
        return Applied(batches, self.take_rolled())

    def _follow_segment(self, start: bytes) -> None:
        """Begin a segment with *start*, a header and a first batch that another server has written."""
        self._identity = fmt.SegmentHeader.unpack(start).identity
        if self._fd < 0:
            self._begin_segment(foreign=start)
        else:
            self._roll(start)

    def retire(self, streams: Iterable[str]) -> list[fmt.Entry]:
        """Retire those of *streams* that exist, durably; return the entries of the retired streams.

        :raises NoRoom: the disk is full, and nothing has changed
        :raises SyncFailed: a sync failed
        """
        self._check()
        entries = self.streams.retiring(streams)
        if entries:
            try:
                self._control(fmt.Kind.STREAMS, entries)
            except OSError as error:
                raise _no_room(error) from error
            self.streams.apply(entries)
            self.sync()
        return entries

    def skip_numbers(self, count: int) -> None:
        """Skip the next *count* numbers of each stream, durably, because another server may have given them out.

        :raises NoRoom: the disk is full
        :raises SyncFailed: a sync failed
        """
        self._check()
        gaps, retired = self.streams.skipping(count)
        try:
            self.skip(gaps)
            if retired:
                self._control(fmt.Kind.STREAMS, retired)
                self.streams.apply(retired)
        except OSError as error:
            raise _no_room(error) from error
        self.sync()

    def _is_due(self) -> bool:
        """Return whether to take a snapshot now, because the segment is nearly full and many streams have changed.

        Return False in a cluster, because the other servers would not have the file of the snapshot.
        """
        if self.handover is not None or self._snapshot_base == self.base:
            return False
        if self.streams.many:
            self._snapshot_base = self.base
        return self._snapshot_base == self.base

    def snapshot(self) -> Iterator[None]:
        """Write a snapshot of all streams in steps of a few milliseconds each; commits may run in between.

        :raises OSError: the snapshot could not be written; the log does not depend on it
        """
        position = self.position
        captured = self.streams.capture()
        try:
            yield
            pieces = []
            for piece in snapshots.pieces(captured, position, self._identity):
                pieces.append(piece)
                yield
            self.files.store(scan.snapshot_path_of(self.directory, position), pieces)
        except BaseException:
            self.streams.abandon()
            raise
        self.streams.adopt(position)

    def _is_bare(self, size: int) -> bool:
        """Return whether commits of *size* bytes are about to reach the end of the zeros that were written ahead."""
        wanted = min(self.position - self.base + AHEAD // 2, self.segment_size)
        return self.sync_each and size <= SMALL and self._zeroed < wanted

    def prepare(self) -> None:
        """Write zeros behind the end of the log, so that the next commits are synced faster.

        For a write into space that is only allocated, the file system must also record durably that the space is in
        use, which is another write to the disk.

        :raises SyncFailed: a sync failed
        """
        self._check()
        begin = max(self._zeroed, (self.position - self.base + PAGE - 1) // PAGE * PAGE)
        size = min(AHEAD, self.segment_size - begin)
        if size <= 0 or not self._is_bare(0):
            return
        try:
            self.files.write(self._fd, memoryview(_ZEROS)[:size], begin)
        except OSError:
            # The zeros are optional; if the disk has failed, the next commit reports the error.
            size = self.segment_size - begin
        else:
            self._sync(self._fd)
        self._zeroed = begin + size

    def sync(self) -> int:
        """Sync everything that was written so far; return the position up to which the log is on disk.

        :raises SyncFailed: the sync failed, and everything that was written since the last sync may be lost
        """
        self._check()
        if self.durable < self.position:
            self._sync(self._fd)
            if not self.files.is_linked(self._fd):
                raise self._deleted()
            self.durable = self.position
        self._write_mark()
        return self.durable

    @property
    def marked(self) -> int:
        """Return the durable mark for MARK: records below this position are on disk and may leave the server."""
        return self.durable if self.handover is None else min(self.durable, self.released)

    def write_mark(self) -> None:
        """Write MARK, so that other processes read up to :attr:`marked`."""
        self._check()
        self._write_mark()

    def note(self) -> int:
        """Write and sync MARK; return the durable mark that the file then has."""
        self._check()
        self._write_mark()
        self._sync(self._mark_fd)
        return self.marked

    def keep_from(self, begin: int) -> None:
        """Store durably that the log begins at *begin*, so that the segments before *begin* can be deleted.

        :raises OSError: MARK could not be written or synced
        """
        self._check()
        self._begin = begin
        self._write_mark()
        self.files.sync(self._mark_fd)

    def _write_mark(self) -> None:
        self.files.write(self._mark_fd, scan.pack_mark(self.marked, self._begin, self._mark_identity), 0)

    def _sync(self, fd: int) -> None:
        began = time.monotonic()
        try:
            self.files.sync(fd)
            self.sync_seconds.observe(time.monotonic() - began)
        except OSError as error:
            raise self._failed(f"cannot sync the segment at position {self.base}: {error.strerror}") from error

    def _deleted(self) -> SyncFailed:
        return self._failed(f"the segment at position {self.base} was deleted while it was being written")

    def _failed(self, reason: str) -> SyncFailed:
        self._failure = SyncFailed(reason)
        return self._failure

    def _check(self) -> None:
        """Raise the error of an earlier failed sync, because the next sync could succeed although data is lost."""
        if self._failure is not None:
            raise self._failure

    def close(self, in_order: bool, time: int = 0) -> None:
        """Close the files.

        :param in_order: whether to append a batch of kind CLOSED, and free the space that was allocated ahead; in a
            cluster nothing is appended, and MARK is synced
        :param time: the time of that batch, in microseconds since 1970 UTC, from which the next start knows when this
            was
        :raises NoRoom: the disk is too full for that batch; the journal is intact without it
        :raises SyncFailed: a sync failed
        """
        try:
            if in_order and self.handover is not None:
                self.note()
            elif in_order:
                self._check()
                self.time = max(self.time, time)
                try:
                    self._control(fmt.Kind.CLOSED, [])
                except OSError as error:
                    raise _no_room(error) from error
                self.sync()
                self.files.truncate(self._fd, self.position - self.base)
                self._sync(self._fd)
        finally:
            for fd in (self._fd, self._mark_fd):
                if fd >= 0:
                    self.files.close(fd)
            self._fd = self._mark_fd = -1

    def _append(self, pieces: Sequence[Buffer]) -> None:
        """Write *pieces*, batches of this server, at the end of the log."""
        self._write(pieces)
        if self.handover is not None:
            self.handover.add(self.position, b"".join(pieces))

    def _write(self, pieces: Sequence[Buffer]) -> None:
        """Write *pieces* at the end of the log; after an error, truncate the file to its previous end."""
        at = self.position - self.base
        try:
            for piece in pieces:
                self.files.write(self._fd, piece, at)
                at += len(piece)
        except OSError as error:
            self._cut()
            raise _no_room(error) from error

    def _cut(self) -> None:
        """Truncate the file to the end of the log after a write that failed, durably."""
        self.files.truncate(self._fd, self.position - self.base)
        self._zeroed = 0
        self._sync(self._fd)

    def _control(self, kind: fmt.Kind, entries: Sequence[fmt.Entry]) -> None:
        header, data = self._batch(kind, entries, self.position)
        self._append(data)
        self.position, self._chain = header.end, header.checksum

    def _batch(
        self, kind: fmt.Kind, entries: Sequence[fmt.Entry], position: int
    ) -> tuple[fmt.BatchHeader, list[Buffer]]:
        return packing.pieces(
            kind,
            entries,
            position=position,
            durable=self.durable,
            time=self.time,
            clock=self._clock or self.time,
            chain=self._chain,
        )

    def _roll(self, foreign: bytes = b"") -> None:
        """Seal the segment, and begin the next one with *foreign*, another server's header and first batch, or its own.

        After an OSError nothing has changed.
        """
        old_fd, sealed = self._fd, (self.base, self.position)
        self.sync()
        entries = self._begin_segment(old_fd, foreign)
        self.files.close(old_fd)
        self._rolled = Rolled(sealed, self.base, entries)

    def _begin_segment(self, sealing: int | None = None, foreign: bytes = b"") -> list[fmt.Entry]:
        """Begin a segment at the end of the log; return the entries of its first batch.

        :param sealing: the descriptor of the previous segment, which is truncated and synced
        :param foreign: the header and the first batch of the segment, if another server has written them
        """
        base = self.position
        path = scan.path_of(self.directory, base)
        temporary = path.with_name(path.name + ".new")
        fd = self.files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            kind, entries = self.streams.beginning()
            start = foreign or self._start_of(base, kind, entries)
            end, chain = self._write_start(fd, base, start)
            if sealing is not None:
                self.files.truncate(sealing, base - self.base)
                self._sync(sealing)
            self.files.rename(temporary, path)
        except (OSError, SyncFailed):
            self.files.close(fd)
            self.files.unlink(temporary)
            raise
        try:
            self.files.sync_directory(self.directory)
        except OSError as error:
            self.files.close(fd)
            raise self._failed(f"cannot sync the journal's directory: {error.strerror}") from error
        self._fd, self.base, self._zeroed = fd, base, 0
        self.position = self.durable = self._start = end
        self._chain = chain
        if self.handover is not None and not foreign:
            self.handover.add(base, start)
        return entries

    def _start_of(self, base: int, kind: fmt.Kind, entries: list[fmt.Entry]) -> bytes:
        """Return a header and a first batch for a new segment at *base*."""
        start = fmt.SegmentHeader(base, self.time, self._chain, self._identity).pack()
        _, ends = self._batch(kind, entries, base + len(start))
        return b"".join((start, *ends))

    def _write_start(self, fd: int, base: int, data: bytes) -> tuple[int, int]:
        """Write the header and the first batch of a segment; return the position and the checksum behind them."""
        first = fmt.BatchHeader.unpack(data[fmt.SEGMENT_HEADER.size :], base + fmt.SEGMENT_HEADER.size)
        self.files.allocate(fd, 0, max(self.segment_size, len(data)))
        self.files.write(fd, data, 0)
        self._sync(fd)
        self.time = max(self.time, first.time)
        return first.end, first.checksum

    def _reserve(self, batches: Sequence[Sequence[Run]]) -> None:
        """Reserve numbers on disk before the first of them is given out."""
        short = {
            run.stream: fmt.Entry(run.stream, min(run.last_seq + self.limits.reserve, LAST_SEQ), 0)
            for runs in batches
            for run in runs
            if run.last_seq > self.streams.reserved.get(run.stream, 0)
        }
        if short:
            self._control(fmt.Kind.RESERVED, list(short.values()))
            self.sync()
            self.streams.reserve(short.values())


def _no_room(error: OSError) -> Exception:
    """Return a NoRoom if *error* means that the disk is full or read-only, else *error* itself."""
    return NoRoom(error.strerror) if error.errno in NO_ROOM else error
