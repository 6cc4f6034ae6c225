"""A commit waits for company only while others send anyway, and at most as long as a commit takes."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from fyrehose.journal.linger import ENOUGH, LONGEST, LONGEST_REST, REST, Fitting, Fixed

TOOK = LONGEST / 4


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def linger(clock: Clock) -> Fitting:
    return Fitting(clock.seconds)


def feed(linger: Fitting, messages: int, commits: int = 200, seconds: float = TOOK) -> None:
    for _ in range(commits):
        linger.committed(messages, seconds)


def wait_in_vain(linger: Fitting) -> None:
    for _ in range(2):
        assert linger.wait()
        linger.waited(company=False)


def test_publisher_that_sends_one_message_at_a_time_never_waits(linger: Fitting) -> None:
    feed(linger, 1)
    assert linger.wait() == 0


def test_commit_waits_at_most_as_long_as_a_commit_takes(linger: Fitting) -> None:
    feed(linger, 2)
    assert linger.wait() == pytest.approx(TOOK, rel=1e-3)


def test_commits_of_a_slow_disk_do_not_prolong_the_wait(linger: Fitting) -> None:
    feed(linger, 2, seconds=1.0)
    assert linger.wait() == pytest.approx(LONGEST, rel=1e-3)


def test_a_few_commits_with_company_are_enough_to_try(linger: Fitting) -> None:
    feed(linger, 1)
    feed(linger, 2, 1)
    assert linger.wait() > 0


def test_waits_end_after_the_traffic_has_become_single_messages(linger: Fitting) -> None:
    feed(linger, 2)
    feed(linger, 1)
    assert linger.wait() == 0


def test_large_commits_do_not_wait(linger: Fitting) -> None:
    feed(linger, 2 * ENOUGH)
    assert linger.wait() == 0


def test_commits_of_eight_messages_wait_and_those_of_nine_are_cheap_enough(linger: Fitting) -> None:
    feed(linger, 8)
    assert linger.wait() > 0
    feed(linger, 9)
    assert linger.wait() == 0


def test_two_waits_in_vain_end_them_for_a_while(linger: Fitting, clock: Clock) -> None:
    feed(linger, 2)
    wait_in_vain(linger)
    clock.advance(0.99 * REST)
    assert linger.wait() == 0
    clock.advance(0.01 * REST)
    assert linger.wait() > 0


def test_company_between_two_waits_in_vain_is_reason_to_go_on(linger: Fitting) -> None:
    feed(linger, 2)
    for company in (False, True) * 10:
        assert linger.wait() > 0
        linger.waited(company)


def test_publishers_that_wait_for_their_acknowledgements_are_tried_ever_less_often(
    linger: Fitting, clock: Clock
) -> None:
    feed(linger, 2)
    waits = 0
    for _ in range(1000):
        if linger.wait():
            linger.waited(company=False)
            waits += 1
        clock.advance(REST)
    assert waits <= 2 * (7 + 1000 / LONGEST_REST)


def test_each_rest_is_twice_as_long_as_the_last(linger: Fitting, clock: Clock) -> None:
    feed(linger, 2)
    for rest in (REST, 2 * REST, 4 * REST, 8 * REST):
        wait_in_vain(linger)
        clock.advance(rest - 0.01)
        assert linger.wait() == 0
        clock.advance(0.01)


def test_company_makes_the_next_rest_short_again(linger: Fitting, clock: Clock) -> None:
    feed(linger, 2)
    for _ in range(8):
        wait_in_vain(linger)
        clock.advance(LONGEST_REST)
    linger.waited(company=True)
    wait_in_vain(linger)
    clock.advance(REST)
    assert linger.wait() > 0


def test_option_sets_the_wait_whatever_the_traffic_is() -> None:
    fixed = Fixed(0.002)
    for messages in (1, 2, 1000):
        fixed.committed(messages, 0.1)
        fixed.waited(company=False)
        assert fixed.wait() == 0.002
