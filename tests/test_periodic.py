"""Periodic checks go on after errors, which are logged once for each member that fails."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.logger import formatEvent

from fyrehose.periodic import Checks, Isolation


def test_checks_run_from_their_start_to_their_stop() -> None:
    clock, times = Clock(), list[float]()
    checks = Checks(clock, lambda: times.append(clock.seconds()), 0.5, "times")
    checks.stop()
    checks.start()
    checks.start()
    clock.pump([0.5, 0.5])
    checks.stop()
    clock.pump([0.5, 0.5])
    assert times == [0.5, 1.0]
    checks.start()
    clock.pump([0.5])
    assert times == [0.5, 1.0, 2.5]


def test_first_check_can_be_made_at_once() -> None:
    clock, times = Clock(), list[float]()
    checks = Checks(clock, lambda: times.append(clock.seconds()), 0.5, "times")
    checks.start(now=True)
    clock.advance(0.5)
    checks.stop()
    assert times == [0.0, 0.5]


def test_check_that_fails_goes_on_and_each_series_of_failures_is_logged_once(logged_errors: Any) -> None:
    clock, answers = Clock(), [True, False, False, True, False]
    taken: list[bool] = []

    def check() -> None:
        taken.append(answers.pop(0))
        assert taken[-1]

    checks = Checks(clock, check, 0.5, "answers")
    checks.start()
    clock.pump([0.5] * 5)
    checks.stop()
    assert taken == [True, False, False, True, False]
    errors = logged_errors.take()
    said = "checking answers failed, and is tried again; please report this bug"
    assert [formatEvent(error) for error in errors] == [said, said]
    assert all(error["log_failure"].check(AssertionError) for error in errors)


def test_member_that_fails_does_not_affect_the_others(logged_errors: Any) -> None:
    isolation, found = Isolation(), list[float]()
    for divisor in (4, 0, 2):
        isolation.call(f"divisor {divisor}", lambda by: found.append(8 / by), divisor)
    assert found == [2.0, 4.0]
    (error,) = logged_errors.take()
    assert formatEvent(error) == "checking divisor 0 failed, and is tried again; please report this bug"
    assert error["log_failure"].check(ZeroDivisionError)
