"""``fyrehose stats`` and ``top``: show the status of a running server as tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fyrehose.cli.client.remote import RemoteServer, asks
from fyrehose.cli.client.values import FORMAT, WholeNumber
from fyrehose.cli.console import WIDE, escaped, table, terminal, write_json
from fyrehose.net.clients import Backoff, ServerUnavailable
from fyrehose.options import shown_size

#: Titles of the columns with text, besides the first column.
_TEXTS = ("stream", "cause", "event", "endpoint", "encryption", "access", "state", "agent")
#: Width from which the table of protocols has all columns.
ALL_COLUMNS = 110
#: The longest time until the disk is full that is shown, in seconds; a longer forecast would be meaningless.
YEAR = 365 * 86_400
#: How long to wait for rates, in seconds: the server knows a rate one second after the first request for it.
SECOND = 1.1


@click.command()
@asks("admin")
@FORMAT
def stats(server: RemoteServer, form: str) -> None:
    """Show the status of a running server.

    Shows the journal, protocols, listeners, writers of lumberjack, refused requests, other events that are counted, and
    subscribers. json: the whole status as one object.

    \b
        fyrehose stats
        fyrehose stats --format json | jq .journal.state
        fyrehose stats --url https://10.0.0.5:8118 --token-file token --ca ca.pem
    """
    if form == "json":
        write_json(with_rates(server))
    else:
        terminal().print(Group(*_overview(with_rates(server), everything=True)))


@click.command()
@asks("admin")
@FORMAT
@click.option(
    "--interval", type=click.FloatRange(0.5, 3600), default=1.0, show_default=True, help="Seconds between updates."
)
@click.option("--count", type=WholeNumber(1), help="Stop after this many updates.")
def top(server: RemoteServer, form: str, interval: float, count: int | None) -> None:
    """Watch a running server until Ctrl-C.

    Shows rates, the busiest streams, and the subscribers that are furthest behind. json: the whole status, one object a
    line for each update.

    \b
        fyrehose top
        fyrehose top --format json --count 60 | jq '.protocols[].published_rate'
    """
    console = terminal()
    try:
        if form == "json":
            for status in _statuses(server, 200, interval, count, lambda why: click.echo(f"fyrehose: {why}", err=True)):
                write_json(status)
            return
        with Live(console=console, auto_refresh=False, screen=console.is_terminal and count is None) as live:
            for status in _statuses(server, 50, interval, count, lambda why: live.update(Text(why), refresh=True)):
                live.update(_top(status, console.height), refresh=True)
    except KeyboardInterrupt:
        return


def _statuses(
    server: RemoteServer, limit: int, interval: float, count: int | None, report: Callable[[str], object]
) -> Iterator[dict[str, Any]]:
    """Yield the server's status *count* times, one each *interval* seconds; without a count, for ever.

    :param limit: list this many streams and subscribers at most
    :param report: called with the reason when a server that has answered does not answer any more
    :raises FyrehoseError: the server refuses, or has never answered
    """
    done, failures, problem, backoff = 0, 0, "", Backoff()
    while done != count:
        try:
            status = server.status(limit=limit)
        except ServerUnavailable as error:
            if not done:
                raise
            if str(error) != problem:
                problem = str(error)
                report(f"{problem}; retrying")
            failures += 1
            time.sleep(max(error.retry_after, interval, backoff(failures)))
            continue
        done, failures, problem = done + 1, 0, ""
        yield status
        time.sleep(interval if done != count else 0)


def with_rates(server: RemoteServer, match: str = "", limit: int = 200) -> dict[str, Any]:
    """Return the server's status; wait for a second and repeat the request if it has no rates yet."""
    status = server.status(match, limit)
    if any(stream["rate"] is None for stream in status["streams"]["listed"]):
        time.sleep(SECOND)
        status = server.status(match, limit)
    return status


