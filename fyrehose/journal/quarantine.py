"""Quarantine: set damaged ranges of a journal aside, so that the rest of it can be served.

This is done on request only (``--quarantine``), because acknowledged records are lost.  Each damaged range is copied to
a file of its own, and replaced by a batch of kind GAP of the same length.  The batch lists the missing numbers, which
follow from the numbers before and after the range.  No numbers follow a range at the end of the log; then every stream
skips as many numbers as the range can have contained, so that no number is used twice.
Files that are no part of the log are set aside first (strays.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import attrs

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import packing, scan, snapshots
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import (
    QUARANTINE_NAME,
    durable_beyond,
    durable_end,
    newer_refused,
    next_batch,
    next_whole,
    sync_mended,
)
from fyrehose.journal.strays import free_name, set_strays_aside
from fyrehose.journal.streams import RESERVE, Streams, streams_at_start
from fyrehose.options import counted
from fyrehose.records import Buffer

#: Minimum size of a record, in bytes: its length field.
_SMALLEST_RECORD = 4
#: Size of a segment's first batch, in bytes, if it only refers to a snapshot.
_SMALLEST_BEGINNING = fmt.BATCH_HEADER.size + 2 * fmt.ENTRY_HEADER.size


@attrs.define
class _Range:
    """A damaged range, from the position *start* to *stop*, of the segment at *base*."""

    path: Path
    base: int
    start: int
    stop: int
    reason: str
    chain: int  #: checksum of the batch before the range
    #: The last number of each stream before the segment, if the segment's first batch is damaged; else None.
    before: dict[str, int] | None
    floor: int  #: the last number of every other stream at this position
    #: The numbers of records that were in this damaged range and are lost.
    lost: list[fmt.Entry] = attrs.field(factory=list)


@attrs.define
class _Survey:
    """The result of reading the whole log: the damaged ranges, and the numbers of the streams.

    :ivar identity: of the journal
    :ivar begin: where the log begins; other positions than 0 if retention has deleted segments
    """

    identity: bytes
    begin: int
    ranges: list[_Range] = attrs.field(factory=list)
    chain: int = 0
    ends: dict[str, int] = attrs.field(factory=dict)
    #: If the log is headless: the numbers of each stream up to this one count as deleted.
    deleted: dict[str, int] = attrs.field(factory=dict)
    #: Messages about snapshots that were replaced.
    notes: list[str] = attrs.field(factory=list)
    #: Streams of which a number was read after the last damage.
    confirmed: set[str] = attrs.field(factory=set)
    #: Bytes of damage since a segment last listed all streams: they may have contained numbers of any stream.
    unaccounted: int = 0
    #: Bytes, since then, that an earlier quarantine replaced by a gap, which may itself be damaged now.
    mended: int = 0
    #: Whether a damaged range may contain reserved numbers: a batch of kind RESERVED, or the first batch of a segment.
    reserving: bool = False
    #: Whether a damaged range may contain a batch of kind GAP, whose numbers must be skipped again.
    skipping: bool = False
    floor: int = 0  #: the last number of every stream that has none of its own
    end: int = 0  #: of the log
    time: int = 0  #: of the last batch, or of a later segment's creation

    def add_damage(self, damage: _Range, records: bool) -> None:
        """Add a damaged range.

        :param records: whether it is certain that the damaged range was a batch of records
        """
        self.reserving = self.reserving or not records
        self.skipping = self.skipping or not records
        self.ranges.append(damage)
        self.unaccounted += damage.stop - damage.start
        if damage.before == {}:
            # The oldest segment began with the last numbers of all streams, whose records retention may have deleted.
            self.unaccounted += damage.base
        self.confirmed.clear()
        self.end = damage.stop

    def add(self, segment: scan.SegmentReader, header: fmt.BatchHeader, body: Buffer) -> None:
        """Add the next undamaged batch."""
        self.chain, self.end, self.time = header.checksum, header.end, max(self.time, header.time)
        if header.kind is fmt.Kind.RECORDS:
            for run in fmt.runs(body, header.time):
                self._reaches(run.stream, run.first_seq - 1)
                self.ends[run.stream] = run.last_seq
            return
        if header.mended:
            self.mended += fmt.BATCH_HEADER.size + header.length
        entries = fmt.entries(body, header.parts)
        floors = [entry.last for entry in entries if not entry.stream and entry.state is fmt.StreamState.LIVE]
        self.floor = max([self.floor, *floors])
        if fmt.begins(header, segment.base):
            self._add_start(streams_at_start(entries, lambda position: self._load(segment, position, entries)))
        elif header.kind is fmt.Kind.CLOSED:
            self.reserving = False
        else:
            for entry in entries:
                if entry.stream:
                    self._add_entry(header.kind, entry)

    def _add_start(self, streams: Streams) -> None:
        for stream, last in (streams.ends | streams.retired).items():
            self._reaches(stream, last)
        self.unaccounted, self.mended, self.reserving, self.skipping = 0, 0, False, False

    def _add_entry(self, kind: fmt.Kind, entry: fmt.Entry) -> None:
        stream = entry.stream
        if kind is fmt.Kind.GAP:
            self._reaches(stream, entry.first - 1)
            self.ends[stream] = max(self.ends[stream], entry.last)
        elif entry.state is fmt.StreamState.RETIRED:
            self._reaches(stream, entry.last)

    def _load(self, segment: scan.SegmentReader, position: int, entries: list[fmt.Entry]) -> Streams:
        """Return the streams of a snapshot; replace a damaged snapshot by one with the numbers that are known.

        Any other stream then begins above the highest number of all streams.
        """
        directory, files = segment.path.parent, segment.files
        try:
            return snapshots.load(directory, position).streams()
        except JournalCorrupt as corrupt:
            highest = max(entry.last for entry in entries if not entry.stream)
            streams = Streams(dict(self.ends), floor=highest)
            path = scan.snapshot_path_of(directory, position)
            if path.exists():
                files.rename(path, free_name(path.with_name(f"quarantine-{position:016x}.streams.bytes")))
            files.store(path, snapshots.pieces(streams, position, self.identity))
            known = counted(len(self.ends), "stream")
            self.notes.append(
                f"{corrupt}: it was set aside, and replaced by a snapshot of the {known} in segments; "
                f"the numbers of any other stream continue above {highest}, and retired streams may be listed again"
            )
            return streams

    def _reaches(self, stream: str, seq: int) -> None:
        """Set the last number of *stream* at this position to *seq*; numbers that were not read before it are lost."""
        end = self.ends.get(stream, self.floor)  # a new stream begins above the floor
        if seq > end and self.headless and stream not in self.ends:
            self.deleted[stream] = seq
        elif seq > end and self.ranges and stream not in self.confirmed:
            self.ranges[-1].lost.append(fmt.Entry(stream, end + 1, seq))
        self.ends[stream] = max(self.ends.get(stream, 0), seq)
        self.confirmed.add(stream)

    @property
    def headless(self) -> bool:
        """Return whether the batch is damaged that said which numbers were deleted before the log begins.

        Numbers below the first one of a stream that is read then count as deleted, although some may have been lost.
        """
        return self.begin > 0 and bool(self.ranges) and self.ranges[0].start == self.begin + fmt.SEGMENT_HEADER.size

    def before(self, damage: _Range) -> dict[str, int]:
        """Return the last number of each stream before the segment whose first batch is in *damage*."""
        return self.deleted | (damage.before or {})

    @property
    def skip(self) -> int:
        """Return how many numbers each stream must skip, because the damaged ranges may have contained as many."""
        if not self.skipping:
            return self.unaccounted // _SMALLEST_RECORD
        return (self.unaccounted + self.mended) // _SMALLEST_RECORD + RESERVE

    def gaps(self) -> list[fmt.Entry]:
        """Return the numbers that must not be used again, of every known stream and (without a name) of all others."""
        gaps = [
            fmt.Entry(stream, end + 1, end + self.skip)
            for stream, end in self.ends.items()
            if self.reserving or stream not in self.confirmed
        ]
        return [*gaps, fmt.Entry("", 1, self.floor + self.skip)]


def set_aside(directory: Path, files: Files, longest: int = fmt.BATCH) -> list[str]:
    """Replace every damaged range of the journal in *directory* by a gap.

    :param longest: the size of the largest batch that is written in its place, in bytes, so that reading it takes no
        more memory than reading any other
    :return: messages for the log, empty if nothing is damaged
    :raises JournalCorrupt: a newer version has written to the journal; nothing is changed, because this version cannot
        tell such batches from damage
    """
    found = scan.segments(directory)
    for segment in found:
        _refuse_newer(scan.without_hole(segment, files), files)
    files.store(directory / QUARANTINE_NAME, b"")
    for segment in found:
        _cut_hole(segment, files)
    noted = scan.look_at_mark(directory, files)
    mark = durable_end(directory, scan.segments(directory), noted, files)
    before = set_strays_aside(directory, files) + _front(directory, noted, files)
    _extend(scan.segments(directory), mark, files)
    found = scan.segments(directory)
    survey = _Survey(scan.identity_of(found), found[0].base if found else 0)
    for segment in found:
        stop = min((other.base for other in found if other.base > segment.base), default=segment.end)
        with scan.SegmentReader(segment.path, segment.base, files, limit=stop) as reader:
            _mend_header(reader, survey, files)
            _survey_segment(reader, stop, mark if segment is found[-1] else None, survey)
    notes = before + survey.notes
    if survey.skip:
        _skip(found[-1], survey, files)
        notes.append(f"the end of the log is damaged: all streams skip {counted(survey.skip, 'number')}")
    notes += [_replace(damage, survey, files, longest) for damage in survey.ranges]
    sync_mended(directory, files)  # also what an earlier quarantine has changed, if that was killed
    return notes


def _cut_hole(segment: scan.Segment, files: Files) -> None:
    """Cut off the hole at the end of a segment's file, which may have many GiB, except what a batch may end with."""
    kept = scan.without_hole(segment, files).end + fmt.MAX_BODY
    if kept < segment.end:
        with files.opened(segment.path, os.O_RDWR) as fd:
            files.truncate(fd, kept - segment.base)
            files.sync(fd)


