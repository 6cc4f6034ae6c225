"""Find the numbers that a journal does not have: one row for each range that is declared lost, damaged or missing.

    in: a journal      out: Lost: stream, first and last number, file, position, reason

Every segment is read from its beginning, and reading continues after damage.  Error messages use this module to name
the lost numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

import attrs

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal.index import PackedIndex, SegmentIndex
from fyrehose.journal.recovery import next_whole
from fyrehose.journal.snapshots import Snapshot
from fyrehose.journal.streams import Streams, streams_at_start
from fyrehose.offline.places import Missing, Place
from fyrehose.offline.view import Extent


@attrs.frozen(slots=True, kw_only=True)
class Lost:
    """A range of numbers that the journal does not have.

    :ivar stream: None if the stream is unknown; then the numbers are None, too
    :ivar kind: ``declared`` (by the journal itself), ``damaged``, or ``missing`` (with a file)
    """

    stream: str | None
    first_seq: int | None
    last_seq: int | None
    kind: str
    file: str
    position: int
    reason: str


@attrs.define(eq=False)
class _Walk:
    """State of reading a segment's batches in order.

    :ivar last: the last number of each stream so far
    :ivar floor: the number that is assumed as the last one of each stream that is not in ``last``
    :ivar pending: damage so far, as (position, reason)
    :ivar located: positions of damage for which lost numbers were found
    """

    place: Place
    extent: Extent
    last: dict[str, int] = attrs.field(factory=dict)
    floor: int = 0
    pending: list[tuple[int, str]] = attrs.field(factory=list)
    located: set[int] = attrs.field(factory=set)

    def lost(
        self, stream: str | None, first: int | None, last: int | None, position: int, reason: str, kind: str
    ) -> Lost:
        """Return a row of the table of gaps: *stream* has lost the numbers *first* to *last* at the byte *position*."""
        return Lost(
            stream=stream,
            first_seq=first,
            last_seq=last,
            kind=kind,
            file=self.place.name(self.extent.base),
            position=position,
            reason=reason,
        )

    def reaches(self, stream: str, seq: int, position: int) -> Iterator[Lost]:
        """Record that the last number of ``stream`` at ``position`` is ``seq``; yield the lost numbers before it."""
        end = self.last.get(stream, self.floor)
        if seq > end:
            at, reason = self.pending[-1] if self.pending else (position, "the numbers are missing")
            self.located.add(at)
            yield self.lost(stream, end + 1, seq, at, reason, "damaged" if self.pending else "missing")
        self.last[stream] = max(end, seq)

    def add(self, header: fmt.BatchHeader, body: memoryview) -> Iterator[Lost]:
        """Process the next batch; yield the numbers that are lost before it, or that it declares lost."""
        if header.kind is fmt.Kind.RECORDS:
            for run in fmt.runs(body, header.time):
                yield from self.reaches(run.stream, run.first_seq - 1, header.position)
                self.last[run.stream] = run.last_seq
        elif header.kind in (fmt.Kind.ENDS, fmt.Kind.STREAMS):
            yield from self._ends(header, body)
        elif header.kind is fmt.Kind.GAP:
            for entry in fmt.entries(body, header.parts):
                if not entry.stream:
                    self.floor = max(self.floor, entry.last)
                else:
                    why = "set aside" if header.mended else "given out before a crash and never written"
                    yield self.lost(entry.stream, entry.first, entry.last, header.position, why, "declared")
                    self.last[entry.stream] = max(entry.last, self.last.get(entry.stream, 0))

    def _ends(self, header: fmt.BatchHeader, body: memoryview) -> Iterator[Lost]:
        entries = fmt.entries(body, header.parts)
        if fmt.begins(header, self.extent.base):
            streams = _begun(self.place, entries)
            self.floor = max(self.floor, streams.floor)
            self.last |= streams.ends | streams.retired
            return
        for entry in entries:
            if not entry.stream:
                self.floor = max(self.floor, entry.last)
            else:
                yield from self.reaches(entry.stream, entry.last, header.position)


def survey(place: Place, extent: Extent, following: Extent | None) -> Iterator[Lost]:
    """Yield the ranges of numbers that are missing from one segment.

    :param following: the next segment, whose beginning states the last number of each stream
    """
    walk = _Walk(place, extent)
    position = extent.base + fmt.SEGMENT_HEADER.size
    try:
        reader = place.open(extent.base, extent.end)
    except Missing:
        walk.pending.append((extent.base, "the file is not there"))
        before = [one for one in place.view().segments if one.end == extent.base]
        if before and following is not None:
            walk.last = ends_before(place, before[0], extent.base, starting_ends(place, following))
        yield from _at_end(walk, following, position, "missing")
        return
    with closing(reader):
        while position < extent.end:
            try:
                header, body = reader.batch(position)
                found = list(walk.add(header, body))
            except fmt.Damage as damage:
                walk.pending.append((position, str(damage)))
                position = next_whole(reader, position, extent.end)
            else:
                yield from found
                position = header.end
    yield from _at_end(walk, following, position, "damaged")


def _at_end(walk: _Walk, following: Extent | None, position: int, kind: str) -> Iterator[Lost]:
    ends = {} if following is None else starting_ends(walk.place, following)
    for stream, last in ends.items():
        for lost in walk.reaches(stream, last, position):
            yield attrs.evolve(lost, kind=kind) if walk.pending else lost
    for at, said in walk.pending:
        # Without a following segment, more may be lost than the numbers found so far.
        if at not in walk.located or not ends:
            reason = said if ends else f"{said}; the lost numbers are unknown"
            yield walk.lost(None, None, None, at, reason, kind)


def ends_before(place: Place, extent: Extent, position: int, streams: Iterable[str]) -> dict[str, int]:
    """Return the last numbers of ``streams`` at the end of a segment, or at its beginning if the segment is cut off.

    :param position: where the segment should end
    """
    index: PackedIndex | SegmentIndex | None = None
    if extent.end == position:
        packed = place.index(extent.base)
        index = (PackedIndex.unpack(packed, extent.base, extent.end) if packed else None) or _scanned(place, extent)
    if index is None:
        return starting_ends(place, extent)
    snapshot = _snapshot(place, index.snapshot) if index.snapshot else None
    ends = {}
    for stream in streams:
        before = index.last_before(stream)
        if before is None and snapshot is not None:
            before = snapshot.last(stream)
        ends[stream] = max(index.last(stream), before or 0)
    return ends


def _begun(place: Place, entries: list[fmt.Entry]) -> Streams:
    """Return the state of all streams at the beginning of a segment.

    :raises JournalCorrupt: the stream table to which the segment refers is missing or damaged
    """
    return streams_at_start(entries, lambda position: _snapshot(place, position).streams())


def _snapshot(place: Place, position: int) -> Snapshot:
    try:
        return Snapshot.of(place.snapshot(position), position)
    except (Missing, fmt.Damage) as error:
        raise JournalCorrupt(f"the snapshot of the streams at position {position} cannot be used: {error}") from error


def _scanned(place: Place, extent: Extent) -> SegmentIndex | None:
    """Build the index of a segment that has none; return None if the segment is missing or damaged."""
    try:
        with closing(place.open(extent.base, extent.end)) as reader:
            return SegmentIndex.scan(reader, extent.end)
    except (Missing, fmt.Damage):
        return None


def starting_ends(place: Place, extent: Extent) -> dict[str, int]:
    """Return the last number of each stream when the segment began; empty if that cannot be read."""
    try:
        with closing(place.open(extent.base, extent.end)) as reader:
            header, body = reader.batch(extent.base + fmt.SEGMENT_HEADER.size)
    except (Missing, fmt.Damage):
        return {}
    if not fmt.begins(header, extent.base):
        return {}
    streams = _begun(place, fmt.entries(body, header.parts))
    return streams.ends | streams.retired


def streams_of(place: Place) -> set[str]:
    """Return the names of the streams that a journal has had, from the beginning of its last segment and its batches.

    :raises JournalCorrupt: the last segment is damaged
    """
    view = place.view()
    if not view.segments:
        return set()
    extent = view.segments[-1]
    names, position = set(starting_ends(place, extent)), extent.base + fmt.SEGMENT_HEADER.size
    try:
        with closing(place.open(extent.base, extent.end)) as reader:
            for header, body in reader.batches(position, extent.end):
                position = header.end
                if header.kind is fmt.Kind.RECORDS:
                    names.update(stream for stream, _, _ in fmt.extents(body))
    except fmt.Damage as damage:
        raise describe(place, extent.base, position, extent.end, damage) from damage
    return names


def describe(place: Place, base: int, position: int, limit: int, damage: fmt.Damage) -> JournalCorrupt:
    """Return the error for damage at ``position`` of a segment, naming the file, the streams and their numbers."""
    view = place.view()
    extent = next((extent for extent in view.segments if extent.base == base), Extent(base, limit))
    following = next((extent for extent in view.segments if extent.base > base), None)
    about = [lost for lost in survey(place, extent, following) if lost.position == position and lost.stream is not None]
    ranges = ", ".join(f"{lost.stream!r} {lost.first_seq}-{lost.last_seq}" for lost in about[:5])
    more = f" and {len(about) - 5} more ranges" if len(about) > 5 else ""
    lost = f"lost are {ranges}{more}" if ranges else "the lost numbers are unknown"
    return JournalCorrupt(
        f"{place.name(base)} is damaged at byte {position - base} (position {position}): {damage}; {lost}; put the "
        "file back from a copy, or start the server with --quarantine to set the range aside"
    )
