"""Output of a job: a progress bar while it runs, a table at its end, or one line for an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.progress import DownloadColumn, MofNCompleteColumn, TextColumn
from rich.table import Table
from rich.text import Text

from fyrehose.cli.console import Console, bar
from fyrehose.errors import ConfigError, FyrehoseError, MissingExtra
from fyrehose.imports import SPARK
from fyrehose.spark.failures import own_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Interval at which a bar is updated, in seconds.
REFRESH = 0.25
#: The largest number of rows of a table that are shown.
ROWS = 50
#: Width of a table that is written to a file or a pipe, in columns.
WIDE = 240

#: Exceptions that Spark raises for invalid SQL.
_MISTAKES = ("AnalysisException", "ParseException")


def in_a_line(error: Exception) -> FyrehoseError | None:
    """Return an error as one line for the user; None if it is a bug, whose traceback should be shown."""
    if isinstance(error, FyrehoseError):
        return error
    if isinstance(error, OSError) and error.filename is not None:  # for example: no permission to write the lake
        return FyrehoseError(f"{error.filename}: {error.strerror}")
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("fyrehose"):
        return MissingExtra(f"{error.name} is not installed: {SPARK.command}")
    ours = own_error(error)
    if ours is None and type(error).__name__ in _MISTAKES:
        return ConfigError(str(error).strip().splitlines()[0])
    return ours


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], console: Console | None = None) -> None:
    """Print a table with its title, or the title alone if there are no rows.

    Columns of numbers are aligned to the right.  Characters that a terminal would interpret are escaped.
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
def tasks_of(spark: SparkSession, what: str) -> Iterator[None]:
    """Show a bar of the tasks that Spark runs during the context."""
    with bar(what, MofNCompleteColumn(), TextColumn("tasks")) as draw, _watching(spark, draw):
        yield


@contextmanager
def rounds_of(spark: SparkSession | None, what: str, size: int) -> Iterator[Callable[[int, int], object]]:
    """Show a bar of bytes that Spark processes in rounds of up to ``size``; yields a function of bytes done and total.

    During a round, the bar advances by the fraction of its tasks that are complete.
    """
    progress = (0, 0)

    def update(done: int, total: int) -> None:
        nonlocal progress
        progress = (done, total)
        draw(done, total)

    def estimate(tasks: float, of: float) -> None:
        done, total = progress
        draw(done + min(size, total - done) * tasks / of, total)

    with bar(what, DownloadColumn(binary_units=True)) as draw, _watching(spark, estimate) if spark else nullcontext():
        yield update


@contextmanager
def _watching(spark: SparkSession, draw: Callable[[float, float], object]) -> Iterator[None]:
    """Call ``draw`` regularly with the completed tasks of Spark's active stages, and their total."""
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
