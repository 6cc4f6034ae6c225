"""Retention of a journal that is open: see :mod:`fyrehose.journal.retention` for what is kept.

the store, the clock, the readers' files -> judge -> segments that are deleted, by the thread that writes
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import JournalError
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.holds import positions
from fyrehose.journal.retention import Deletion, Verdict, judge
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.store import Store

log = Logger()


@attrs.define(eq=False)
class Keeper:
    """Looks at the oldest segments of an open journal, has them deleted, and tells of it in the log.

    :ivar run: has something done by the thread that writes
    :ivar waited_for: the named reader that is waited for, or nothing
    :ivar overtaken: how often retention went on without a reader
    """

    directory: Path
    settings: JournalSettings
    store: Store
    clock: RecordClock
    deletion: Deletion
    run: Callable[[Callable[[], None]], Deferred[None]]
    waited_for: str = attrs.field(default="", init=False)
    overtaken: int = attrs.field(default=0, init=False)
    #: what was said last about retention that does not work
    _trouble: str = attrs.field(default="", init=False)

    def look(self, keep_from: Callable[[int], object]) -> None:
        """Delete what is not to be kept any more.

        :param keep_from: notes durably where the log begins; called in the thread that writes
        """
        try:
            verdict = judge(
                self.store,
                self.settings,
                self.clock.now(),
                lambda: positions(self.directory),
                doubted=self.clock.in_doubt,
            )
            self._tell_of_readers(verdict)
            for _ in range(verdict.expired):
                self.deletion.segments.append(self.store.drop_oldest())
                log.info("{path} is not kept any more", path=self.deletion.segments[-1][0])
        except (JournalError, OSError):
            self._failed(Failure(), "nothing is deleted: {why}")
        if self.deletion.is_due():
            self.run(lambda: self.deletion.work(keep_from)).addErrback(
                self._failed, "a segment that is not kept is not deleted, and will be tried again: {why}"
            )

    def _failed(self, failure: Failure, what: str) -> None:
        why = failure.getErrorMessage()
        if why != self._trouble:
            log.error(what, why=why)
        self._trouble = why

    def _tell_of_readers(self, verdict: Verdict) -> None:
        waited_for = "" if verdict.waited_for is None else verdict.waited_for.name
        if waited_for != self.waited_for:
            self.waited_for = waited_for
            if waited_for:
                log.info("segments are kept until the reader {name} has read them", name=waited_for)
        for reader in verdict.overtaken:
            self.overtaken += 1
            log.warn(
                "segments are deleted that the reader {name} has not read: it is at position {position}; see the "
                "options reader-wait and reader-bytes, and `fyrehose journal readers`",
                name=reader.name,
                position=reader.position,
            )
