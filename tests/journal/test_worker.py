"""The worker runs jobs in order, and reports every failure."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import pytest

from fyrehose.journal.worker import InlineWorker, ThreadWorker


@pytest.mark.parametrize("kind", ["thread", "inline"])
def test_jobs_run_in_order_and_report_their_results(kind: str) -> None:
    answers: SimpleQueue[Any] = SimpleQueue()
    worker = InlineWorker() if kind == "inline" else ThreadWorker(lambda *call: answers.put(call), "test")
    did: list[int] = []
    said: list[Any] = []

    def job(i: int) -> int:
        did.append(i)
        if i % 10 == 3:
            raise OSError(i, "no")
        return i

    for i in range(30):
        worker.call(lambda i=i: job(i)).addCallbacks(said.append, lambda f: said.append(f.value.errno))
    worker.stop()
    while not answers.empty():
        call, *arguments = answers.get()
        call(*arguments)
    assert did == said == list(range(30))


def test_stop_waits_for_accepted_jobs() -> None:
    held, answers = threading.Event(), []
    worker = ThreadWorker(lambda call, done, result: answers.append(result), "test")
    worker.call(held.wait)
    threading.Timer(0.05, held.set).start()
    worker.stop()
    assert answers == [True]


def test_thread_is_idle_when_the_results_of_all_jobs_were_processed() -> None:
    answers: SimpleQueue[Any] = SimpleQueue()
    worker = ThreadWorker(lambda *call: answers.put(call), "test")
    seen: list[bool] = []
    assert worker.idle
    worker.call(int).addCallback(lambda _: seen.append(worker.idle))
    worker.call(lambda: 1 // 0).addErrback(lambda _: seen.append(worker.idle))
    assert not worker.idle
    worker.stop()
    assert not worker.idle, "they ran, and nobody knows the results yet"
    while not answers.empty():
        call, *arguments = answers.get()
        call(*arguments)
    assert seen == [False, True]
    assert worker.idle


def test_program_that_does_not_stop_its_worker_can_exit() -> None:
    worker = ThreadWorker(lambda *call: None, "forgotten")
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "forgotten"] == [True]
    worker.stop()
