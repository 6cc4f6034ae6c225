"""Work in steps, taken at once, and time that passes until something has happened."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

#: How often a clock is advanced at most: a test that never ends does not say what is wrong.
MOST = 100_000


def finished(steps: Generator[object, None, T]) -> T:
    """Take all *steps*, and return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as last:
            result: T = last.value
            return result


def advance_until(done: Callable[[], object], clock: Any, seconds: float = 1.0) -> None:
    """Advance *clock* by some *seconds* at a time until *done* returns something true."""
    for _ in range(MOST):
        if done():
            return
        clock.advance(seconds)
    raise AssertionError(f"nothing has happened until {clock.seconds()} s")
