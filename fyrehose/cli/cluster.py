"""``fyrehose cluster``: show the servers of a cluster, and the log that they share.

Each server reports its state to the others four times a second through NATS; this command listens to these messages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import click

from fyrehose.cli.console import table, terminal, write_json
from fyrehose.cli.values import DURATION, FORMAT
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.imports import NATS
from fyrehose.observe.meters import MemberStatus
from fyrehose.options import counted
from fyrehose.replication.overview import parsed
from fyrehose.replication.settings import ReplicationSettings, server_name
from fyrehose.replication.stream import nodes_of, say_subject_of, stream_of

#: How long the command listens, in seconds: each server sends several messages in that time.
LISTEN = 1.5
#: How long NATS may take to answer, in seconds.
NATS_TIMEOUT_S = 5.0
#: How long a NATS server may take to say its name, in seconds.
REACH_S = 2.0
#: The port of a NATS server whose address has none.
NATS_PORT = 4222


@attrs.frozen
class NatsServer:
    """A NATS server: its address, its name, and whether it answers.

    :ivar address: host and port
    """

    address: str
    alive: bool
    name: str = ""
    version: str = ""


@attrs.frozen
class Survey:
    """The answers of a cluster: its servers, and its shared log.

    :ivar servers: the last message of each server, in the order of their names
    :ivar log: first and last number, bytes and replicas of the shared log; None if JetStream does not answer
    :ivar nats: the NATS servers, in the order of the configuration
    :ivar why: the error of NATS in place of an answer about the shared log
    """

    servers: list[dict[str, Any]]
    log: dict[str, Any] | None
    nats: list[NatsServer] = attrs.field(factory=list)
    why: str = ""


@click.group(short_help="Show the servers of a cluster, and change its members.")
def cluster() -> None:
    """Show the state of a cluster of servers, or change its members, see docs/cluster.md.

    \b
        fyrehose cluster status --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster status --nats nats://10.0.0.1:4222
    """


def of_a_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a cluster to a command; the command's function gets its ``settings``."""

    @wraps(command)
    def run(*args: Any, config: Path | None, urls: tuple[str, ...], name: str, **values: Any) -> Any:
        NATS.require("this command")
        return command(*args, settings=settings_of(config, urls, name), **values)

    for option in (
        click.option("--cluster", "name", default="", help="Name of the cluster, with --nats.  [default: fyrehose]"),
        click.option("--nats", "urls", multiple=True, metavar="URL", help="Address of a NATS server; may be repeated."),
        click.option(
            "--config", type=click.Path(path_type=Path), help="Configuration file of a server of the cluster."
        ),
    ):
        run = option(run)
    return run


@cluster.command()
@of_a_cluster
@FORMAT
def status(settings: ReplicationSettings, form: str) -> None:
    """Show which server leads, how far behind the others are, and which are silent.

    The status is 1 whenever messages are refused: no server leads, the leader refuses them, or JetStream does not
    answer.

    \b
        fyrehose cluster status --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster status --nats nats://10.0.0.1:4222 --format json
    """
    found = asyncio.run(survey(settings))
    if form == "json":
        write_json(attrs.asdict(found))
    else:
        _show(found)
    if why := refusal(found):
        raise FyrehoseError(why)


@cluster.command()
@of_a_cluster
@click.option("--name", "only_name", is_flag=True, help="Print the name of the server instead of its address.")
@click.option("--wait", type=DURATION, default="60s", show_default=True, help="How long to wait for a leader.")
def leader(settings: ReplicationSettings, only_name: bool, wait: float) -> None:
    """Print the address of the server that leads; wait until one does.

    \b
        fyrehose cluster leader --config fyrehose.toml
    """
    found = asyncio.run(survey(settings, wait, leading))
    heard = leader_of(found.servers)
    if heard is None:
        raise FyrehoseError(f"no server leads: none has reported that within {wait:g} s; see: fyrehose cluster status")
    if not only_name and not heard.get("address"):
        raise FyrehoseError(f"server {heard['name']} leads, and its configuration has no address in [replication]")
    click.echo(heard["name"] if only_name else heard["address"])


