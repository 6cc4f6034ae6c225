"""Back up a journal into a directory, incrementally, and restore a journal from a backup.

    in: a source (a directory, or `fyrehose journal serve`), a directory      out: the same log in that directory

Meanwhile, the source's server keeps appending to the journal and deleting old segments.  Each run copies the new part
of the log,
after it has checked that the source still has the batch with which the backup ends.

This module does not import Twisted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from fyrehose.errors import (
    ConfigError,
    JournalCorrupt,
    JournalEndUnknown,
    JournalError,
    JournalFull,
    JournalGap,
    JournalUnreachable,
)
from fyrehose.journal import format as fmt
from fyrehose.journal import scan, subscriptions
from fyrehose.journal.copies import RESTORING, STANDBY
from fyrehose.journal.files import NO_ROOM, Files
from fyrehose.journal.snapshots import Snapshot
from fyrehose.offline.branching import begin_branch
from fyrehose.offline.mirror import CheckedTail, Replica, reach
from fyrehose.offline.places import Directory, Missing, Place
from fyrehose.offline.view import Extent, View, differ

#: How often a run is repeated when the source's retention deletes segments that the run was about to copy.
TRIES = 5
#: Longest pause of :meth:`Backup.follow` between two attempts to reach the source, in seconds.
LONGEST_PAUSE = 5.0
#: Interval of the updates of the subscription at the source while there is nothing to copy, in seconds.
HEARTBEAT = 60.0
#: Names of files that may be in a directory that still counts as empty.
_IGNORED = frozenset({"LOCK", RESTORING, STANDBY, "lost+found"})
#: What to do if a backup is damaged that is being restored.  No server starts in a directory with the file END.
_OF_A_BACKUP = (
    "put the file back from another copy of the backup; if there is none, copy the backup, delete END in the copy, "
    "start a server there with --quarantine, which sets the range aside, stop it, and restore that copy into an empty "
    "directory"
)
#: How the file RESTORING begins when everything was copied, and only the branch is missing.
_COPIED = b"copied"

Progress = Callable[[int, int], object]


class SourceBehind(JournalError):
    """The error for a source whose log ends before the backup's: it was not recovered yet, or restored from a copy."""


