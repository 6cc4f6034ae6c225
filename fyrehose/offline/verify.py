"""Verify every byte of a journal, also while it is in use.

The checks cover the checksums and their chain, also from segment to segment; that the numbers of every stream are
consecutive, except for gaps that the journal has noted; the last numbers at the start of each segment; the times; that
the index files agree with the segments; and that a server can read the records: the first and the last record that each
segment has of each stream are read through :class:`~fyrehose.journal.store.Store`, as the server reads them.

    in: a directory      out: Report
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import attrs

from fyrehose.errors import JournalCorrupt, JournalError
from fyrehose.journal import format as fmt
from fyrehose.journal import scan, snapshots
from fyrehose.journal.ends import END, VouchedEnd
from fyrehose.journal.files import Files
from fyrehose.journal.index import PackedIndex, SegmentIndex, index_limit
from fyrehose.journal.recovery import last_byte
from fyrehose.journal.store import Store
from fyrehose.journal.streams import streams_at_start
from fyrehose.offline.view import beyond
from fyrehose.offline.walk import Batch, Damaged, Log, SegmentStart, walk
from fyrehose.options import counted
from fyrehose.records import Run

#: How many problems are reported at most, because more problems usually have a common cause.
MAX_PROBLEMS = 1000


@attrs.frozen(slots=True)
class Problem:
    """A problem in the file *path* at the byte *offset*."""

    path: Path
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.path.name} at byte {self.offset}: {self.what}"


@attrs.define
class Report:
    """The result of verification.

    :ivar mark: the end of the log for which MARK, or the file END, vouches; 0: unknown
    :ivar end: the position up to which everything was checked
    :ivar size: number of bytes that were checked
    :ivar allocated: number of bytes behind the end that are allocated on disk and not used yet
    :ivar gaps: missing numbers that the journal notes as gaps
    :ivar problems: empty if the journal is undamaged
    :ivar notes: harmless observations
    """

    mark: int
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
    directory: Path,
    progress: Callable[[int, int], object] = lambda done, total: None,
    everything: bool = False,
    most: int = MAX_PROBLEMS,
) -> Report:
    """Check the journal in *directory* without changing it.

    :param progress: called with the number of bytes that were checked, and their total
    :param everything: also check intact batches beyond the durable mark
    :param most: how many problems are reported at most
    :raises JournalError: there is no journal, or no batch that can be checked
    """
    log = Log.of(directory)
    total = sum(segment.size for segment in log.segments)
    verifier = _Verifier(Report(mark=log.mark), directory, most, log.end)
    verifier.front(log)
    with closing(verifier.store):
        for found in walk(log, everything):
            verifier.add(found)
            progress(verifier.done, total)
        verifier.finish()
    report = verifier.report
    if not log.mark and log.noted > report.end:
        report.notes.append(f"the copy reaches to position {report.end}, {beyond(log.noted, report.end)}")
    progress(total, total)
    if not report.batches and not report.problems:
        raise JournalError(
            f"nothing in {directory} could be checked: no batch is known to be durable; use --all to check all batches"
        )
    return report


@attrs.define(eq=False)
class _Verifier:
    report: Report
    directory: Path
    most: int
    end: VouchedEnd | None = None
    store: Store = attrs.field(init=False)
    done: int = 0
    #: (base, end) of each sealed segment that was checked
    _sealed: list[tuple[int, int]] = attrs.field(factory=list)
    #: The index of the last sealed segment while its records are still to be read through the store; None otherwise.
    _unread: SegmentIndex | None = None
    _last: SegmentStart | None = None
    _whole: bool = True  #: no damage was found in the present segment
    _index: SegmentIndex = attrs.field(factory=lambda: SegmentIndex(0))
    _chain: int | None = None  #: checksum from which the next segment must continue; None: unknown
    _identity: bytes = fmt.UNKNOWN
    _time: int = 0
    _ends: dict[str, int] = attrs.field(factory=dict)
    _floor: int = 0
    #: Streams whose last number was read after the last damage, so that missing numbers are a problem from now on.
    _certain: set[str] = attrs.field(factory=set)
    _records: int = 0  #: how many records were read of those for which the file END vouches
    _lost: bool = False
    _first: bool = True  #: the numbers at the start of the next segment cannot be compared with earlier ones

    def __attrs_post_init__(self) -> None:
        self.store = Store(self.directory, Files())

    def front(self, log: Log) -> None:
        """Check that no segment is missing at the beginning, and note if MARK is missing."""
        if not log.mark:
            self.report.notes.append(
                "MARK is missing, damaged, or copied at another moment, and there is no file END: what follows the end "
                "that was checked is unknown"
            )
        first = log.segments[0]
        if log.begin is not None and first.base > log.begin:
            what = f"positions {log.begin} to {first.base} before it are missing, and retention did not delete them"
            self._problem(first, first.base, what)

    def add(self, found: SegmentStart | Batch | Damaged) -> None:
        """Check the next part of the log."""
        if isinstance(found, SegmentStart):
            self._start_segment(found)
        elif isinstance(found, Damaged):
            self._damaged(found)
        else:
            self._batch(found)

    def finish(self) -> None:
        """Check the last segment, and complete the report."""
        self._end_segment()
        if self.end is not None and self._records < self.end.records:
            end, name = self.end, scan.path_of(self.directory, self.end.base).name
            self.report.notes.append(
                f"there were {counted(end.records, 'record')} up to position {end.position}, in {name}, by the file "
                f"{END}; {end.records - self._records:,} of them are missing or damaged"
            )
        if self._last is not None and not self._last.sealed:
            self.store.open(self._sealed, self._index)
            self._read(self._index)
        self.report.streams = len(self._ends)

    def _start_segment(self, start: SegmentStart) -> None:
        if self._last is not None and start.segment.base != self._last.stop:
            self._chain, self._first = None, True  # retention has deleted the segments in between
            self._ends.clear()
            self._sealed.clear()
        self._end_segment()
        report, base = self.report, start.segment.base
        report.segments += 1
        if start.header is not None and self._chain is not None and start.header.chain != self._chain:
            self._problem(start.segment, base, "the segment does not continue from the previous one")
        if start.header is not None and start.header.identity != fmt.UNKNOWN:
            if self._identity not in (fmt.UNKNOWN, start.header.identity):
                self._problem(start.segment, base, "the segment belongs to another journal than those before it")
            self._identity = start.header.identity
        self._last, self._whole, self._index = start, True, SegmentIndex(base)
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

    def _compare(self, batch: Batch) -> None:
        """Compare a batch with the file END, if there is one."""
        end, header = self.end, batch.header
        if end is None or header.end > end.position:
            return
        self._records += header.records if header.position >= end.begin else 0
        if header.end == end.position and (header.checksum, self._identity) != (end.chain, end.identity):
            what = f"the last batch is not the one that the file {END} names, which is of another log, or damaged"
            self._problem(batch.segment, header.position, what)

    def _loses(self) -> None:
        """Note that records may be lost at this point, so that their numbers are not reported as another problem."""
        self._lost = True
        self._certain.clear()

    def _batch(self, batch: Batch) -> None:
        header, report = batch.header, self.report
        self._compare(batch)
        report.batches += 1
        report.end = header.end
        report.size += header.end - header.position
        self.done += header.end - header.position
        self._chain = None if header.mended else header.checksum
        if header.time < self._time and not header.mended:
            self._problem(batch.segment, header.position, "the time of the batch is before that of the previous batch")
        self._time = max(self._time, header.time)
        if header.mended:
            self._loses()
        try:
            self._index.add(header, batch.body)
            runs, entries = batch.runs(), batch.entries()
        except fmt.Damage as damage:
            self._problem(batch.segment, header.position, f"the checksum of the batch is right, but {damage}")
            return
        if len(runs) + len(entries) != header.parts or sum(map(len, runs)) != header.records:
            self._problem(batch.segment, header.position, "the counts in the header of the batch are wrong")
        for run in runs:
            self._run(batch, run)
        if fmt.begins(header, batch.segment.base):
            self._check_beginning(batch, entries)
            self._read_previous()
        elif header.kind is fmt.Kind.STREAMS:
            self._check_retired(batch, entries)
        elif header.kind is fmt.Kind.GAP:
            for entry in entries:
                self._gap(batch, entry)

    def _run(self, batch: Batch, run: Run) -> None:
        self.report.records += len(run)
        if sum(run.sizes) != len(run.payload):
            what = f"the payloads of a run of {run.stream!r} have another size than the sum of its lengths"
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
            elif entry.state is fmt.StreamState.RETIRED:
                self._reaches(batch, entry.stream, entry.last)
            elif entry.state is fmt.StreamState.FORGOTTEN:
                self._ends.pop(entry.stream, None)

    def _check_beginning(self, batch: Batch, entries: list[fmt.Entry]) -> None:
        """Check the last numbers of the streams at the start of a segment."""
        try:
            streams = streams_at_start(entries, lambda position: snapshots.load(self.directory, position).streams())
        except JournalCorrupt as error:
            self._problem(batch.segment, batch.header.position, str(error))
            return
        listed = streams.ends | streams.retired
        self._floor = max(self._floor, streams.floor)
        if self._first:
            self._first = False
            self._ends.update(listed)
            self._certain.update(listed)
            return
        for stream, last in listed.items():
            self._reaches(batch, stream, last)
        for stream in [stream for stream, end in self._ends.items() if end <= streams.floor and stream not in listed]:
            del self._ends[stream]  # retired so long ago that the journal has forgotten its name
        if not batch.header.mended and (forgotten := self._ends.keys() - listed.keys()):
            what = f"the start of the segment lacks {counted(len(forgotten), 'stream')}, such as {min(forgotten)!r}"
            self._problem(batch.segment, batch.header.position, what)

    def _reaches(self, batch: Batch, stream: str, seq: int) -> None:
        """Check that the last number of *stream* at this point of the log is *seq*."""
        end = self._ends.get(stream, self._floor)
        # A new stream may have been given its first number just before the floor was raised, and lost it since.
        if seq == end or (stream not in self._ends and (seq == 0 or (seq < end and self._lost))):
            return
        if seq > end and self._lost and stream not in self._certain:
            self.report.gaps.append(fmt.Entry(stream, end + 1, seq))
        else:
            how = f"skips {end + 1} to {seq}" if seq > end else f"goes back from {end} to {seq}"
            self._problem(batch.segment, batch.header.position, f"stream {stream!r} {how}, and no gap is noted")
        self._ends[stream] = seq
        self._certain.add(stream)

    def _end_segment(self) -> None:
        """Check the index of the segment that started last, or the space behind the end of the log."""
        start = self._last
        if start is None:
            return
        self._unread = None
        if start.sealed:
            self._sealed.append((start.segment.base, start.stop))
        if start.sealed and self._whole:
            self._check_index(start.segment, start.stop)
            self._unread = self._index
        if not start.sealed and start.segment.end > self.report.end:
            self._tail(start.segment)

    def _tail(self, segment: scan.Segment) -> None:
        """Report how many bytes follow the last batch that was checked."""
        end = self.report.end
        with scan.SegmentReader(segment.path, segment.base) as reader:
            try:
                used = last_byte(reader, end, segment.end) - end
            except OSError as error:
                self.report.notes.append(f"the bytes behind position {end} cannot be read: {error.strerror}")
                return
        if used:
            self.report.notes.append(
                f"not checked: {counted(used, 'byte')} behind position {end}, not known to be durable: they are being "
                "written, or were when the server stopped"
            )
        self.report.allocated = segment.end - end - used

    def _check_index(self, segment: scan.Segment, stop: int) -> None:
        path = scan.index_path_of(self.directory, segment.base)
        try:
            data = Files().content(path, index_limit(segment.base, stop))
        except FileNotFoundError:
            self.report.notes.append(f"{path.name} is missing, and will be rebuilt when it is needed")
            return
        if PackedIndex.unpack(data, segment.base, stop) is None:
            self.report.notes.append(f"{path.name} is damaged or of another segment, and will be rebuilt")
        elif data != self._index.pack():
            self._problem(scan.Segment(path, 0, len(data)), 0, "the index does not match its segment; delete it")

    def _read_previous(self) -> None:
        """Read the records of the segment before the one that has just begun.

        This is done only when the first batch of the next segment was read, because a reader needs its numbers to find
        the segment of a record.
        """
        unread, self._unread = self._unread, None
        if unread is not None:
            self.store.open(self._sealed, self._index)
            self._read(unread)

    def _read(self, index: SegmentIndex) -> None:
        """Read the first and the last record of each stream of a segment, as a server reads them.

        Nothing is read any more after a problem was found, because readers stop at damage.
        """
        path = scan.path_of(self.directory, index.base)
        for stream, seq in (*index.firsts(), *index.lasts()):
            if self.report.problems:
                return
            try:
                runs = self.store.read(stream, seq, 1)
                why = "" if runs and runs[0].first_seq == seq else "it is not found"
            except JournalCorrupt as error:
                why = str(error)
            if why and not path.exists():
                return  # retention has deleted the segment meanwhile
            if why:
                what = f"a server cannot read record {seq} of stream {stream!r}: {why}"
                self._problem(scan.Segment(path, index.base, 0), index.base, what)

    def _problem(self, segment: scan.Segment, position: int, what: str) -> None:
        if len(self.report.problems) < self.most:
            self.report.problems.append(Problem(segment.path, position - segment.base, what))