def _skip(last: scan.Segment, survey: _Survey, files: Files) -> None:
    """Append a gap with the numbers that must not be used again.

    This is done before the damage is replaced, because otherwise the numbers would be unknown if the process ended in
    between.
    """
    _, data = packing.batch(
        fmt.Kind.GAP,
        survey.gaps(),
        position=survey.end,
        durable=survey.end,
        time=survey.time,
        clock=survey.time,
        chain=survey.chain,
    )
    with files.opened(last.path, os.O_RDWR) as fd:
        files.write(fd, data, survey.end - last.base)
        files.sync(fd)


def _refuse_newer(segment: scan.Segment, files: Files) -> None:
    """Check, before anything is changed, that no newer version has written a header.

    :raises JournalCorrupt: a newer version has written one of them
    """
    position = segment.base + fmt.SEGMENT_HEADER.size
    with scan.SegmentReader(segment.path, segment.base, files) as reader, newer_refused(segment.path):
        reader.look_at_header()
        while (position := next_batch(reader, position, segment.end)) < segment.end:
            position = reader.header_ahead(position).end


def _front(directory: Path, mark: scan.Mark, files: Files) -> list[str]:
    """If the oldest segments are missing, write into MARK where the log begins now; return a message about that."""
    found = scan.segments(directory)
    if not found or mark.begin is None or found[0].base <= mark.begin:
        return []
    path = directory / scan.MARK_NAME
    with files.opened(path, os.O_RDWR) as fd:
        files.write(fd, scan.pack_mark(mark.trusted.durable, found[0].base, files.identity(fd)), 0)
        files.sync(fd)
    return [f"positions {mark.begin} to {found[0].base}, the oldest of the log, are missing, with all their records"]


