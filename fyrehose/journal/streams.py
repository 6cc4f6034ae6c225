"""What the log says of its streams: their last numbers, and which of them are retired.

Recovery replays it from the last segment, and the writer carries it on.  Every segment begins with it, so that numbers
outlive the segments that retention deletes.  Where there are few streams a segment begins with all of them (ENDS);
where there are many, with those that changed since the last snapshot file (STREAMS, see :mod:`.snapshots`).

    in: batches of the log, or what is written to it      out: the entries that the next segment begins with
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from fyrehose.journal.format import Entry, Kind, State

#: Up to so many streams a segment begins with all of them: reading a snapshot file as well would cost more.
INLINE = 512
#: Retired streams whose last numbers are remembered by name.  Of more, the longest retired are forgotten: from then on
#: every new stream begins above their numbers, so none of these is given out twice.
MOST_RETIRED = 100_000


@attrs.define(eq=False)
class Streams:
    """All streams at one position of the log.

    :ivar ends: the last number of each stream that is not retired
    :ivar retired: the last number of each retired stream, the longest retired first
    :ivar starts: of streams that came back after they were retired: records up to this number are not served
    :ivar reserved: numbers that may have been given out although they were not written
    :ivar floor: the last number of every stream that is in none of these
    :ivar snapshot: the position of the snapshot file that the next segment refers to; 0: it refers to none
    :ivar changed: the streams that changed since that snapshot; None: all of them, since there is none
    """

    ends: dict[str, int] = attrs.field(factory=dict)
    retired: dict[str, int] = attrs.field(factory=dict)
    starts: dict[str, int] = attrs.field(factory=dict)
    reserved: dict[str, int] = attrs.field(factory=dict)
    floor: int = 0
    snapshot: int = 0
    changed: set[str] | None = None
    #: the same since a snapshot began that is being written; None while none is
    _since: set[str] | None = attrs.field(default=None, init=False)

    # What happens to streams.

    def wrote(self, stream: str, first: int, last: int) -> None:
        """Note that records *first* to *last* of *stream* were written."""
        if stream not in self.ends:
            start = self.retired.pop(stream, self.floor)
            # It was retired, perhaps so long ago that only the floor tells.  A new stream that was numbered just before
            # the floor was raised begins below it.
            if 0 < start < first:
                self.starts[stream] = start
        self.ends[stream] = last
        self._touch(stream)

    def skip(self, gaps: Iterable[Entry]) -> None:
        """Note that numbers are missing and will never be given out again (GAP)."""
        for gap in gaps:
            if gap.stream:
                self.wrote(gap.stream, gap.first, max(self.ends.get(gap.stream, 0), gap.last))
            else:
                self.floor = max(self.floor, gap.last)

    def reserve(self, entries: Iterable[Entry]) -> None:
        """Note numbers that may be given out before they are written (RESERVED)."""
        for entry in entries:
            self.reserved[entry.stream] = entry.first
            self._touch(entry.stream)

    def close(self) -> None:
        """Note that the journal was closed in order: every number that was given out is written (CLOSED)."""
        for stream in self.reserved:
            self._touch(stream)
        self.reserved.clear()

    def retiring(self, streams: Iterable[str]) -> list[Entry]:
        """Return the entries that retire *streams*, as far as they exist; see :meth:`apply`."""
        known = [stream for stream in dict.fromkeys(streams) if stream in self.ends]
        surplus = max(0, len(self.retired) + len(known) - MOST_RETIRED)
        forgotten = list(self.retired)[:surplus]
        entries = [Entry(stream, 0, self.ends[stream], State.RETIRED) for stream in known]
        if forgotten:
            floor = max(self.floor, *(self.retired[stream] for stream in forgotten))
            entries += [Entry(stream, 0, floor, State.FORGOTTEN) for stream in forgotten]
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
        if self._since is not None:
            self._since.add(stream)

    def unwritten(self) -> list[Entry]:
        """Return the gaps that numbers leave which were reserved and not written when the last process ended."""
        reserved = ((stream, self.ends.get(stream, 0), last) for stream, last in self.reserved.items())
        return [Entry(stream, end + 1, last) for stream, end, last in reserved if last > end]

    # What a segment begins with.

    def beginning(self) -> tuple[Kind, list[Entry]]:
        """Return the kind and the entries of the first batch of the next segment."""
        if self.snapshot == 0 or len(self.ends) + len(self.retired) <= INLINE:
            self.snapshot, self.changed = 0, None
            if not (self.retired or self.starts):
                return Kind.ENDS, [*map(self._live, self.ends), Entry("", 0, self.floor)]
        named = [*self.retired, *self.ends] if self.changed is None else sorted(self.changed)
        return Kind.STREAMS, self.since(self.snapshot, named)

    def since(self, snapshot: int, named: Iterable[str]) -> list[Entry]:
        """Return the entries of STREAMS that refer to *snapshot* and have what became of the streams *named*."""
        entries = [entry for stream in named for entry in self._entries(stream)]
        highest = max([self.floor, *self.ends.values(), *self.retired.values()])
        return [*entries, Entry("", snapshot, self.floor), Entry("", 0, highest, State.HIGHEST)]

    def _entries(self, stream: str) -> list[Entry]:
        if stream in self.retired:
            return [Entry(stream, 0, self.retired[stream], State.RETIRED)]
        if stream not in self.ends:
            return [Entry(stream, 0, self.floor, State.FORGOTTEN)]
        start = self.starts.get(stream)
        back = [] if start is None else [Entry(stream, 0, start, State.BACK)]
        return [self._live(stream), *back]

    def _live(self, stream: str) -> Entry:
        end = self.ends[stream]
        return Entry(stream, self.reserved.get(stream, end), end)

    # Snapshots.

    @property
    def many(self) -> bool:
        """Whether a snapshot now would spare the next segment entries that are worth it."""
        changed = len(self.ends) + len(self.retired) if self.changed is None else len(self.changed)
        return changed > INLINE

    def copy(self) -> Streams:
        """Return a copy that goes its own way; it does not note which streams change."""
        return Streams(dict(self.ends), dict(self.retired), dict(self.starts), dict(self.reserved), self.floor)

    def capture(self) -> Streams:
        """Return a copy for a snapshot, and note from now on which streams change after it."""
        self._since = set()
        return self.copy()

    def adopt(self, snapshot: int) -> None:
        """Refer to *snapshot*, which was captured last and is on the disk now."""
        assert self._since is not None, "a snapshot was captured"
        self.snapshot, self.changed, self._since = snapshot, self._since, None

    def abandon(self) -> None:
        """Forget the snapshot that was captured last: it was not written."""
        self._since = None

    # Replaying the log.

    def replay(self, kind: Kind, entries: Sequence[Entry]) -> None:
        """Note what a batch of entries says that is not the first of its segment."""
        if kind is Kind.GAP:
            self.skip(entries)
        elif kind is Kind.RESERVED:
            self.reserve(entries)
        elif kind is Kind.CLOSED:
            self.close()
        else:
            self.apply(entries)

    def apply(self, entries: Iterable[Entry]) -> None:
        """Note what ENDS or STREAMS says of streams."""
        for entry in entries:
            stream, state = entry.stream, entry.state
            if not stream:
                self.floor = max(self.floor, entry.last if state is State.LIVE else 0)
            elif state is State.RETIRED:
                self._retire(stream, entry.last)
            elif state is State.FORGOTTEN:
                self._forget(stream)
            elif state is State.BACK:
                self.starts[stream] = entry.last
            else:
                self.retired.pop(stream, None)
                self.reserved.pop(stream, None)
                self.ends[stream] = max(self.ends.get(stream, 0), entry.last)
                self._touch(stream)
                if entry.first > entry.last:
                    self.reserved[stream] = entry.first


def begun(entries: Sequence[Entry], load: Callable[[int], Streams]) -> Streams:
    """Return the streams as the first batch of a segment says.

    :param load: returns what the snapshot at a position holds
    """
    snapshot = referred(entries)
    streams = Streams()
    if snapshot:
        streams = load(snapshot)
        streams.snapshot, streams.changed = snapshot, set()
    streams.apply(entries)
    return streams


def referred(entries: Iterable[Entry]) -> int:
    """Return the position of the snapshot that the first batch of a segment refers to; 0 if it names all streams."""
    return next((entry.first for entry in entries if not entry.stream and entry.state is State.LIVE), 0)
