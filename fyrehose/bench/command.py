"""What ``fyrehose bench`` does: runs cases one after the other, and shows the table."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

from fyrehose.bench import results, runner, servers, usage
from fyrehose.bench.cases import CASES, Case, selected
from fyrehose.bench.results import Measured
from fyrehose.bench.table import table
from fyrehose.errors import FyrehoseError

#: Columns of a table that goes to a file.
WIDTH = 160


class NoSuchCase(FyrehoseError):
    """No case has such a name."""


def choose(patterns: Sequence[str]) -> list[Case]:
    """The cases that ``patterns`` name; all of them if there are none.

    :raises NoSuchCase: a pattern names nothing
    """
    for pattern in patterns:
        if not selected([pattern]):
            raise NoSuchCase(f"no case is called {pattern!r}; see `fyrehose bench --list`")
    return selected(patterns) if patterns else list(CASES)


def show_list(cases: Sequence[Case]) -> None:
    """A line for each case."""
    found = Table(
        "case", "bytes", "messages", "publishers", "subscribers", "window", "target", box=None, pad_edge=False
    )
    for case in cases:
        target = f"{case.target:g} us" if case.target else ""
        numbers = (case.size, case.messages, case.publishers, case.subscribers, case.window)
        found.add_row(case.name, *map(str, numbers), target)
    terminal().print(found)


def measure(
    cases: Sequence[Case], directory: Path, rounds: int, scale: float, durability: str
) -> tuple[list[Measured], list[str]]:
    """Run ``cases`` and show the table: what was measured, and which cases could not be, and why."""
    console = terminal()
    console.print(machine(durability))
    measured: list[Measured] = []
    failed: list[str] = []
    with console.status("") as status:
        for case in cases:
            told = partial(_tell, status, case.name)
            try:
                measured += runner.run(
                    case.scaled(scale), [servers.FYREHOSE], directory / "servers", rounds, durability, told
                )
            except FyrehoseError as error:
                failed.append(f"{case.name}: {error}")
    console.print(table(measured))
    console.print(f"load average afterwards: {usage.load()[0]:.2f}")
    for trouble in failed:
        console.print(trouble, style="red", markup=False)
    return measured, failed


def terminal() -> Console:
    """Where tables go; a file has no width of its own."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def _tell(status: Status, case: str, what: str) -> None:
    status.update(f"{case}: {what}")


def machine(durability: str) -> str:
    """Where and with what this was measured."""
    return (
        f"fyrehose {servers.FYREHOSE.version()}, durability {durability}; Python {platform.python_version()}, "
        f"Linux {platform.release()}, {os.cpu_count()} cores, load average before: {usage.load()[0]:.2f}"
    )


def report(measured: Sequence[Measured]) -> dict[str, Any]:
    """All of it, for a file."""
    return {"machine": machine("batch"), "results": results.as_json(measured)}
