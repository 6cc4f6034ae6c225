"""Reports of the servers of a cluster, and of NATS about the log that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import attrs

from fyrehose.cluster.log_health import REMEDY, judge
from fyrehose.cluster.peers import ClusterPeer
from fyrehose.cluster.settings import ReplicationSettings, server_name
from fyrehose.cluster.stream import CONNECT_TIMEOUT_S, connect, nodes_of, stream_of, subject_of
from fyrehose.jsontext import json_object
from fyrehose.observe.meters import NatsStatus, SharedLogStatus

#: How long the command listens, in seconds, so that each server sends several messages in that time.
LISTEN = 1.5
#: How long a NATS server may take to send its name to a new client, in seconds.
REACH_S = 2.0
#: The port of a NATS server whose address has none.
NATS_PORT = 4222


@attrs.frozen
class NatsServer:
    """A NATS server: its address, its name, and whether it answers.

    :ivar address: host and port
    :ivar jetstream: whether its JetStream is on; a full disk turns it off until the server is started again
    """

    address: str
    alive: bool
    name: str = ""
    version: str = ""
    jetstream: bool = True


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


def leading(said: dict[str, Any]) -> bool:
    """Return whether the sender of the message *said* leads and is not about to leave the cluster."""
    return said.get("state") == "leader" and not said.get("leaving")


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
        if (said := heard_in(message.data)) is not None:
            heard[server_name(said["name"])] = said
            if until(said):
                enough.set()

    errors: list[Exception] = []
    client = await connect(settings, errors)
    try:
        await client.subscribe(subject_of(settings.cluster, "say"), cb=receive)
        log, *servers = await asyncio.gather(
            _log(client, stream_of(settings.cluster)), *(_reach(url) for url in settings.servers)
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), seconds)
        if log is not None and health(log).problem:  # a healthy NATS server is behind for moments, not in both reports
            log = await _log(client, stream_of(settings.cluster)) or log
    finally:
        await client.close()
    said = [str(each) for each in errors if isinstance(each, Error)] if log is None else []
    return Survey([heard[name] for name in sorted(heard)], log, servers, said[-1] if said else "")


def heard_in(message: bytes) -> dict[str, Any] | None:
    """Decode a message of a server of the cluster; return None for others, which anybody may publish."""
    return None if ClusterPeer.unpack(message, 0.0) is None else json_object(message)


async def _log(client: Any, stream: str) -> dict[str, Any] | None:
    from nats.errors import Error

    try:
        info = await client.jetstream(timeout=CONNECT_TIMEOUT_S).stream_info(stream)
    except (Error, OSError):
        return None  # the caller reports that JetStream does not answer
    return {
        "stream": stream,
        "first": info.state.first_seq,
        "last": info.state.last_seq,
        "bytes": info.state.bytes,
        "replicas": info.config.num_replicas,
        "nodes": [attrs.asdict(each) for each in nodes_of(info)],
    }


async def _reach(url: str) -> NatsServer:
    """Read the name that the NATS server at *url* sends to each new client."""
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
        info = json_object(line.removeprefix(b"INFO "))
        name, version = str(info.get("server_name", "")), str(info.get("version", ""))
        return NatsServer(shown, True, name, version, bool(info.get("jetstream")))
    except (OSError, ValueError):  # a TimeoutError is an OSError
        return NatsServer(shown, False)


def leader_of(servers: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the last message of the leader; if several servers claim to lead, of the one that took over last."""
    return max(filter(leading, servers), key=lambda said: int(said.get("epoch", 0)), default=None)


def refusal(found: Survey) -> str:
    """Return why the cluster refuses messages at present; an empty text if it accepts messages."""
    leaderless = found.log is None or not any(node["leads"] for node in found.log.get("nodes") or ({"leads": True},))
    if leaderless and (lost := _majority_lost(found.nats)):
        return lost
    leader = leader_of(found.servers)
    if leader is None:
        return "no server leads: messages are refused until one does"
    if why := leader.get("refusal"):
        return f"server {leader['name']} leads, and refuses messages: {why}"
    if found.log is None:
        return f"JetStream does not answer{f' ({found.why})' if found.why else ''}: messages wait, and are refused soon"
    if leaderless:
        return "no NATS server leads the shared log: messages wait, and are refused soon"
    return ""


def _majority_lost(servers: list[NatsServer]) -> str:
    lost = _lost(servers)
    if not lost or 2 * len(lost) < len(servers):
        return ""
    return (
        f"{len(lost)} of {len(servers)} NATS servers are lost ({', '.join(lost)}), and without a majority the shared "
        "log accepts nothing: start them again; if their disks are lost, see `fyrehose cluster reseed --help`"
    )


def _lost(servers: list[NatsServer]) -> list[str]:
    lost = [f"{each.address} does not answer" for each in servers if not each.alive]
    return lost + [
        f"JetStream is off on {each.name}, because its store was full or failed"
        for each in servers
        if each.alive and not each.jetstream
    ]


def health(log: dict[str, Any]) -> SharedLogStatus:
    """Return on how many NATS servers the shared log is stored, according to this report of JetStream."""
    return judge([NatsStatus(**node) for node in log.get("nodes", ())], int(log["replicas"]))


def weakness(found: Survey) -> SharedLogStatus:
    """Return the state of a shared log that accepts messages; its problem is what the next loss would make worse."""
    if found.log is None:
        return SharedLogStatus()
    state = health(found.log)
    problem = "; ".join(filter(None, (state.problem, *_lost(found.nats))))
    return attrs.evolve(state, problem=problem, remedy=state.remedy or (problem and REMEDY))
