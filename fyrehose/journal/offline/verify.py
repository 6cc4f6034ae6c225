"""Verifying a journal, every byte of it, while it is in use or not.

Checked are the checksums and their chain, from segment to segment; that the numbers of every stream follow on, but for
gaps that are noted as such; what every segment says of the numbers before it; times; and that the index files agree
with the segments.

    in: a directory      out: Report
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from fyrehose.errors import JournalCorrupt, JournalError
from fyrehose.journal import format as fmt
from fyrehose.journal import scan, snapshots
from fyrehose.journal.index import PackedIndex, SegmentIndex
from fyrehose.journal.offline.walk import Batch, Began, Damaged, Extent, walk
from fyrehose.journal.recovery import last_byte
from fyrehose.journal.streams import begun
from fyrehose.records import Run

#: How many problems are told; where there are more, they have a common cause.
MAX_PROBLEMS = 1000


@attrs.frozen(slots=True)
class Problem:
    """Something is not as it should be, in ``path`` at the byte ``offset``."""

    path: Path
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.path.name} at byte {self.offset}: {self.what}"


@attrs.define
class Report:
    """What was found.

    :ivar mark: the durable mark, 0 if it is not known
    :ivar end: the position up to which everything was checked
    :ivar size: bytes that were checked
    :ivar allocated: bytes behind the end that are allocated and not used yet
    :ivar gaps: numbers that are not in the journal, and are noted as such
    :ivar problems: empty, if the journal is as it was written
    :ivar notes: what is worth knowing, and does no harm
    """

    mark: int = 0
    end: int = 0
    size: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    streams: int = 0
    allocated: int = 0
    gaps: list[fmt.Entry] = attrs.field(factory=list)
    problems: list[Problem] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)


def verify(
    directory: Path, progress: Callable[[int, int], object] = lambda done, total: None, everything: bool = False
) -> Report:
    """Check the journal in ``directory``; nothing is changed.

    :param progress: is told how many bytes are done, and of how many
    :param everything: go on behind the durable mark as far as it makes sense, too
    :raises JournalError: there is no journal, or nothing of it that could be checked
    """
    extent = Extent.of(directory)
    total = sum(segment.size for segment in extent.segments)
    verifier = _Verifier(Report(mark=extent.mark), directory)
    verifier.front(extent)
    for found in walk(extent, everything):
        verifier.take(found)
        progress(verifier.done, total)
    verifier.finish()
    progress(total, total)
    report = verifier.report
    if not report.batches and not report.problems:
        raise JournalError(
            f"nothing in {directory} could be checked: no batch is known to be durable; --all checks what there is"
        )
    return report


@attrs.define(eq=False)
class _Verifier:
    report: Report
    directory: Path
    done: int = 0
    _last: Began | None = None
    _whole: bool = True  #: nothing of the segment was damaged
    _index: SegmentIndex = attrs.field(factory=lambda: SegmentIndex(0))
    _chain: int | None = None  #: what the next segment continues from, if that is known
    _identity: bytes = fmt.UNKNOWN
    _time: int = 0
    _ends: dict[str, int] = attrs.field(factory=dict)
    _floor: int = 0
    #: streams whose numbers nothing was lost of since they were seen last
    _certain: set[str] = attrs.field(factory=set)
    _lost: bool = False
    _first: bool = True  #: the next segment says where numbers begin, and nobody can contradict it

    def front(self, extent: Extent) -> None:
        """See that the oldest segments are there, and say what cannot be told without MARK."""
        if not extent.mark:
            self.report.notes.append(
                "MARK is missing, damaged, or copied from another directory: what the batches themselves call durable "
                "was checked; whether the end of the log is missing cannot be told"
            )
        first = extent.segments[0]
        if extent.begin is not None and first.base > extent.begin:
            what = f"positions {extent.begin} to {first.base} before it are missing, and retention did not delete them"
            self._problem(first, first.base, what)

    def take(self, found: Began | Batch | Damaged) -> None:
        if isinstance(found, Began):
            self._began(found)
        elif isinstance(found, Damaged):
            self._damaged(found)
        else:
            self._batch(found)

    def finish(self) -> None:
        """Nothing more comes."""
        self._ended()
        self.report.streams = len(self._ends)

    def _began(self, began: Began) -> None:
        if self._last is not None and began.segment.base != self._last.stop:
            self._chain, self._first = None, True  # retention has taken those between
            self._ends.clear()
        self._ended()
        report, base = self.report, began.segment.base
        report.segments += 1
        if began.header is not None and self._chain is not None and began.header.chain != self._chain:
            self._problem(began.segment, base, "the segment does not continue from the one before")
        if began.header is not None and began.header.identity != fmt.UNKNOWN:
            if self._identity not in (fmt.UNKNOWN, began.header.identity):
                self._problem(began.segment, base, "the segment belongs to another journal than those before it")
            self._identity = began.header.identity
        self._last, self._whole, self._index = began, True, SegmentIndex(base)
        report.end = base + fmt.SEGMENT_HEADER.size
        report.size += fmt.SEGMENT_HEADER.size

    def _damaged(self, damaged: Damaged) -> None:
        self._whole = False
        self._loses()
        size = damaged.stop - damaged.start
        self._problem(damaged.segment, damaged.start, f"{damaged.reason} ({size} bytes)" if size else damaged.reason)
        self._chain = None
        self.report.end = max(self.report.end, damaged.stop)
        self.done += size

    def _loses(self) -> None:
        """From here on a number that does not follow on proves nothing."""
        self._lost = True
        self._certain.clear()

    def _batch(self, batch: Batch) -> None:
        header, report = batch.header, self.report
        report.batches += 1
        report.end = header.end
        report.size += header.end - header.position
        self.done += header.end - header.position
        self._chain = None if header.mended else header.checksum
        if header.time < self._time and not header.mended:
            self._problem(batch.segment, header.position, "its time is before that of the batch before")
        self._time = max(self._time, header.time)
        if header.mended:
            self._loses()
        try:
            self._index.add(header, batch.body)
            runs, entries = batch.runs(), batch.entries()
        except fmt.Damage as damage:
            self._problem(batch.segment, header.position, f"its checksum is right, but {damage}")
            return
        if len(runs) + len(entries) != header.parts or sum(map(len, runs)) != header.records:
            self._problem(batch.segment, header.position, "it has more or less than its header says")
        for run in runs:
            self._run(batch, run)
        if fmt.begins(header, batch.segment.base):
            self._check_beginning(batch, entries)
        elif header.kind is fmt.Kind.STREAMS:
            self._check_retired(batch, entries)
        elif header.kind is fmt.Kind.GAP:
            for entry in entries:
                self._gap(batch, entry)

    def _run(self, batch: Batch, run: Run) -> None:
        self.report.records += len(run)
        if sum(run.sizes) != len(run.payload):
            what = f"a run of {run.stream!r} has payloads of another length than it says"
            self._problem(batch.segment, batch.header.position, what)
        self._reaches(batch, run.stream, run.first_seq - 1)
        self._ends[run.stream] = run.last_seq
        self._certain.add(run.stream)

    def _gap(self, batch: Batch, gap: fmt.Entry) -> None:
        self.report.gaps.append(gap)
        if gap.stream:
            self._reaches(batch, gap.stream, gap.first - 1)
            self._ends[gap.stream] = max(self._ends.get(gap.stream, 0), gap.last)
        else:
            self._floor = max(self._floor, gap.last)

    def _check_retired(self, batch: Batch, entries: list[fmt.Entry]) -> None:
        for entry in entries:
            if not entry.stream:
                self._floor = max(self._floor, entry.last)
            elif entry.state is fmt.State.RETIRED:
                self._reaches(batch, entry.stream, entry.last)
            elif entry.state is fmt.State.FORGOTTEN:
                self._ends.pop(entry.stream, None)

    def _check_beginning(self, batch: Batch, entries: list[fmt.Entry]) -> None:
        """Check what the segment says of the numbers before it."""
        try:
            streams = begun(entries, lambda position: snapshots.load(self.directory, position).streams())
        except JournalCorrupt as error:
            self._problem(batch.segment, batch.header.position, str(error))
            return
        said = streams.ends | streams.retired
        self._floor = max(self._floor, streams.floor)
        if self._first:
            self._first = False
            self._ends.update(said)
            self._certain.update(said)
            return
        for stream, last in said.items():
            self._reaches(batch, stream, last)
        for stream in [stream for stream, end in self._ends.items() if end <= streams.floor and stream not in said]:
            del self._ends[stream]  # it was retired so long ago that the floor stands for it
        if not batch.header.mended and (forgotten := self._ends.keys() - said.keys()):
            what = f"it has forgotten {len(forgotten)} streams, such as {min(forgotten)!r}"
            self._problem(batch.segment, batch.header.position, what)

    def _reaches(self, batch: Batch, stream: str, seq: int) -> None:
        """``stream`` has come to ``seq`` here."""
        end = self._ends.get(stream, self._floor)
        # A new stream may have been given its first number just before the floor was raised.
        if seq == end or (seq == 0 and stream not in self._ends):
            return
        if seq > end and self._lost and stream not in self._certain:
            self.report.gaps.append(fmt.Entry(stream, end + 1, seq))
        else:
            how = f"skips {end + 1} to {seq}" if seq > end else f"goes back from {end} to {seq}"
            self._problem(batch.segment, batch.header.position, f"stream {stream!r} {how}, and nothing says why")
        self._ends[stream] = seq
        self._certain.add(stream)

    def _ended(self) -> None:
        """The segment that began last is done."""
        began = self._last
        if began is None:
            return
        if began.sealed and self._whole:
            self._check_index(began.segment, began.stop)
        if not began.sealed and began.segment.end > self.report.end:
            self._tail(began.segment)

    def _tail(self, segment: scan.Segment) -> None:
        """Say what lies behind the last batch that was checked."""
        end = self.report.end
        reader = scan.SegmentReader(segment.path, segment.base)
        try:
            used = last_byte(reader, end, segment.end) - end
        except OSError as error:
            self.report.notes.append(f"what lies behind position {end} cannot be read: {error.strerror}")
            return
        finally:
            reader.close()
        if used:
            self.report.notes.append(
                f"not checked: {used} bytes behind position {end}, which are not known to be durable: they are being "
                "written, or were when the server stopped"
            )
        self.report.allocated = segment.end - end - used

    def _check_index(self, segment: scan.Segment, stop: int) -> None:
        self._index.end = stop
        path = scan.index_path_of(self.directory, segment.base)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            self.report.notes.append(f"{path.name} is missing, and will be made again when it is needed")
            return
        if PackedIndex.unpack(data, segment.base, stop) is None:
            self.report.notes.append(f"{path.name} is damaged or of another segment, and will be made again")
        elif data != self._index.pack():
            self._problem(scan.Segment(path, 0, len(data)), 0, "it says something else than its segment; delete it")

    def _problem(self, segment: scan.Segment, position: int, what: str) -> None:
        if len(self.report.problems) < MAX_PROBLEMS:
            self.report.problems.append(Problem(segment.path, position - segment.base, what))
