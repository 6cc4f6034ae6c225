"""Backups: a replica that follows a journal, and the way back.

    in: a place (a directory, or a server of its files), a directory      out: the same log there

The source is not asked to stop writing, rolling or deleting.  Each call copies what is new since the last one, after
it saw that the source still has the batch with which the backup ends.

Knows no Twisted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from fyrehose.errors import ConfigError, JournalCorrupt, JournalError, JournalFull, JournalGap, JournalUnreachable
from fyrehose.journal import format as fmt
from fyrehose.journal import holds as readers
from fyrehose.journal import scan
from fyrehose.journal.copies import RESTORING
from fyrehose.journal.files import NO_ROOM, Files
from fyrehose.journal.offline.places import Directory, Missing, Place
from fyrehose.journal.offline.replica import Replica
from fyrehose.journal.offline.transfer import Tail, reach
from fyrehose.journal.offline.view import Extent, View
from fyrehose.journal.snapshots import Snapshot

#: How often it is begun anew where retention deletes the oldest segments of the source meanwhile.
TRIES = 5
#: How often the source's retention is told that the backup is alive, in seconds.
HEARTBEAT = 60.0
#: What may be in a directory in which nothing was copied yet.
_NOTHING = frozenset({"LOCK", RESTORING, "lost+found"})

Progress = Callable[[int, int], object]


class SourceBehind(JournalError):
    """The source ends before the backup does: it has not recovered yet, or was restored from an older copy."""


@attrs.define(eq=False)
class Backup:
    """Copies *source* into *replica*, which has to be open.

    :ivar mirror: delete segments that the source does not keep any more
    :ivar hold: the name under which the source's retention waits for this backup; None: it does not
    :ivar progress: is told how many bytes are done, and of how many
    """

    source: Place
    replica: Replica
    mirror: bool = False
    hold: str | None = None
    progress: Progress = attrs.field(default=lambda done, total: None)
    _compared: bool = attrs.field(default=False, init=False)  #: the source has what the backup ends with
    _lost: bool = attrs.field(default=False, init=False)  #: the source is not there, and that was said
    _held: float = attrs.field(default=float("-inf"), init=False)  #: when the source was told last

    def run(self) -> None:
        """Copy what the source has and the backup has not, up to what is durable now.

        :raises JournalUnreachable: the source is not there at present; what was copied before that counts
        :raises JournalCorrupt: the source is damaged; the backup is complete up to there
        :raises JournalGap: the source does not keep what comes next any more
        :raises SourceBehind: the source ends before the backup does
        :raises JournalError: the source is another journal, or the backup cannot be written
        :raises JournalFull: there is no room for the backup
        """
        for _ in range(TRIES):
            try:
                self._run()
                return
            except Missing as error:
                gone = error  # retention deleted it after it was listed; perhaps nothing was copied yet
            except OSError as error:
                kind = JournalFull if error.errno in NO_ROOM else JournalError
                raise kind(
                    f"{self.replica.directory} cannot be written: {error.strerror}; it is complete up to position "
                    f"{self.replica.position}"
                ) from error
        raise JournalUnreachable(f"{gone} was deleted while it was copied, and so were {TRIES - 1} before it")

    def follow(self, every: float, say: Callable[[str], object], sleep: Callable[[float], object] = time.sleep) -> None:
        """Copy what is new, again and again, until an exception such as KeyboardInterrupt ends it.

        :param every: seconds between two looks
        :param say: is told in a line when the source is not there, and when it is there again
        :raises JournalError: as :meth:`run`, but for a source that is not there at present
        """
        while True:
            sleep(every)
            self.run_patiently(every, say)

    def run_patiently(self, every: float, say: Callable[[str], object]) -> None:
        """Do one step of :meth:`follow`."""
        try:
            self.run()
        except (JournalUnreachable, SourceBehind) as error:
            if not self._lost:
                say(f"{error}; trying again every {every:g} s")
            self._lost, self._compared = True, False
            return
        if self._lost:
            say(f"{self.source} is there again; the backup is complete up to position {self.replica.position}")
        self._lost = False

    def _run(self) -> None:
        view = self._look()
        if self._compared and view.mark == self.replica.position:
            self._report(HEARTBEAT)
            return
        self._compare(view)
        missing = self._missing(view)
        sizes = [extent.end - self._start(extent) for extent in missing]
        self._check_room(sum(sizes))
        if any(not self.replica.is_writing(extent.base) for extent in missing):
            self._copy_snapshots()  # before the segments that refer to them
        done = 0
        for extent, size in zip(missing, sizes, strict=True):
            self._copy(extent, lambda copied, before=done: self.progress(before + copied, sum(sizes)))  # type: ignore[misc]
            done += size
        if self.mirror:
            self._delete(view.start)
        self._copy_readers()
        if not self._compared:
            self.replica.settle()
        self._compared = True
        self._report(0)

    def _look(self) -> View:
        view = reach(self.source)
        if self.hold is not None and self._held == float("-inf"):
            self._report(0, max(self.replica.position, view.start))  # before anything is copied
        return view

    def _compare(self, view: View) -> None:
        """See that the source goes on from where the backup ends."""
        tail = self.replica.tail
        if tail is None:
            return
        here = self.replica.directory
        if view.mark < tail.position:
            raise SourceBehind(
                f"{self.source} ends at position {view.mark}, and {here} at {tail.position}: if its server crashed, "
                "start it; if it was restored from an older copy, or is another journal, use an empty directory"
            )
        if view.start > tail.position:
            raise JournalGap(
                f"{self.source} begins at position {view.start}, and {here} ends at {tail.position}: retention deleted "
                "what is between them; keep this backup as it is, begin another in an empty directory, and let "
                "retention wait for it by --hold NAME"
            )
        if not self._agrees(view, tail):
            raise JournalError(
                f"{self.source} is not what {here} was copied from, they differ at position {tail.at}: it is another "
                "journal, or a server was started in the backup; use an empty directory"
            )

    def _agrees(self, view: View, tail: Tail) -> bool:
        """Return whether the source has the last batch of the backup, whose checksum covers all before it."""
        for extent in view.segments:
            if extent.base <= tail.at < extent.end:
                with self._opened(extent) as reader:
                    try:
                        return bytes(reader.read(tail.at, len(tail.last))) == tail.last
                    except OSError as error:
                        raise self._unreadable(extent, error) from error
        return True  # it keeps only what comes next, which says what it continues from

    @contextmanager
    def _opened(self, extent: Extent) -> Iterator[scan.SegmentReader]:
        try:
            reader = self.source.open(extent.base, extent.end)
        except OSError as error:
            raise self._unreadable(extent, error) from error
        try:
            yield reader
        finally:
            reader.close()

    def _unreadable(self, extent: Extent, error: OSError) -> JournalError:
        return JournalError(f"{self.source.name(extent.base)} cannot be read: {error.strerror}")

    def _missing(self, view: View) -> list[Extent]:
        """Return what the source has and the backup has not, in order."""
        here = {segment.base: segment.end for segment in scan.segments(self.replica.directory)}
        complete = self.replica.position
        return [e for e in view.segments if e.end > complete or here.get(e.base, 0) < e.end]

    def _start(self, extent: Extent) -> int:
        return self.replica.position if self.replica.is_writing(extent.base) else extent.base

    def _check_room(self, size: int) -> None:
        directory = self.replica.directory
        free = self.replica.files.free(directory)
        if size > free:
            raise JournalFull(f"{directory} has room for {free} bytes, and {size} are to be copied; make room")

    def _copy(self, extent: Extent, progress: Callable[[int], object]) -> None:
        complete = self.replica.position
        if self.replica.tail is not None and extent.base > complete:
            raise JournalCorrupt(
                f"{self.source} lacks the positions {complete} to {extent.base}: a segment is missing or cut off; put "
                "it back from a copy; everything before it was copied"
            )
        with self._opened(extent) as reader:
            self.replica.copy(reader, extent.end, self.source.name(extent.base), progress)

    def _copy_snapshots(self) -> None:
        """Copy the snapshots of all streams that are not here; they never change."""
        for position in self.source.snapshots():
            path = scan.snapshot_path_of(self.replica.directory, position)
            if not path.exists():
                try:
                    data = checked_snapshot(self.source.snapshot(position), position)
                except Missing:
                    continue  # it went with the last segment that referred to it
                except fmt.Damage as damage:
                    raise JournalCorrupt(
                        f"{path.name} of {self.source} is damaged: {damage}; put it back from a copy"
                    ) from damage
                self.replica.files.store(path, data)

    def _copy_readers(self) -> None:
        """Note what retention has to wait for after a restore, too: readers do not say so before they read again."""
        directory = self.replica.directory
        there = {reader.name: reader for reader in self.source.readers() if reader.name != self.hold}
        here = {reader.name: reader for reader in readers.positions(directory)}
        for name in here.keys() - there.keys():
            readers.forget(directory, name)
        for name, reader in there.items():
            if here.get(name) != reader:
                readers.report(directory, name, reader.position, reader.time)

    def _delete(self, position: int) -> None:
        """Delete what the source does not keep any more, segments before the snapshots that they refer to."""
        self.replica.delete_before(position)
        directory = self.replica.directory
        for snapshot in sorted(set(scan.snapshots(directory)) - set(self.source.snapshots())):
            self.replica.files.unlink(scan.snapshot_path_of(directory, snapshot))

    def _report(self, at_least: float, position: int | None = None) -> None:
        """Tell the source's retention how far the backup is, if it was not told within so many seconds."""
        if self.hold is not None and time.monotonic() - self._held >= at_least:
            self.source.report(self.hold, self.replica.position if position is None else position)
            self._held = time.monotonic()


