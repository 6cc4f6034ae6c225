"""Write to a terminal: texts and times that it can show, tables, JSON, and progress bars."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any

import click
import rich.console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fyrehose.options import shown_size

#: Width of a terminal, in columns, from which tables of streams also show times.
WIDE = 100
#: Width of a table that is written to a file or a pipe, in columns.
WIDTH = 160


def escaped(text: str) -> str:
    """Return ``text`` with all unprintable characters escaped, so that a terminal does not interpret them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def moment(time: int) -> str:
    """Format a time in microseconds since 1970 as ISO 8601 in UTC; ``-`` for 0."""
    return datetime.fromtimestamp(time / 1_000_000, UTC).isoformat(timespec="microseconds") if time else "-"


class Console(rich.console.Console):
    """A console that leaves a closed pipe to :class:`fyrehose.cli.program.Program`, whereas Rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        """Raise the :class:`BrokenPipeError` that is being handled."""
        raise  # Rich calls this in its handler of the error.


def terminal() -> Console:
    """Return the console for tables; a file or a pipe gets :data:`WIDTH`, so that nothing is cut off."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDTH)


def table(
    heads: Sequence[str], rows: Iterable[Iterable[str | Text]], right: Collection[str] = (), whole: Collection[str] = ()
) -> Table:
    """Return a table without lines, in which unprintable characters are escaped.

    :param heads: the titles of the columns
    :param right: titles of the columns with numbers, which are aligned to the right
    :param whole: titles of other columns whose texts must not be wrapped
    """
    made = Table(box=None, pad_edge=False)
    for head in heads:
        number = head in right
        made.add_column(head, justify="right" if number else "left", overflow="fold", no_wrap=number or head in whole)
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(escaped(cell)) for cell in row))
    return made


def write_json(*values: Any, indent: int | None = None) -> None:
    """Write each of *values* to standard output as JSON, one a line unless *indent* is given."""
    for value in values:
        click.echo(json.dumps(value, ensure_ascii=False, indent=indent))


class SpeedColumn(ProgressColumn):
    """Column with the speed in KiB or MiB a second; Rich's own counts in powers of 1000."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("?" if speed is None else f"{shown_size(speed)}/s", style="progress.data.speed")


@contextmanager
def bar(what: str, *columns: ProgressColumn) -> Iterator[Callable[[float, float], object]]:
    """Show a bar on standard error during the context, if that is a terminal.

    :param columns: columns of Rich to show between the bar and the elapsed time
    :return: a function to call with the amount done so far, and the total
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    shown = TextColumn("{task.description}"), BarColumn(), *columns, TimeElapsedColumn()
    with Progress(*shown, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def progress_bar(label: str) -> AbstractContextManager[Callable[[float, float], object]]:
    """Show a progress bar for a number of bytes on standard error, if that is a terminal; see :func:`bar`."""
    return bar(label, DownloadColumn(binary_units=True), SpeedColumn())


@contextmanager
def status_line(text: Callable[[], str]) -> Iterator[None]:
    """Show the present value of *text* on standard error during the context, if standard error is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return

    class Line:
        def __rich__(self) -> Text:
            return Text(text(), overflow="ellipsis", no_wrap=True)

    with Live(Line(), console=console, transient=True, refresh_per_second=2):
        yield