@attrs.define(eq=False)
class Backup:
    """A backup: copies the journal *source* into *replica*, which is open.

    :ivar others: further places with the same journal, which are used in turn while *source* is not reachable
    :ivar mirror: whether to delete segments that the source has deleted
    :ivar subscription: name of the subscription to the source's files; None: there is none
    :ivar vouches: whether the copy is a backup or a standby, for whose end its file END vouches
    :ivar accept_unknown_end: whether to copy a source for whose end nothing vouches
    :ivar progress: called with the number of bytes that are copied so far, and the number of bytes to copy
    :ivar seconds: the monotonic clock
    :ivar mark: the durable mark of the source when the backup last looked at it
    :ivar looked: when (monotonic, seconds) the backup last looked at the source and then copied its whole durable part
    """

    source: Place
    replica: Replica
    mirror: bool = False
    subscription: str | None = None
    vouches: bool = True
    accept_unknown_end: bool = False
    progress: Progress = attrs.field(default=lambda done, total: None)
    seconds: Callable[[], float] = time.monotonic
    others: Sequence[Place] = ()
    mark: int = attrs.field(default=0, init=False)
    looked: float = attrs.field(default=float("-inf"), init=False)
    _compared: bool = attrs.field(default=False, init=False)  #: the source was found to continue the backup
    _failures: int = attrs.field(default=0, init=False)  #: failed attempts since the source was reachable last
    #: When the subscription at the source was updated last (monotonic, seconds).
    _updated: float = attrs.field(default=float("-inf"), init=False)

    def run(self) -> None:
        """Copy everything that is durable at the source and missing in the backup.

        :raises JournalUnreachable: the source cannot be reached at present; the bytes that were copied so far are kept
        :raises JournalCorrupt: the source is damaged; the backup is complete up to the damage
        :raises JournalGap: the source has deleted the positions that come next
        :raises SourceBehind: the source ends before the backup does
        :raises JournalEndUnknown: the source is a copy that may lack its newest records; nothing was copied
        :raises JournalError: the source is another journal, or the backup cannot be written
        :raises JournalFull: the backup's disk is full
        """
        for _ in self.others:
            try:
                self._try_to_run()
                return
            except (JournalUnreachable, SourceBehind):
                self.source, self.others = self.others[0], (*self.others[1:], self.source)
                self._compared = False
        self._try_to_run()

    def _try_to_run(self) -> None:
        for _ in range(TRIES):
            try:
                self._run()
                return
            except Missing as error:
                deleted = error  # by retention, after it was listed; perhaps nothing was copied yet
            except OSError as error:
                kind = JournalFull if error.errno in NO_ROOM else JournalError
                raise kind(
                    f"{self.replica.directory} cannot be written: {error.strerror}; it is complete up to position "
                    f"{self.replica.position}"
                ) from error
        raise JournalUnreachable(f"{deleted} was deleted while it was copied, and so were {TRIES - 1} before it")

    def follow(self, every: float, say: Callable[[str], object], sleep: Callable[[float], object] = time.sleep) -> None:
        """Call :meth:`run` again and again, until an exception such as KeyboardInterrupt ends it.

        :param every: seconds between two runs; while the source is unreachable, the pause grows
        :param say: called with a line of text when the source becomes unreachable, and when it is reachable again
        :raises JournalError: as :meth:`run`, except when the source is unreachable at present
        """
        while True:
            sleep(max(every, min(LONGEST_PAUSE, every * 2.0 ** min(self._failures, 16))))
            self.run_patiently(say)

    def run_patiently(self, say: Callable[[str], object]) -> None:
        """Call :meth:`run` once; if the source is unreachable, only report that (a step of :meth:`follow`)."""
        try:
            self.run()
        except (JournalUnreachable, SourceBehind) as error:
            self._failures += 1
            if self._failures == 1:
                say(f"{error}; trying again until that is over")
            self._compared = False
            return
        if self._failures:
            say(f"{self.source} is reachable again; the backup is complete up to position {self.replica.position}")
        self._failures = 0

    @property
    def reachable(self) -> bool:
        """Return whether the last attempt of :meth:`follow` reached the source."""
        return not self._failures

    def _run(self) -> None:
        began = self.seconds()
        view = self._look()
        self.mark = view.mark
        if self._compared and view.mark == self.replica.position:
            self.looked = began
            self._update_subscription(HEARTBEAT)
            return
        self._compare(view)
        missing = self._missing(view)
        sizes = {extent: extent.end - self._start(extent) for extent in missing}
        total = sum(sizes.values())
        self._check_room(total)
        if any(not self.replica.is_writing(extent.base) for extent in missing):
            self._copy_snapshots()  # snapshots come before the segments that refer to them
        done = 0
        for extent in missing:
            self._copy(extent, lambda copied, before=done: self.progress(before + copied, total))  # type: ignore[misc]
            done += sizes[extent]
        if self.vouches and self.replica.tail is not None and self.replica.position >= view.mark:
            self.replica.vouch()  # before anything is deleted
        if self.mirror:
            self._delete(view.start)
        self._copy_subscriptions()
        if not self._compared:
            self.replica.settle()
        self._compared, self.looked = True, began
        self._update_subscription(0)

    def _look(self) -> View:
        view = reach(self.source)
        if (doubt := view.doubt(self.source)) and not self.accept_unknown_end:
            raise JournalEndUnknown(
                f"{doubt}; use a finished backup, or add --accept-unknown-end to go on with what is there"
            )
        if self.subscription is not None and self._updated == float("-inf"):
            self._update_subscription(0)  # before anything is copied
        return view

    def _compare(self, view: View) -> None:
        """Check that the log of the source begins with the log of the backup.

        :raises SourceBehind: the source ends before the backup does
        :raises JournalGap: the source begins after the end of the backup
        :raises JournalError: the logs differ
        """
        tail = self.replica.tail
        if tail is None:
            return
        here = self.replica.directory
        if differ(view.identity, tail.identity):
            raise JournalError(
                f"{self.source} is another journal (identity {view.identity.hex()}) than the one that was copied into "
                f"{here} ({tail.identity.hex()}); name that one, or use an empty directory"
            )
        if view.mark < tail.position:
            raise SourceBehind(
                f"{self.source} ends at position {view.mark}, but {here} at {tail.position}: if its server crashed, "
                "start it; if it was restored from an older copy, or is another journal, use an empty directory"
            )
        if view.start > tail.position:
            raise JournalGap(
                f"{self.source} begins at position {view.start}, but {here} ends at {tail.position}: retention deleted "
                "the segments between them; keep this backup as it is, begin another in an empty directory, and "
                "register a named subscription with --subscription NAME"
            )
        if not self._agrees(view, tail):
            raise JournalError(
                f"{self.source} and its backup {here} differ at position {tail.at}: the source is another journal, or "
                "a server was started in the backup; use an empty directory"
            )

    def _agrees(self, view: View, tail: CheckedTail) -> bool:
        """Return whether the source has the last batch of the backup, whose checksum covers all batches before it."""
        for extent in view.segments:
            if extent.base == tail.index.base and tail.position <= extent.end:
                with self._opened(extent) as reader:
                    try:
                        return bytes(reader.read(tail.at, len(tail.last))) == tail.last
                    except OSError as error:
                        raise self._unreadable(extent, error) from error
        return True  # the source has deleted that batch; the next batch has the checksum of the deleted one

    @contextmanager
    def _opened(self, extent: Extent) -> Iterator[scan.SegmentReader]:
        try:
            reader = self.source.open(extent.base, extent.end)
        except OSError as error:
            raise self._unreadable(extent, error) from error
        with reader:
            yield reader

    def _unreadable(self, extent: Extent, error: OSError) -> JournalError:
        return JournalError(f"{self.source.name(extent.base)} cannot be read: {error.strerror}")

    def _missing(self, view: View) -> list[Extent]:
        """Return the segments that are missing in the backup, or incomplete, in order."""
        here = {segment.base: segment.end for segment in scan.segments(self.replica.directory)}
        complete = self.replica.position
        return [e for e in view.segments if e.end > complete or here.get(e.base, 0) < e.end]

    def _start(self, extent: Extent) -> int:
        return self.replica.position if self.replica.is_writing(extent.base) else extent.base

    def _check_room(self, size: int) -> None:
        directory = self.replica.directory
        free = self.replica.files.free(directory)
        if size > free:
            raise JournalFull(f"{directory} has {free} bytes of free space, but {size} must be copied; free some space")

    def _copy(self, extent: Extent, progress: Callable[[int], object]) -> None:
        complete = self.replica.position
        if self.replica.tail is not None and extent.base > complete:
            raise JournalCorrupt(
                f"{self.source} lacks the positions {complete} to {extent.base}: a segment is missing or truncated; "
                "put it back from a copy; everything before it was copied"
            )
        with self._opened(extent) as reader:
            self.replica.copy(reader, extent.end, self.source.name(extent.base), progress)

    def _copy_snapshots(self) -> None:
        """Copy those snapshots of all streams that the backup lacks; a snapshot never changes."""
        for position in self.source.snapshots():
            path = scan.snapshot_path_of(self.replica.directory, position)
            if not path.exists():
                try:
                    data = self.source.snapshot(position)
                    Snapshot.of(data, position)
                except Missing:
                    continue  # retention deleted the snapshot with the last segment that referred to it
                except fmt.Damage as damage:
                    raise JournalCorrupt(
                        f"{path.name} of {self.source} is damaged: {damage}; put it back from a copy"
                    ) from damage
                self.replica.files.store(path, data)

    def _copy_subscriptions(self) -> None:
        """Copy the named subscriptions, for whose readers retention then keeps the log after a restore."""
        directory = self.replica.directory
        there = {each.name: each for each in self.source.subscriptions() if each.name != self.subscription}
        here = {each.name: each for each in subscriptions.registered(directory)}
        for name in here.keys() - there.keys():
            subscriptions.delete(directory, name)
        for name, subscription in there.items():
            if here.get(name) != subscription:
                subscriptions.update(directory, name, subscription.position, subscription.time)

    def _delete(self, position: int) -> None:
        """Delete the files that the source has deleted: first segments, then the snapshots that these refer to."""
        self.replica.delete_before(position)
        directory = self.replica.directory
        for snapshot in sorted(set(scan.snapshots(directory)) - set(self.source.snapshots())):
            self.replica.files.unlink(scan.snapshot_path_of(directory, snapshot))

    def _update_subscription(self, min_age: float) -> None:
        """Move the subscription to the end of the backup, unless it was moved in the last *min_age* seconds."""
        if self.subscription is not None and self.seconds() - self._updated >= min_age:
            tail = self.replica.tail
            identity = fmt.UNKNOWN if tail is None else tail.identity
            self.source.update_subscription(self.subscription, self.replica.position, identity)
            self._updated = self.seconds()


