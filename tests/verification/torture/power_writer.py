"""The user of a journal whose power is cut: it runs the real journal without a server, threads or real time.

Queue     the journal's worker, which runs its jobs when it is told to
Writer    opens the journal, checks it, appends, and reports what it did
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import power_model
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.errors import PublishError
from fyrehose.interfaces import JournalState
from fyrehose.journal.files import Files
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.records import Run
from tests.doubles.appending import append_runs


class Queue:
    """A worker that runs its jobs when it is told to, so that appends made meanwhile share the next commit."""

    def __init__(self) -> None:
        self._jobs: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def call(self, job: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self._jobs.append((job, done))
        return done

    @property
    def idle(self) -> bool:
        return not self._jobs

    def stop(self) -> None:
        """Do nothing: no thread runs."""

    def work(self) -> None:
        while self._jobs:
            job, done = self._jobs.pop(0)
            try:
                result = job()
            except Exception:
                done.errback()
            else:
                done.callback(result)


class Anywhere:
    """A pace by which half of the small commits, at random, run in the reactor's thread."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    @property
    def near(self) -> bool:
        return self._dice.random() < 0.5

    def took(self, seconds: float) -> None:
        """Ignore how fast the disk is."""


class Writer:
    """Opens the journal, checks it, appends, and reports what it did.

    :param tell: called with a word and its arguments, as :meth:`power_model.Model.hear_one` takes them
    """

    def __init__(
        self, model: power_model.Model, files: Files, settings: JournalSettings, tell: Callable[..., None], seed: int
    ) -> None:
        self.model, self.tell, self.dice = model, tell, random.Random(seed)
        self.worker, self.clock = Queue(), Clock()
        self.journal = FileJournal(
            self.clock, model.directory, settings, files=files, worker=self.worker, pace=Anywhere(self.dice)
        )

    def durable(self, ends: Any) -> None:
        """Do nothing: the Deferred of each append reports its outcome."""

    def state_changed(self, state: JournalState, reason: str) -> None:
        """Do nothing: appends that fail are never acknowledged."""

    def stuck(self, reason: str) -> None:
        """Do nothing, because nobody waits for the appends."""

    def wrong(self, what: str) -> None:
        """Report a problem, unless the power is off, which explains every failure."""
        try:
            self.model.directory.with_name("probe").touch()
        except OSError:
            return
        self.tell("problem", what)

    def live(self, turns: int) -> None:
        opened: list[Any] = []
        self.journal.open(self).addBoth(opened.append)
        self.worker.work()
        if isinstance(failure := opened[0], Failure):
            self.wrong(f"it does not open: {failure.getErrorMessage()}")
            return
        self.tell("found", self.model.check(self.journal))
        self._append(dict(opened[0]), turns)
        self.journal.close()
        self.clock.advance(0.001)  # the longest time for which a commit waits
        self.worker.work()

    def _append(self, ends: dict[str, int], turns: int) -> None:
        for _ in range(turns):
            for _ in range(self.dice.choice((1, 1, 2, 5))):
                if self.journal.state is not JournalState.WRITABLE:
                    return
                self._append_one(ends)
            self.clock.advance(0)
            self.worker.work()
            self.clock.advance(self.dice.choice((0, 0, 0.002, 0.1)))

    def _append_one(self, ends: dict[str, int]) -> None:
        number, parts = self.model.compose(self.dice, ends)
        runs = [
            Run.of(stream, [self.model.payload(stream, first + i, number) for i in range(count)], source="power")
            for stream, first, count in parts
        ]
        self.tell("sent", number, parts)
        done = append_runs(self.journal, runs, [first for _, first, _ in parts])
        done.addCallbacks(lambda _: self.tell("acked", number), lambda failure: failure.trap(PublishError))