def _top(status: dict[str, Any], height: int) -> RenderableType:
    parts = _overview(status, everything=False)
    room = max(3, (height - 14 - len(status["protocols"])) // 2)
    parts += [Text(), streams_table(status["streams"]["listed"][:room], terminal().width >= WIDE)]
    behind = [each for each in status["subscribers"]["listed"] if each["lag"] or each["paused"]][:room]
    if behind:
        parts += [Text(), _subscribers(behind)]
    return Group(*parts)


def _overview(status: dict[str, Any], everything: bool) -> list[RenderableType]:
    journal, memory, found = status["journal"], status["memory"], status["subscribers"]
    state = journal["state"]
    head = Text.assemble(
        f"fyrehose {status['version']} on {escaped(status['host'])}, up {_time(status['uptime'])}, ",
        ("journal " + state, "green" if state == "writable" else "bold red"),
        f", durability {journal.get('durability', 'unknown')}",
    )
    commits = f"commits: half within {_time(journal['commit_p50'])}, 99% within {_time(journal['commit_p99'])}"
    disk = f"journal {_size(journal.get('size'))}, free disk {_size(journal.get('free'))}"
    if journal.get("full_in") is not None:
        full_in = journal["full_in"]
        disk += f", full in {_time(full_in) if full_in <= YEAR else 'more than a year'}"
    lines: list[RenderableType] = [
        head,
        *([Text(f"cluster: {escaped(journal['cluster']['summary'])}")] if "cluster" in journal else []),
        Text(commits),
        Text(disk),
        Text(f"memory {_size(memory['resident'])}; longest pause of the server {_time(status['reactor']['lag'])}"),
        Text(f"streams: {status['streams']['total']}; subscribers: {found['total']}, at most {found['lag']} behind"),
        Text(),
        _protocols(status["protocols"], terminal().width),
    ]
    if everything and status.get("listeners"):
        lines += [Text(), _listeners(status["listeners"])]
    if everything and status.get("writers", {}).get("listed"):
        lines += [Text(), _writers(status["writers"]["listed"])]
    if everything and status["refusals"]:
        rows = ((each["protocol"], each["cause"], _count(each["count"])) for each in status["refusals"])
        lines += [Text(), _table(("refused by", "cause", "count"), rows)]
    if everything and status["events"]:
        rows = ((each["protocol"], each["event"], _count(each["count"])) for each in status["events"])
        lines += [Text(), _table(("counted by", "event", "count"), rows)]
    if everything and found["listed"]:
        lines += [Text(), _subscribers(found["listed"])]
    return lines


def _protocols(protocols: list[dict[str, Any]], width: int) -> Table:
    columns: list[tuple[str, str, Callable[[float | None], str]]] = [
        ("clients", "connections", _count),
        ("publishers", "publishers", _count),
        ("subscribers", "subscribers", _count),
        ("published\n/s", "published_rate", _count),
        ("published\nsize/s", "published_bytes_rate", _size),
        ("published", "published_messages", _count),
        ("99%\nwithin", "acknowledge_p99", _time),
        ("delivered\n/s", "delivered_rate", _count),
        ("delivered", "delivered_messages", _count),
        ("refused", "refused", _count),
    ]
    # A narrow terminal has no room for some columns; the JSON format has all.
    if width < ALL_COLUMNS:
        columns = [column for column in columns if column[1] != "delivered_messages"]
    if width < WIDE:
        narrow = ("connections", "publishers", "subscribers", "published_rate", "acknowledge_p99", "delivered_rate")
        columns = [column for column in columns if column[1] in narrow]
    rows = ((each["name"], *(shown(each[key]) for _, key, shown in columns)) for each in protocols)
    return _table(("protocol", *(heading for heading, _, _ in columns)), rows)


def _listeners(listeners: list[dict[str, Any]]) -> Table:
    rows = (
        (each["name"], each["endpoint"], each["encryption"] or "none", each["access"], _count(each["connections"]))
        for each in listeners
    )
    return _table(("listener", "endpoint", "encryption", "access", "client\nconnections"), rows)


def _writers(listed: list[dict[str, Any]]) -> Table:
    rows = (
        (
            each["name"],
            each["agent"],
            *(_count(each[key]) for key in ("connections", "rate", "events")),
            _time(each["acknowledged_ago"]),
            *(_count(each[key]) for key in ("refused", "missed")),
        )
        for each in listed
    )
    heads = ("connections", "events\n/s", "events", "last\nACK", "refused", "without\na route")
    return _table(("writer", "agent", *heads), rows)


def streams_table(listed: list[dict[str, Any]], wide: bool = False) -> Table:
    """Return a table of streams in the order in which the server lists them.

    :param wide: also show sizes and ages, for which an 80-column terminal has no room
    """
    more = ("published\nsize/s", "size", "oldest", "newest") if wide else ()
    rows = []
    for each in listed:
        numbers = [str(each["first"]), str(each["last"]), _count(each["rate"])]
        if wide:
            numbers += [_size(each["bytes_rate"]), _size(each["bytes"])]
            numbers += [_time(each["oldest_age"]), _time(each["newest_age"])]
        rows.append((each["name"], *numbers, _count(each["subscribers"])))
    return _table(("stream", "first", "last", "published\n/s", *more, "subscribers"), rows)


def _subscribers(listed: list[dict[str, Any]]) -> Table:
    rows = (
        (f"{each['protocol']} {each['peer']}", each["stream"], str(each["position"]), _count(each["lag"]), _state(each))
        for each in listed
    )
    return _table(("subscriber", "stream", "position", "behind", "state"), rows)


def _state(subscriber: Mapping[str, Any]) -> str:
    """Return the state of a *subscriber*; if it does not read, with the time until the server disconnects it."""
    left = subscriber.get("closes_in")
    if not subscriber["paused"]:
        return ""
    return "waits for the client" if left is None else f"does not read, disconnected in {left:.0f} s"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a narrow table, whose first column is not wrapped; columns with numbers are aligned to the right."""
    made = table(heads, rows, right=[head for head in heads[1:] if head not in _TEXTS], whole=heads[:1])
    made.collapse_padding = True
    return made


def _count(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.1f}" if number < 10 and number % 1 else f"{number:,.0f}"


def _size(number: float | None) -> str:
    return "-" if number is None else shown_size(number)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    days, rest = divmod(int(seconds), 86_400)
    hours, minutes = rest // 3600, rest % 3600 // 60
    parts = ((days, "d"), (hours, "h")) if days else ((hours, "h"), (minutes, "min"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)
