"""The reading end of the journal: which segment has what, and the batches that were read or written last.

in: a stream, a number      out: runs that were checked
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import attrs

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.index import SegmentIndex
from fyrehose.journal.recovery import damaged
from fyrehose.records import Run

#: What batches are kept in memory, in bytes: those that were written last are what live subscribers ask for.
CACHE = 32 << 20
#: How many sealed segments are kept open, with their indexes.
OPEN = 64


@attrs.frozen(slots=True)
class Batch:
    """A batch in memory."""

    end: int
    streams: dict[str, list[Run]]
    size: int


@attrs.define(eq=False)
class Store:
    """The segments of one journal, as the reactor's thread sees them: up to what was committed last."""

    directory: Path
    files: Files
    _bases: list[int] = attrs.field(factory=list, init=False)
    _sealed_ends: dict[int, int] = attrs.field(factory=dict, init=False)
    _active: SegmentIndex = attrs.field(factory=lambda: SegmentIndex(0), init=False)
    _indexes: OrderedDict[int, SegmentIndex] = attrs.field(factory=OrderedDict, init=False)
    _readers: OrderedDict[int, scan.SegmentReader] = attrs.field(factory=OrderedDict, init=False)
    _cache: OrderedDict[int, Batch] = attrs.field(factory=OrderedDict, init=False)
    _cached: int = attrs.field(default=0, init=False)

    @property
    def active(self) -> SegmentIndex:
        """The index of the segment that is being written."""
        return self._active

    @property
    def sealed(self) -> list[tuple[int, int]]:
        """(base, end) of the sealed segments, the oldest first."""
        return [(base, self._sealed_ends[base]) for base in self._bases[:-1]]

    def open(self, sealed: list[tuple[int, int]], active: SegmentIndex) -> None:
        """Begin with what recovery found."""
        self._bases = [base for base, _ in sealed] + [active.base]
        self._sealed_ends = dict(sealed)
        self._active = active

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._indexes.clear()
        self._cache.clear()
        self._cached = 0

    def roll(self, sealed: tuple[int, int], active: SegmentIndex) -> SegmentIndex:
        """The active segment is sealed, and ``active`` follows; the index of the former."""
        base, end = sealed
        old = self._active
        old.end = end
        self._indexes[base] = old
        self._sealed_ends[base] = end
        self._bases.append(active.base)
        self._active = active
        if reader := self._readers.get(base):
            reader.limit = end
        return old

    def wrote(self, header: fmt.BatchHeader, runs: list[Run]) -> None:
        """A batch was written to the active segment; its records carry their numbers, and its time from now on."""
        streams: dict[str, list[Run]] = {}
        for run in runs:
            self._active.add_run(header.position, run.stream, run.first_seq, run.last_seq)
            streams.setdefault(run.stream, []).append(run)
        self._active.end = header.end
        self._keep(header.position, Batch(header.end, streams, header.length))

    def before(self, base: int, stream: str) -> int:
        """The last number of ``stream`` before the segment at ``base``.

        :raises JournalCorrupt: the segment is damaged
        """
        return self._index(base).last_before(stream)

    def oldest(self, stream: str) -> int:
        """The oldest number of ``stream`` that is kept, or would be next."""
        return self.before(self._bases[0], stream) + 1

    def created_after(self, base: int) -> int:
        """When the segment after the one at ``base`` was created, in microseconds since 1970 UTC.

        :raises JournalCorrupt: its header is damaged
        """
        after = self._bases[self._bases.index(base) + 1]
        reader = self._reader(after)
        try:
            return reader.header().created
        except fmt.Damage as damage:
            raise damaged(reader.path, after, after, damage) from damage

    def drop_oldest(self) -> Path:
        """Forget the oldest sealed segment; its file, which the caller deletes."""
        base = self._bases.pop(0)
        del self._sealed_ends[base]
        self._indexes.pop(base, None)
        if reader := self._readers.pop(base, None):
            reader.close()
        return scan.path_of(self.directory, base)

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        """Records of ``stream`` from ``start`` on, or from the next that there is.

        :raises JournalCorrupt: a batch on the way is damaged
        """
        found: list[Run] = []
        scanned = 0
        for batch in self._batches(stream, start):
            for run in batch.streams.get(stream, ()):
                if run.last_seq < start:
                    continue
                part = run.slice(max(0, start - run.first_seq), len(run))
                count = part.fitting(max_bytes)
                if found and part.sizes[0] > max_bytes:
                    return tuple(found)
                found.append(part.slice(0, count))
                max_bytes -= len(found[-1].payload)
                if count < len(part):
                    return tuple(found)
            scanned += batch.size
            if found and (max_bytes <= 0 or scanned > 4 * scan.AHEAD):
                break
        return tuple(found)

    def _batches(self, stream: str, start: int) -> Iterator[Batch]:
        """Batches from the one that may have ``start`` on, across segments."""
        if self._active.last_before(stream) < start:
            at = len(self._bases) - 1
        else:
            # The last segment that began before start was given out: it has it, or nobody has.
            at = max(0, bisect_left(self._bases, start, key=lambda base: self.before(base, stream)) - 1)
        for base in self._bases[at:]:
            index = self._index(base)
            position = index.find(stream, start)
            if position is None:
                continue
            while position < index.end:
                batch = self._batch(base, position, stream, start)
                yield batch
                position = batch.end

    def _batch(self, base: int, position: int, stream: str, start: int) -> Batch:
        batch = self._cache.get(position)
        if batch is not None:
            self._cache.move_to_end(position)
            return batch
        reader = self._reader(base)
        try:
            header, body = reader.batch(position)
            streams: dict[str, list[Run]] = {}
            if header.kind is fmt.Kind.RECORDS:
                for run in fmt.runs(body, header.time):
                    streams.setdefault(run.stream, []).append(run)
        except fmt.Damage as damage:
            error = damaged(reader.path, position, base, damage)
            raise JournalCorrupt(f"{error} (wanted: stream {stream!r} from {start})") from damage
        return self._keep(position, Batch(header.end, streams, header.length))

    def _keep(self, position: int, batch: Batch) -> Batch:
        self._cache[position] = batch
        self._cached += batch.size
        while self._cached > CACHE and len(self._cache) > 1:
            self._cached -= self._cache.popitem(last=False)[1].size
        return batch

    def _reader(self, base: int) -> scan.SegmentReader:
        reader = self._readers.get(base)
        if reader is None:
            reader = scan.SegmentReader(scan.path_of(self.directory, base), base, self.files)
            self._readers[base] = reader
            if len(self._readers) > OPEN:
                self._readers.popitem(last=False)[1].close()
        else:
            self._readers.move_to_end(base)
        reader.limit = self._sealed_ends.get(base, self._active.end)
        return reader

    def _index(self, base: int) -> SegmentIndex:
        if base == self._active.base:
            return self._active
        index = self._indexes.get(base)
        if index is None:
            index = self._indexes[base] = self._load_index(base)
            if len(self._indexes) > OPEN:
                self._indexes.popitem(last=False)
        else:
            self._indexes.move_to_end(base)
        return index

    def _load_index(self, base: int) -> SegmentIndex:
        end = self._sealed_ends[base]
        path = scan.index_path_of(self.directory, base)
        try:
            stored = SegmentIndex.unpack(path.read_bytes(), base, end)
        except FileNotFoundError:
            stored = None
        if stored is not None:
            return stored
        reader = self._reader(base)
        try:
            return SegmentIndex.scan(reader, end)
        except fmt.Damage as damage:
            raise damaged(reader.path, base, base, damage) from damage