def leading(said: dict[str, Any]) -> bool:
    """Return whether the message *said* comes from a server that leads, and is not about to leave."""
    return said.get("state") == "leader" and not said.get("leaving")


def settings_of(config: Path | None, urls: tuple[str, ...], name: str) -> ReplicationSettings:
    """Return the settings of the table [replication] of file *config*, or those that *urls* and *name* give.

    :raises ConfigError: both *config* and *urls* are given, or neither; or the file has no such table
    """
    if (config is None) == (not urls):
        raise ConfigError("pass either --config FILE or --nats URL")
    if config is None:
        return ReplicationSettings(servers=urls, cluster=name or "fyrehose")
    from fyrehose.server.config import read_file  # Other commands start sooner without the configuration of servers.

    settings = read_file(config).replication
    if settings is None:
        raise ConfigError(f"{config} has no table [replication]: its server is alone")
    return settings


async def survey(
    settings: ReplicationSettings, seconds: float = LISTEN, until: Callable[[dict[str, Any]], bool] = lambda said: False
) -> Survey:
    """Listen to the messages of a cluster's servers, and ask NATS for its shared log.

    :param until: stop as soon as this returns true for a message
    :raises FyrehoseError: no NATS server can be reached
    """
    from nats.errors import Error

    heard: dict[str, dict[str, Any]] = {}
    enough = asyncio.Event()

    async def receive(message: Any) -> None:
        with suppress(ValueError, TypeError, AttributeError):  # ignore messages that no server of the cluster sends
            said = json.loads(message.data)
            heard[server_name(said.get("name"))] = said
            if until(said):
                enough.set()

    errors: list[Exception] = []
    client = await connect(settings, errors)
    try:
        await client.subscribe(say_subject_of(settings.cluster), cb=receive)
        log, *servers = await asyncio.gather(
            _log(client, stream_of(settings.cluster)), *(_reach(url) for url in settings.servers)
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), seconds)
    finally:
        await client.close()
    said = [str(each) for each in errors if isinstance(each, Error)] if log is None else []
    return Survey([heard[name] for name in sorted(heard)], log, servers, said[-1] if said else "")


async def connect(settings: ReplicationSettings, errors: list[Exception]) -> Any:
    """Return a connection of nats-py to a NATS server of the cluster.

    :param errors: a list for refusals that NATS sends later, and that no call raises
    :raises FyrehoseError: no NATS server can be reached
    """
    import nats
    from nats.errors import Error

    async def quiet(error: Exception) -> None:
        """Keep nats-py from printing a traceback; remember refusals of NATS, which connecting does not raise."""
        errors.append(error)

    options = settings.connect_options()
    try:
        return await asyncio.wait_for(
            nats.connect(
                list(settings.servers),
                error_cb=quiet,
                max_reconnect_attempts=1,
                reconnect_time_wait=0.1,
                connect_timeout=NATS_TIMEOUT_S,
                **options,
            ),
            2 * NATS_TIMEOUT_S,
        )
    except Exception as error:
        # Prefer the server's reason for closing a connection to the system's error of the next attempt.
        why = next((each for each in reversed(errors) if isinstance(each, Error)), errors[-1] if errors else error)
        raise FyrehoseError(
            f"no NATS server of {settings.shown_servers} can be reached: {str(why) or type(why).__name__}"
        ) from error


async def _log(client: Any, stream: str) -> dict[str, Any] | None:
    from nats.errors import Error

    try:
        info = await client.jetstream(timeout=NATS_TIMEOUT_S).stream_info(stream)
    except (Error, OSError):
        return None  # the status says that JetStream does not answer
    return {
        "stream": stream,
        "first": info.state.first_seq,
        "last": info.state.last_seq,
        "bytes": info.state.bytes,
        "replicas": info.config.num_replicas,
        "nodes": [attrs.asdict(each) for each in nodes_of(info)],
    }


