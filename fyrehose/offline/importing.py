"""Write records with given numbers and times into a journal that no server has open.

    numbered runs, in the order of their numbers -> batches, and a gap wherever numbers are missing

Records that the journal has already are compared and not written again, so that an import can be repeated, and an
interrupted import continues where it ended.  Many records are synced together, because nobody reads a journal that no
server has open.

    in: runs      out: which records were added, were there already, and are missing

This module does not import Twisted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from fyrehose.errors import JournalError
from fyrehose.journal import format as fmt
from fyrehose.journal.clock import wall_clock
from fyrehose.journal.copies import refuse_copies
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import recover
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.writer import SyncFailed, Writer
from fyrehose.offline import dump
from fyrehose.offline.changing import changing
from fyrehose.records import Record, Run

#: Bytes of the log that are written between two syncs.
SYNC_BYTES = 16 << 20


@attrs.define(eq=False)
class Importer:
    """An import of records into one stream of the journal in *directory*; a context manager that locks the journal.

    :ivar added: records that were written
    :ivar present: records that the journal had already
    :ivar gone: records that were not written because their numbers are used up: an earlier import noted them as
        missing, or retention has deleted the records
    :ivar missing: how many numbers have no record, and were written as gaps
    """

    directory: Path
    stream: str
    files: Files = attrs.field(factory=Files)
    added: int = attrs.field(default=0, init=False)
    present: int = attrs.field(default=0, init=False)
    gone: int = attrs.field(default=0, init=False)
    missing: int = attrs.field(default=0, init=False)
    _stack: ExitStack = attrs.field(init=False)  #: closes the journal, and unlocks it
    _writer: Writer = attrs.field(init=False)
    #: The last number of the stream in the journal.
    _last: int = attrs.field(default=0, init=False)
    _synced: int = attrs.field(default=0, init=False)
    #: The records that the journal had before, beginning with the first that is compared; None: not read yet.
    _before: Iterator[Record] | None = attrs.field(default=None, init=False)
    _record: Record | None = attrs.field(default=None, init=False)

    def __enter__(self) -> Importer:
        """Create the directory if it is missing, lock it, and find the end of its log.

        :raises JournalLocked: a server, or another command, writes there
        :raises JournalFull: the disk is full
        :raises JournalCorrupt: the journal is damaged
        """
        with ExitStack() as stack:
            stack.enter_context(changing(self.directory, "cannot be imported into"))
            refuse_copies(self.directory)
            found = recover(self.directory, self.files)
            size = JournalSettings().segment_size
            self._writer = Writer(self.directory, found, size, False, self.files, reserves=False)
            self._writer.open(0)
            stack.push(self._close)
            self._stack = stack.pop_all()
        self._last = self._writer.streams.ends.get(self.stream, 0)
        self._synced = self._writer.position
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def _close(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the journal, in order unless its disk failed.

        The closing batch has the present time or, after an error, the time of the last record, because the next import
        continues with records of that time.
        """
        self._writer.close(in_order=not isinstance(error, SyncFailed), time=wall_clock() if error is None else 0)

    def add(self, run: Run) -> None:
        """Add the records of *run*, which have numbers above those of the previous call, and a time.

        The journal's times never go back: records that are older than the journal's last one get its time.

        :raises JournalError: the journal has another record with the same number, or cannot have a record with this
            number
        :raises NoRoom: the disk is full; leaving the ``with`` statement raises JournalFull instead
        :raises SyncFailed: the disk failed; leaving the ``with`` statement raises JournalFailed instead
        """
        old = min(max(self._last + 1 - run.first_seq, 0), len(run))
        if old:
            self._compare(run.slice(0, old))
        new = run.slice(old, len(run))
        if not new:
            return
        self._skip_to(new.first_seq)
        self._writer.commit([[new]], new.time, wall_clock())
        self.added += len(new)
        self._last = new.last_seq
        if self._writer.position - self._synced >= SYNC_BYTES:
            self._synced = self._writer.sync()

    def _skip_to(self, seq: int) -> None:
        """Append a gap for the numbers between the stream's last number and *seq*, which no record has."""
        streams = self._writer.streams
        if self.stream not in streams.ends:
            begin = streams.retired.get(self.stream, streams.floor)
            if begin >= seq:
                raise JournalError(
                    f"the journal {self.directory} has used the numbers up to {begin} for streams that it has retired, "
                    f"so stream {self.stream!r} cannot have number {seq}; import into an empty directory"
                )
            self._last = begin
        if seq > self._last + 1:
            self._writer.skip([fmt.Entry(self.stream, self._last + 1, seq - 1)])
            self.missing += seq - 1 - self._last

    def _compare(self, run: Run) -> None:
        """Check that the journal's records with the numbers of *run* are equal to the records of *run*."""
        if self._before is None:
            runs = dump.runs(self.directory, self.stream, run.first_seq)
            self._before = (record for found in runs for record in found.records())
        for record in run.records():
            while self._record is None or self._record.seq < record.seq:
                self._record = next(self._before, None)
                if self._record is None:
                    break
            if self._record is None or self._record.seq != record.seq:
                self.gone += 1
                continue
            # The time of acceptance is not compared: an earlier import may have had to change it.
            if attrs.evolve(self._record, time=0) != attrs.evolve(record, time=0):
                raise JournalError(
                    f"number {record.seq} of stream {self.stream!r} in the journal {self.directory} is another record; "
                    "import into a stream of its own (--stream), or into an empty directory"
                )
            self.present += 1
