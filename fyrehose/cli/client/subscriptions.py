"""``fyrehose subscriptions``: list, show, rewind or delete the named subscriptions of a running server."""

from __future__ import annotations

from typing import Any

import click

from fyrehose.cli.client.remote import RemoteServer, asks
from fyrehose.cli.client.streams import ListByDefault
from fyrehose.cli.client.values import DURATION, FORMAT, SINCE, WholeNumber
from fyrehose.cli.console import escaped, moment, table, terminal, write_json
from fyrehose.options import counted
from fyrehose.records import LAST_SEQ

_of_a_server = asks("http")
_NAME = click.argument("name")


@click.group(cls=ListByDefault, short_help="Show or rewind positions of consumers that the server keeps.")
def subscriptions() -> None:
    """List, show, create, rewind, pause or delete the named subscriptions of a running server.

    Without a command, `list` is used: see `fyrehose subscriptions list --help`.

    \b
        fyrehose subscriptions
        fyrehose subscriptions rewind billing --since start
    """


@subscriptions.command("list")
@_of_a_server
@FORMAT
def list_subscriptions(server: RemoteServer, form: str) -> None:
    """List the named subscriptions, those furthest behind first.

    Programs that read the journal's files, such as a backup or an archive, are listed with the bytes that they are
    behind. The access policy must allow `consume`. json: one object a line.

    \b
        fyrehose subscriptions
        fyrehose subscriptions --format json | jq -r .name
    """
    listed = server.subscriptions()
    show(listed, form)


@subscriptions.command("show")
@_of_a_server
@_NAME
def show_one(server: RemoteServer, name: str) -> None:
    """Show one subscription as a JSON object.

    \b
        fyrehose subscriptions show billing
    """
    write_json(server.subscription(name), indent=2)


@subscriptions.command(short_help="Create a shared subscription.")
@_of_a_server
@click.option("--stream", required=True, metavar="NAME", help="Stream, or pattern.")
@click.option("--lease", type=DURATION, help="How long a worker has a record.  [default: 30s]")
@click.option("--limit", type=WholeNumber(0, 1_000), help="Failures until a dead letter; 0: no limit.  [default: 5]")
@click.option("--dead", metavar="STREAM", help="Stream of dead letters; none: only count.")
@click.option("--window", type=WholeNumber(1, 100_000), help="Most open records.  [default: 1000]")
@click.option("--key", metavar="KEY", help="Keep order by topic, producer or JSON member.")
@click.option("--since", type=SINCE, default="start", show_default=True, help="First record, or time.")
@click.argument("name")
def create(server: RemoteServer, stream: str, since: int | str | None, name: str, **options: Any) -> None:
    """Create a shared subscription, whose records several workers share.

    The command may be repeated, but other options for the same name are refused.

    \b
        fyrehose subscriptions create billing --stream orders --dead orders.dead
        fyrehose subscriptions create by-user --stream events --key user
    """
    fields: dict[str, Any] = {each: value for each, value in options.items() if value is not None}
    if "lease" in fields:
        fields["lease"] = round(fields["lease"])
    begin = LAST_SEQ if since is None else since + 1 if isinstance(since, int) else since
    fields |= {"match" if "*" in stream else "stream": stream, "from": begin}
    server.create_shared(name, fields)
    click.echo(f"shared subscription {escaped(name)} of {escaped(stream)} is there")


@subscriptions.command(short_help="Lease no more records, or lease them again.")
@_of_a_server
@click.option("--resume", is_flag=True, help="Lease records again.")
@_NAME
def pause(server: RemoteServer, resume: bool, name: str) -> None:
    """Lease no more records of a shared subscription, for example while a database is down.

    Records that workers have can still be settled.

    \b
        fyrehose subscriptions pause billing
        fyrehose subscriptions pause billing --resume
    """
    server.act(name, "pause", {"paused": not resume})
    click.echo(f"subscription {escaped(name)} {'leases records again' if resume else 'is paused'}")


