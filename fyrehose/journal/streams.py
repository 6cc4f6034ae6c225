"""The state of all streams at one position of the log: their last numbers, and which of them are retired.

Recovery rebuilds this state from the last segment, and the writer updates it.  Every segment begins with the state, so
that numbers are still known after retention has deleted earlier segments.  If there are few streams, a segment begins
with all of them (ENDS); if
there are many, with those that changed since the last snapshot file (STREAMS, see :mod:`.snapshots`).

    batches that are read or written -> the entries that the next segment begins with
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from fyrehose.journal.format import Entry, Kind, StreamState
from fyrehose.records import LAST_SEQ

#: If there are at most this many streams, a segment lists them all, because reading a snapshot file would cost more.
INLINE = 512
#: How many retired streams are remembered by name.  If there are more, those that were retired first are forgotten.
#: New streams then begin above the numbers of forgotten streams (the floor), so that no number of a stream is used
#: twice.
MOST_RETIRED = 100_000


#: How many numbers are reserved at a time, before the first of them is given out.
RESERVE = 1 << 20


@attrs.frozen
class StreamLimits:
    """How many streams a segment lists, and how many names and numbers are kept.

    :ivar inline: see :data:`INLINE`
    :ivar retired: see :data:`MOST_RETIRED`
    :ivar reserve: see :data:`RESERVE`
    """

    inline: int = INLINE
    retired: int = MOST_RETIRED
    reserve: int = RESERVE


@attrs.define(eq=False)
class Streams:
    """All streams at one position of the log.

    :ivar ends: the last number of each stream that is not retired
    :ivar retired: the last number of each retired stream, the longest retired first
    :ivar starts: for streams that were published to again after they were retired: records up to this number are not
        served
    :ivar reserved: for each stream, the number up to which numbers may have been given out without being written
    :ivar floor: counts as the last number of any stream that is neither in ``ends`` nor in ``retired``, so that a
        forgotten stream does not use a number twice
    :ivar limits: how many streams are listed and remembered
    :ivar snapshot: the position of the snapshot file that the next segment refers to; 0: it refers to none
    :ivar changed: the streams that changed since that snapshot; None: all streams, because there is no snapshot
    :ivar changed_meanwhile: the streams that changed since :meth:`capture`; None while no snapshot is being written
    """

    ends: dict[str, int] = attrs.field(factory=dict)
    retired: dict[str, int] = attrs.field(factory=dict)
    starts: dict[str, int] = attrs.field(factory=dict)
    reserved: dict[str, int] = attrs.field(factory=dict)
    floor: int = 0
    snapshot: int = 0
    changed: set[str] | None = None
    limits: StreamLimits = attrs.field(factory=StreamLimits, kw_only=True)
    changed_meanwhile: set[str] | None = attrs.field(default=None, init=False)

    # Changes of streams.

    def wrote(self, stream: str, first: int, last: int) -> None:
        """Note that records *first* to *last* of *stream* were written."""
        if stream not in self.ends:
            start = self.retired.pop(stream, self.floor)
            # The stream was retired, perhaps so long ago that it was forgotten and begins above the floor.  (A new
            # stream whose first
            # numbers were assigned just before the floor was raised begins below the floor.)
            if 0 < start < first:
                self.starts[stream] = start
        self.ends[stream] = last
        if self.changed is not None or self.changed_meanwhile is not None:
            self._touch(stream)

    def skip(self, gaps: Iterable[Entry]) -> None:
        """Apply a batch of kind GAP, whose numbers are missing and are never used again."""
        for gap in gaps:
            if gap.stream:
                self.wrote(gap.stream, gap.first, max(self.ends.get(gap.stream, 0), gap.last))
            else:
                self.floor = max(self.floor, gap.last)

    def reserve(self, entries: Iterable[Entry]) -> None:
        """Apply a batch of kind RESERVED, whose numbers may be given out before their records are written."""
        for entry in entries:
            self.reserved[entry.stream] = entry.first
            self._touch(entry.stream)

    def close(self) -> None:
        """Apply a batch of kind CLOSED, which says that every number given out before it was written."""
        for stream in self.reserved:
            self._touch(stream)
        self.reserved.clear()

    def retiring(self, streams: Iterable[str]) -> list[Entry]:
        """Return the entries that retire those of *streams* that exist; :meth:`apply` makes the change."""
        known = [stream for stream in dict.fromkeys(streams) if stream in self.ends]
        surplus = max(0, len(self.retired) + len(known) - self.limits.retired)
        forgotten = list(self.retired)[:surplus]
        entries = [Entry(stream, 0, self.ends[stream], StreamState.RETIRED) for stream in known]
        if forgotten:
            floor = max(self.floor, *(self.retired[stream] for stream in forgotten))
            entries += [Entry(stream, 0, floor, StreamState.FORGOTTEN) for stream in forgotten]
            entries.append(Entry("", 0, floor))
        return entries

    def _retire(self, stream: str, last: int) -> None:
        self._forget(stream)
        self.retired[stream] = last

    def _forget(self, stream: str) -> None:
        for of in (self.ends, self.starts, self.reserved, self.retired):
            of.pop(stream, None)
        self._touch(stream)

    def _touch(self, stream: str) -> None:
        if self.changed is not None:
            self.changed.add(stream)
        if self.changed_meanwhile is not None:
            self.changed_meanwhile.add(stream)

    def unwritten(self) -> list[Entry]:
        """Return as gaps the numbers that were reserved but not written when the last process ended."""
        reserved = ((stream, self.ends.get(stream, 0), last) for stream, last in self.reserved.items())
        return [Entry(stream, end + 1, last) for stream, end, last in reserved if last > end]

    def skipping(self, count: int) -> tuple[list[Entry], list[Entry]]:
        """Return the entries that make every stream, known or new, skip its next *count* numbers.

        :return: entries for a batch of kind GAP, which brings retired streams back, and for one of kind STREAMS, which
            retires these again
        """
        ends = self.ends | self.retired
        gaps = [Entry(stream, end + 1, min(end + count, LAST_SEQ)) for stream, end in ends.items() if end < LAST_SEQ]
        retired = [Entry(gap.stream, 0, gap.last, StreamState.RETIRED) for gap in gaps if gap.stream in self.retired]
        return [*gaps, Entry("", 1, min(self.floor + count, LAST_SEQ))], retired

    # The first batch of a segment.

    def beginning(self) -> tuple[Kind, list[Entry]]:
        """Return the kind and the entries of the first batch of the next segment."""
        if self.snapshot == 0 or len(self.ends) + len(self.retired) <= self.limits.inline:
            self.snapshot, self.changed = 0, None
            if not (self.retired or self.starts):
                return Kind.ENDS, [*map(self._live, self.ends), Entry("", 0, self.floor)]
        named = [*self.retired, *self.ends] if self.changed is None else sorted(self.changed)
        return Kind.STREAMS, self.since(self.snapshot, named)

    def since(self, snapshot: int, named: Iterable[str]) -> list[Entry]:
        """Return the entries of a STREAMS batch: the state of the streams *named*, and the position of *snapshot*."""
        entries = [entry for stream in named for entry in self._entries(stream)]
        highest = max([self.floor, *self.ends.values(), *self.retired.values()])
        return [*entries, Entry("", snapshot, self.floor), Entry("", 0, highest, StreamState.HIGHEST)]

    def _entries(self, stream: str) -> list[Entry]:
        if stream in self.retired:
            return [Entry(stream, 0, self.retired[stream], StreamState.RETIRED)]
        if stream not in self.ends:
            return [Entry(stream, 0, self.floor, StreamState.FORGOTTEN)]
        start = self.starts.get(stream)
        back = [] if start is None else [Entry(stream, 0, start, StreamState.BACK)]
        return [self._live(stream), *back]

    def _live(self, stream: str) -> Entry:
        end = self.ends[stream]
        return Entry(stream, self.reserved.get(stream, end), end)

    # Snapshots.

    @property
    def many(self) -> bool:
        """Return whether enough streams have changed for another snapshot."""
        changed = len(self.ends) + len(self.retired) if self.changed is None else len(self.changed)
        return changed > self.limits.inline

    def copy(self) -> Streams:
        """Return an independent copy, which does not track changes since a snapshot."""
        return Streams(
            dict(self.ends), dict(self.retired), dict(self.starts), dict(self.reserved), self.floor, limits=self.limits
        )

    def capture(self) -> Streams:
        """Return a copy for a snapshot, and track which streams change from now on."""
        self.changed_meanwhile = set()
        return self.copy()

    def adopt(self, snapshot: int) -> None:
        """Let later segments refer to the snapshot at position *snapshot*, which is on disk now."""
        assert self.changed_meanwhile is not None, "capture() was called before"
        self.snapshot, self.changed, self.changed_meanwhile = snapshot, self.changed_meanwhile, None

    def abandon(self) -> None:
        """Forget the snapshot that was captured last, because it could not be written."""
        self.changed_meanwhile = None

    # Replaying the log.

    def replay(self, kind: Kind, entries: Sequence[Entry]) -> None:
        """Apply a batch of entries that is not the first of its segment."""
        if kind is Kind.GAP:
            self.skip(entries)
        elif kind is Kind.RESERVED:
            self.reserve(entries)
        elif kind is Kind.CLOSED:
            self.close()
        else:
            self.apply(entries)

    def apply(self, entries: Iterable[Entry]) -> None:
        """Apply the entries of a batch of kind ENDS or STREAMS."""
        for entry in entries:
            stream, state = entry.stream, entry.state
            if not stream:
                self.floor = max(self.floor, entry.last if state is StreamState.LIVE else 0)
            elif state is StreamState.RETIRED:
                self._retire(stream, entry.last)
            elif state is StreamState.FORGOTTEN:
                self._forget(stream)
            elif state is StreamState.BACK:
                self.starts[stream] = entry.last
            else:
                self.retired.pop(stream, None)
                self.reserved.pop(stream, None)
                self.ends[stream] = max(self.ends.get(stream, 0), entry.last)
                self._touch(stream)
                if entry.first > entry.last:
                    self.reserved[stream] = entry.first


def streams_at_start(entries: Sequence[Entry], load: Callable[[int], Streams]) -> Streams:
    """Return the streams at the beginning of a segment.

    :param entries: the entries of the segment's first batch returns the streams of the snapshot at a position
    """
    snapshot = referenced_snapshot(entries)
    streams = Streams()
    if snapshot:
        streams = load(snapshot)
        streams.snapshot, streams.changed = snapshot, set()
    streams.apply(entries)
    return streams


def referenced_snapshot(entries: Iterable[Entry]) -> int:
    """Return the position of the snapshot that a segment refers to, or 0 if it lists all streams.

    :param entries: of the segment's first batch
    """
    return next((entry.first for entry in entries if not entry.stream and entry.state is StreamState.LIVE), 0)
