"""``fyrehose streams``: list or retire the streams of a running server."""

from __future__ import annotations

import itertools
from typing import Any

import click
from click.shell_completion import CompletionItem

from fyrehose.cli.client.remote import RemoteServer, asks
from fyrehose.cli.client.stats import streams_table, with_rates
from fyrehose.cli.client.values import FORMAT, WholeNumber
from fyrehose.cli.console import WIDE, escaped, terminal, write_json
from fyrehose.errors import FyrehoseError
from fyrehose.options import counted

#: The largest number of streams that the server lists in one response.
PAGE = 1_000


class ListByDefault(click.Group):
    """Command group that runs ``list`` if the first argument names no command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing and not args:  # the shell completes the first word, which may be a command
            return super().parse_args(ctx, args)
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete with the commands and the options of ``list``, which may be given without a command."""
        listing = self.commands["list"]
        options = listing.shell_complete(click.Context(listing, parent=ctx), incomplete)
        both = {item.value: item for item in (*super().shell_complete(ctx, incomplete), *options)}
        return list(both.values())


@click.group(cls=ListByDefault)
def streams() -> None:
    """List or retire the streams of a running server.

    Without a command, `list` is used: see `fyrehose streams list --help`.

    \b
        fyrehose streams
        fyrehose streams orders
        fyrehose streams retire debug.old
    """


@streams.command("list", short_help="List the streams, the busiest first.")
@asks("admin")
@FORMAT
@click.option("--limit", type=WholeNumber(1, 200_000), default=200, show_default=True, help="Most streams to list.")
@click.argument("match", default="")
def list_streams(server: RemoteServer, form: str, limit: int, match: str) -> None:
    """List the streams of a running server whose name contains MATCH, the busiest first.

    json: one object a line.

    \b
        fyrehose streams
        fyrehose streams orders
        fyrehose streams --format json | jq -r .name
    """
    status = with_rates(server, match, min(limit, PAGE))
    listed = status["streams"]["listed"]
    if status["streams"].get("hidden"):
        hidden = counted(status["streams"]["total"], "stream")
        raise FyrehoseError(
            f"the server's access policy hides the names of its {hidden} from this client; "
            'set admin.token-file on the server, or add a rule with network = "127.0.0.1" and subscribe = "*"'
        )
    if limit > PAGE and status["streams"]["matching"] > PAGE:
        listed = _all_streams(server, match)[:limit]
    if form == "json":
        write_json(*listed)
        return
    if match and not listed:
        click.echo(
            f"fyrehose: no stream has a name that contains {match!r}; the match is of a part, without *", err=True
        )
        return
    _show(listed, status["streams"]["matching"])


def _all_streams(server: RemoteServer, match: str) -> list[dict[str, Any]]:
    """Return every stream whose name contains *match*, the busiest first, then by name."""
    found: list[dict[str, Any]] = []
    for page in itertools.count():
        listed = server.streams(match, page, PAGE)["listed"]
        found += listed
        if len(listed) < PAGE:
            break
    return sorted(found, key=lambda stream: (-(stream["rate"] or 0), stream["name"]))


def _show(listed: list[dict[str, Any]], matching: int) -> None:
    console = terminal()
    console.print(streams_table(listed, console.width >= WIDE))
    if matching > len(listed):
        console.print(f"{len(listed):,} of {counted(matching, 'stream')}; raise --limit, or pass a part of the name")


@streams.command(short_help="Retire streams that are not needed any more.")
@asks("http")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def retire(server: RemoteServer, names: tuple[str, ...]) -> None:
    """Retire streams by name; stop at the first that the server refuses.

    A retired stream is no longer listed or served, and counts against no limit. Its records are deleted together with
    the segments that contain them. If a client publishes to the name again, numbering continues. The access policy must
    allow `administer`.

    \b
        fyrehose streams retire debug.old debug.older
        fyrehose streams retire --url https://logs:8117 --token-file t debug.old
    """
    for name in names:
        server.retire(name)
        click.echo(f"stream {escaped(name)} retired")
