"""One thread that does what blocks, in the order in which it was asked."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

T = TypeVar("T")


class Worker(Protocol):
    """Does what blocks."""

    def call(self, job: Callable[[], T]) -> Deferred[T]:
        """Do ``job``; fires in the reactor's thread with what it returned or raised."""

    def stop(self) -> None:
        """Take no more jobs; returns when those that were taken are done."""


class ThreadWorker:
    """Does it in a thread of its own."""

    def __init__(self, call_from_thread: Callable[..., Any], name: str) -> None:
        self._call_from_thread = call_from_thread
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Deferred[Any]] | None] = SimpleQueue()
        # A daemon: a program that ends without closing its journal ends as if it had been killed, and does not hang.
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def call(self, job: Callable[[], T]) -> Deferred[T]:
        done: Deferred[T] = Deferred()
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
                self._call_from_thread(done.errback, Failure())
            else:
                self._call_from_thread(done.callback, result)


class InlineWorker:
    """Does it at once, in the caller's thread: for tests, and for tools that have nothing else to do."""

    def call(self, job: Callable[[], T]) -> Deferred[T]:
        return maybeDeferred(job)

    def stop(self) -> None:
        """Nothing runs on."""
