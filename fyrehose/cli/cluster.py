"""``fyrehose cluster``: show the servers of a cluster, and the log that they share.

The servers tell each other of themselves four times a second through NATS; this command listens to that.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click
from rich.table import Table

from fyrehose.cli.console import terminal
from fyrehose.cli.values import DURATION, FORMAT
from fyrehose.errors import ConfigError, FyrehoseError, MissingExtra
from fyrehose.options import counted
from fyrehose.replication.settings import ReplicationSettings
from fyrehose.replication.stream import say_subject_of, stream_of

F = TypeVar("F", bound=Callable[..., Any])

#: How long the command listens, in seconds: several messages of each server.
LISTEN = 1.5
#: How long NATS may take to answer, in seconds.
NATS_TIMEOUT_S = 5.0


@attrs.frozen
class Survey:
    """The answers of a cluster: its servers, and its shared log.

    :ivar servers: the last message of each server, in the order of their names
    :ivar log: first and last number, bytes and replicas of the shared log; None if JetStream does not answer
    """

    servers: list[dict[str, Any]]
    log: dict[str, Any] | None


@click.group(short_help="Show the servers of a cluster, and change its members.")
def cluster() -> None:
    """Show the state of a cluster of servers, or change its members, see docs/cluster.md.

    \b
        fyrehose cluster status --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster status --nats nats://10.0.0.1:4222
    """


def of_a_cluster(command: F) -> F:
    """Add the options that say which cluster is meant."""
    for option in (
        click.option("--cluster", "name", default="", help="Name of the cluster, with --nats.  [default: fyrehose]"),
        click.option("--nats", "urls", multiple=True, metavar="URL", help="Address of a NATS server; may be repeated."),
        click.option(
            "--config", type=click.Path(path_type=Path), help="Configuration file of a server of the cluster."
        ),
    ):
        command = option(command)
    return command


@cluster.command()
@of_a_cluster
@FORMAT
def status(config: Path | None, urls: tuple[str, ...], name: str, form: str) -> None:
    """Show which server leads, how far behind the others are, and which are silent.

    The status is 1 if no server leads, or the leader refuses messages.

    \b
        fyrehose cluster status --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster status --nats nats://10.0.0.1:4222 --format json
    """
    check_installed()
    found = asyncio.run(survey(settings_of(config, urls, name)))
    if form == "json":
        click.echo(json.dumps(attrs.asdict(found)))
    else:
        _show(found)
    leaders = list(filter(leading, found.servers))
    if not leaders:
        raise FyrehoseError("no server leads: messages are refused until one does")
    if all(said.get("refusal") for said in leaders):
        raise FyrehoseError(f"server {leaders[0]['name']} leads, and refuses messages: {leaders[0].get('refusal')}")


@cluster.command()
@of_a_cluster
@click.option("--name", "only_name", is_flag=True, help="Print the name of the server instead of its address.")
@click.option("--wait", type=DURATION, default="60s", show_default=True, help="How long to wait for a leader.")
def leader(config: Path | None, urls: tuple[str, ...], name: str, only_name: bool, wait: float) -> None:
    """Print the address of the server that leads; wait until one does.

    \b
        fyrehose cluster leader --config fyrehose.toml
    """
    check_installed()
    found = asyncio.run(survey(settings_of(config, urls, name), wait, leading))
    heard = next((server for server in found.servers if leading(server)), None)
    if heard is None:
        raise FyrehoseError(f"no server leads; listened for {wait:g} s")
    if not only_name and not heard.get("address"):
        raise FyrehoseError(f"server {heard['name']} leads, and its configuration has no address in [replication]")
    click.echo(heard["name"] if only_name else heard["address"])


def leading(said: dict[str, Any]) -> bool:
    """Return whether a server has said that it leads."""
    return said.get("state") == "leader" and not said.get("leaving")


def check_installed() -> None:
    """Check that nats-py is installed.

    :raises MissingExtra: it is not
    """
    if find_spec("nats") is None:
        raise MissingExtra("this command needs nats-py; install it with: pip install 'fyrehose[replication]'")


def settings_of(config: Path | None, urls: tuple[str, ...], name: str) -> ReplicationSettings:
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
    """Listen to the servers of a cluster.

    :param until: stop as soon as this is true of a message
    :raises FyrehoseError: no NATS server can be reached
    """
    heard: dict[str, dict[str, Any]] = {}
    enough = asyncio.Event()

    async def receive(message: Any) -> None:
        said = json.loads(message.data)
        heard[str(said.get("name"))] = said
        if until(said):
            enough.set()

    client = await connect(settings)
    try:
        await client.subscribe(say_subject_of(settings.cluster), cb=receive)
        log = await _log(client, stream_of(settings.cluster))
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), seconds)
    finally:
        await client.close()
    return Survey([heard[name] for name in sorted(heard)], log)


async def connect(settings: ReplicationSettings) -> Any:
    """Return a connection of nats-py to a NATS server of the cluster.

    :raises FyrehoseError: none can be reached
    """
    import nats

    async def quiet(error: Exception) -> None:
        """Keep nats-py from printing a traceback; what matters fails the connection."""

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
        raise FyrehoseError(
            f"no NATS server of {', '.join(settings.servers)} can be reached: {error or type(error).__name__}"
        ) from error


async def _log(client: Any, stream: str) -> dict[str, Any] | None:
    from nats.errors import Error

    try:
        info = await client.jetstream(timeout=NATS_TIMEOUT_S).stream_info(stream)
    except (Error, OSError):
        return None  # the status says that JetStream does not answer
    node = info.cluster.leader if info.cluster is not None else ""
    return {
        "stream": stream,
        "first": info.state.first_seq,
        "last": info.state.last_seq,
        "bytes": info.state.bytes,
        "replicas": info.config.num_replicas,
        "node": node or "",
    }


def silent(found: Survey) -> dict[str, float]:
    """Return for how many seconds the leader has not heard each server that it has ever heard."""
    said = next((server.get("silent") for server in found.servers if leading(server)), None)
    return {re.sub(r"[^\x20-\x7e]", "?", name): float(since) for name, since in (said or {}).items()}


def _show(found: Survey) -> None:
    ends = [int(server.get("position", 0)) for server in found.servers if leading(server)]
    table = Table("server", "role", "epoch", "position", "behind", "address", box=None, pad_edge=False)
    for server in found.servers:
        behind = max(0, max(ends) - int(server.get("position", 0))) if ends else None
        cells = (server.get("name"), server.get("state"), server.get("epoch"), server.get("position"))
        shown = [re.sub(r"[^\x20-\x7e]", "?", str(cell)) for cell in (*cells, "?" if behind is None else f"{behind:,}")]
        table.add_row(*shown, str(server.get("address") or ""))
    heard = {server.get("name") for server in found.servers}
    for name, since in silent(found).items():
        if name not in heard:
            table.add_row(name, f"silent for {since:.0f} s")
    terminal().print(table)
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
