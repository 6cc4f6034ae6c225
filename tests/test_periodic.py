"""Periodic checks go on after errors, which are logged once for each member that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.python.failure import Failure

from fyrehose.net.turns import STEPS, STEPS_S, Turns
from fyrehose.periodic import Checks, Isolation
from tests.doubles.steps import advance_until


class Reactor(Clock):
    """A clock that makes one turn of the reactor out of each hundredth of a second."""

    def callLater(self, delay: float, *args: Any, **kw: Any) -> Any:
        return super().callLater(max(delay, 0.01), *args, **kw)


def checking(clock: Clock, check: Callable[[], object], what: str) -> Checks:
    """Return checks that call *check*, each half second."""

    def steps() -> Iterator[None]:
        check()
        yield

    return Checks(clock, steps, 0.5, what, Turns(clock))


def test_checks_run_from_their_start_to_their_stop() -> None:
    clock, times = Clock(), list[float]()
    checks = checking(clock, lambda: times.append(clock.seconds()), "times")
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


def test_check_that_fails_goes_on_and_each_series_of_failures_is_logged_once(logged_errors: Any) -> None:
    clock, answers = Clock(), [True, False, False, True, False]
    taken: list[bool] = []

    def check() -> None:
        taken.append(answers.pop(0))
        assert taken[-1]

    checks = checking(clock, check, "answers")
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


@pytest.mark.parametrize(("step_s", "each"), [(0.0, STEPS), (STEPS_S / 4, 4), (1.0, 1)])
def test_one_turn_takes_a_bounded_part_of_a_check(step_s: float, each: int) -> None:
    """A turn ends after so many steps, or when they have taken so long; then others get theirs."""
    clock, order = Reactor(), list[str]()
    turns = Turns(clock)

    class Other:
        def take_turn(self) -> int:
            order.append("other")
            turns.ready(self, "10.0.0.1")
            return 0

        def failed(self, failure: Failure) -> None:
            raise failure.value

    def check() -> Iterator[None]:
        for _ in range(3 * each):
            order.append("step")
            clock.rightNow += step_s
            yield

    checks = Checks(clock, check, 60.0, "much", turns)
    turns.ready(Other(), "10.0.0.1")
    checks.start()
    checks.begin()
    checks.begin()  # It is under way already.
    advance_until(lambda: order.count("step") == 3 * each, clock, 0.01)
    parts = [len(part.split()) for part in " ".join(order).split("other") if part.strip()]
    assert max(parts) == each
    assert sum(parts) == 3 * each


def test_check_that_is_stopped_goes_no_further() -> None:
    clock, steps = Reactor(), list[int]()

    def check() -> Iterator[None]:
        for step in range(10 * STEPS):
            steps.append(step)
            if step == STEPS + 1:
                checks.stop()
            yield

    checks = Checks(clock, check, 60.0, "much", Turns(clock))
    checks.begin()
    checks.start()
    checks.begin()
    for _ in range(100):
        clock.advance(0.01)
    assert len(steps) == STEPS + 2, "nothing before the start, and nothing behind the stop"
