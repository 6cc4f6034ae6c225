"""``fyrehose subscriptions``: list, show, rewind or delete the named subscriptions of a running server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from fyrehose.cli.console import escaped, moment, terminal
from fyrehose.cli.remote import HTTP_URL, RemoteServer
from fyrehose.cli.streams import ListByDefault
from fyrehose.cli.values import FORMAT, Since, remote_options
from fyrehose.options import counted

_of_a_server = remote_options(HTTP_URL, "http")


@click.group(cls=ListByDefault, short_help="Show or rewind positions of consumers that the server keeps.")
def subscriptions() -> None:
    """List, show, rewind or delete the named subscriptions of a running server.

    Without a command, `list` is used: see `fyrehose subscriptions list --help`.

    \b
        fyrehose subscriptions
        fyrehose subscriptions rewind billing --since start
    """


@subscriptions.command("list")
@_of_a_server
@FORMAT
def list_subscriptions(url: str, token_file: Path | None, ca: Path | None, form: str) -> None:
    """List the named subscriptions, those furthest behind first.

    Programs that read the journal's files, such as a backup or an archive, are listed with the bytes that they are
    behind. The access policy must allow `consume`. json: one object a line.

    \b
        fyrehose subscriptions
        fyrehose subscriptions --format json | jq -r .name
    """
    listed = RemoteServer.of(url, token_file, ca, HTTP_URL).subscriptions()
    show(listed, form)


@subscriptions.command("show")
@_of_a_server
@click.argument("name")
def show_one(url: str, token_file: Path | None, ca: Path | None, name: str) -> None:
    """Show one subscription as a JSON object.

    \b
        fyrehose subscriptions show billing
    """
    click.echo(
        json.dumps(RemoteServer.of(url, token_file, ca, HTTP_URL).subscription(name), ensure_ascii=False, indent=2)
    )


@subscriptions.command()
@_of_a_server
@click.option("--since", type=Since(), required=True, help="First record to deliver again: latest, start, or a number.")
@click.option("--stream", metavar="STREAM", help="The only stream to rewind, of a subscription of a pattern.")
@click.argument("name")
def rewind(
    url: str, token_file: Path | None, ca: Path | None, since: int | None, stream: str | None, name: str
) -> None:
    """Set the position of a subscription, backwards or forwards, and disconnect its consumer.

    \b
        fyrehose subscriptions rewind billing --since 1000
        fyrehose subscriptions rewind billing --since start
        fyrehose subscriptions rewind all-logs --stream logs.web --since 1000
    """
    if stream is not None and since is None:
        raise click.UsageError("--stream needs --since with a number, or start")
    server = RemoteServer.of(url, token_file, ca, HTTP_URL)
    shown = server.rewind(name, "latest" if since is None else since, stream)
    if shown.get("kind") == "pattern":
        behind, streams = counted(shown["lag"], "record"), counted(shown["streams"], "stream")
        click.echo(f"subscription {escaped(name)} continues {behind} behind in {streams}")
    else:
        click.echo(f"subscription {escaped(name)} continues behind record {shown['position']}")


@subscriptions.command()
@_of_a_server
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def delete(url: str, token_file: Path | None, ca: Path | None, names: tuple[str, ...]) -> None:
    """Delete subscriptions by name; stop at the first that the server refuses.

    A consumer that comes back creates its subscription again.

    \b
        fyrehose subscriptions delete billing
    """
    server = RemoteServer.of(url, token_file, ca, HTTP_URL)
    for name in names:
        server.delete_subscription(name)
        click.echo(f"subscription {escaped(name)} deleted")


#: The columns of the table, and whether each is aligned to the right.
_COLUMNS = (
    ("subscription", False),
    ("stream", False),
    ("position", True),
    ("behind", True),
    ("oldest", True),
    ("consumer", False),
    ("last used", False),
)


def show(listed: list[dict[str, Any]], form: str) -> None:
    """Write subscriptions as a table, those furthest behind first, or as JSON, one object a line."""
    listed = sorted(listed, key=lambda each: (each["kind"] == "files", -each.get("lag", 0), each["name"]))
    if form == "json":
        for each in listed:
            click.echo(json.dumps(each, ensure_ascii=False))
        return
    if not listed:
        click.echo("fyrehose: there are no named subscriptions, or none that this client may see", err=True)
        return
    table = Table(box=None, pad_edge=False)
    for name, right in _COLUMNS:
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for each in listed:
        table.add_row(*(Text(cell) for cell in _row(each)))
    terminal().print(table)


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    used = moment(each["active"])[:19]
    if each["kind"] == "files":
        return escaped(each["name"]), "(the journal's files)", "", f"{each['behind_bytes']:,} B", "", "", used
    shared = each["kind"] == "shared"
    seconds = (each["oldest_unsettled_seconds"] or None) if shared else each.get("lag_seconds") if each["lag"] else None
    return (
        escaped(each["name"]),
        escaped(each["stream"]),
        _position(each),
        f"{each['lag']:,}",
        "-" if seconds is None else f"{seconds:,.0f} s",
        _consumer(each),
        used,
    )


def _position(each: dict[str, Any]) -> str:
    if each["kind"] == "shared":
        return f"{each['settled_total']:,} settled"
    return counted(each["streams"], "stream") if each["kind"] == "pattern" else str(each["position"])


def _consumer(each: dict[str, Any]) -> str:
    """Return who consumes: of a shared subscription, what its workers have, and what has failed."""
    if each["kind"] != "shared":
        return "connected" if each.get("consumer") else ""
    counts = {"leased": each["in_flight"], "delayed": each["delayed"], "dead": each["dead_total"]}
    state = ["paused"] if each["paused"] else ["window full"] if each["window_full"] else []
    return ", ".join([*state, *(f"{count:,} {what}" for what, count in counts.items() if count)])
