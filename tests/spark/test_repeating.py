"""Repeat the steps of a job: pauses, retries after failures, and the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from fyrehose.errors import JournalCorrupt, JournalUnreachable
from fyrehose.offline.view import View
from fyrehose.spark.counting import Behind
from fyrehose.spark.repeating import Done, RoundJob, repeated
from fyrehose.spark.selection import microseconds


def steps(*results: float | Exception | None) -> Iterator[float | None]:
    for result in results:
        if isinstance(result, Exception):
            raise result
        yield result


@attrs.define(eq=False, kw_only=True)
class Copying(RoundJob[Behind]):
    """A job that only moves its position, from the beginning of the journal on."""

    done: Done = attrs.field(factory=lambda: Done(0))

    def copy(self, view: View) -> None:
        self.done.position = self._ahead.next(view, self.done.position).end

    def state(self, behind: Behind) -> Behind:
        return behind

    def optimize(self) -> None:
        raise AssertionError("it was not asked to")


@pytest.mark.parametrize("follow", [False, True])
def test_job_that_is_never_idle_reports_its_progress_at_its_first_step(
    written: Callable[..., Any], follow: bool
) -> None:
    """It goes on in full rounds; its monitor learns at the beginning and after each round what it has not copied."""
    journal, seen, lags = written(), list[int](), list[Behind]()
    journal.fill(20)
    view = journal.place.view()
    job = Copying(
        journal="j",
        target="t",
        source=journal.place,
        identity=view.identity,
        round_bytes=20_000,
        subscription="copy",
        monitor=lags.append,
    )
    while job.done.position < view.mark:
        pause = job.step(60.0 if follow else None, lambda done, view: seen.append(done.position))
        assert pause == 0.0, "a full round is due, so there is no pause"
        (kept,) = journal.place.subscriptions()
        assert (kept.name, kept.position) == ("copy", seen[0]), "settled with the first round, and again after a minute"
        if view.mark - job.done.position < job.round_bytes and follow:
            break
    assert (seen, job.done.rounds) == (sorted({*seen}), len(seen))
    assert len(seen) > 2
    for position, lag in zip((0, *seen), lags, strict=True):
        times = [microseconds(row["time"]) for row in journal.read(start=position)]
        assert lag == Behind(records=len(times), size=view.mark - position, since=min(times, default=None))


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
