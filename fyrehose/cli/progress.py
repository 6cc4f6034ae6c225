"""Progress bars of commands that take long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from fyrehose.options import shown_size


class SpeedColumn(ProgressColumn):
    """Column with the speed in KiB or MiB a second; Rich's own counts in powers of 1000."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("?" if speed is None else f"{shown_size(speed)}/s", style="progress.data.speed")


@contextmanager
def bar(what: str, *columns: ProgressColumn) -> Iterator[Callable[[float, float], object]]:
    """Show a bar on standard error during the context, if that is a terminal.

    :param columns: are shown between the bar and the time that has passed
    :return: a function to call with the amount that is done, and the total
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
    """Show a bar of bytes, as :func:`bar` does."""
    return bar(label, DownloadColumn(binary_units=True), SpeedColumn())
