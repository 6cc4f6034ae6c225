"""A worker of a journal whose jobs run when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure


@attrs.define(eq=False)
class HandWorker:
    """A worker that runs its jobs, and reports their results, when the test says so.

    :ivar hold: whether jobs wait; if not, each runs at once
    :ivar jobs: the jobs that wait, each with the Deferred of its result
    :ivar ran: the results that are not reported yet, each with its Deferred
    :ivar in_job: whether a job is running
    """

    hold: bool = True
    jobs: list[tuple[Callable[[], Any], Deferred[Any]]] = attrs.field(factory=list, init=False)
    ran: list[tuple[Deferred[Any], Any]] = attrs.field(factory=list, init=False)
    in_job: bool = attrs.field(default=False, init=False)
    stopped: bool = attrs.field(default=False, init=False)
    #: whether the results are being reported: none is reported within the report of another
    _working: bool = attrs.field(default=False, init=False)

    def call(self, job: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.jobs.append((job, done))
        if not self.hold:
            self.work()
        return done

    @property
    def idle(self) -> bool:
        return not (self.jobs or self.ran)

    def stop(self) -> None:
        self.work()
        self.stopped = True

    def run(self) -> None:
        """Run the first job."""
        job, done = self.jobs.pop(0)
        self.in_job = True
        try:
            self.ran.append((done, job()))
        except Exception:
            self.ran.append((done, Failure()))
        self.in_job = False

    def report(self) -> None:
        """Report the first result."""
        done, result = self.ran.pop(0)
        done.callback(result)  # a Failure, too

    def work(self, most: int = 1 << 30) -> None:
        """Report all results, and run and report the jobs that wait, *most* at the most."""
        if self._working:
            return
        self._working = True
        while self.ran or (self.jobs and most):
            if not self.ran:
                self.run()
                most -= 1
            self.report()
        self._working = False
