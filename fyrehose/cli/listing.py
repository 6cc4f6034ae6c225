"""``fyrehose protocols``: print the protocols and their options as tables."""

from __future__ import annotations

import os
from collections.abc import Sequence

import attrs
from rich.console import Console
from rich.table import Table

from fyrehose import plugins

#: Width of a table that is written to a file or a pipe, in columns.
WIDTH = 160


def terminal() -> Console:
    """Return the console for tables; a file or a pipe gets :data:`WIDTH`, so that nothing is cut off."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDTH)


def show(names: Sequence[str], details: bool) -> None:
    """Print one line for each protocol in ``names``, and with ``details`` the options of each."""
    console = terminal()
    listeners = Table("protocol", "default endpoint", "description", box=None, pad_edge=False)
    for name in names:
        plugin = plugins.load(name)
        listeners.add_row(name, plugin.default_endpoint, plugin.description)
    console.print(listeners)
    for name in names if details else ():
        options = Table("option", "default", "description", box=None, pad_edge=False)
        for field in attrs.fields(plugins.load(name).settings):
            default = getattr(plugins.load(name).settings(), field.name)
            options.add_row(f"{name}.{field.name.replace('_', '-')}", _shown(default), field.metadata["help"])
        console.print()
        console.print(options)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "-"
    return "-" if value is None or value == "" else str(value)