@subscriptions.command(short_help="Publish dead letters to their streams again.")
@_of_a_server
@_NAME
def redrive(server: RemoteServer, name: str) -> None:
    """Publish the dead letters of a shared subscription to their streams again, each once.

    \b
        fyrehose subscriptions redrive billing
    """
    total, left = 0, 1
    while left:
        answer = server.act(name, "redrive", {})
        total, left = total + answer["redriven"], answer["left"]
    click.echo(f"{counted(total, 'dead letter')} of subscription {escaped(name)} published again")


@subscriptions.command()
@_of_a_server
@click.option("--since", type=SINCE, required=True, help="First record to deliver again, or time.")
@click.option(
    "--stream",
    metavar="STREAM",
    help="The only stream to rewind, of a subscription of a pattern.",
)
@_NAME
def rewind(server: RemoteServer, since: int | str | None, stream: str | None, name: str) -> None:
    """Set the position of a subscription, backwards or forwards, and disconnect its consumer.

    \b
        fyrehose subscriptions rewind billing --since 1000
        fyrehose subscriptions rewind billing --since -1h
        fyrehose subscriptions rewind all-logs --stream logs.web --since 1000
    """
    if stream is not None and since is None:
        raise click.UsageError("--stream needs --since with a number, or start")
    if isinstance(since, str) and stream is not None:
        since = server.before(stream, since)
    seq = "latest" if since is None else since
    place = {"since" if isinstance(since, str) else "seq": seq}
    shown = server.act(name, "rewind", place if stream is None else {"positions": {stream: seq}})
    if shown.get("kind") == "shared":
        click.echo(f"subscription {escaped(name)} continues with {counted(shown['lag'], 'record')} to lease")
    elif shown.get("kind") == "pattern":
        behind, streams = counted(shown["lag"], "record"), counted(shown["streams"], "stream")
        click.echo(f"subscription {escaped(name)} continues {behind} behind in {streams}")
    else:
        click.echo(f"subscription {escaped(name)} continues behind record {shown['position']}")


@subscriptions.command()
@_of_a_server
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def delete(server: RemoteServer, names: tuple[str, ...]) -> None:
    """Delete subscriptions by name; stop at the first that the server refuses.

    A consumer that comes back creates its subscription again.

    \b
        fyrehose subscriptions delete billing
    """
    for name in names:
        server.delete_subscription(name)
        click.echo(f"subscription {escaped(name)} deleted")


_COLUMNS = ("subscription", "stream", "position", "behind", "oldest", "consumer", "last used")


def show(listed: list[dict[str, Any]], form: str) -> None:
    """Write subscriptions as a table, those furthest behind first, or as JSON, one object a line."""
    listed = sorted(listed, key=lambda each: (each["kind"] == "files", -each.get("lag", 0), each["name"]))
    if form == "json":
        write_json(*listed)
        return
    if not listed:
        click.echo("fyrehose: there are no named subscriptions, or none that this client may see", err=True)
        return
    terminal().print(table(_COLUMNS, map(_row, listed), right=("position", "behind", "oldest")))


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    used = moment(each["active"])[:19]
    if each["kind"] == "files":
        return each["name"], "(the journal's files)", "", f"{each['behind_bytes']:,} B", "", "", used
    shared = each["kind"] == "shared"
    seconds = (
        (each.get("oldest_unsettled_seconds") or None) if shared else each.get("lag_seconds") if each["lag"] else None
    )
    return (
        each["name"],
        each["stream"],
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
    """Return the consumer; for a shared subscription, the numbers of leased and of failed records."""
    if each["kind"] != "shared":
        return "connected" if each.get("consumer") else ""
    counts = {"leased": each.get("in_flight", 0), "delayed": each.get("delayed", 0), "dead": each["dead_total"]}
    state = ["paused"] if each["paused"] else ["window full"] if each.get("window_full") else []
    return ", ".join([*state, *(f"{count:,} {what}" for what, count in counts.items() if count)])
