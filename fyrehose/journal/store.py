"""The reading side of the journal: finds the segment of a record, and caches batches, indexes and open files.

in: a stream, a number      out: checked runs
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.index import SPACING, Index, PackedIndex, SegmentIndex, index_limit
from fyrehose.journal.packing import StoredBatch, batch_of, grouped
from fyrehose.journal.recovery import damaged
from fyrehose.journal.settings import Caches
from fyrehose.journal.snapshots import Snapshot, load
from fyrehose.records import Run

#: How many snapshots are cached; a snapshot of 100,000 streams takes about 5 MiB.
SNAPSHOTS = 4


@attrs.define(eq=False)
class Store:
    """The readable content of one journal, up to the last commit; used in the reactor thread.

    :ivar remade: called with the path and the content of an index that was rebuilt, because its file was missing
    :ivar caches: how much is kept in memory
    :ivar cached: how many bytes the batches in memory take
    :ivar indexed: how many bytes the indexes of sealed segments in memory take
    :ivar damage: for each kept segment with damage, by its base, the last damage that a read has found
    """

    directory: Path
    files: Files
    remade: Callable[[Path, bytes], object] = lambda path, packed: None
    caches: Caches = attrs.field(factory=Caches)
    damage: dict[int, str] = attrs.field(factory=dict, init=False)
    cached: int = attrs.field(default=0, init=False)
    indexed: int = attrs.field(default=0, init=False)
    _bases: list[int] = attrs.field(factory=list, init=False)
    _sealed_ends: dict[int, int] = attrs.field(factory=dict, init=False)
    _active: SegmentIndex = attrs.field(factory=lambda: SegmentIndex(0), init=False)
    _indexes: OrderedDict[int, PackedIndex] = attrs.field(factory=OrderedDict, init=False)
    _snapshots: OrderedDict[int, Snapshot] = attrs.field(factory=OrderedDict, init=False)
    #: Indexes of segments that were sealed and whose indexes are not packed yet.
    _fresh: dict[int, SegmentIndex] = attrs.field(factory=dict, init=False)
    #: Cached times of creation of the segments.
    _created: dict[int, int] = attrs.field(factory=dict, init=False)
    _readers: OrderedDict[int, scan.SegmentReader] = attrs.field(factory=OrderedDict, init=False)
    _cache: OrderedDict[int, StoredBatch] = attrs.field(factory=OrderedDict, init=False)
    #: The batch that was written last.
    _newest: StoredBatch | None = attrs.field(default=None, init=False)
    #: (stream, number) -> the position from which to scan for it: most reads continue where another one stopped.
    _places: OrderedDict[tuple[str, int], int] = attrs.field(factory=OrderedDict, init=False)

    @property
    def active(self) -> SegmentIndex:
        """Return the index of the active segment."""
        return self._active

    @property
    def bases(self) -> Sequence[int]:
        """Return the positions where the segments begin, the oldest first; the last is that of the active segment."""
        return self._bases

    @property
    def sealed(self) -> list[tuple[int, int]]:
        """Return (base, end) of the sealed segments, the oldest first."""
        return [(base, self._sealed_ends[base]) for base in self._bases[:-1]]

    def open(self, sealed: list[tuple[int, int]], active: SegmentIndex) -> None:
        """Set the segments that recovery found.

        :param sealed: (base, end) of each sealed segment, the oldest first
        """
        self._bases = [base for base, _ in sealed] + [active.base]
        self._sealed_ends = dict(sealed)
        self._active = active

    def close(self) -> None:
        """Close the files and clear the caches; later reads find nothing."""
        for reader in self._readers.values():
            reader.close()
        kept = self._readers, self._indexes, self._snapshots, self._fresh, self._cache, self._sealed_ends, self._places
        for each in (*kept, self._created, self.damage):
            each.clear()
        self._bases, self._active, self._newest = [], SegmentIndex(0), None
        self.cached = self.indexed = 0

    def roll(self, sealed: tuple[int, int], active: SegmentIndex) -> SegmentIndex:
        """Replace the active segment, which was sealed, by a new one.

        :param sealed: (base, end) of the sealed segment
        :param active: the index of the new segment
        :return: the index of the sealed segment, which the caller packs
        """
        base, end = sealed
        old = self._fresh[base] = self._active
        old.end = end
        self._sealed_ends[base] = end
        self._bases.append(active.base)
        self._active = active
        return old

    def packed(self, base: int, data: bytes) -> bool:
        """Keep the packed index of a sealed segment; return False if the segment was deleted meanwhile."""
        fresh = self._fresh.pop(base, None)
        if fresh is None or base not in self._sealed_ends:
            return False
        self._keep_index(base, PackedIndex.unpack(data, base, fresh.end))
        return True

    def wrote(self, batch: StoredBatch) -> None:
        """Add *batch*, which was written to the active segment, to the segment's index and to the cache."""
        index, position = self._active, batch.position
        assert position >= index.end, f"a batch at {position} follows, and the index ends at {index.end}"
        for stream, runs in batch.streams.items():
            first, of = runs[0].first_seq, index.streams.get(stream)
            assert of is None or first > of[0], f"number {first} of stream {stream!r} follows {of and of[0]}"
            if of is None or position - of[-1] >= SPACING:
                index.add_run(position, stream, first, runs[-1].last_seq)
            else:
                of[0] = runs[-1].last_seq
        index.end = batch.end
        self._cache[position] = self._newest = batch
        self.cached += batch.size
        if self.cached > self.caches.batches:
            self._shrink()

    def before(self, base: int, stream: str) -> int:
        """Return the last number of *stream* before the segment at *base*.

        :raises JournalCorrupt: the segment, or the snapshot that it refers to, is damaged
        """
        index = self.index(base)
        before = index.last_before(stream)
        if before is not None:
            return before
        try:
            return self._snapshot(index.snapshot).last(stream)
        except JournalCorrupt as error:
            self.damage[base] = str(error)
            raise

    def place(self, stream: str, seq: int) -> int:
        """Return the base of the first segment that may hold record *seq* of *stream*, or a later record.

        If no sealed segment may hold such a record, return the base of the active segment.

        :raises JournalCorrupt: an index is damaged
        """
        at = bisect_left(self._bases, seq, key=lambda base: self.before(base, stream))
        return self._bases[max(0, at - 1)]

    def oldest(self, stream: str) -> int:
        """Return the number of the oldest record of *stream* that is kept, or its next number if none is kept."""
        return self.before(self._bases[0], stream) + 1

    def created_after(self, base: int) -> int:
        """Return when the segment after the one at *base* was created, in microseconds since 1970 UTC.

        :raises JournalCorrupt: its header is damaged
        """
        return self.created(self._bases[self._bases.index(base) + 1])

    def created(self, base: int) -> int:
        """Return when the segment at *base* was created, in microseconds since 1970 UTC.

        :raises JournalCorrupt: its header is damaged
        """
        created = self._created.get(base)
        if created is None:
            try:
                created = self._created[base] = self._reader(base).header().created
            except (fmt.Damage, OSError) as damage:
                raise self._damaged(base, base, damage) from damage
        return created

    def time_at(self, base: int, position: int) -> int:
        """Return the time of the batch at *position* in the segment at *base*, in microseconds since 1970 UTC.

        :raises JournalCorrupt: its header is damaged
        """
        try:
            return self._reader(base).batch_header(position).time
        except (fmt.Damage, OSError) as damage:
            raise self._damaged(base, position, damage) from damage

    def drop_oldest(self) -> tuple[Path, int, int]:
        """Forget the oldest sealed segment.

        :return: its file, which the caller deletes; the position where the log begins without it; and that of the
            oldest snapshot that is needed then
        :raises JournalCorrupt: the next segment is damaged, and nothing was forgotten
        """
        base, begin = self._bases[:2]
        needed = self.index(begin).snapshot or begin
        if self._newest is not None and self._newest.position < begin:
            self._newest = None
        del self._bases[0]
        del self._sealed_ends[base]
        self._created.pop(base, None)
        self.damage.pop(base, None)
        if index := self._indexes.pop(base, None):
            self.indexed -= len(index.data)
        if reader := self._readers.pop(base, None):
            reader.close()
        return scan.path_of(self.directory, base), begin, needed

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        """Read records of *stream* from number *start* on, or from the next number that is present.

        :param max_bytes: limit of the payloads' size; a first record that is larger is returned all the same
        :return: records of one segment only; the caller calls again for those that follow
        :raises JournalCorrupt: a batch that had to be read is damaged, or cannot be read
        """
        # Live subscribers read the batch that was written last.
        if self._newest is not None:
            newest = self._newest.streams.get(stream)
            # A read of only a part of the batch, or of more than the batch, takes the general way below.
            if newest and newest[0].first_seq == start and len(newest) == 1 and len(newest[0].payload) <= max_bytes:
                return (newest[0],)
        # Most other reads continue where an earlier read stopped, usually in the active segment.
        place = self._places.pop((stream, start), 0)
        for base in (self._active.base,) if place > self._active.base else self._segments(stream, start):
            found: list[Run] = []
            scanned = 0
            try:
                for batch in self.batches(base, stream, start, place):
                    runs = batch.streams.get(stream, ())
                    max_bytes = _take(runs, start, max_bytes, found)
                    scanned += batch.size
                    if found and (max_bytes <= 0 or scanned > self.caches.enough):
                        break
            except JournalCorrupt as error:
                raise JournalCorrupt(f"{error} (while reading stream {stream!r} from {start})") from error
            if found:
                last = found[-1].last_seq
                self._places[stream, last + 1] = batch.position if runs and runs[-1].last_seq > last else batch.end
                if len(self._places) > self.caches.places:
                    self._places.popitem(last=False)
                return tuple(found)
        return ()

    def latest(self, size: int, source: str = "") -> Iterator[Run]:
        """Yield the runs of about the last *size* bytes of the log, the newest first.

        The log may grow and lose segments while the caller iterates; such new and deleted records are left out.

        :param source: pass over batches without runs of this source, but for one in about 64 KiB; empty: over none
        :raises JournalCorrupt: a batch or an index is damaged
        """
        if not self._bases:
            return
        end = self._active.end
        begin = max(0, end - size)
        for base in reversed(self._bases[max(0, bisect_right(self._bases, begin) - 1) :]):
            if base < self._bases[0]:
                return  # retention has deleted the segment
            index = self.index(base)
            positions = index.positions(begin)
            for position in reversed(positions):
                if base < self._bases[0]:
                    return
                end = min(end, index.end)
                if end - position >= SPACING or position == positions[0]:
                    yield from self._backwards(base, position, end, source.encode())
                    end = position

    def _backwards(self, base: int, begin: int, end: int, source: bytes) -> Iterator[Run]:
        """Yield the runs of the batches from *begin* to *end*, the newest first; see :meth:`latest`."""
        reader, batches, position, found = self._reader(base), list[StoredBatch](), begin, 0
        try:
            data = bytes(reader.read(begin, end - begin))
            while found >= 0 and position < end:
                while (behind := reader.header_ahead(position).end) <= begin + found:
                    position = behind
                batches.append(self._batch(base, position))
                position = batches[-1].end
                found = data.find(source, position - begin)
        except (fmt.Damage, OSError) as damage:
            raise self._damaged(base, position, damage) from damage
        for batch in reversed(batches):
            for runs in reversed(batch.streams.values()):
                yield from reversed(runs)

    def _segments(self, stream: str, start: int) -> Iterable[int]:
        """Return the segments that can have record *start*, or the next one after it: usually one segment."""
        if not self._bases:
            return ()
        if 0 < self._active.first(stream) <= start or self.before(self._active.base, stream) < start:
            return (self._bases[-1],)
        return self._sealed_segments(stream, start)

    def _sealed_segments(self, stream: str, start: int) -> Iterator[int]:
        last = len(self._bases) - 1

        def before(base: int) -> int:
            return self.before(base, stream)

        # Only the last segment that began before number start was assigned can have that number.
        at = max(0, bisect_left(self._bases, start, key=before) - 1)
        yield self._bases[at]
        while at < last:
            # Of the segments that have the same last number before them, only the last one can have the next record.
            at = bisect_right(self._bases, before(self._bases[at + 1]), lo=at + 1, key=before) - 1
            yield self._bases[at]

    def batches(self, base: int, stream: str, start: int, place: int = 0) -> Iterator[StoredBatch]:
        """Yield the batches of a segment from the one that may have record *start* to the last one of the stream.

        :param place: a position before which no such record lies, if it is known from an earlier read
        :raises JournalCorrupt: a batch or the index is damaged
        """
        index = self.index(base)
        last = index.last(stream)
        position = place if base < place and start <= last else index.find(stream, start)
        while position is not None and position < index.end:
            batch = self._batch(base, position)
            yield batch
            of = batch.streams.get(stream)
            if of and of[-1].last_seq >= last:
                return
            position = index.following(stream, batch.end)

    def _batch(self, base: int, position: int) -> StoredBatch:
        batch = self._cache.get(position)
        if batch is not None:
            self._cache.move_to_end(position)
            return batch
        try:
            header, body = self._reader(base).batch(position)
            if 2 * len(body) < scan.AHEAD:
                body = memoryview(bytes(body))  # a small batch must not keep everything alive that was read ahead
            runs = fmt.runs(body, header.time) if header.kind is fmt.Kind.RECORDS else []
        except (fmt.Damage, OSError) as damage:
            raise self._damaged(base, position, damage) from damage
        batch = self._cache[position] = batch_of(header, grouped(runs))
        self.cached += batch.size
        self._shrink()
        return batch

    def _shrink(self) -> None:
        """Shrink the cache: remove the batches that were not used for the longest time, but keep at least one."""
        while self.cached > self.caches.batches and len(self._cache) > 1:
            self.cached -= self._cache.popitem(last=False)[1].size

    def _damaged(self, base: int, position: int, reason: fmt.Damage | OSError) -> JournalCorrupt:
        """Remember the damage in the segment at *base* for operators, and return the error about it."""
        error = damaged(scan.path_of(self.directory, base), position, base, reason)
        self.damage[base] = str(error)
        return error

    def _reader(self, base: int) -> scan.SegmentReader:
        reader = self._readers.get(base)
        if reader is None:
            reader = scan.SegmentReader(scan.path_of(self.directory, base), base, self.files, ahead=self.caches.ahead)
            self._readers[base] = reader
            if len(self._readers) > self.caches.files:
                self._readers.popitem(last=False)[1].close()
        else:
            self._readers.move_to_end(base)
        reader.limit = self._sealed_ends.get(base, self._active.end)
        return reader

    def index(self, base: int) -> Index:
        """Return the index of the segment at *base*; rebuild it if the index file is missing or damaged.

        :raises JournalCorrupt: the segment is damaged
        """
        if base == self._active.base:
            return self._active
        if fresh := self._fresh.get(base):
            return fresh
        index = self._indexes.get(base)
        if index is None:
            return self._keep_index(base, self._load_index(base))
        self._indexes.move_to_end(base)
        return index

    def _keep_index(self, base: int, index: PackedIndex | None) -> PackedIndex:
        assert index is not None, "the index was packed for this segment"
        self._indexes[base] = index
        self.indexed += len(index.data)
        while self.indexed > self.caches.indexes and len(self._indexes) > 1:
            self.indexed -= len(self._indexes.popitem(last=False)[1].data)
        return index

    def _snapshot(self, position: int) -> Snapshot:
        found = self._snapshots.get(position)
        if found is None:
            found = self._snapshots[position] = load(self.directory, position)
            if len(self._snapshots) > SNAPSHOTS:
                self._snapshots.popitem(last=False)
        else:
            self._snapshots.move_to_end(position)
        return found

    def _load_index(self, base: int) -> PackedIndex | None:
        end = self._sealed_ends[base]
        path = scan.index_path_of(self.directory, base)
        try:
            stored = PackedIndex.unpack(self.files.content(path, index_limit(base, end)), base, end)
        except OSError:
            stored = None  # the file is only a cache, and is rebuilt
        if stored is not None:
            return stored
        try:
            packed = SegmentIndex.scan(self._reader(base), end).pack()
        except (fmt.Damage, OSError) as damage:
            raise self._damaged(base, base, damage) from damage
        self.remade(path, packed)
        return PackedIndex.unpack(packed, base, end)


def _take(runs: Sequence[Run], start: int, max_bytes: int, found: list[Run]) -> int:
    """Append those of *runs* from number *start* on to *found*, up to *max_bytes* of payloads.

    :return: how much of *max_bytes* is left; 0 if some records did not fit
    """
    for run in runs:
        if run.last_seq < start:
            continue
        if run.first_seq >= start and len(run.payload) <= max_bytes:
            found.append(run)
            max_bytes -= len(run.payload)
            continue
        part = run.slice(max(0, start - run.first_seq), len(run))
        if found and part.sizes[0] > max_bytes:
            return 0
        count = part.fitting(max_bytes)
        found.append(part.slice(0, count))
        max_bytes -= len(found[-1].payload)
        if count < len(part):
            return 0
    return max_bytes