def _extend(found: list[scan.Segment], mark: int, files: Files) -> None:
    """Fill the places of missing or truncated segments with zeros, which then count as damage."""
    reach = [(segment, after.base) for segment, after in pairwise(found)]
    reach += [(segment, mark) for segment in found[-1:]]
    for segment, stop in reach:
        if segment.end < stop:
            with files.opened(segment.path, os.O_RDWR) as fd:
                files.truncate(fd, stop - segment.base)
                files.sync(fd)


def _mend_header(reader: scan.SegmentReader, survey: _Survey, files: Files) -> None:
    """Replace the header of a segment if it is damaged; set the checksum from which the first batch continues."""
    try:
        header = reader.header()
        survey.time = max(survey.time, header.created)  # all batches of the segment may be damaged
    except fmt.Damage:
        header = fmt.SegmentHeader(reader.base, _created(reader), _continued(reader, survey), survey.identity)
        with files.opened(reader.path, os.O_RDWR) as fd:
            files.write(fd, header.pack(), 0)
            files.sync(fd)
    # Continue from the header's checksum, because the previous segment may be deleted or damaged at its end.
    survey.chain = header.chain


def _continued(reader: scan.SegmentReader, survey: _Survey) -> int:
    """Return the checksum from which a segment with a damaged header continues."""
    position = reader.base + fmt.SEGMENT_HEADER.size
    try:
        return reader.header_ahead(position).chain
    except fmt.Damage:
        return survey.chain  # the first batch is damaged, too, and its replacement continues the previous segment


def _created(reader: scan.SegmentReader) -> int:
    """Estimate when a segment with a damaged header was created, in microseconds since 1970 UTC.

    Retention derives the age of the previous segment from that time.
    """
    stat = reader.path.stat()
    position, stop = reader.base + fmt.SEGMENT_HEADER.size, reader.base + stat.st_size
    while position < stop:
        try:
            header, _ = reader.batch(position)
        except fmt.Damage:
            position = next_whole(reader, position, stop)
        else:
            if header.time:
                return header.time
            position = header.end
    return stat.st_mtime_ns // 1000


