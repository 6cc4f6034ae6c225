"""Work in steps, taken at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finished(steps: Generator[object, None, T]) -> T:
    """Take all *steps*, and return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as last:
            result: T = last.value
            return result
