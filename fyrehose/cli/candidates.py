"""Values for shell completion that this installation knows: protocols, rights, and options of the server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem

from fyrehose.errors import FyrehoseError

#: The function that click calls to complete the values of a parameter.
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
#: A function that yields values for the parameter of a command line.
Source = Callable[[click.Context, str], Iterable[str]]


def completed(source: Source) -> Complete:
    """Return a function for click that completes with the values of *source* that begin with the typed text."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(value) for value in source(ctx, incomplete) if value.startswith(incomplete)]

    return complete


def _protocols(ctx: click.Context, incomplete: str) -> Iterator[str]:
    from fyrehose import plugins

    yield from plugins.names()


def _clients(ctx: click.Context, incomplete: str) -> Iterator[str]:
    from fyrehose import plugins
    from fyrehose.interfaces import IClientPlugin

    for name in plugins.names():
        with contextlib.suppress(FyrehoseError):  # a plugin that cannot be loaded must not hide the others
            if IClientPlugin.providedBy(plugins.load(name)):
                yield name


def _rights(ctx: click.Context, incomplete: str) -> Iterator[str]:
    from fyrehose.identity import Action

    yield from (f"{action}=" for action in Action)


def _arguments_of_serve(ctx: click.Context, incomplete: str) -> Iterator[str]:
    from fyrehose import plugins
    from fyrehose.journal.settings import JournalSettings
    from fyrehose.options import options_of, typed
    from fyrehose.server.config import ServerSettings
    from fyrehose.server.logs import FORMATS, LEVEL_NAMES

    before = (ctx.params.get("arguments") or ("",))[-1]
    if before == "--log-format":
        yield from FORMATS
    if before == "--log-level":
        yield from LEVEL_NAMES
    if before == "--durability":
        yield from ("batch", "interval:", "never")
    if before in ("--listen", "-l"):
        yield from (f"{name}={plugins.load(name).default_endpoint}" for name in plugins.names())
    if before in ("--option", "-o"):
        kinds: dict[str, Any] = {"journal": JournalSettings, "server": ServerSettings}
        for scope in (*kinds, *plugins.names()):
            if scope.startswith(incomplete.partition(".")[0]):
                kind = kinds.get(scope) or plugins.load(scope).settings
                yield from (f"{scope}.{typed(field.name)}=" for field in options_of(kind))


class Served(click.Command):
    """The command ``serve``, whose options Twisted parses."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the options of the server that begin with *incomplete*, or values of the last option."""
        from fyrehose.cli.serve import ServeOptions

        if incomplete.startswith("-"):
            names = sorted(f"--{name.rstrip('=')}" for name in ServeOptions().longOpt)
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []


def serve_values(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the completions of the value of an option of ``serve``."""
    before = (ctx.params.get("arguments") or ("",))[-1]
    if before in ("--data-dir", "--rundir", "--chroot"):
        return [CompletionItem(incomplete, type="dir")]
    if before in ("--config", "--policy", "--logfile", "--pidfile"):
        return [CompletionItem(incomplete, type="file")]
    return completed(_arguments_of_serve)(ctx, param, incomplete)


#: Completers of names that this installation knows.
protocols, clients, rights = map(completed, (_protocols, _clients, _rights))
