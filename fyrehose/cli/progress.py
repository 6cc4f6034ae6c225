"""Progress bars of commands that take long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from fyrehose.options import shown_size


class SpeedColumn(ProgressColumn):
    """Column with the speed in KiB or MiB a second; Rich's own counts in powers of 1000."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("?" if speed is None else f"{shown_size(speed)}/s", style="progress.data.speed")


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], object]]:
    """Show a progress bar on standard error during the context, if that is a terminal.

    :return: a function to call with the bytes that are done, and their total
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), SpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
