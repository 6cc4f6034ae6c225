"""Open the log of a journal for writing: lock its directory, recover it, and begin the writer where the log ends.

    lock -> the gate's preparations -> quarantine, if the settings ask for it -> recover -> Writer

The methods run in the writer thread.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from fyrehose.errors import JournalError, JournalFailed, JournalFull
from fyrehose.journal import scan
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.copies import refuse_copies
from fyrehose.journal.files import NO_ROOM, Files, lock
from fyrehose.journal.gate import IGate
from fyrehose.journal.quarantine import set_aside
from fyrehose.journal.recovery import Recovered, recover
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.writer import NoRoom, SyncFailed, Writer
from fyrehose.observe.meters import Histogram


@attrs.define(eq=False)
class OpenLog:
    """The log of a journal, which no other process writes while this one has the directory's lock.

    :ivar sync_seconds: durations of the syncs of segments
    :ivar report: the result of recovery
    :ivar lock: the descriptor of the directory's lock; negative while the directory is not locked
    """

    directory: Path
    settings: JournalSettings
    files: Files
    gate: IGate
    clock: RecordClock
    sync_seconds: Histogram
    report: Recovered = attrs.field(init=False)
    writer: Writer = attrs.field(init=False)
    lock: int = attrs.field(default=-1, init=False)

    def __attrs_post_init__(self) -> None:
        self.report = Recovered(directory=self.directory)

    def open(self) -> Writer:
        """Lock and recover the log; return its writer.

        :raises JournalLocked: another process has the lock
        :raises JournalFull: the disk is full
        :raises JournalCorrupt: the journal is damaged
        :raises JournalError: the directory cannot be used for another reason
        :raises JournalFailed: a sync failed
        """
        try:
            self.lock = lock(self.directory)
            notes = self.gate.before_recovery()
            refuse_copies(self.directory)
            notes += set_aside(self.directory, self.files) if self.settings.quarantine else []
            self.report = found = recover(self.directory, self.files, self.settings.verify)
            found.notes += notes
            self.writer = self._start_writing(found)
            self.gate.recovered()
            return self.writer
        except (NoRoom, OSError) as error:
            full = isinstance(error, NoRoom) or error.errno in NO_ROOM
            kind = JournalFull if full else JournalError
            hint = "free some space" if full else "check the disk, and the owner of the files"
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            if isinstance(error, OSError) and error.filename:
                why = f"{Path(error.filename).name}: {why}"
            raise kind(
                f"the journal {self.directory} cannot be opened: {why}; {hint}, or use another --data-dir"
            ) from error
        except SyncFailed as error:
            raise JournalFailed(f"the journal {self.directory} cannot be opened, its disk failed: {error}") from error

    def _start_writing(self, found: Recovered) -> Writer:
        settings = self.settings
        sync_each = settings.durability.mode == "batch"
        writer = Writer(
            self.directory,
            found,
            settings.segment_size,
            sync_each,
            self.files,
            self.sync_seconds,
            self.gate.handover,
            settings.stream_limits,
        )
        try:
            writer.open(self.clock.start(found.time))
        except Exception:
            writer.close(in_order=False)
            raise
        return writer

    def differs(self, position: int, data: bytes) -> bool:
        """Return whether the bytes of the log at *position* differ from *data*, as far as the log has them."""
        for segment in reversed(scan.segments(self.directory)):
            if segment.base <= position:
                size = min(len(data), min(self.writer.position, segment.end) - position)
                reader = scan.SegmentReader(segment.path, segment.base, self.files)
                try:
                    return reader.read(position, size) != data[:size]
                finally:
                    reader.close()
        return False  # retention has deleted the segment at *position*, so nothing can be compared

    def unlock(self) -> None:
        """Unlock the directory for other processes, after the writer was closed."""
        if self.lock >= 0:
            self.files.close(self.lock)
            self.lock = -1
