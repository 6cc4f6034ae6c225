"""The console on which commands print tables."""

from __future__ import annotations

import os

import rich.console

#: Width of a table that is written to a file or a pipe, in columns.
WIDTH = 160


class Console(rich.console.Console):
    """A console that leaves a closed pipe to :class:`fyrehose.cli.program.Program`, where Rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        """Raise the :class:`BrokenPipeError` that is being handled."""
        raise  # Rich calls this in its handler of the error.


def terminal() -> Console:
    """Return the console for tables; a file or a pipe gets :data:`WIDTH`, so that nothing is cut off."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDTH)