async def _reach(url: str) -> NatsServer:
    """Read the name of the NATS server at *url*, which it sends to each new client."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or NATS_PORT
    shown = f"{host}:{port}"
    try:
        async with asyncio.timeout(REACH_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                line = await reader.readline()
            finally:
                writer.close()
        info = json.loads(line.removeprefix(b"INFO "))
        return NatsServer(shown, True, str(info.get("server_name", "")), str(info.get("version", "")))
    except (OSError, ValueError, AttributeError):  # a TimeoutError is an OSError
        return NatsServer(shown, False)


def leader_of(servers: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the last message of the leader; if several servers claim to lead, of the one that took over last."""
    return max(filter(leading, servers), key=lambda said: int(said.get("epoch", 0)), default=None)


def refusal(found: Survey) -> str:
    """Return why publishers are refused; empty if messages are accepted."""
    leader = leader_of(found.servers)
    if leader is None:
        return "no server leads: messages are refused until one does"
    if why := leader.get("refusal"):
        return f"server {leader['name']} leads, and refuses messages: {why}"
    if found.log is None:
        return f"JetStream does not answer{f' ({found.why})' if found.why else ''}: messages wait, and are refused soon"
    if found.log.get("nodes") and not any(node["leads"] for node in found.log["nodes"]):
        return "no NATS server leads the shared log: messages wait, and are refused soon"
    return ""


def _members(found: Survey) -> list[MemberStatus]:
    """Return the state of each server that the leader describes, and of servers that only this command has heard."""
    listed = parsed(leader_of(found.servers) or {})
    names = {each.name for each in listed}
    heard = [
        MemberStatus(name=str(said.get("name")), role=str(said.get("state")), address=str(said.get("address") or ""))
        for said in found.servers
        if said.get("name") not in names
    ]
    return sorted([*listed, *heard], key=lambda each: each.name)


def _show(found: Survey) -> None:
    ends = {said.get("name"): int(said.get("position", 0)) for said in found.servers}
    leader = leader_of(found.servers)
    rows = []
    for each in _members(found):
        role = each.role if each.alive or each.heard is None else f"silent for {each.heard:.0f} s"
        leads = leader is not None and leader.get("name") == each.name
        lacks = (each.behind, each.records, each.seconds)
        heard = "" if leads or each.heard is None else f"{each.heard:.1f} s ago"
        numbers = ("?" if lack is None else f"{lack:,}" for lack in lacks)
        rows.append((each.name, role, str(ends.get(each.name, "?")), *numbers, heard, each.address))
    terminal().print(table(("server", "role", "position", "behind", "records", "seconds", "heard", "address"), rows))
    if found.log is None:
        click.echo("shared log: JetStream does not answer")
    else:
        log = found.log
        entries = int(log["last"]) - int(log["first"]) + 1 if log["last"] else 0
        click.echo(
            f"shared log: {log['stream']}, {counted(entries, 'entry', 'entries')} "
            f"({counted(int(log['bytes']), 'byte')}) on "
            f"{counted(int(log['replicas']), 'NATS server')}, up to entry {log['last']:,}"
        )
    _show_nats(found)


def _show_nats(found: Survey) -> None:
    """Show which NATS servers answer, and the state that JetStream reports for those that store the shared log."""
    stored = {node["name"]: node for node in (found.log or {}).get("nodes", ())}
    rows = []
    for server in found.nats:
        node = stored.pop(server.name, None)
        rows.append((server.name or "?", server.address, server.version if server.alive else "no", _stores(node)))
    for name, node in stored.items():
        rows.append((name, "?", "no" if node["offline"] else "?", _stores(node)))
    terminal().print(table(("NATS server", "address", "answers", "shared log"), rows))


def _stores(node: dict[str, Any] | None) -> str:
    """Return the state of a NATS server that JetStream reports, as text for people."""
    if node is None:
        return ""
    if node["offline"]:
        return "offline"
    behind = f"{counted(int(node['lag']), 'entry', 'entries')} behind"
    return "leads" if node["leads"] else "current" if node["current"] else behind
