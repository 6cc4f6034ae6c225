"""A replica: the directory of a backup or a standby, into which the batches of a journal are copied byte by byte.

The file MARK has the position up to which batches were copied and checked, and is written after these were synced.  If
copying is
interrupted, only bytes behind the mark are copied again.  A new segment file has a temporary name until it is complete,
so that a server can start in the directory at any moment.

    in: a segment reader      out: the same segment in the replica

This module does not import Twisted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import attrs

from fyrehose.errors import JournalCorrupt, JournalError, JournalUnreachable
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.copies import written_while_copied
from fyrehose.journal.ends import END, VouchedEnd, records_between, vouched_end
from fyrehose.journal.files import PIECE, Files, lock
from fyrehose.journal.index import SegmentIndex
from fyrehose.journal.recovery import damaged, durable_beyond, next_whole
from fyrehose.journal.retention import Deletion
from fyrehose.journal.snapshots import needed_by
from fyrehose.offline.places import Directory, Missing, Place
from fyrehose.offline.view import Extent, View, believed_mark, differ
from fyrehose.records import Buffer

#: What to do if the journal of a server is damaged.
_OF_A_SERVER = (
    "put the file back from a copy, or start its server with --quarantine to set the range aside, and copy again"
)


@attrs.define(eq=False)
class CheckedTail:
    """The state of reading and checking a log: everything before this end was checked.

    :ivar index: the index of the last segment
    :ivar position: where the next batch goes
    :ivar chain: checksum from which the next batch or segment continues; None: unknown
    :ivar at: the position of the last batch
    :ivar last: the header of that batch, as it is in the file; empty if the segment has no batch yet
    :ivar identity: the identity of the journal; zeros: unknown
    """

    index: SegmentIndex
    position: int
    chain: int | None
    at: int = 0
    last: bytes = b""
    identity: bytes = bytes(16)


@attrs.define
class Copied:
    """Statistics of copying.

    :ivar size: bytes of the log that were copied
    :ivar deleted: number of segments that were deleted from the replica
    """

    size: int = 0
    batches: int = 0
    records: int = 0
    deleted: int = 0


@attrs.define(eq=False)
class Replica:
    """A replica in *directory*; a context manager that locks the directory.

    :ivar remedy: what the errors about a damaged source say that its user should do
    :ivar done: statistics of what this object has copied and deleted
    :ivar tail: the end of the replica's log; None while it is empty
    :ivar position: everything below this position is on disk, according to MARK
    """

    directory: Path
    files: Files
    remedy: str = _OF_A_SERVER
    done: Copied = attrs.field(factory=Copied, init=False)
    tail: CheckedTail | None = attrs.field(default=None, init=False)
    position: int = attrs.field(default=0, init=False)
    _begin: int = attrs.field(default=0, init=False)  #: the position of the oldest segment
    _lock: int = attrs.field(default=-1, init=False)

    def __enter__(self) -> Replica:
        """Create the directory if it is missing, lock it, and find the end of its log.

        :raises JournalLocked: another replica, or a server, writes there
        :raises JournalFull: its disk is full
        :raises JournalCorrupt: the end of the log is damaged
        """
        self._lock = lock(self.directory)
        try:
            for leftover in self.directory.glob("*.new"):
                self.files.unlink(leftover)
            self.tail = tail_of(self.directory)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.position = self.tail.position if self.tail else 0
        noted = believed_mark(self.directory).begin
        first = next((segment.base for segment in scan.segments(self.directory)), 0)
        self._begin = first if noted is None else min(noted, first)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)
        self._lock = -1

    def is_writing(self, base: int) -> bool:
        """Return whether the replica's log ends in the segment at *base*, whose rest then has to be copied."""
        return self.tail is not None and self.tail.index.base == base

    def copy(self, reader: scan.SegmentReader, stop: int, name: str, progress: Callable[[int], object]) -> None:
        """Copy the missing part of a segment up to the position *stop*; batches before an error are kept.

        :param name: path or address of the segment, for messages
        :param progress: called with the number of bytes that were copied
        :raises JournalCorrupt: a batch is damaged
        :raises JournalError: the segment cannot be read
        :raises Missing: the segment was deleted
        :raises OSError: the replica cannot be written
        """
        tail = self.tail
        if tail is not None and self.is_writing(reader.base):
            with self.files.opened(scan.path_of(self.directory, reader.base), os.O_RDWR) as fd:
                self.files.truncate(fd, tail.position - reader.base)
                failure = self._write(fd, reader, tail, stop, b"", name, progress)
            self.note()
        else:
            failure = self._make(reader, stop, name, progress)
        if failure is not None:
            raise failure

    def _make(
        self, reader: scan.SegmentReader, stop: int, name: str, progress: Callable[[int], object]
    ) -> Exception | None:
        """Copy a segment that the replica lacks; return the error if it cannot be copied up to *stop*."""
        follows = self.tail is not None and self.tail.position == reader.base
        if self.tail is not None and follows:
            self._store_index(self.tail)
        try:
            head, made = begin(reader, self.tail.chain if self.tail is not None and follows else None)
        except fmt.Damage as damage:
            return self._damaged(name, reader.base, reader.base, damage)
        if self.tail is not None and follows and differ(self.tail.identity, made.identity):
            return JournalError(f"{name} belongs to another journal than {self.directory}; use an empty directory")
        path = scan.path_of(self.directory, reader.base)
        temporary = path.with_name(path.name + ".new")
        with self.files.opened(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            failure = self._write(fd, reader, made, stop, head, name, progress)
        appended = self.tail is None or follows
        if not made.last or not (appended or failure is None):
            self.files.unlink(temporary)
            return failure
        self.files.rename(temporary, path)
        self.files.sync_directory(self.directory)
        self._begin = min(self._begin, reader.base) if self.tail is not None else reader.base
        if appended:
            self.tail = made
            self.note()
        else:
            self._store_index(made)  # the new segment fills a hole, because later segments exist already
        return failure

    def _write(
        self,
        fd: int,
        reader: scan.SegmentReader,
        tail: CheckedTail,
        stop: int,
        head: bytes,
        name: str,
        progress: Callable[[int], object],
    ) -> Exception | None:
        """Copy and sync batches up to *stop* or the first damaged batch; return the error about that batch, if any."""
        start = tail.position - len(head)
        at, size = start - reader.base, len(head)
        pieces: list[Buffer] = [head] if head else []
        failure: Exception | None = None
        try:
            for header, data in batches(reader, tail, stop):
                pieces += data
                size += header.end - header.position
                self.done.batches += 1
                self.done.records += header.records
                if size >= PIECE:
                    self.files.write(fd, b"".join(pieces), at)
                    pieces, at, size = [], at + size, 0
                    progress(tail.position - start)
        except fmt.Damage as damage:
            failure = self._damaged(name, reader.base, tail.position, damage)
        except (Missing, JournalError) as error:
            failure = error
        self.files.write(fd, b"".join(pieces), at)
        self.files.sync(fd)
        self.done.size += tail.position - start
        progress(tail.position - start)
        return failure

    def _damaged(self, name: str, base: int, position: int, damage: fmt.Damage) -> JournalCorrupt:
        if isinstance(damage, fmt.Newer):
            return JournalCorrupt(f"{name} cannot be copied: {damage}; copy it with that version")
        return JournalCorrupt(
            f"{name} is damaged at byte {position - base} (position {position}): {damage}; everything before it was "
            f"copied; {self.remedy}"
        )

    def note(self) -> None:
        """Write MARK, which says that the replica's log is on disk up to its end."""
        assert self.tail is not None
        path = self.directory / scan.MARK_NAME
        made = not path.exists()
        with self.files.opened(path, os.O_RDWR | os.O_CREAT) as fd:
            mark = scan.pack_mark(self.tail.position, self._begin, self.files.identity(fd))
            self.files.write(fd, mark, 0)
            self.files.sync(fd)
        self.position = self.tail.position
        if made:
            self.files.sync_directory(self.directory)

    def vouch(self) -> None:
        """Write the file END, which says where the replica begins and ends, and which is right in every copy of it."""
        tail = self.tail
        assert tail is not None
        chain = fmt.BatchHeader.unpack(tail.last, tail.at).checksum
        try:
            known = vouched_end(self.directory, self.files)
        except JournalCorrupt:
            known = None  # it is damaged, or of other segments
        end = VouchedEnd(
            tail.identity, self._begin, tail.index.base, self._records(known), tail.at, tail.position, chain
        )
        if end != known:
            self.files.store(self.directory / END, end.pack())

    def _records(self, known: VouchedEnd | None) -> int:
        """Return how many records the replica has.

        :param known: the end for which the replica vouched before, which says how many it had then
        """
        assert self.tail is not None
        directory, begin, end = self.directory, self._begin, self.tail.position
        if known is None or known.begin > begin or known.position > end:
            return records_between(directory, begin, end)
        deleted = records_between(directory, known.begin, begin)
        return known.records - deleted + records_between(directory, known.position, end)

    def _store_index(self, tail: CheckedTail) -> None:
        """Write the index of a complete segment."""
        self.files.store(scan.index_path_of(self.directory, tail.index.base), tail.index.pack())

    def delete_before(self, position: int) -> None:
        """Delete the segments that end at *position* or before, the oldest first."""
        found = [segment.base for segment in scan.segments(self.directory)]
        if not found:
            return
        ends = found[1:]
        deletion = Deletion(self.directory, self.files)
        deletion.segments = [
            (scan.path_of(self.directory, base), end, self._needed_by(end))
            for base, end in zip(found, ends, strict=False)
            if end <= position
        ]
        self.done.deleted += len(deletion.segments)
        deletion.work(self._keep_from)
        first = scan.segments(self.directory)[0].base
        if self._begin < first <= position:  # another program has deleted segments of the replica
            self._keep_from(first)

    def _needed_by(self, base: int) -> int:
        with scan.SegmentReader(scan.path_of(self.directory, base), base, self.files) as reader:
            try:
                return needed_by(reader)
            except fmt.Damage as damage:
                raise damaged(reader.path, base, base, damage) from damage

    def _keep_from(self, position: int) -> None:
        self._begin = position
        self.note()
        if (self.directory / END).exists():
            self.vouch()

    def settle(self) -> None:
        """Check that no segment is missing, sync the last one, and write MARK.

        This turns a directory that was copied with other tools, which perhaps never synced its files, into a replica.

        :raises JournalCorrupt: a segment is missing that the source does not have either
        """
        end = self._begin
        for segment in scan.segments(self.directory):
            if segment.base > end:
                raise JournalCorrupt(
                    f"{self.directory} lacks the positions {end} to {segment.base}, which its source has deleted: put "
                    "the missing segment back, begin a new backup in an empty directory, or use --mirror, which also "
                    "deletes what the source has deleted"
                )
            end = segment.end
        if self.tail is not None:
            with self.files.opened(scan.path_of(self.directory, self.tail.index.base), os.O_RDWR) as fd:
                self.files.sync(fd)
            self.note()


# Read and check the batches of a source, and find the end of a log.


def begin(reader: scan.SegmentReader, chain: int | None) -> tuple[bytes, CheckedTail]:
    """Read the header of a segment.

    :param chain: the checksum from which the segment must continue; None: unknown
    :return: the bytes of the header, and a tail that begins behind it
    :raises Damage: it is damaged, or continues from another checksum
    """
    data = _read(reader, reader.base, fmt.SEGMENT_HEADER.size)
    header = fmt.SegmentHeader.unpack(data)
    if header.base != reader.base:
        raise fmt.Damage(f"the file contains the segment that begins at position {header.base}")
    continued = None if header.created == 0 else header.chain  # --quarantine has replaced a damaged header
    if None not in (chain, continued) and continued != chain:
        raise fmt.Damage("the segment does not continue from the previous one")
    tail = CheckedTail(SegmentIndex(reader.base), reader.base + len(data), continued, identity=header.identity)
    return bytes(data), tail


def batches(reader: scan.SegmentReader, tail: CheckedTail, stop: int) -> Iterator[tuple[fmt.BatchHeader, list[Buffer]]]:
    """Read and check the batches from *tail* up to the position *stop*; move *tail* behind each batch.

    :return: for each batch, its header and its bytes
    :raises Damage: the next batch is damaged, or cannot be read; *tail* is in front of it
    """
    size = fmt.BATCH_HEADER.size
    while tail.position < stop:
        head = bytes(_read(reader, tail.position, size))
        header = fmt.BatchHeader.unpack(head, tail.position)
        body = _read(reader, tail.position, size + header.length)[size:]
        header.check(body)
        if tail.chain is not None and header.chain != tail.chain:
            raise fmt.Damage("the batch does not continue from the previous one")
        if header.end > stop:
            raise fmt.Damage(f"the batch reaches beyond position {stop}, where the segment or its durable part ends")
        tail.index.add(header, body)
        tail.at, tail.last, tail.position = header.position, head, header.end
        tail.chain = None if header.mended else header.checksum
        yield header, [head, body]


def _read(reader: scan.SegmentReader, position: int, size: int) -> memoryview:
    try:
        return reader.read(position, size)
    except OSError as error:
        raise fmt.Damage(f"cannot be read: {error.strerror}") from error


def tail_of(directory: Path) -> CheckedTail | None:
    """Find the end of the log in *directory*, to which no other process writes; return None if there is no log.

    :raises JournalCorrupt: the log ends before the durable mark, or the last segment is damaged
    """
    noted = believed_mark(directory)
    found = [segment for segment in scan.segments(directory) if not noted.durable or segment.base < noted.durable]
    if not found and noted.durable:
        raise JournalCorrupt(
            f"{directory} has no segments below position {noted.durable}, the durable mark in MARK; put its files "
            "back, or use an empty directory"
        )
    for segment in reversed(found):
        tail, damage = _whole(segment, noted.durable or segment.end)
        if damage is not None and noted.durable:
            raise JournalCorrupt(
                f"{segment.path} is damaged at byte {tail.position - segment.base} (position {tail.position}): "
                f"{damage}; delete this file, and MARK and {END} beside it, and run the backup again"
            )
        if tail.last:
            return tail
    return None


def reach(source: Place) -> View:
    """Return the part of *source* that may be copied: its durable part or, if it is itself a copy, all intact batches.

    In a directory for whose end nothing vouches, no process writes.  So the log ends at the last intact batch, as it
    does for a server that starts there.

    :raises JournalUnreachable: the source cannot be reached at present
    :raises JournalCorrupt: the source is a copy, and its end is damaged
    """
    try:
        view = source.view()
        if view.vouched or not isinstance(source, Directory):
            return view
        found = scan.segments(source.path)
        found[-1] = scan.without_hole(found[-1], Files())
        tail, damage = _whole(found[-1], found[-1].end)
        if damage is not None:
            _check_end(found[-1], tail.position, damage)
    except OSError as error:
        raise JournalUnreachable(f"{source} cannot be read: {error.strerror}") from error
    ends = [segment.base for segment in found[1:]] + [tail.position]
    extents = tuple(Extent(s.base, min(s.end, end)) for s, end in zip(found, ends, strict=True))
    return attrs.evolve(view, mark=tail.position, segments=extents)


def _whole(segment: scan.Segment, stop: int) -> tuple[CheckedTail, fmt.Damage | None]:
    """Read a segment up to *stop* or the first damaged batch; return the tail there, and the damage or None."""
    tail = CheckedTail(SegmentIndex(segment.base), segment.base, None)
    with scan.SegmentReader(segment.path, segment.base) as reader:
        try:
            _, tail = begin(reader, None)
            for _ in batches(reader, tail, stop):
                pass
        except fmt.Damage as damage:
            return tail, damage
    return tail, None


def _check_end(segment: scan.Segment, position: int, damage: fmt.Damage) -> None:
    """Check, as recovery does, that no durable batch follows the last intact batch of a copied segment.

    :raises JournalCorrupt: durable batches follow, and the damage does not look like that of a copy during a write
    """
    with scan.SegmentReader(segment.path, segment.base) as reader:
        durable = durable_beyond(reader, position, segment.end)
        torn = written_while_copied(reader, position, next_whole(reader, position, segment.end))
    if position < durable and not torn:
        raise damaged(segment.path, position, segment.base, damage) from damage
