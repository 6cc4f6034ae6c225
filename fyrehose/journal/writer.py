"""The writing end of the journal: the last segment, and making the next.

Everything here runs in the one thread that writes, and blocks.  A commit goes whole into one segment, so that it can be
cut off whole when there is no room for it.

    in: runs that are numbered, in batches      out: bytes on the disk; Committed
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from fyrehose.journal import format as fmt
from fyrehose.journal import packing, scan, snapshots
from fyrehose.journal.files import NO_ROOM, Files
from fyrehose.journal.recovery import Recovered
from fyrehose.journal.streams import Streams
from fyrehose.observe.meters import SECONDS, Histogram
from fyrehose.records import LAST_SEQ, Buffer, Run

#: How many numbers of a stream are set aside at once where a number may be given out before it is on disk.
RESERVE = 1 << 20
#: A commit that is no larger is written over zeros, in bytes; with larger ones it would not pay.
SMALL = 128 << 10
#: How many zeros are written ahead at once, in bytes.
AHEAD = 1 << 20
#: What a disk writes at once, in bytes: where the last commit ends within one, the rest of it has been written too.
PAGE = 4 << 10
_ZEROS = bytes(AHEAD)


class NoRoom(Exception):
    """The disk is full, or must not be written; nothing of the commit is in the journal."""


class SyncFailed(Exception):
    """The disk did not confirm what was written, and may have lost it: asking again would prove nothing."""


@attrs.frozen(slots=True)
class Rolled:
    """A new segment was begun.

    :ivar sealed: (base, end) of the one before
    :ivar entries: what the segment begins with: streams and their last numbers so far
    """

    sealed: tuple[int, int]
    base: int
    entries: list[fmt.Entry]


@attrs.frozen(slots=True)
class Committed:
    """What one commit wrote.

    :ivar batches: each with its runs
    :ivar end: the position behind it
    :ivar durable: everything below this position is on disk
    :ivar bare: whether the next one should find zeros to write over: see :meth:`Writer.prepare`
    :ivar many: whether a snapshot should be taken now: see :meth:`Writer.snapshot`
    """

    batches: list[tuple[fmt.BatchHeader, list[Run]]]
    end: int
    durable: int
    rolled: Rolled | None
    bare: bool = False
    many: bool = False


@attrs.define(eq=False)
class Writer:
    """Appends to the journal in ``directory``, going on where ``recovered`` ends.

    :ivar segment_size: when the next segment is begun, in bytes
    :ivar sync_each: whether a commit is on disk when :meth:`commit` returns; else whoever owns this calls :meth:`sync`,
        and numbers are set aside before they are used
    :ivar sync_seconds: how long syncs of segments take
    :ivar position: where the next batch goes
    :ivar durable: everything below this position is on disk
    :ivar base: where the segment begins
    :ivar time: of the last commit, microseconds since 1970 UTC; never goes back
    :ivar streams: all streams, with their last numbers
    """

    directory: Path
    recovered: Recovered
    segment_size: int
    sync_each: bool = True
    files: Files = attrs.field(factory=Files)
    sync_seconds: Histogram = attrs.field(factory=lambda: Histogram(SECONDS))
    position: int = attrs.field(init=False)
    durable: int = attrs.field(init=False)
    base: int = attrs.field(default=0, init=False)
    _chain: int = attrs.field(init=False)
    time: int = attrs.field(init=False)
    _clock: int = attrs.field(default=0, init=False)
    streams: Streams = attrs.field(init=False)
    _fd: int = attrs.field(default=-1, init=False)
    _mark_fd: int = attrs.field(default=-1, init=False)
    _start: int = attrs.field(default=0, init=False)  #: behind what the segment begins with
    _zeroed: int = attrs.field(default=0, init=False)  #: the offset up to which the segment was written with zeros
    _rolled: Rolled | None = attrs.field(default=None, init=False)  #: not reported yet
    #: why nothing may be written or synced any more
    _failure: SyncFailed | None = attrs.field(default=None, init=False)
    #: the position of the oldest segment that is kept, and which file MARK is
    _begin: int = attrs.field(default=0, init=False)
    _identity: bytes = attrs.field(init=False)
    #: the segment in which a snapshot was begun last: one in each is enough
    _snapshot_base: int = attrs.field(default=-1, init=False)
    _mark_identity: tuple[int, int] = attrs.field(default=(0, 0), init=False)

    def __attrs_post_init__(self) -> None:
        found = self.recovered
        self.position, self.durable, self._chain, self.time = found.position, found.durable, found.chain, found.time
        self.streams = found.streams
        self.streams.close()  # what was reserved and not written is a gap now
        self._begin = found.begin
        self._identity = found.identity

    def open(self, time: int) -> None:
        """Be ready to write: the first segment exists, and numbers that were lost are a gap on disk.

        :raises NoRoom: not even that fits
        """
        self.time = max(self.time, time)
        try:
            self._mark_fd = self.files.open(self.directory / scan.MARK_NAME, os.O_RDWR | os.O_CREAT)
            self._mark_identity = self.files.identity(self._mark_fd)
            self._open_segment()
            if self.recovered.gaps:
                self._control(fmt.Kind.GAP, self.recovered.gaps)
                self.streams.skip(self.recovered.gaps)
            self.sync()
        except OSError as error:
            raise _no_room(error) from error

    def _open_segment(self) -> None:
        named = self._identity != fmt.UNKNOWN
        if not named:
            self._identity = self.files.random(len(fmt.UNKNOWN))
        if self.recovered.index is None:
            self._begin_segment()
            return
        self.base = self.recovered.index.base
        self._fd = self.files.open(scan.path_of(self.directory, self.base), os.O_RDWR)
        if not named:  # an older version made the journal: its identity is in the header of the next segment
            self._roll()

    def take_rolled(self) -> Rolled | None:
        """Return the segment that was begun and not reported yet, if there is one."""
        rolled, self._rolled = self._rolled, None
        return rolled

    def make_room(self) -> None:
        """Allocate the rest of the segment.

        :raises NoRoom: there is none
        :raises SyncFailed: the disk could not be relied on before
        """
        self._check()
        left = self.segment_size - (self.position - self.base)
        if left > 0:
            try:
                self.files.allocate(self._fd, self.position - self.base, left)
            except OSError as error:
                raise _no_room(error) from error

    def commit(self, batches: Sequence[Sequence[Run]], time: int, clock: int) -> Committed:
        """Write runs that follow on; each sequence becomes one batch.

        :raises NoRoom: nothing was written, and the same can be tried again
        :raises SyncFailed: the disk cannot be relied on any more; so with any other OSError
        """
        self._check()
        self.time, self._clock = max(self.time, time), clock
        size = sum(run.room for runs in batches for run in runs) + len(batches) * fmt.BATCH_HEADER.size
        try:
            if self.position - self.base + size > self.segment_size and self.position > self._start:
                self._roll()
            if not self.sync_each:
                self._reserve(batches)
        except OSError as error:
            raise _no_room(error) from error
        written = []
        data: list[Buffer] = []
        position, chain = self.position, self._chain
        for runs in batches:
            grouped = packing.grouped(runs)
            header, encoded = packing.pieces(
                fmt.Kind.RECORDS,
                grouped,
                position=position,
                durable=self.durable,
                time=self.time,
                clock=clock,
                chain=chain,
            )
            position, chain = header.end, header.checksum
            written.append((header, grouped))
            data += encoded
        self._append(data)
        self.position, self._chain = position, chain
        for _, grouped in written:
            for run in grouped:
                self.streams.wrote(run.stream, run.first_seq, run.last_seq)
        if self.sync_each:
            self.sync()
        rolled = self.take_rolled()
        return Committed(written, self.position, self.durable, rolled, self._is_bare(size), self._is_due())

    def retire(self, streams: Iterable[str]) -> list[fmt.Entry]:
        """Retire *streams* durably, as far as they exist; return the entries that say so.

        :raises NoRoom: there was no room to note it, and nothing has changed
        :raises SyncFailed: the disk cannot be relied on
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

    def _is_due(self) -> bool:
        """Return whether a snapshot should be taken: the segment is nearly full, and the next would begin with much."""
        if self._snapshot_base == self.base or self.position - self.base < self.segment_size // 8 * 7:
            return False
        if self.streams.many:
            self._snapshot_base = self.base
        return self._snapshot_base == self.base

    def snapshot(self) -> Iterator[None]:
        """Write a snapshot of all streams, in steps that each take a few milliseconds; commits may come in between.

        :raises OSError: it could not be written; the log goes on without it
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
        """Whether commits of ``size`` bytes are about to reach the end of what was prepared."""
        wanted = min(self.position - self.base + AHEAD // 2, self.segment_size)
        return self.sync_each and size <= SMALL and self._zeroed < wanted

    def prepare(self) -> None:
        """Write zeros where the next commits go.

        A commit that is written over them is on disk sooner: where space was only allocated the file system has to
        note, durably, that it is in use now, and that is another trip to the disk.

        :raises SyncFailed: the disk cannot be relied on
        """
        self._check()
        begin = max(self._zeroed, (self.position - self.base + PAGE - 1) // PAGE * PAGE)
        size = min(AHEAD, self.segment_size - begin)
        if size <= 0 or not self._is_bare(0):
            return
        try:
            self.files.write(self._fd, memoryview(_ZEROS)[:size], begin)
        except OSError:
            # What was not written is as it was, and whatever is the matter, the next commit meets it too.
            size = self.segment_size - begin
        else:
            self._sync(self._fd)
        self._zeroed = begin + size

    def sync(self) -> int:
        """Everything written so far is on disk; the position up to which that is so.

        :raises SyncFailed: it is not, and never will be for certain
        """
        self._check()
        if self.durable < self.position:
            self._sync(self._fd)
            if not self.files.is_linked(self._fd):
                raise self._failed(f"the segment at position {self.base} was deleted while it was being written")
            self.durable = self.position
        self._write_mark()
        return self.durable

    def keep_from(self, begin: int) -> None:
        """Note durably that the log begins at *begin* from now on; the segments before may be deleted after that.

        :raises OSError: it could not be noted
        """
        self._check()
        self._begin = begin
        self._write_mark()
        self.files.sync(self._mark_fd)

    def _write_mark(self) -> None:
        self.files.write(self._mark_fd, scan.pack_mark(self.durable, self._begin, self._mark_identity), 0)

    def _sync(self, fd: int) -> None:
        began = time.monotonic()
        try:
            self.files.sync(fd)
            self.sync_seconds.observe(time.monotonic() - began)
        except OSError as error:
            raise self._failed(f"{error.strerror}, on syncing the segment at position {self.base}") from error

    def _failed(self, reason: str) -> SyncFailed:
        self._failure = SyncFailed(reason)
        return self._failure

    def _check(self) -> None:
        """What was under way when a sync failed comes to nothing: the next sync would succeed, and prove nothing."""
        if self._failure is not None:
            raise self._failure

    def close(self, in_order: bool) -> None:
        """Let go of the files; ``in_order`` says so in the log first.

        :raises NoRoom: there was no room to say so, which does no harm
        :raises SyncFailed: the disk cannot be relied on
        """
        try:
            if in_order:
                self._check()
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
        """Write behind the end, or leave the end where it is."""
        at = self.position - self.base
        try:
            for piece in pieces:
                self.files.write(self._fd, piece, at)
                at += len(piece)
        except OSError as error:
            self.files.truncate(self._fd, self.position - self.base)
            self._zeroed = 0
            self._sync(self._fd)
            raise _no_room(error) from error

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

    def _roll(self) -> None:
        """Seal the segment and begin the next; after a NoRoom nothing has changed."""
        old_fd, sealed = self._fd, (self.base, self.position)
        self.sync()
        entries = self._begin_segment(sealing=old_fd)
        self.files.close(old_fd)
        self._rolled = Rolled(sealed, self.base, entries)

    def _begin_segment(self, sealing: int | None = None) -> list[fmt.Entry]:
        """Begin a segment at the end of the log; return what it says of the streams."""
        base = self.position
        path = scan.path_of(self.directory, base)
        temporary = path.with_name(path.name + ".new")
        fd = self.files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            kind, entries = self.streams.beginning()
            end, chain = self._write_start(fd, base, kind, entries)
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
            raise self._failed(f"{error.strerror}, on syncing the journal's directory") from error
        self._fd, self.base, self._zeroed = fd, base, 0
        self.position = self.durable = self._start = end
        self._chain = chain
        return entries

    def _write_start(self, fd: int, base: int, kind: fmt.Kind, entries: list[fmt.Entry]) -> tuple[int, int]:
        """What every segment begins with; the position behind it, and its chain."""
        start = fmt.SegmentHeader(base, self.time, self._chain, self._identity).pack()
        header, ends = self._batch(kind, entries, base + len(start))
        self.files.allocate(fd, 0, max(self.segment_size, header.end - base))
        self.files.write(fd, b"".join((start, *ends)), 0)
        self._sync(fd)
        return header.end, header.checksum

    def _reserve(self, batches: Sequence[Sequence[Run]]) -> None:
        """Set numbers aside on disk before the first of them is given out."""
        short = {
            run.stream: fmt.Entry(run.stream, min(run.last_seq + RESERVE, LAST_SEQ), 0)
            for runs in batches
            for run in runs
            if run.last_seq > self.streams.reserved.get(run.stream, 0)
        }
        if short:
            self._control(fmt.Kind.RESERVED, list(short.values()))
            self.sync()
            self.streams.reserve(short.values())


def _no_room(error: OSError) -> Exception:
    """The same error as a NoRoom, if that is what it is."""
    return NoRoom(error.strerror) if error.errno in NO_ROOM else error
