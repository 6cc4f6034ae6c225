"""``fyrehose protocols``: print the protocols and their options as tables."""

from __future__ import annotations

import attrs
import click

from fyrehose import plugins
from fyrehose.cli import candidates
from fyrehose.cli.console import table, terminal
from fyrehose.imports import SPARK
from fyrehose.options import options_of, shown_value, typed


@click.command()
@click.argument("names", nargs=-1, shell_complete=candidates.protocols)
def protocols(names: tuple[str, ...]) -> None:
    """List the protocols, where they listen, and their options.

    \b
        fyrehose protocols
        fyrehose protocols figg
    """
    console = terminal()
    listeners, missing = [], []
    for name in names or plugins.names():
        plugin = plugins.load(name)
        listeners.append((name, plugin.default_endpoint, plugin.description))
        if extra := plugins.missing_extra(plugin):
            missing.append(extra.missing(name))
    if not names and not SPARK.installed:
        missing.append(SPARK.missing("fyrehose-spark"))
    console.print(table(("protocol", "default endpoint", "description"), listeners))
    if missing:
        console.print("\nnot installed:", highlight=False)
    for line in missing:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    for name in names:
        options = []
        kind = plugins.load(name).settings
        defaults = attrs.asdict(kind(), recurse=False)
        for field in options_of(kind):
            shown = shown_value(field, defaults[field.name])
            options.append((f"{name}.{typed(field.name)}", shown, field.metadata["help"]))
        console.print()
        console.print(table(("option", "default", "description"), options))
