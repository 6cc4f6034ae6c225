"""Commits to Delta tables that end the program in which they are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from fyrehose.spark.lake import Lake


@contextmanager
def fault(number: int, before: bool, error: BaseException) -> Iterator[None]:
    """Let *error* end a run at its commit of this *number*: *before* it or after it."""
    commit, left = Lake.commit, [number]

    def failing(self: Lake, *words: Any, **more: Any) -> None:
        left[0] -= 1
        if left[0] == 0 and before:
            raise error
        commit(self, *words, **more)
        if left[0] == 0:
            raise error

    with patch.object(Lake, "commit", failing):
        yield