def check_target(source: Place, directory: Path) -> None:
    """Check, before anything is written, that *source* is a journal and that *directory* can become its copy.

    :raises ConfigError: the directory is the source itself, or has files that do not belong to a journal
    :raises JournalError: the source is no journal
    """
    if isinstance(source, Directory) and directory.resolve() == source.path.resolve():
        raise ConfigError(f"{directory} cannot be a copy of itself; name another directory")
    check_directory(directory)
    reach(source)


def check_directory(directory: Path) -> None:
    """Check that *directory* is empty, or contains a journal.

    :raises ConfigError: the directory has other files
    """
    if not is_empty(directory) and not scan.segments(directory) and not (directory / scan.MARK_NAME).exists():
        raise ConfigError(f"{directory} has files and is no backup; name an empty or a new directory")


def is_empty(directory: Path) -> bool:
    """Return whether *directory* does not exist, or nothing was copied into it yet."""
    names = {path.name for path in directory.iterdir()} if directory.exists() else set()
    return not {name for name in names - _IGNORED if not name.endswith(".new")}


def restore(
    source: Place,
    directory: Path,
    files: Files,
    progress: Progress = lambda done, total: None,
    *,
    exact: bool = False,
    accept_unknown_end: bool = False,
) -> Replica:
    """Restore the backup *source* into *directory*, so that a server can start there.

    The restored journal begins a new branch of the log (see :mod:`~fyrehose.offline.branching`), because the server
    that was lost may have accepted more than the backup has.  No server starts in *directory* until all of this has
    completed; after an interruption, the same call continues.

    :param exact: whether to end the log where the backup ends, for a copy in which no server will start
    :param accept_unknown_end: also restore a copy that may lack its newest records
    :return: the replica, closed, with its statistics
    :raises ConfigError: the directory is not empty
    :raises JournalError: as :meth:`Backup.run`, or as :func:`~.branching.begin_branch`
    """
    marker = directory / RESTORING
    if not is_empty(directory) and not marker.exists():
        raise ConfigError(f"{directory} is not empty; name an empty or a new directory")
    complete = marker.exists() and marker.read_bytes().startswith(_COPIED)
    if not complete:
        check_target(source, directory)
    with Replica(directory, files, _OF_A_BACKUP) as replica:
        if not complete:
            files.store(marker, f"from {source}\n".encode())
            Backup(source, replica, vouches=False, accept_unknown_end=accept_unknown_end, progress=progress).run()
        if exact or replica.tail is None:
            files.unlink(marker)
            files.sync_directory(directory)
            return replica
        # From now on the log may be longer than that of the backup, so nothing can be copied any more.
        files.store(marker, _COPIED + f" from {source}\n".encode())
    begin_branch(directory, files, "cannot be restored", (RESTORING,))
    return replica
