"""Work on an open journal between its commits, which runs in the writer thread.

a released commit -> a sync (durability interval), MARK, zeros for the next commits, a snapshot, an index file
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.journal.files import Files
from fyrehose.journal.opening import OpenLog

log = Logger()


@attrs.define(eq=False)
class Upkeep:
    """The work between commits.

    At most one sync waits for its time, and at most one MARK for the writer thread, however many commits are released
    meanwhile.

    :ivar reactor: runs the timer
    :ivar run: runs a function in the writer thread
    :ivar broke: called if work fails without which the journal must not continue
    :ivar open: whether the journal is open, so that there is a writer thread; without one, no work is accepted
    :ivar sync_later: the sync that waits for its time; None: none does
    """

    reactor: Any
    log: OpenLog
    files: Files
    run: Callable[[Callable[[], Any]], Deferred[Any]]
    broke: Callable[[Failure], object]
    sync_later: IDelayedCall | None = attrs.field(default=None, init=False)
    open: bool = attrs.field(default=False, init=False)
    #: Whether MARK is about to be written.
    _marking: bool = attrs.field(default=False, init=False)

    def sync_in(self, seconds: float) -> None:
        """Sync the log in *seconds*; call this only while no sync waits."""
        self.sync_later = self.reactor.callLater(seconds, self._sync)

    def cancel_sync(self) -> None:
        """Cancel the sync that waits, if there is one."""
        if self.sync_later is not None:
            self.sync_later.cancel()
            self.sync_later = None

    def _sync(self) -> None:
        self.sync_later = None
        self.run(self.log.writer.sync).addErrback(self.broke)

    def mark(self) -> None:
        """Write MARK soon, because another commit was released."""
        if not self._marking and self.open:
            self._marking = True
            self.run(self._write_mark).addErrback(self.broke)

    def _write_mark(self) -> None:
        self._marking = False
        self.log.writer.write_mark()

    def prepare(self) -> None:
        """Write zeros ahead of the log, which make the next syncs faster."""
        self.run(self.log.writer.prepare).addErrback(self.broke)

    def take_snapshot(self, wanted: Callable[[], bool]) -> None:
        """Write a snapshot of all streams, in steps, so that commits can run in between.

        :param wanted: whether to continue with the next step
        """
        steps = self.log.writer.snapshot()

        def step(done: bool | None) -> None:
            if not done and self.open and wanted():
                self.run(lambda: next(steps, True)).addCallbacks(step, failed)

        def failed(failure: Failure) -> None:
            log.warn("cannot write a snapshot of the streams, so the next segment lists them: {why}", why=failure.value)

        step(False)

    def store_index(self, path: Path, packed: bytes) -> None:
        """Write the index of a sealed segment into a file."""
        if self.open:
            self.run(lambda: self.files.store(path, packed)).addErrback(
                lambda f: log.warn("cannot write {path}, which will be rebuilt later: {why}", path=path, why=f.value)
            )
