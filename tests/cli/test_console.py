"""What commands write to a terminal, to a pipe, and to a pipe that nobody reads."""

from __future__ import annotations

import io
from contextlib import redirect_stderr

import pytest

from fyrehose.cli.console import WIDTH, Console, escaped, moment, progress_bar, terminal


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(shown), progress_bar("copying data") as progress:
        progress(500, 1000)
    assert "copying data" in shown.getvalue()


def test_file_shows_no_progress() -> None:
    shown = io.StringIO()
    with redirect_stderr(shown), progress_bar("copying data") as progress:
        progress(500, 1000)
    assert shown.getvalue() == ""


def test_times_and_names_are_formatted_for_a_terminal() -> None:
    assert escaped("a b\N{SNOWMAN}\x00\x7f\x9b") == "a b\N{SNOWMAN}\\x00\\x7f\\x9b"
    assert moment(0) == "-"
    assert moment(1) == "1970-01-01T00:00:00.000001+00:00"