def _survey_segment(reader: scan.SegmentReader, stop: int, mark: int | None, survey: _Survey) -> None:
    """Add the batches and the damaged ranges of a segment to *survey*.

    :param mark: the durable mark, if this is the last segment, which may have a torn tail; None in other segments
    """
    begin = position = reader.base + fmt.SEGMENT_HEADER.size
    durable = 0
    while position < stop:
        try:
            header, body = reader.batch(position)
        except fmt.Damage as damage:
            after = next_whole(reader, position, stop)
            if mark is not None:
                durable = max(durable, mark, durable_beyond(reader, position, stop))
                if position >= durable and position > begin:
                    return  # a torn tail, which recovery truncates
                if after == stop:
                    after = max(durable, position + _SMALLEST_BEGINNING)
            position = _add_damage(reader, position, after, str(damage), survey)
        else:
            survey.add(reader, header, body)
            durable = max(durable, header.durable)
            position = header.end


def _add_damage(reader: scan.SegmentReader, start: int, stop: int, reason: str, survey: _Survey) -> int:
    try:
        header = reader.header_ahead(start)
        records = header.kind is fmt.Kind.RECORDS and header.end == stop
    except fmt.Damage:
        records = False
    before = dict(survey.ends) if start == reader.base + fmt.SEGMENT_HEADER.size else None
    survey.add_damage(
        _Range(reader.path, reader.base, start, stop, reason, survey.chain, before, survey.floor), records
    )
    return stop


def _replace(damage: _Range, survey: _Survey, files: Files, longest: int) -> str:
    """Copy a damaged range to another file, and replace it by batches of the same length; return a message."""
    aside = free_name(damage.path.with_name(f"quarantine-{damage.start:016x}.bytes"))
    # First delete the index, durably, because no index must list lost records, even if the process ends after this.
    files.unlink(scan.index_path_of(damage.path.parent, damage.base))
    with files.opened(damage.path, os.O_RDWR) as fd:
        files.store(aside, files.pieces(fd, damage.start - damage.base, damage.stop - damage.base))
        for position, data in _fillers(damage, survey, files, longest):
            files.write(fd, data, position - damage.base)
        files.sync(fd)
    lost = ", ".join(f"{entry.stream!r} {entry.first}-{entry.last}" for entry in damage.lost[:10])
    more = f" and {len(damage.lost) - 10} more" if len(damage.lost) > 10 else ""
    return (
        f"{damage.stop - damage.start} damaged bytes of {damage.path.name} ({damage.reason}) were set aside in "
        f"{aside.name}; lost records: {lost or 'none according to other batches'}{more}"
    )


def _beginning(damage: _Range, streams: Streams, identity: bytes, files: Files) -> tuple[fmt.Kind, list[fmt.Entry]]:
    """Return the kind and the entries of a segment's first batch, to replace a damaged one.

    If the range is too small for all streams, they are written to a snapshot file.
    """
    kind, entries = streams.beginning()
    if fmt.BATCH_HEADER.size + sum(len(entry.pack()) for entry in entries) <= damage.stop - damage.start:
        return kind, entries
    path = scan.snapshot_path_of(damage.path.parent, damage.base)
    files.store(path, snapshots.pieces(streams, damage.base, identity))
    return fmt.Kind.STREAMS, streams.since(damage.base, [])


def _fillers(damage: _Range, survey: _Survey, files: Files, longest: int) -> Iterator[tuple[int, Buffer]]:
    """Yield the batches that replace a damaged range, with their positions."""
    position, chain = damage.start, damage.chain
    parts: list[tuple[fmt.Kind, list[fmt.Entry]]] = []
    if damage.before is not None:
        streams = Streams(survey.before(damage), floor=damage.floor)
        parts.append(_beginning(damage, streams, survey.identity, files))
    if damage.lost or not parts:
        parts.append((fmt.Kind.GAP, damage.lost))
    while position < damage.stop:
        kind, entries = parts.pop(0) if parts else (fmt.Kind.GAP, [])
        size = fmt.BATCH_HEADER.size + sum(len(entry.pack()) for entry in entries)
        left = damage.stop - position
        if not parts:
            size = max(size, min(left, longest))
        if size > left:
            # The range is too small for the list of numbers, but the mended batch still tells readers of the gap.
            entries, size = [], left
        if 0 < left - size < fmt.BATCH_HEADER.size:
            size = left
        header, data = packing.batch(
            kind, entries, position=position, durable=damage.start, time=0, clock=0, chain=chain, fill=size
        )
        yield position, data
        position, chain = header.end, header.checksum
