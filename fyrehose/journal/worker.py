"""The writer thread: runs blocking calls one after the other."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

T = TypeVar("T")


class Worker(Protocol):
    """Runs blocking functions in order."""

    @property
    def idle(self) -> bool:
        """Return whether all jobs have run and their Deferreds have fired, so that the caller's thread may do one."""

    def call(self, job: Callable[[], T]) -> Deferred[T]:
        """Run *job*; the Deferred fires in the reactor thread with its result or its exception."""

    def stop(self) -> None:
        """Accept no more jobs; block until those that were accepted have run."""


class ThreadWorker:
    """A worker with a thread of its own."""

    def __init__(self, call_from_thread: Callable[..., Any], name: str) -> None:
        self._call_from_thread = call_from_thread
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Deferred[Any]] | None] = SimpleQueue()
        self._unsettled = 0
        self.idle = True
        # A daemon thread: a program that exits without closing its journal must not hang.
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def call(self, job: Callable[[], T]) -> Deferred[T]:
        done: Deferred[T] = Deferred()
        self._unsettled += 1
        self.idle = False
        self._jobs.put((job, done))
        return done

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            try:
                result = job()
            except Exception:
                self._call_from_thread(self._settle, done, Failure())
            else:
                self._call_from_thread(self._settle, done, result)

    def _settle(self, done: Deferred[Any], result: Any) -> None:
        self._unsettled -= 1
        self.idle = not self._unsettled
        done.callback(result)  # a Failure, too


class InlineWorker:
    """A worker that runs each job immediately in the caller's thread, for tests and for tools without a reactor."""

    idle = True

    def call(self, job: Callable[[], T]) -> Deferred[T]:
        return maybeDeferred(job)

    def stop(self) -> None:
        """Do nothing: every job has run already."""
