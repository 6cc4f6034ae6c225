"""What people see of a job: a bar while it runs, a table when it is done, one line when it cannot be done."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from fyrehose import errors
from fyrehose.errors import FyrehoseError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How often a bar is drawn again, in seconds.
REFRESH = 0.25
#: How many rows of a table are shown.
ROWS = 50
#: How wide a table may be that goes to a file or another program.
WIDE = 240

#: What Spark raises where somebody has written SQL that it does not understand.
_MISTAKES = ("AnalysisException", "ParseException")
_OURS = re.compile(r"^(?:[\w.]*: )?fyrehose\.errors\.(\w+): (.+)$", re.MULTILINE)


def own_error(error: Exception) -> FyrehoseError | None:
    """The error of ours that a task or a planner ended with, which Spark has wrapped in pages of its own."""
    found = _OURS.findall(str(error))
    if not found:
        return None
    name, text = found[-1]
    kind = getattr(errors, name, FyrehoseError)
    return kind(text) if isinstance(kind, type) and issubclass(kind, FyrehoseError) else FyrehoseError(text)


def in_a_line(error: Exception) -> FyrehoseError | None:
    """What people are told of an error; None if it is none that they can do anything about."""
    if isinstance(error, FyrehoseError):
        return error
    if isinstance(error, OSError) and error.filename is not None:  # such as a lake that may not be written
        return FyrehoseError(f"{error.filename}: {error.strerror}")
    ours = own_error(error)
    if ours is None and type(error).__name__ in _MISTAKES:
        return FyrehoseError(str(error).strip().splitlines()[0])
    return ours


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], console: Console | None = None) -> None:
    """A table on standard output; numbers to the right, and nothing in it that a terminal would obey.

    Where there are no rows the title says it all.
    """
    listed = list(rows)
    made = Table(box=None, pad_edge=False)
    for i, name in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[i], int | float | None) for row in listed)
        made.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    for row in listed[:ROWS]:
        made.add_row(*(Text(_cell(value)) for value in row))
    console = console or Console()
    if not console.is_terminal:
        console.width = WIDE
    console.print(Text(title), style="italic", soft_wrap=True)
    if listed:
        console.print(made)
    if len(listed) > ROWS:
        console.print(f"... and {len(listed) - ROWS:,} more")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


@contextmanager
def bar(what: str, *columns: ProgressColumn) -> Iterator[Callable[[float, float], object]]:
    """A bar on standard error, where that is a terminal; is told what is done and what there is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    shown = TextColumn("{task.description}"), BarColumn(), *columns, TimeElapsedColumn()
    with Progress(*shown, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def tasks_of(spark: SparkSession, what: str) -> Iterator[None]:
    """A bar of the tasks of whatever Spark does meanwhile."""
    with bar(what, MofNCompleteColumn(), TextColumn("tasks")) as draw, _watching(spark, draw):
        yield


@contextmanager
def rounds_of(spark: SparkSession, what: str, size: int) -> Iterator[Callable[[int, int], object]]:
    """A bar of bytes, of which Spark takes up to ``size`` at a time; is told how many are done and how many there are.

    While Spark is at it, its tasks say how far it is.
    """
    told = (0, 0)

    def tell(done: int, total: int) -> None:
        nonlocal told
        told = (done, total)
        draw(done, total)

    def guess(tasks: float, of: float) -> None:
        done, total = told
        draw(done + min(size, total - done) * tasks / of, total)

    with bar(what, DownloadColumn()) as draw, _watching(spark, guess):
        yield tell


@contextmanager
def _watching(spark: SparkSession, draw: Callable[[float, float], object]) -> Iterator[None]:
    """Draws how many tasks of the stages that are under way are done, and how many there are."""
    ended = threading.Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(REFRESH):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None and stage.numTasks]
            if known:
                draw(sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
