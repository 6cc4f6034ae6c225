"""Recover a journal when it is opened: find the end of the log, and truncate a batch that was not written completely.

Only the last segment is read as a whole, because only it can have been written to when the last process ended.  If a
batch in it is damaged, there are two cases.  Which one it is depends on the position up to which the log is known to
have been durable, from the file MARK and from the headers of batches:

    torn tail     the damage lies beyond that position: the batch was being written, and was never acknowledged.
                  It is copied to another file and truncated.
    corruption    the damage lies below that position: acknowledged records may be lost.  The journal does not open,
    unless
                  --quarantine is given (journal/quarantine.py).

The directory may also be a copy that was made file by file while a server wrote, so that MARK and the segments are from
different moments.  MARK contains its own inode number, so a copied file is recognized.  In a copy, only the headers of
batches say
what was durable, every segment is checked, and a batch that was being written while the last segment was copied is
truncated like a torn tail.

The part between the durable mark and the end of the log may exist only in the page cache, which a failed sync leaves
marked as clean.  So that part is written again and synced before any record in it is delivered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import attrs

from fyrehose.errors import JournalCorrupt, JournalFailed
from fyrehose.journal import format as fmt
from fyrehose.journal.copies import written_while_copied
from fyrehose.journal.ends import vouched_end
from fyrehose.journal.files import Files
from fyrehose.journal.index import PackedIndex, SegmentIndex, index_limit
from fyrehose.journal.scan import (
    INDEX_SUFFIX,
    MARK_NAME,
    Mark,
    Segment,
    SegmentReader,
    identity_of,
    index_path_of,
    look_at_mark,
    segments,
    snapshot_path_of,
    snapshots,
    without_hole,
)
from fyrehose.journal.snapshots import load, needed_by
from fyrehose.journal.streams import Streams, streams_at_start
from fyrehose.options import counted
from fyrehose.records import Buffer

_MAGIC = re.compile(re.escape(fmt.BATCH_MAGIC))
#: Name of the file that exists while a quarantine changes a journal; the file is left over if the quarantine is killed.
QUARANTINE_NAME = "QUARANTINE"


@attrs.define(kw_only=True)
class Recovered:
    """The result of recovery.

    :ivar begin: the position of the oldest segment
    :ivar identity: the identity of the journal; zeros if it has none yet
    :ivar sealed: (base, end) of every segment except the last
    :ivar index: the index of the last segment; None if there is no segment
    :ivar position: where the next batch goes
    :ivar chain: checksum of the last batch
    :ivar durable: everything below this position was durable before recovery
    :ivar time: the time of the last batch, in microseconds since 1970 UTC
    :ivar streams: all streams at the end of the log
    :ivar closed: whether the last process closed the journal in order
    :ivar gaps: numbers that may have been given out and were not written, for which the writer appends gaps
    :ivar notes: messages for the log
    """

    directory: Path
    begin: int = 0
    identity: bytes = fmt.UNKNOWN
    sealed: list[tuple[int, int]] = attrs.field(factory=list)
    index: SegmentIndex | None = None
    position: int = 0
    chain: int = 0
    durable: int = 0
    time: int = 0
    streams: Streams = attrs.field(factory=Streams)
    closed: bool = True
    gaps: list[fmt.Entry] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)

    def add(self, header: fmt.BatchHeader, body: Buffer) -> None:
        """Add the next batch of the last segment."""
        assert self.index is not None
        if header.kind is fmt.Kind.RECORDS:
            for stream, first, last in fmt.extents(body):
                self.index.add_run(header.position, stream, first, last)
                self.streams.wrote(stream, first, last)
        else:
            self.index.add(header, body)
            self._add_entries(header, fmt.entries(body, header.parts))
        self.closed = header.kind is fmt.Kind.CLOSED
        self.position, self.chain, self.time = header.end, header.checksum, max(self.time, header.time)
        self.durable = max(self.durable, header.durable)

    def _add_entries(self, header: fmt.BatchHeader, entries: list[fmt.Entry]) -> None:
        assert self.index is not None
        if fmt.begins(header, self.index.base):
            self.streams = streams_at_start(entries, lambda position: load(self.directory, position).streams())
        else:
            self.streams.replay(header.kind, entries)

    def lines(self) -> list[str]:
        """Describe the recovered journal in lines for the log: its streams, its end, and what was repaired."""
        records = sum(self.streams.ends.values())
        how = "closed in order" if self.closed else "not closed in order"
        streams, numbers = counted(len(self.streams.ends), "stream"), counted(records, "number")
        first = f"{streams}, {numbers} given out, log ends at {self.position} ({how})"
        return ["new" if self.index is None else first, *self.notes]


def recover(directory: Path, files: Files, verify: int = 0) -> Recovered:
    """Find the end of the log in *directory*, and truncate a torn tail.

    A directory with a file END, such as that of a standby, must have the whole log up to that end.

    :param verify: how many bytes of the sealed segments to check as well, beginning with the newest segment
    :raises JournalCorrupt: a durable part of the log is damaged or missing; nothing was changed
    :raises JournalFailed: the directory could not be synced
    """
    for leftover in directory.glob("*.new"):
        files.unlink(leftover)
    # A process that was killed may have renamed a new segment without syncing the directory.  Without this sync,
    # records that are appended to that segment from now on could be lost with its name.
    try:
        files.sync_directory(directory)
        sync_mended(directory, files)
    except OSError as error:
        raise JournalFailed(
            f"the journal {directory} cannot be opened, its disk failed: cannot sync the directory: {error.strerror}"
        ) from error
    found = segments(directory)
    mark = look_at_mark(directory, files)
    if not found:
        if mark.durable:
            raise JournalCorrupt(
                f"the journal {directory} has no segments, but {mark.durable} bytes were durable; put its files back "
                "from a copy, or delete MARK to begin an empty journal"
            )
        return Recovered(directory=directory)
    vouched = vouched_end(directory, files)
    found[-1] = without_hole(found[-1], files)
    with newer_refused(directory):
        identity = identity_of(found)
    ends = [_check_sealed(segment, after.base, identity, mark.copied) for segment, after in pairwise(found)]
    sealed = list(zip(found, ends, strict=False))
    recovered = Recovered(
        directory=directory,
        begin=found[0].base,
        identity=identity,
        sealed=[(segment.base, end) for segment, end in sealed],
    )
    check_front(directory, found[0].base, mark)
    for segment, end in reversed(sealed):
        if verify <= 0 and not mark.copied:
            break
        verify -= segment.size
        _check(segment, end, mark.copied)
    recovered.durable = max(durable_end(directory, found, mark, files), vouched.position if vouched else 0)
    _recover_last(found[-1], recovered, mark, files)
    _unlink_stray_indexes(directory, found, files)
    _unlink_stray_snapshots(directory, found, recovered.streams.snapshot, files)
    if not recovered.closed:
        recovered.gaps = recovered.streams.unwritten()
    return recovered


def sync_mended(directory: Path, files: Files) -> None:
    """Sync all changes of a quarantine, and record that the quarantine has ended; do nothing if none has begun.

    The file QUARANTINE still exists if the quarantine was killed; then the changes are visible, but perhaps not
    durable.

    :raises OSError: something cannot be synced
    """
    marker = directory / QUARANTINE_NAME
    if not marker.exists():
        return
    for path in [*(segment.path for segment in segments(directory)), directory / MARK_NAME]:
        if path.exists():
            with files.opened(path, os.O_RDONLY) as fd:
                files.sync(fd)
    files.unlink(marker)


def _unlink_stray_indexes(directory: Path, found: list[Segment], files: Files) -> None:
    """Delete indexes without a segment, which remain if the process is killed while retention deletes a segment."""
    kept = {segment.path.with_suffix(INDEX_SUFFIX) for segment in found}
    for path in directory.glob("*" + INDEX_SUFFIX):
        if path not in kept:
            files.unlink(path)


def _unlink_stray_snapshots(directory: Path, found: list[Segment], newest: int, files: Files) -> None:
    """Delete snapshots that no segment refers to.

    Snapshots that are older than the one of the oldest segment are not needed any more; snapshots at positions within
    the last segment were being written when the last process ended.

    :param newest: the position of the snapshot that the last segment refers to, which may be the segment's base
    """
    oldest, last = found[0], found[-1]
    with SegmentReader(oldest.path, oldest.base, files) as reader:
        try:
            needed = needed_by(reader)
        except fmt.Damage:
            return  # reading the segment reports the damage; until it is repaired, all snapshots may be needed
    for position in snapshots(directory):
        if position < needed or (position >= last.base and position != newest):
            files.unlink(snapshot_path_of(directory, position))


def durable_end(directory: Path, found: Sequence[Segment], mark: Mark, files: Files) -> int:
    """Return the position up to which the log must reach according to MARK; 0: unknown."""
    return noted_end(directory, found, mark, files)[0] if mark.copied and found else mark.trusted.durable


def noted_end(directory: Path, found: Sequence[Segment], mark: Mark, files: Files) -> tuple[int, int]:
    """Return the position up to which a copied log must reach according to its MARK, and up to which it is intact.

    The first is 0 if it is unknown.  MARK of a copy may be newer than the segments, because the server went on to write
    while they were copied.  It is right all the same if the last segment has an index, because the segment was sealed
    already when its files were listed, so the next one is missing; if the last segment ends in a damaged batch that
    does not look as if it was being written; and if the last batch ends where MARK says.

    A segment that was truncated between two batches cannot be told from one that was copied before MARK: both end with
    a whole batch, and so does a segment that was sealed while it was copied.
    """
    last = found[-1]
    if mark.durable > last.end and _is_sealed(directory, last, files):
        return mark.durable, last.end
    at = last.base + fmt.SEGMENT_HEADER.size
    with SegmentReader(last.path, last.base, files) as reader, newer_refused(last.path):
        try:
            for header, _ in reader.batches(at, min(last.end, mark.durable)):
                at = header.end
        except fmt.Damage:
            return (0 if written_while_copied(reader, at, next_whole(reader, at, last.end)) else mark.durable), at
        return (mark.durable if at == mark.durable and not _is_header(reader, at) else 0), at


def _is_sealed(directory: Path, segment: Segment, files: Files) -> bool:
    """Return whether there is an index of the whole *segment*, which is written when the next segment exists."""
    path = index_path_of(directory, segment.base)
    try:
        data = files.content(path, index_limit(segment.base, segment.end))
    except FileNotFoundError:
        return False
    return PackedIndex.unpack(data, segment.base, segment.end) is not None


def damaged(path: Path, position: int, base: int, reason: object) -> JournalCorrupt:
    """Return the error for damage at *position*; its text says where the damage is and what to do.

    :param base: the base of the segment
    """
    if isinstance(reason, fmt.Newer):
        return JournalCorrupt(f"{path} cannot be read: {reason}; serve it with that version, nothing of it is damaged")
    return JournalCorrupt(
        f"{path} is damaged at byte {position - base} (position {position}), where it was durable: {reason}; "
        "put the file back from a copy, or start with --quarantine to set the range aside as a gap"
    )


@contextmanager
def newer_refused(path: Path) -> Iterator[None]:
    """Turn :class:`format.Newer`, which the body of the ``with`` statement raises, into JournalCorrupt.

    Otherwise such a batch would count as damage or as a torn tail, and acknowledged records would be truncated.

    :param path: of the segment or the directory, for the message
    """
    try:
        yield
    except fmt.Newer as newer:
        raise damaged(path, 0, 0, newer) from newer


def durable_beyond(reader: SegmentReader, position: int, stop: int) -> int:
    """Return the position below which the log was durable, according to the batches behind the damage at *position*.

    :param stop: the end of the segment
    :return: 0 if there are no batches behind the damage
    """
    durable = 0
    position = behind(reader, position, stop)
    while (position := next_batch(reader, position, stop)) < stop:
        durable = max(durable, reader.header_ahead(position).durable)
        try:
            position = reader.batch(position)[0].end
        except fmt.Damage:
            position += 8
    return durable


def behind(reader: SegmentReader, position: int, stop: int) -> int:
    """Return the position from which to search for a batch behind the damaged one at *position*.

    If the header of the damaged batch is intact, that is the end of the batch, because its payloads may look like
    batches.
    """
    if _is_header(reader, position):
        return min(reader.header_ahead(position).end, stop)
    return min(position + 8, stop)


def next_batch(reader: SegmentReader, position: int, stop: int) -> int:
    """Return the first position from *position* on that has the intact header of a batch; *stop* if none has."""
    if position < stop and _is_header(reader, position):
        return position  # the common case: batches follow each other without a hole
    # A header may lie across two pieces, but its magic does not, because it begins at a multiple of 8 bytes.
    for begin, piece in reader.pieces(position, stop):
        for found in _MAGIC.finditer(piece):
            at = begin + found.start()
            if at % 8 == 0 and _is_header(reader, at):
                return at
    return stop


def next_whole(reader: SegmentReader, position: int, stop: int) -> int:
    """Return the position of the next undamaged batch behind the damaged one at *position*; *stop* if there is none."""
    position = behind(reader, position, stop)
    while (position := next_batch(reader, position, stop)) < stop:
        try:
            reader.batch(position)
        except fmt.Damage:
            position += 8
        else:
            break
    return position


def _is_header(reader: SegmentReader, position: int) -> bool:
    """Return whether there is an intact header of a batch at *position*.

    :raises Newer: a newer version has written the header
    """
    try:
        reader.header_ahead(position)
    except fmt.Newer:
        raise
    except fmt.Damage:
        return False
    return True


def check_front(directory: Path, begin: int, mark: Mark) -> None:
    """Check that no segment is missing at the beginning of the log, except those that retention has deleted.

    :raises JournalCorrupt: a segment is missing
    """
    if mark.begin is None or begin <= mark.begin:
        return
    how = (
        "they were not copied, or retention deleted them meanwhile" if mark.copied else "retention did not delete them"
    )
    raise JournalCorrupt(
        f"the oldest segments of {directory} are missing: its log began at position {mark.begin}, not at {begin}, and "
        f"{how}; put the files back from a copy, or start with --quarantine to continue without them"
    )


def _check_sealed(segment: Segment, next_base: int, identity: bytes, copied: bool) -> int:
    """Check the size and the header of a sealed segment; return the position at which it ends.

    :raises JournalCorrupt: the segment is damaged, too short, or of another journal, or it overlaps the next segment
    """
    if segment.end < next_base:
        remedy = (
            "copy it again from the original, or, if retention deleted segments while the files were copied, delete "
            "this segment and all before it from the copy"
            if copied
            else "put the file back from a copy, or start with --quarantine to leave a gap"
        )
        raise JournalCorrupt(
            f"{segment.path} ends at position {segment.end}, but the next segment begins at {next_base}: a segment is "
            f"missing or truncated; {remedy}"
        )
    with SegmentReader(segment.path, segment.base) as reader:
        try:
            header = reader.header()
            overlap = last_byte(reader, next_base, segment.end) - next_base
        except fmt.Damage as damage:
            raise damaged(segment.path, segment.base, segment.base, damage) from damage
    if overlap:
        raise JournalCorrupt(
            f"{segment.path} has {overlap} bytes behind position {next_base}, where {next_base:016x}.segment begins: "
            "one of the two does not belong there, perhaps a file of another journal; remove it, or start with "
            "--quarantine to set it aside"
        )
    if header.identity not in (fmt.UNKNOWN, identity):
        raise JournalCorrupt(
            f"{segment.path} belongs to another journal ({header.identity.hex()}, not {identity.hex()}); put the file "
            "of this journal back from a copy"
        )
    return next_base


def _check(segment: Segment, end: int, copied: bool) -> None:
    position = segment.base + fmt.SEGMENT_HEADER.size
    with SegmentReader(segment.path, segment.base, limit=end) as reader:
        try:
            for header, _ in reader.batches(position, end):
                position = header.end
        except fmt.Damage as damage:
            with newer_refused(segment.path):
                after = next_whole(reader, position, end)
            if copied and written_while_copied(reader, position, after):
                raise JournalCorrupt(
                    f"{segment.path} was being written while it was copied, and ends at position {position} of {end}; "
                    "copy this file again from the original, where it is complete by now"
                ) from damage
            raise _damaged_or_copied_over(reader, position, after, damage) from damage


def _damaged_or_copied_over(reader: SegmentReader, position: int, after: int, damage: fmt.Damage) -> JournalCorrupt:
    """Return the error for damage in a directory that is no copy, but may have been overwritten with a copy.

    Overwritten files keep their inode numbers, so MARK does not show that its content was copied.

    :param after: the position of the next undamaged batch
    """
    error = damaged(reader.path, position, reader.base, damage)
    if isinstance(damage, fmt.Newer) or not written_while_copied(reader, position, after):
        return error
    return JournalCorrupt(
        f"{error}; if the files were put back from a copy over those that were there, put the copy into an empty "
        "directory: a start recognizes it there"
    )


def _recover_last(segment: Segment, recovered: Recovered, mark: Mark, files: Files) -> None:
    recovered.index = SegmentIndex(segment.base)
    recovered.position = segment.base + fmt.SEGMENT_HEADER.size
    with SegmentReader(segment.path, segment.base) as reader:
        try:
            recovered.chain = reader.header().chain
            for header, body in reader.batches(recovered.position, segment.end):
                recovered.add(header, body)
        except fmt.Damage as damage:
            at = recovered.position
            with newer_refused(segment.path):
                after, beyond = next_whole(reader, at, segment.end), durable_beyond(reader, at, segment.end)
            known = at < recovered.durable or recovered.index.end == 0
            torn = mark.copied and not known and written_while_copied(reader, at, after)
            if not torn and (known or at < beyond):
                raise _damaged_or_copied_over(reader, at, after, damage) from damage
            _cut_off(segment, reader, recovered, files)
    if recovered.position < recovered.durable:
        raise damaged(segment.path, recovered.position, segment.base, "the end of the log is missing")
    if mark.copied:
        recovered.notes.append(
            f"this directory is a copy, so all segments were checked; they end at position {recovered.position}, and "
            "whether the original went on is unknown"
        )
    if recovered.durable < recovered.position or not recovered.closed:
        _write_again(segment, recovered, files)


def _cut_off(segment: Segment, reader: SegmentReader, recovered: Recovered, files: Files) -> None:
    """Move the bytes behind the last intact batch to another file; zeros are left in place."""
    at = recovered.position
    stop = last_byte(reader, at, segment.end)
    if stop == at:
        return
    aside = segment.path.with_name(f"torn-{at:016x}.bytes")
    cut(segment, at, stop, aside, files)
    recovered.notes.append(
        f"truncated {stop - at} bytes of a batch that was being written (never acknowledged); they are in {aside.name}"
    )


def cut(segment: Segment, start: int, stop: int, aside: Path, files: Files) -> None:
    """Copy the bytes of a segment from *start* to *stop* to the file *aside*, and truncate the segment at *start*."""
    with files.opened(segment.path, os.O_RDWR) as fd:
        files.store(aside, files.pieces(fd, start - segment.base, stop - segment.base))
        files.truncate(fd, start - segment.base)
        files.sync(fd)


def last_byte(reader: SegmentReader, start: int, stop: int) -> int:
    """Return the position behind the last byte between *start* and *stop* that is not zero; *start* if all are."""
    last = start
    for position, piece in reader.pieces(start, stop):
        if used := len(piece.rstrip(b"\0")):
            last = position + used
    return last


def _write_again(segment: Segment, recovered: Recovered, files: Files) -> None:
    begin = max(recovered.durable, segment.base) - segment.base
    with files.opened(segment.path, os.O_RDWR) as fd:
        for piece in files.pieces(fd, begin, recovered.position - segment.base):
            files.write(fd, piece, begin)
            begin += len(piece)
        files.sync(fd)
