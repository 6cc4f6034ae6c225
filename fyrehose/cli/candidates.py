"""Values for shell completion that only a server, a journal's files or this installation knows.

Completion must be fast and never shows an error.  If a server does not answer within a second, refuses the request or
fails, there are no values.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from fyrehose.cli.client.values import DEFAULT_URL, HTTP_URL
from fyrehose.errors import FyrehoseError
from fyrehose.options import duration

#: How long completion may take, in seconds, and the environment variable that overrides this time.
PATIENCE_S, WAIT = 1.0, "FYREHOSE_COMPLETION_WAIT"
#: The largest number of values that are offered.
MOST = 200

#: The function that click calls to complete the values of a parameter.
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
#: A function that yields values for the parameter of a command line; values must begin with the typed text.
Source = Callable[[click.Context, str], Iterable[str]]


def completed(source: Source, patience_s: float = PATIENCE_S) -> Complete:
    """Return a function for click that completes with the values of *source*, for at most *patience_s* seconds."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the completions that *source* yields in time, at most MOST."""
        found: list[str] = []

        def collect() -> None:
            with contextlib.suppress(FyrehoseError, OSError):  # completion shows no errors
                for value in source(ctx, incomplete):
                    # The scripts of the shells expect one value a line; control characters would reach the terminal.
                    if value.startswith(incomplete) and value.isprintable():
                        found.append(value)
                    if len(found) == MOST:
                        return

        # Timeouts of the requests do not limit the total time: a server may send slowly, and so may a name server.
        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        thread.join(_patience(patience_s))
        return [CompletionItem(value) for value in found[:MOST]]

    return complete


def _patience(default_s: float) -> float:
    try:
        return duration(os.environ[WAIT])
    except (KeyError, ValueError):  # completion shows no errors
        return default_s


def _streams(ctx: click.Context, incomplete: str) -> Iterator[str]:
    if _url_of(ctx, HTTP_URL) is None:  # --url of this command is that of the admin listener
        yield from (each["name"] for each in _server(ctx, DEFAULT_URL).streams(incomplete, 0, MOST)["listed"])
    elif "*" not in incomplete:
        yield from _server(ctx, HTTP_URL).stream_names(f"{incomplete}*", MOST)


def _subscriptions(ctx: click.Context, incomplete: str) -> Iterator[str]:
    kinds = ("shared",) if ctx.info_name in ("work", "pause", "redrive") else ()
    for each in _server(ctx, HTTP_URL).subscriptions():
        if each["kind"] != "files" and (not kinds or each["kind"] in kinds):
            yield each["name"]


def _server(ctx: click.Context, default: str) -> Any:
    """Return the server that the command line names by --url, --from or --to, or the one at the default address."""
    from fyrehose.cli.client.remote import RemoteServer

    tls = ctx.params.get("tls")
    authorities = ctx.params.get("ca") or (Path(tls.partition(",")[0]) if tls else None)
    url = _url_of(ctx, default) or ctx.params.get("url") or default
    return RemoteServer.of(url, ctx.params.get("token_file"), authorities, default)


def _url_of(ctx: click.Context, default: str) -> str | None:
    """Return the URL of the http listener that the command line names; None if it names an admin listener."""
    from fyrehose.net.several import place_text

    given = {param.name: param for param in ctx.command.params}
    if "url" in given:
        url: str = ctx.params.get("url") or str(given["url"].default)
        return url if given["url"].default == default else None
    (host, port), *_ = ctx.params.get("addresses") or (("127.0.0.1", None),)
    # The port in --from or --to belongs to --protocol, so ask the HTTP listener: all protocols serve the same streams.
    if port is None or ctx.params.get("protocol") not in (None, "http"):
        port = urlsplit(HTTP_URL).port
    return f"http{'s' if ctx.params.get('tls') else ''}://{place_text(host, port)}"


def _journal_streams(ctx: click.Context, incomplete: str) -> Iterator[str]:
    from fyrehose.offline.dump import stream_names

    yield from stream_names(_directory(ctx))


def _journal_subscriptions(ctx: click.Context, incomplete: str) -> Iterator[str]:
    from fyrehose.journal.subscriptions import registered

    yield from (each.name for each in registered(_directory(ctx)))


def _directory(ctx: click.Context) -> Path:
    """Return the directory of the journal that the command line names, or ``data`` if no directory is named yet."""
    # If the last option has no value yet, click leaves all arguments in args.
    return Path(ctx.params.get("directory") or ctx.params.get("source") or next(iter(ctx.args), "data"))


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
    return completed(_arguments_of_serve, 5.0)(ctx, param, incomplete)


#: Completers of names that the server of the command line knows.
streams, subscriptions = completed(_streams), completed(_subscriptions)
#: Completers of names in the journal's files.
journal_streams, journal_subscriptions = completed(_journal_streams), completed(_journal_subscriptions)
#: Completers of names that this installation knows; importing the plugins may take longer.
protocols, clients, rights = (completed(each, 5.0) for each in (_protocols, _clients, _rights))
