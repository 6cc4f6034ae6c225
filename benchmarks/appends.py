"""Load on the journal alone: append batches one after the other, so that the next ones wait while one is written."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.bench.plans import LoadOutcome, Plan
from fyrehose.interfaces import IJournalObserver, JournalState
from fyrehose.journal.commit import DEFERREDS
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.records import Publish, Run

#: Bytes of a record.
RECORD = 128


@implementer(IJournalObserver)
class Appends:
    """A load on a journal without a server; appends that wait together become one commit."""

    def __init__(self, plan: Plan) -> None:
        self._count, self._window = sum(plan.publishers), plan.window
        self._run = Run.of(plan.stream, [bytes(RECORD)] * (plan.size // RECORD), source="bench")
        self._directory = Path(plan.extra["directory"]) / plan.stream
        self._journal: Any = None
        self._sent = self._done = 0
        self._began = self._ended = self._cpu = 0.0
        self._trouble = ""

    def connect(self) -> None:
        """Do nothing: the journal is opened by :meth:`run`, because that needs a running reactor."""

    def run(self, start: float) -> LoadOutcome:
        """Append all batches, and wait until they are durable."""
        from twisted.internet import reactor

        self._reactor: Any = reactor
        self._reactor.callWhenRunning(self._open)
        self._reactor.run()
        return LoadOutcome(
            began=self._began,
            ended=self._ended,
            cpu=self._cpu,
            acknowledged=self._done,
            trouble=self._trouble,
        )

    def close(self) -> None:
        """Delete the journal."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def durable(self, ends: Mapping[str, int]) -> None:
        """Ignore the durable ends, because there are no subscribers."""

    def state_changed(self, state: JournalState, reason: str) -> None:
        """Ignore the state, because the disk has room."""

    def stuck(self, reason: str) -> None:
        """Do nothing, because the disk has room."""

    def _open(self) -> None:
        self._journal = FileJournal(self._reactor, self._directory, JournalSettings())
        self._journal.open(self).addCallbacks(self._begin, self._failed)

    def _begin(self, ends: Mapping[str, int]) -> None:
        self._began, self._cpu = time.monotonic(), -time.process_time()
        for _ in range(self._window):
            self._append()

    def _append(self) -> None:
        if self._sent < self._count:
            first = 1 + self._sent * len(self._run)
            self._sent += 1
            run = self._run.numbered(first, 0)
            done: Deferred[None] = Deferred().addCallback(self._appended).addErrback(self._failed)
            self._journal.submit(Publish([run], run.room, DEFERREDS, done))

    def _appended(self, _: None) -> None:
        self._done += 1
        if self._done < self._count:
            self._append()
            return
        self._ended = time.monotonic()
        self._cpu += time.process_time()
        self._stop()

    def _failed(self, failure: Failure) -> None:
        if not self._trouble:  # all that are under way fail, and for one reason
            self._trouble = failure.getErrorMessage()
            self._stop()

    def _stop(self) -> None:
        self._journal.close().addBoth(lambda _: self._reactor.stop())
