"""Commits move to the reactor's thread while the disk is fast, and back at the first sign that it is not."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from fyrehose.journal.pace import CALM, FAST, QUIET, SLOW, STALL, Measured


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> Measured:
    return Measured(clock.seconds)


def feed(pace: Measured, seconds: float, commits: int = 100) -> None:
    for _ in range(commits):
        pace.took(seconds)


def test_unknown_disk_counts_as_slow_until_several_commits_were_fast(pace: Measured) -> None:
    assert not pace.near
    feed(pace, FAST / 2, 5)
    assert not pace.near
    feed(pace, FAST / 2)
    assert pace.near


def test_first_fast_commits_are_outweighed_by_an_unknown_past(pace: Measured) -> None:
    feed(pace, 100e-6, 26)
    assert not pace.near
    feed(pace, 100e-6, 1)
    assert pace.near


def test_disk_between_the_two_limits_changes_nothing(pace: Measured) -> None:
    between = (FAST + SLOW) / 2
    feed(pace, between)
    assert not pace.near
    feed(pace, FAST / 2)
    feed(pace, between)
    assert pace.near


def test_slow_disk_moves_commits_to_the_writer_thread(pace: Measured) -> None:
    feed(pace, FAST / 2)
    feed(pace, 2 * SLOW)
    assert not pace.near
    feed(pace, FAST / 2)
    assert pace.near, "it is fast again"


def test_one_stall_is_enough_and_it_has_to_be_calm_for_a_while(pace: Measured, clock: Clock) -> None:
    feed(pace, FAST / 2)
    pace.took(1.01 * STALL)
    assert not pace.near
    feed(pace, FAST / 2)
    clock.advance(CALM - 0.001)
    feed(pace, FAST / 2)
    assert not pace.near
    clock.advance(0.001)
    feed(pace, FAST / 2, 1)
    assert pace.near


def test_stalls_in_the_writer_thread_keep_commits_there(pace: Measured, clock: Clock) -> None:
    for _ in range(30):
        feed(pace, FAST / 2)
        pace.took(10 * STALL)
        clock.advance(1.0)
        assert not pace.near


def test_a_commit_of_exactly_the_limit_is_not_a_stall(pace: Measured) -> None:
    feed(pace, FAST / 2)
    pace.took(STALL)
    feed(pace, FAST / 2)
    assert pace.near


def test_a_few_slow_commits_of_a_fast_disk_change_nothing(pace: Measured) -> None:
    # On a busy machine every other system call may take as long as other processes have the processor.
    feed(pace, FAST / 2)
    for _ in range(100):
        feed(pace, FAST / 2, 3)
        pace.took(0.9 * STALL)
        assert pace.near


def test_changes_are_logged_once_a_minute(pace: Measured, clock: Clock) -> None:
    with capturedLogs() as events:
        for _ in range(4):
            feed(pace, FAST / 2)
            feed(pace, 2 * SLOW)
            clock.advance(QUIET / 4)
        feed(pace, FAST / 2)
    assert [event["log_format"].split()[-3:] for event in events] == [["the", "reactor's", "thread"]] * 2