def checked_snapshot(data: bytes, position: int) -> bytes:
    """Return *data*, the content of the snapshot of all streams at *position*, after it was checked.

    :raises Damage: it is not what was written there
    """
    found = Snapshot.of(data)
    if found.position != position:
        raise fmt.Damage(f"it is the snapshot at position {found.position}")
    return data


def check_target(source: Place, directory: Path) -> None:
    """See that there is something to copy, and that *directory* may take it, before anything is written there.

    :raises ConfigError: the directory is the source itself, or has files and none of a journal
    :raises JournalError: there is no journal
    """
    if isinstance(source, Directory) and directory.resolve() == source.path.resolve():
        raise ConfigError(f"{directory} cannot be a copy of itself; name another directory")
    if not is_empty(directory) and not scan.segments(directory) and not (directory / scan.MARK_NAME).exists():
        raise ConfigError(f"{directory} has files and is no backup; name an empty directory, or one that is not there")
    reach(source)


def is_empty(directory: Path) -> bool:
    """Return whether *directory* is not there, or nothing was copied into it yet."""
    names = {path.name for path in directory.iterdir()} if directory.exists() else set()
    return not {name for name in names - _NOTHING if not name.endswith(".new")}


def restore(source: Place, directory: Path, files: Files, progress: Progress = lambda done, total: None) -> Replica:
    """Make a journal in *directory* of the backup *source*, from which a server can start.

    While it is under way, and after it was interrupted, a server refuses to start there; the same call goes on.

    :return: the replica, closed, with its figures
    :raises ConfigError: the directory is not empty
    :raises JournalError: as :meth:`Backup.run`
    """
    marker = directory / RESTORING
    if not is_empty(directory) and not marker.exists():
        raise ConfigError(f"{directory} is not empty; name an empty directory, or one that is not there")
    check_target(source, directory)
    with Replica(directory, files) as replica:
        files.store(marker, f"from {source}\n".encode())
        Backup(source, replica, progress=progress).run()
        files.unlink(marker)
        files.sync_directory(directory)
    return replica
