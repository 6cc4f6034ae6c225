"""``fyrehose streams``: list the streams of a running server, and retire some of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import click

from fyrehose.cli.asking import HTTP_URL, Asker
from fyrehose.cli.journal import escaped
from fyrehose.cli.listing import terminal
from fyrehose.cli.watching import of_a_server, streams_table, with_rates
from fyrehose.errors import FyrehoseError

#: Streams that the server lists in one answer, at the most.
PAGE = 1_000


class ListByDefault(click.Group):
    """A group that lists when none of its commands is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ListByDefault)
def streams() -> None:
    """List the streams of a running server, or retire some.

    Without a command they are listed: see `fyrehose streams list --help`.

    \b
        fyrehose streams
        fyrehose streams orders
        fyrehose streams retire debug.old
    """


@streams.command("list")
@of_a_server
@click.option("--limit", type=click.IntRange(1, 200_000), default=200, show_default=True, help="So many at the most.")
@click.argument("match", default="")
def list_streams(url: str, token_file: Path | None, ca: Path | None, form: str, limit: int, match: str) -> None:
    """List the streams of a running server, or those whose name has MATCH in it.

    The busiest come first.  json: an object a line.

    \b
        fyrehose streams
        fyrehose streams orders
        fyrehose streams --format json | jq -r .name
    """
    asker = Asker.of(url, token_file, ca)
    status = with_rates(asker, match, min(limit, PAGE))
    listed = status["streams"]["listed"]
    if status["streams"].get("hidden"):
        raise FyrehoseError(
            f"the server's policy does not let us see the names of its {status['streams']['total']} streams: "
            'give it admin.token-file, or a rule with network = "127.0.0.1" and subscribe = "*"'
        )
    if limit > PAGE and status["streams"]["matching"] > PAGE:
        listed = _all_streams(asker, match)[:limit]
    if form == "json":
        for stream in listed:
            click.echo(json.dumps(stream, ensure_ascii=False))
        return
    _show(listed, status["streams"]["matching"])


def _all_streams(asker: Asker, match: str) -> list[dict[str, Any]]:
    """Return every stream whose name has *match* in it, the busiest first, then by name."""
    found: list[dict[str, Any]] = []
    for page in itertools.count():
        listed = asker.streams(match, page, PAGE)["listed"]
        found += listed
        if len(listed) < PAGE:
            break
    return sorted(found, key=lambda stream: (-(stream["rate"] or 0), stream["name"]))


def _show(listed: list[dict[str, Any]], matching: int) -> None:
    console = terminal()
    console.print(streams_table(listed))
    if matching > len(listed):
        console.print(f"{len(listed)} of {matching}; see --limit, or say a part of the name")


@streams.command()
@click.option("--url", default=HTTP_URL, show_default=True, metavar="URL", help="The server's http listener.")
@click.option("--token-file", type=click.Path(path_type=Path), help="The token that it wants, if it does.")
@click.option("--ca", type=click.Path(path_type=Path), help="PEM file: who issued its certificate (https).")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def retire(url: str, token_file: Path | None, ca: Path | None, names: tuple[str, ...]) -> None:
    """Retire the streams called NAME, one after the other, until the server refuses one.

    A retired stream is not listed or served any more, and counts against no limit; its records go with the segments
    that they are in. If somebody publishes to the name again, its numbers go on. The policy has to allow `administer`.

    \b
        fyrehose streams retire debug.old debug.older
        fyrehose streams retire --url https://logs:8117 --token-file t debug.old
    """
    asker = Asker.of(url, token_file, ca, HTTP_URL)
    for name in names:
        asker.retire(name)
        click.echo(f"stream {escaped(name)} is retired")
