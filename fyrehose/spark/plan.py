"""Plan the parts of segments to read for a selection, without reading records.

    in: a journal, a selection, positions      out: parts, each (segment, range of batches)

The server may write, roll over and delete segments between planning and reading.  A part therefore has the checksum at
its end, and the last number of each stream before and within it.  A reader that finds other values raises an error, so
that no record is skipped silently.

If a sealed segment has an index, a selection of few streams reads only the batches that contain them.  Otherwise, and
in the segment that is being written, batches are found by their headers.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise

import attrs

from fyrehose.errors import JournalCorrupt, JournalGap
from fyrehose.journal import format as fmt
from fyrehose.journal.index import SPACING, PackedIndex
from fyrehose.journal.scan import SegmentReader
from fyrehose.offline.places import Missing, Place
from fyrehose.offline.view import Extent, View
from fyrehose.spark.gaps import ends_before, starting_ends
from fyrehose.spark.selection import Selection

log = logging.getLogger(__name__)

#: Target size of a part, which one task reads, in bytes.
PIECE = 32 << 20
#: The advice for errors if the journal is not the one to which an offset belongs.
ANEW = "load the journal that was read before, or begin with a new checkpoint or lake"
#: If more streams are selected, all batches of a segment are read, and not only the batches that the index lists for
#: these streams.
FOLLOWED = 64
#: Batches are skipped only if less than this fraction of a segment remains to be read.
_WORTH_IT = 0.5


@attrs.frozen(slots=True, kw_only=True)
class Part:
    """Ranges of batches in one segment.

    :ivar ranges: positions (first, stop): batches that begin in one of them belong to the part
    :ivar limit: bytes from this position on are not read
    :ivar chain: the checksum of the last batch, if it is known
    :ivar known: the last number of each stream before the part
    :ivar until: the last number of each stream in the part
    """

    base: int
    ranges: tuple[tuple[int, int], ...]
    limit: int
    chain: int | None = None
    known: tuple[tuple[str, int], ...] = ()
    until: tuple[tuple[str, int], ...] = ()

    @property
    def first(self) -> int:
        return self.ranges[0][0]

    @property
    def size(self) -> int:
        return sum(stop - first for first, stop in self.ranges)


@attrs.define(eq=False)
class Planner:
    """A planner of the parts into which the reading of one journal is divided.

    :ivar skip_gaps: do not raise :class:`JournalGap` for missing numbers
    """

    place: Place
    selection: Selection = attrs.field(factory=Selection)
    piece: int = PIECE
    skip_gaps: bool = False
    #: the last number of each stream in the segments that were planned so far, if their indexes state it
    _last: dict[str, int] = attrs.field(factory=dict, init=False)

    def parts(self, start: int | None = None, stop: int | None = None) -> list[Part]:
        """Return the parts between two positions of batches; by default, of the whole journal.

        :raises JournalCorrupt: a segment is missing, cut off or damaged
        :raises JournalGap: numbers are missing between segments
        """
        view = self.place.view()
        begin = view.start if start is None else start
        end = view.mark if stop is None else stop
        if begin >= end and begin <= view.mark:
            return []
        check(self.place, view, begin, end)
        check_beginning(self.place, view, begin)
        self._last.clear()
        found: list[Part] = []
        for extent in view.segments:
            if extent.end > begin and extent.base < end:
                with no_deletion(self.place, view, begin, "while the reading was planned"):
                    found += self._segment(extent, begin, end, sealed=extent != view.segments[-1])
        return found

    def _segment(self, extent: Extent, begin: int, end: int, sealed: bool) -> list[Part]:
        first, stop = max(extent.base + fmt.SEGMENT_HEADER.size, begin), min(extent.end, end)
        if self.selection.timed and not self._has_time(extent, sealed):
            self._last.clear()
            return []
        whole = first == extent.base + fmt.SEGMENT_HEADER.size and stop == extent.end
        packed = self.place.index(extent.base) if sealed and whole else None
        index = PackedIndex.unpack(packed, extent.base, extent.end) if packed else None
        streams = None if index is None else self._wanted(index)
        if index is not None and streams is not None:
            return self._followed(extent, index, streams)
        known, self._last = self._last, {}
        if index is not None:
            return self._cut(extent, first, stop, _index_boundaries(index), known)
        # The last numbers from the index of the previous segment are right only at the beginning of this segment.
        known = known if first == extent.base + fmt.SEGMENT_HEADER.size else {}
        boundaries = ((header.position, header.chain) for header in headers(self.place, extent, first, stop))
        return self._cut(extent, first, stop, boundaries, known)

    def _has_time(self, extent: Extent, sealed: bool) -> bool:
        """Return whether a record of the segment may be in the selected time."""
        since, until = self.selection.start.time, self.selection.end.time
        if until is not None and _created(self.place, extent.base) > until:
            return False
        # Times never decrease, and the next segment was created at the time of this segment's last batch.
        return since is None or not sealed or not 0 < _created(self.place, extent.end) < since

    def _wanted(self, index: PackedIndex) -> list[str] | None:
        """Return the selected streams of a segment; None if there are more than :data:`FOLLOWED`."""
        selected = self.selection.streams
        named = sorted(selected) if selected is not None else None
        patterns = self.selection.patterns
        if named is None and patterns is not None and all(pattern.exact for pattern in patterns):
            named = sorted({pattern.text for pattern in patterns})
        streams: list[str] = []
        for stream in index.streams() if named is None else named:
            if self.selection.wants(stream):
                streams.append(stream)
            if len(streams) > FOLLOWED:
                return None
        return streams

    def _followed(self, extent: Extent, index: PackedIndex, streams: list[str]) -> list[Part]:
        """Return parts with only the batches that contain ``streams``, and the last numbers of these streams."""
        ranges: list[tuple[int, int]] = []
        # A batch may be longer than the steps of the index, so end its range at the beginning of another batch.
        whole = self.selection == Selection()  # then every batch is read, and the index is not needed
        begins = [] if whole else [*(position for position, _ in _index_boundaries(index)), extent.end]
        known: dict[str, int] = {}
        pairs_of: dict[str, list[tuple[int, int]]] = {}
        for stream in streams:
            before, last = index.last_before(stream), index.last(stream)
            if before is None:
                continue  # the segment has no record of the stream
            self._check_joins(extent, stream, before)
            first_wanted, last_wanted = self.selection.seqs(stream)
            self._last[stream] = max(before, last)
            if last < first_wanted or before >= last_wanted:
                continue
            known[stream] = before
            if whole:
                continue
            pairs = index.pairs(stream)
            pairs_of[stream] = pairs
            for i, (first_seq, position) in enumerate(pairs):
                following = pairs[i + 1][0] if i + 1 < len(pairs) else last + 1
                if following > first_wanted and first_seq <= last_wanted:
                    stop = min(position + SPACING, extent.end)
                    at = bisect_left(begins, stop)
                    ranges.append((position, begins[at] if begins[at - 1] == position else stop))
        merged = _merged(ranges)
        begin = extent.base + fmt.SEGMENT_HEADER.size
        if whole or sum(stop - first for first, stop in merged) > _WORTH_IT * (extent.end - begin):
            return self._cut(extent, begin, extent.end, _index_boundaries(index), known)
        return [
            Part(
                base=extent.base,
                ranges=group,
                limit=extent.end,
                known=tuple((s, _before(pairs, group[0][0], index.last(s))) for s, pairs in pairs_of.items()),
                until=tuple(
                    (s, min(_before(pairs, group[-1][1], index.last(s)), self.selection.seqs(s)[1]))
                    for s, pairs in pairs_of.items()
                ),
            )
            for group in _grouped(merged, self.piece)
        ]

    def _check_joins(self, extent: Extent, stream: str, before: int) -> None:
        """Check that a stream continues in a segment at the number where it ended in the segment before."""
        last = self._last.get(stream)
        if last is not None and last != before and not self.skip_gaps:
            first_wanted, last_wanted = self.selection.seqs(stream)
            if before >= first_wanted and last + 1 <= last_wanted:
                raise gap(stream, last + 1, before, self.place.name(extent.base))

    def _cut(
        self,
        extent: Extent,
        first: int,
        stop: int,
        boundaries: Iterator[tuple[int, int | None]],
        known: dict[str, int],
    ) -> list[Part]:
        """Split all batches of a range into parts of about the target size."""
        cuts: list[tuple[int, int | None]] = [(first, None)]
        for position, chain in boundaries if stop - first > self.piece else ():
            if position - cuts[-1][0] >= self.piece and stop - position >= self.piece // 2:
                if chain is None:
                    chain = next(headers(self.place, extent, position, position + 1)).chain
                cuts.append((position, chain))
        cuts.append((stop, None))
        parts = [
            Part(base=extent.base, ranges=((begin, end),), limit=stop, chain=chain)
            for (begin, _), (end, chain) in pairwise(cuts)
        ]
        parts[0] = attrs.evolve(parts[0], known=tuple(known.items()))
        return parts


def walk(reader: SegmentReader, first: int, stop: int) -> Iterator[fmt.BatchHeader]:
    """Yield the headers of the batches between two positions.

    :raises Damage: a header is damaged
    """
    position = first
    while position < stop:
        header = fmt.BatchHeader.unpack(reader.read(position, fmt.BATCH_HEADER.size), position)
        yield header
        position = header.end


def _between(reader: SegmentReader, first: int, position: int) -> bool:
    """Return whether ``position`` is inside a batch instead of at the beginning of one."""
    try:
        return any(header.position < position < header.end for header in walk(reader, first, position))
    except fmt.Damage:
        return False


def admitted(place: Place, start: int, stop: int, max_rows: int, max_bytes: int) -> int:
    """Return the position up to which at most *max_rows* records and *max_bytes* bytes follow ``start``.

    The position is behind at least one batch, however large it is.

    :raises JournalCorrupt: a header on the way is damaged, or a segment was deleted
    """
    view = place.view()
    check(place, view, start, min(stop, view.mark))
    rows, position = 0, start
    for extent in view.segments:
        if not extent.base < stop or extent.end <= start:
            continue
        first = max(start, extent.base + fmt.SEGMENT_HEADER.size)
        with no_deletion(place, view, first, "before it was read"):
            for header in headers(place, extent, first, min(extent.end, stop)):
                rows += header.records
                if position > start and (rows > max_rows or header.end - start > max_bytes):
                    return position
                position = header.end
    return position


def headers(place: Place, extent: Extent, first: int, stop: int) -> Iterator[fmt.BatchHeader]:
    """Yield the headers of a segment's batches between two positions.

    :raises JournalCorrupt: a header is damaged
    :raises Missing: the segment was deleted
    """
    position = first
    try:
        with closing(place.open(extent.base, stop)) as reader:
            for header in walk(reader, first, stop):
                yield header
                position = header.end
    except fmt.Damage as damage:
        raise JournalCorrupt(
            f"{place.name(extent.base)} is damaged at byte {position - extent.base} (position {position}): {damage}; "
            "the table of gaps says what is lost: .option('table', 'gaps')"
        ) from damage


def check(place: Place, view: View, begin: int, end: int) -> None:
    """Check that the journal has every segment between two positions.

    :raises JournalCorrupt: a segment is missing or cut off, or was deleted
    """
    resumed(place, view, begin, skip=False)
    if (read := max(begin, end)) > view.mark:
        raise JournalCorrupt(
            f"{place} ends at position {view.mark}, but was read up to {read} before: this is another journal, or "
            "it was put back from an older copy; begin anew, with another lake or checkpoint"
        )
    position = view.start
    for extent in (*view.segments, Extent(view.mark, view.mark)):
        if extent.base > position and extent.base > begin and position < end:
            raise missing(place, view, position, f"{place.name(position)} is missing or cut off")
        position = extent.end


def check_beginning(place: Place, view: View, begin: int) -> None:
    """Check that a batch begins at a position; if the segment is damaged there, the reader reports it.

    :raises JournalCorrupt: the position is within a batch, so it belongs to another journal
    """
    for extent in view.segments:
        first = extent.base + fmt.SEGMENT_HEADER.size
        if not first < begin < extent.end:
            continue
        with suppress(Missing), closing(place.open(extent.base, extent.end)) as reader:
            try:
                fmt.BatchHeader.unpack(reader.read(begin, fmt.BATCH_HEADER.size), begin)
            except fmt.Damage:
                if _between(reader, first, begin):
                    raise JournalCorrupt(
                        f"no batch begins at position {begin} of {place}: the position is from another journal, or "
                        "from one that a promoted standby has replaced; begin anew, with another lake or checkpoint"
                    ) from None


@contextmanager
def no_deletion(place: Place, view: View | None, position: int, when: str) -> Iterator[None]:
    """Raise an error that names the lost numbers if a segment that the context reads was deleted.

    :param view: the journal as it was before the context; None: as it is when the deletion is noticed
    :param position: where the reading begins
    :param when: when the file was deleted, for the message
    :raises JournalCorrupt: a segment was deleted
    """
    try:
        yield
    except Missing as error:
        raise missing(place, view or place.view(), position, f"{error} was deleted {when}") from None


def missing(place: Place, view: View, position: int, reason: str) -> JournalCorrupt:
    """Return the error for missing data from ``position`` on; it names the lost numbers, as far as they are known."""
    return JournalCorrupt(
        f"{reason}, but positions from {position} on are needed: {named(lost_numbers(place, view, position))} "
        "(register a subscription to prevent this: see `fyrehose journal subscriptions`)"
    )


#: Numbers that a journal does not have any more: stream, first, last.
Range = tuple[str, int, int]


def lost_numbers(
    place: Place, view: View, position: int, known: Mapping[str, int] | None = None
) -> tuple[Range, ...] | None:
    """Return the numbers that may be lost from ``position`` on to the next segment; None if they are unknown.

    :param known: the last number of each stream before ``position``; None: as far as the journal still has them
    """
    # The beginning of the next segment states the last number of each stream.
    after = [extent for extent in place.view().segments if extent.base > position]
    if not after:
        return None
    ends = starting_ends(place, after[0])
    if known is None:
        before = [extent for extent in view.segments if extent.base < position]
        known = ends_before(place, before[-1], position, ends) if before else {}
    return tuple((s, known.get(s, 0) + 1, last) for s, last in ends.items() if last > known.get(s, 0))


def named(lost: Sequence[Range] | None) -> str:
    """Return a text that names lost numbers."""
    if lost is None:
        return "the lost numbers are unknown"
    more = f" and of {len(lost) - 5} more streams" if len(lost) > 5 else ""
    ranges = ", ".join(f"{stream!r} {first}-{last}" for stream, first, last in lost[:5])
    return f"numbers among {ranges}{more}" if ranges else "no numbers of any stream"


def resumed(
    place: Place, view: View, position: int, skip: bool, known: Mapping[str, int] | None = None
) -> tuple[int, tuple[Range, ...]]:
    """Return where a reader that has reached *position* continues, and the numbers that retention deleted in between.

    :param skip: continue with the oldest record if retention deleted what was before
    :param known: the last number of each stream that the reader has; None if it does not know them
    :raises JournalCorrupt: retention deleted what was before, and *skip* is not set
    """
    if position >= view.start:
        return position, ()
    said = f"{place} begins at position {view.start}: retention deleted what was before"
    if not skip:
        raise missing(place, view, position, said)
    lost = lost_numbers(place, view, position, known)
    log.warning("%s; reading continues there instead of at position %d: %s", said, position, named(lost))
    return view.start, lost or ()


def gap(stream: str, first: int, last: int, where: str) -> JournalGap:
    """Return the error for numbers that the journal does not have."""
    return JournalGap(
        f"the numbers {first}-{last} of {stream!r} are not in the journal ({where}) and never will be; "
        ".option('gaps', 'skip') reads what is there, .option('table', 'gaps') lists what is not"
    )


def _created(place: Place, base: int) -> int:
    """Return when the segment at ``base`` was created, in us since 1970 UTC; 0 if its header is damaged."""
    with closing(place.open(base, base + fmt.SEGMENT_HEADER.size)) as reader:
        try:
            return reader.header().created
        except fmt.Damage:
            return 0


def _index_boundaries(index: PackedIndex) -> Iterator[tuple[int, int | None]]:
    positions = {position for stream in index.streams() for _, position in index.pairs(stream)}
    for position in sorted(positions):
        yield position, None


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, stop in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((first, stop))
    return merged


def _grouped(ranges: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield the ranges in groups of about ``size`` bytes."""
    group: list[tuple[int, int]] = []
    total = 0
    for first, stop in ranges:
        if group and total + stop - first > size:
            yield tuple(group)
            group, total = [], 0
        group.append((first, stop))
        total += stop - first
    if group:
        yield tuple(group)


def _before(pairs: Sequence[tuple[int, int]], position: int, otherwise: int) -> int:
    """Return the last number of a stream before ``position``, or ``otherwise`` if no pair follows."""
    for first_seq, at in pairs:
        if at >= position:
            return first_seq - 1
    return otherwise
