"""What people see: tables, errors in one line."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import pytest
from rich.console import Console

from fyrehose.cli import spark_showing as showing
from fyrehose.errors import FyrehoseError, JournalCorrupt, PublishError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Traceback ...\nfyrehose.errors.JournalCorrupt: a file is damaged\n\tat org.apache", JournalCorrupt),
        ("x\npyspark.errors.X: fyrehose.errors.PublishError: nobody there", PublishError),
        ("fyrehose.errors.NotOne: something", FyrehoseError),
        ("fyrehose.errors.attrs: something", FyrehoseError),
        ("java.lang.OutOfMemoryError", None),
    ],
)
def test_fyrehose_errors_are_found_within_errors_of_spark(text: str, expected: type[Exception] | None) -> None:
    found = showing.own_error(RuntimeError(text))
    assert (None if found is None else type(found)) is expected
    if expected is JournalCorrupt:
        assert str(found) == "a file is damaged"


def test_errors_are_shown_in_one_line() -> None:
    mistake = type("ParseException", (Exception,), {})("[SYNTAX] near 'x'\n== SQL ==\nx")
    assert str(showing.in_a_line(mistake)) == "[SYNTAX] near 'x'"
    assert showing.in_a_line(ours := PublishError("no")) is ours
    assert isinstance(showing.in_a_line(RuntimeError("x\nfyrehose.errors.PublishError: no")), PublishError)
    assert showing.in_a_line(RuntimeError("a bug")) is None
    missing = ModuleNotFoundError("No module named 'deltalake'", name="deltalake")
    assert str(showing.in_a_line(missing)) == "deltalake is not installed: pip install 'fyrehose[spark]'"
    assert str(showing.in_a_line(PermissionError(13, "Permission denied", "/lake"))) == "/lake: Permission denied"
    assert showing.in_a_line(ConnectionResetError(104, "by whom")) is None


def test_table_formats_and_escapes_values() -> None:
    console = Console(file=io.StringIO(), width=80)
    rows: list[tuple[Any, ...]] = [("a\x1b[31m", 1234567, 0.5, None, True), ("b", None, 2.0, "x", False)]
    showing.table("title", ("name", "count", "rate", "note", "good"), rows, console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("title", "a\\x1b[31m", "1,234,567", "0.500", "-", "yes", "no"):
        assert words in said
    assert "\x1b" not in said


def test_empty_table_shows_its_title_and_a_table_for_a_file_is_not_cut() -> None:
    console = Console(file=io.StringIO())
    showing.table("no gaps " + "x" * 300, ("name",), [], console)
    assert console.file.getvalue() == "no gaps " + "x" * 300 + "\n"  # type: ignore[attr-defined]
    showing.table("t", tuple("abcdefgh"), [(10**12,) * 8], console)
    assert console.file.getvalue().splitlines()[-1].split() == ["1,000,000,000,000"] * 8  # type: ignore[attr-defined]


def test_a_long_table_is_cut() -> None:
    console = Console(file=io.StringIO(), width=80)
    showing.table("t", ("n",), [(i,) for i in range(showing.ROWS + 7)], console)
    assert "and 7 more" in console.file.getvalue()  # type: ignore[attr-defined]


def test_no_progress_bar_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with showing.bar("working") as draw:
        draw(1, 2)
    assert capsys.readouterr().err == ""


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until another thread has made *condition* true."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_bar_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    drawn = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(drawn), showing.bar("working") as draw:
        draw(1, 2)
    assert "working" in drawn.getvalue()


def spark_at_work(seen: list[int]) -> Any:
    """One task of three is done."""

    class Tracker:
        def getActiveStageIds(self) -> list[int]:
            seen.append(1)
            return [1, 2]

        def getStageInfo(self, stage: int) -> Any:
            return None if stage == 1 else type("Stage", (), {"numCompletedTasks": 1, "numTasks": 3})()

    context = type("Context", (), {"statusTracker": lambda self: Tracker()})()
    return type("Spark", (), {"sparkContext": context})()


def test_the_tasks_of_spark_are_watched() -> None:
    seen: list[int] = []
    with showing.tasks_of(spark_at_work(seen), "working"):
        wait_for(lambda: seen)


def test_a_bar_of_bytes_moves_with_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []
    seen: list[int] = []

    @contextmanager
    def bar(what: str, *columns: Any) -> Iterator[Any]:
        yield lambda done, total: drawn.append((done, total))

    monkeypatch.setattr(showing, "bar", bar)
    with showing.rounds_of(spark_at_work(seen), "working", 300) as draw:
        draw(1000, 1900)
        wait_for(lambda: (1100, 1900) in drawn)
        draw(1750, 1900)  # less than a round is left
        wait_for(lambda: (1800, 1900) in drawn)
