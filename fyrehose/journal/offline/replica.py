"""A replica: the directory of a backup or a standby, into which the batches of a journal are copied byte by byte.

MARK has the position up to which batches were copied and checked, and is written after they were synced.  If copying is
interrupted, only bytes behind the mark are copied again.  A new segment has another name until it is complete, so that
a server can start in the directory at any moment.

    in: a segment reader      out: the same segment in the replica

This module does not import Twisted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import attrs

from fyrehose.errors import JournalCorrupt, JournalError, JournalFull, JournalLocked
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.files import NO_ROOM, PIECE, Files, lock
from fyrehose.journal.offline.places import Missing
from fyrehose.journal.offline.transfer import CheckedTail, batches, begin, tail_of
from fyrehose.journal.offline.view import believed_mark, differ
from fyrehose.journal.recovery import damaged
from fyrehose.journal.retention import Deletion
from fyrehose.journal.snapshots import needed_by
from fyrehose.records import Buffer


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
    """A replica in *directory*; a context manager that holds the lock of the directory.

    :ivar done: how much this object has copied and deleted
    :ivar tail: the end of the replica's log; None while it is empty
    :ivar position: everything below this position is on disk, according to MARK
    """

    directory: Path
    files: Files
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
        try:
            self._lock = lock(self.directory)
        except JournalLocked as error:
            holder = (self.directory / "LOCK").read_text(errors="replace").strip()
            raise JournalLocked(
                f"{self.directory} is in use by another process{f' (pid {holder})' if holder else ''}: a server, or a "
                "backup into it; wait until that process has ended, or use another directory"
            ) from error
        except OSError as error:
            kind = JournalFull if error.errno in NO_ROOM else JournalError
            raise kind(
                f"{self.directory} cannot be written: {error.strerror}; free some space, or use another directory"
            ) from error
        try:
            for leftover in self.directory.glob("*.new"):
                self.files.unlink(leftover)
            self.tail = tail_of(self.directory)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.position = self.tail.position if self.tail else 0
        begin = believed_mark(self.directory).begin
        first = next((segment.base for segment in scan.segments(self.directory)), 0)
        self._begin = first if begin is None else min(begin, first)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)
        self._lock = -1

    def is_writing(self, base: int) -> bool:
        """Return whether the replica's log ends in the segment at *base*, so that the rest of it is missing."""
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
            return _damaged(name, reader.base, reader.base, damage)
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
            self._store_index(made)  # the segment had been deleted in the replica, and later ones had not
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
        """Copy batches up to *stop* or the first damaged one, and sync them; return the error about the damaged one."""
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
            failure = _damaged(name, reader.base, tail.position, damage)
        except (Missing, JournalError) as error:
            failure = error
        self.files.write(fd, b"".join(pieces), at)
        self.files.sync(fd)
        self.done.size += tail.position - start
        progress(tail.position - start)
        return failure

    def note(self) -> None:
        """Write MARK: everything up to the end of the replica's log is on disk."""
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

    def _store_index(self, tail: CheckedTail) -> None:
        """Write the index of a complete segment."""
        self.files.store(scan.index_path_of(self.directory, tail.index.base), tail.index.pack())

    def delete_before(self, position: int) -> None:
        """Delete the segments that end at *position* or before, the oldest first."""
        found = [segment.base for segment in scan.segments(self.directory)]
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

    def settle(self) -> None:
        """Check that no segment is missing, sync the last one, and write MARK.

        This makes a directory that was copied with other tools a replica: its files were perhaps never synced.

        :raises JournalCorrupt: a segment is missing, and the source does not have it either
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


def _damaged(name: str, base: int, position: int, damage: fmt.Damage) -> JournalCorrupt:
    if isinstance(damage, fmt.Newer):
        return JournalCorrupt(f"{name} cannot be copied: {damage}; copy it with that version")
    return JournalCorrupt(
        f"{name} is damaged at byte {position - base} (position {position}): {damage}; everything before it was "
        "copied; put the file back from a copy, or start its server with --quarantine to set the range aside, and copy "
        "again"
    )
