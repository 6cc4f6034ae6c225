"""The writing side of a replicated journal: write another server's bytes, and truncate what nobody has confirmed.

A replicated journal has the same bytes on every server, so a server adds none of its own unless it leads: it opens the
log without writing a batch, and closes it without one.  MARK says up to where the log is on disk here *and* released,
which the owner decides (see :mod:`fyrehose.replication`).  Whatever lies beyond MARK when the journal is opened is set
aside in ``torn-POSITION.bytes``: the shared log has what counts.

    in: bytes of whole batches, a released position      out: the same bytes on disk, MARK
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import attrs

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.files import NO_ROOM, Files
from fyrehose.journal.recovery import last_byte
from fyrehose.journal.writer import NoRoom, Rolled, Writer
from fyrehose.records import Buffer, Run

#: Name of the file that marks a directory as a replica; it has the name of the server.
REPLICA = "REPLICA"
#: Batches of a commit of at most this many bytes are handed over together, without a copy for each.
TOGETHER = 512 << 10


@attrs.frozen(slots=True)
class Applied:
    """Another server's batches, as they were written.

    :ivar batches: the header of each batch, its runs, and its entries
    :ivar rolled: the roll-over before them, if any
    """

    batches: list[tuple[fmt.BatchHeader, list[Run], list[fmt.Entry]]]
    rolled: Rolled | None


@attrs.define(eq=False)
class ReplicaWriter(Writer):
    """Appends to a replicated journal.

    :ivar released: everything below this position may leave the server; MARK never goes beyond it
    :ivar wrote: called in the thread that writes when there is something for :meth:`take_outgoing`, before it is synced
    """

    whole = False  # the other servers get the bytes before they are synced, and MARK waits for what is released
    released: int = attrs.field(default=0, init=False)
    wrote: Callable[[], object] = attrs.field(default=lambda: None, init=False)
    #: What this server has written itself, and nobody has taken yet: position, and the bytes of whole batches.
    _outgoing: deque[tuple[int, list[Buffer]]] = attrs.field(factory=deque, init=False)
    #: The header and the first batch of the next segment, from another server.
    _foreign: bytes = attrs.field(default=b"", init=False)

    def open(self, time: int) -> None:
        """Open the log without writing to it.

        :raises NoRoom: the disk is full
        """
        self.time = max(self.time, time)
        try:
            self._mark_fd = self.files.open(self.directory / scan.MARK_NAME, os.O_RDWR | os.O_CREAT)
            self._mark_identity = self.files.identity(self._mark_fd)
            if self.recovered.index is not None:
                self.base = self.recovered.index.base
                self._fd = self.files.open(scan.path_of(self.directory, self.base), os.O_RDWR)
                self._start = self.base
                self.durable = self.position  # recovery has synced it
            self.released = self.position
            self.note()
        except OSError as error:
            raise _refined(error) from error

    def lead(self, time: int) -> None:
        """Prepare for commits: begin the first segment if there is none.

        :param time: earliest time of the next record, in microseconds since 1970 UTC
        :raises NoRoom: the disk is full
        """
        self.time = max(self.time, time)
        self._outgoing.clear()
        self.streams.snapshot, self.streams.changed = 0, None  # other servers do not have the snapshot's file
        try:
            if self._fd < 0:
                if self._identity == fmt.UNKNOWN:
                    self._identity = self.files.random(len(fmt.UNKNOWN))
                self._begin_segment()
            self.make_room()
        except OSError as error:
            raise _refined(error) from error

    def make_room(self) -> None:
        if self._fd >= 0:  # a follower may have no segment yet
            super().make_room()

    def take_outgoing(self) -> list[tuple[int, list[Buffer]]]:
        """Return what this server has written since the last call: positions, and the bytes of whole batches there.

        An item has several batches if they are small.  The header of a segment and the segment's first batch are one
        item.  Any thread may call it.
        """
        found = []
        with suppress(IndexError):
            while True:
                found.append(self._outgoing.popleft())
        return found

    def may_commit(self, size: int) -> bool:
        """Return False while a commit of *size* bytes would begin a segment before everything is released.

        Readers in other processes rely on it that a segment begins behind durable records.
        """
        return self.position - self.base + size <= self.segment_size or self.released >= self.position

    def apply(self, position: int, data: bytes) -> Applied:
        """Write and sync batches that another server has written, at the end of the log; they count as released.

        :param data: whole batches; the header of a segment, with its first batch, can only be at the beginning
        :raises Damage: they do not continue this log, and nothing was written
        :raises NoRoom: the disk is full; calling again with the same arguments goes on
        :raises SyncFailed: a sync failed
        """
        self._check()
        skip = self.position - position  # a call that failed may have begun the segment
        view = memoryview(data)
        start, chain = self._start_of(position, data)
        if skip not in (0, start):
            raise fmt.Damage(f"the log ends at position {self.position}, and the next batch belongs at {position}")
        parsed = _parse(position + start, view[start:], chain)
        try:
            if start and not skip:
                self._follow_segment(data[:start])
            if len(view) > start:
                super()._append([view[start:]])
        except OSError as error:
            raise _refined(error) from error
        for header, runs, entries in parsed:
            self.position, self._chain = header.end, header.checksum
            self.time = max(self.time, header.time)
            for run in runs:
                self.streams.wrote(run.stream, run.first_seq, run.last_seq)
            if entries or header.kind is fmt.Kind.CLOSED:
                self.streams.replay(header.kind, entries)
        self.released = self.position
        self.sync()
        return Applied(parsed, self.take_rolled())

    def _start_of(self, position: int, data: bytes) -> tuple[int, int]:
        """Check the segment's header and first batch at the beginning of *data*, if they are there.

        :return: their size, 0 without them; and the checksum from which the next batch continues
        :raises Damage: they are damaged, or do not continue this log
        """
        if not data.startswith(fmt.SEGMENT_MAGIC):
            return 0, self._chain
        head = fmt.SegmentHeader.unpack(data[: fmt.SEGMENT_HEADER.size])
        at = fmt.SEGMENT_HEADER.size
        first = fmt.BatchHeader.unpack(data[at:], position + at)
        end = first.end - position
        first.check(memoryview(data)[at + fmt.BATCH_HEADER.size : end])
        if self._fd >= 0 and head.identity != self._identity:
            raise fmt.Damage(f"it is of another journal ({head.identity.hex()}) than this one ({self._identity.hex()})")
        if self.position == position and (head.base != position or (self._fd >= 0 and head.chain != self._chain)):
            raise fmt.Damage("the segment does not continue this log")
        return end, first.checksum

    def _append(self, pieces: Sequence[Buffer]) -> None:
        super()._append(pieces)
        data = b"".join(pieces)
        self._outgoing.append((self.position, [data] if len(data) <= TOGETHER else _separated(data, self.position)))
        self.wrote()

    def _follow_segment(self, start: bytes) -> None:
        """Begin a segment with the header and the first batch of another server."""
        self._foreign = start
        self._identity = fmt.SegmentHeader.unpack(start).identity
        try:
            if self._fd < 0:
                self._begin_segment()
            else:
                self._roll()
        finally:
            self._foreign = b""

    def _write_start(self, fd: int, base: int, kind: fmt.Kind, entries: list[fmt.Entry]) -> tuple[int, int]:
        if not self._foreign:
            end, chain = super()._write_start(fd, base, kind, entries)
            self._outgoing.append((base, [self.files.read(fd, end - base, 0)]))
            return end, chain
        first = fmt.BatchHeader.unpack(self._foreign[fmt.SEGMENT_HEADER.size :], base + fmt.SEGMENT_HEADER.size)
        self.files.allocate(fd, 0, max(self.segment_size, len(self._foreign)))
        self.files.write(fd, self._foreign, 0)
        self._sync(fd)
        self.time = max(self.time, first.time)
        return first.end, first.checksum

    def _is_due(self) -> bool:
        """Take no snapshots: other servers would not have them."""
        return False

    def note(self) -> int:
        """Write MARK, and sync it; return the position that it has."""
        self._check()
        self._write_mark()
        self._sync(self._mark_fd)
        return min(self.durable, self.released)

    def write_mark(self) -> None:
        """Write MARK, so that other processes read up to :attr:`released`."""
        self._check()
        self._write_mark()

    def _write_mark(self) -> None:
        mark = scan.pack_mark(min(self.durable, self.released), self._begin, self._mark_identity)
        self.files.write(self._mark_fd, mark, 0)

    def close(self, in_order: bool, time: int = 0) -> None:
        """Close the files; nothing is appended to the log."""
        try:
            if in_order:
                self.note()
        finally:
            super().close(in_order=False)


def _parse(position: int, view: memoryview, chain: int) -> list[tuple[fmt.BatchHeader, list[Run], list[fmt.Entry]]]:
    """Decode and check batches that continue from the checksum *chain*.

    :raises Damage: one of them is damaged, or does not continue from the one before
    """
    found = []
    while view:
        header = fmt.BatchHeader.unpack(view, position)
        body = view[fmt.BATCH_HEADER.size : header.end - position]
        header.check(body)
        if header.chain != chain:
            raise fmt.Damage(f"the batch at position {position} does not continue this log")
        records = header.kind is fmt.Kind.RECORDS
        runs = fmt.runs(body, header.time) if records else []
        found.append((header, runs, [] if records else fmt.entries(body, header.parts)))
        view = view[header.end - position :]
        position, chain = header.end, header.checksum
    return found


def _separated(data: bytes, position: int) -> list[Buffer]:
    """Return the batches in *data*, which are at *position*."""
    view, at, found = memoryview(data), 0, list[Buffer]()
    while at < len(data):
        size = fmt.BatchHeader.unpack(view[at:], position + at).length + fmt.BATCH_HEADER.size
        found.append(view[at : at + size])
        at += size
    return found


def _refined(error: OSError) -> Exception:
    return NoRoom(error.strerror) if error.errno in NO_ROOM else error


def set_aside_beyond(directory: Path, position: int, files: Files) -> list[str]:
    """Set aside everything that the log in *directory*, which nobody writes, has beyond *position*.

    :return: notes for the log
    :raises JournalCorrupt: the log ends before *position*
    """
    notes = []
    found = scan.segments(directory)
    if position and (not found or found[-1].end < position):
        raise JournalCorrupt(
            f"the journal {directory} ends before position {position}, its durable mark; put its files back from a "
            "copy, or empty the directory, so that it is filled from another server"
        )
    for segment in reversed(found):
        if segment.end <= position:
            break
        begin = max(position, segment.base)
        reader = scan.SegmentReader(segment.path, segment.base, files)
        try:
            stop = last_byte(reader, begin, segment.end)
        finally:
            reader.close()
        fd = files.open(segment.path, os.O_RDWR)
        try:
            if stop > begin:
                aside = directory / f"torn-{begin:016x}.bytes"
                files.store(aside, files.pieces(fd, begin - segment.base, stop - segment.base))
                notes.append(f"set aside {stop - begin} bytes beyond the durable mark; they are in {aside.name}")
            if begin > segment.base:
                files.truncate(fd, begin - segment.base)
                files.sync(fd)
        finally:
            files.close(fd)
        if begin == segment.base:
            files.unlink(segment.path)
            files.unlink(scan.index_path_of(directory, segment.base))
            files.sync_directory(directory)
    return notes


def cut_at_mark(directory: Path, files: Files) -> list[str]:
    """Set aside what lies beyond the durable mark of a replica; do nothing in a directory that was none before.

    :return: notes for the log
    :raises JournalCorrupt: the durable mark is not known
    """
    if not (directory / REPLICA).exists():
        return []
    mark = scan.look_at_mark(directory, files)
    if scan.segments(directory) and (mark.copied or mark.begin is None):
        raise JournalCorrupt(
            f"the durable mark of the replica {directory} is unknown, because {scan.MARK_NAME} is "
            f"{'of another directory' if mark.copied else 'missing or damaged'}; empty the directory, so that it is "
            "filled from another server"
        )
    return set_aside_beyond(directory, mark.durable, files)
