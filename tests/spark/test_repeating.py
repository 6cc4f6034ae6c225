"""Repeat the steps of a job: pauses, retries after failures, and the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from fyrehose.errors import JournalCorrupt, JournalUnreachable
from fyrehose.spark.repeating import repeated


def steps(*results: float | Exception | None) -> Iterator[float | None]:
    for result in results:
        if isinstance(result, Exception):
            raise result
        yield result


def test_job_ends_after_its_last_step() -> None:
    left = iter([0.0, 0.0, None])
    repeated(lambda: next(left), False, lambda: False, "the job")
    assert list(left) == []


def test_failure_ends_a_job_that_does_not_follow() -> None:
    with pytest.raises(JournalUnreachable):
        repeated(lambda: next(steps(JournalUnreachable("gone"))), False, lambda: False, "the job")


def test_job_that_follows_tries_again_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    results: list[float | Exception | None] = [JournalUnreachable("gone")] * 3 + [0.0, None]

    def step() -> float | None:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    with caplog.at_level(logging.INFO):
        repeated(step, True, lambda: False, "the job", first_pause=0.0)
    assert [record.getMessage() for record in caplog.records] == [
        "gone; trying again until that is over",
        "the job continues after 3 failed attempts",
    ]


def test_other_errors_end_every_job() -> None:
    with pytest.raises(JournalCorrupt):
        repeated(lambda: next(steps(JournalCorrupt("damaged"))), True, lambda: False, "the job")


def test_stop_ends_a_pause() -> None:
    stopped: list[int] = []

    def stop() -> bool:
        stopped.append(1)
        return len(stopped) > 3

    repeated(lambda: 3600.0, True, stop, "the job")
    assert len(stopped) >= 3
