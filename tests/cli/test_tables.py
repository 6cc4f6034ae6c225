"""The console of tables: its width, and what it does when nobody reads it."""

from __future__ import annotations

import io

import pytest

from fyrehose.cli.tables import WIDTH, Console, terminal


class Closed(io.StringIO):
    """A pipe whose reader has closed it."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_closed_pipe_is_left_to_the_program() -> None:
    with pytest.raises(BrokenPipeError):
        Console(file=Closed()).print("x")


def test_pipe_is_wide_unless_columns_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal().width == WIDTH
    monkeypatch.setenv("COLUMNS", "70")
    assert terminal().width == 70
