"""The stream in JetStream that stores the shared log: how it is created, and replaced by a new one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from fyrehose.cluster.entries import LogEntry
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.errors import FyrehoseError
from fyrehose.observe.meters import NatsStatus

#: For how many seconds JetStream recognizes a repeated append; a later repetition fails because of its condition.
DUPLICATES = 120.0
#: JetStream's error codes for too little space: on every NATS server, or on this one.
NO_ROOM = (10005, 10023, 10047)
#: The smallest shared log, in bytes: twice the size of all appends that may be in flight.
LEAST = 24 << 20
#: How long NATS may take to answer, and to accept a connection, in seconds.
PATIENCE, CONNECT_TIMEOUT_S = 10.0, 5.0


def stream_of(cluster: str) -> str:
    """Return the name of the stream of a cluster."""
    return f"FYREHOSE_{cluster}"


def subject_of(cluster: str, of: str = "log") -> str:
    """Return a subject of a cluster.

    :param of: ``log``: entries; ``say``: messages between the servers; ``members``: requests to change the members
    """
    return f"fyrehose.{cluster}.{of}"


async def create(jetstream: Any, cluster: str, replicas: int, limit: int) -> Any:
    """Create the stream of a cluster; return its description.

    JetStream reserves space for the largest size of the stream, and refuses more entries.  A stream without a limit
    would fill the store of the NATS servers; these then do not answer any more, so that the stream could not be
    trimmed.

    :param jetstream: a context of nats-py
    :param limit: size of the shared log at which the leader refuses messages, in bytes; reduced if NATS has less space
    """
    from nats.js.errors import APIError

    while True:
        try:
            return await jetstream.add_stream(_config(cluster, replicas, limit))
        except APIError as error:
            if error.err_code not in NO_ROOM or limit // 2 < LEAST:
                raise
            limit //= 2


def limit_of(config: Any) -> int:
    """Return the size of the shared log, in bytes, at which the leader must refuse messages; 0: no limit.

    The rest of the stream's space is for appends in flight, and for the checkpoint that makes trimming possible.

    :param config: the settings of the stream
    """
    return int(config.max_bytes) * 8 // 9 if (config.max_bytes or 0) > 0 else 0


def nodes_of(info: Any) -> tuple[NatsStatus, ...]:
    """Return the NATS servers that store the stream, sorted by their names; empty for a single NATS server.

    :param info: the description of the stream
    """
    cluster = info.cluster
    if cluster is None:
        return ()
    found = [
        NatsStatus(
            name=str(peer.name),
            leads=False,
            current=bool(peer.current),
            offline=bool(peer.offline),
            lag=int(peer.lag or 0),
        )
        for peer in cluster.replicas or ()
    ]
    if cluster.leader:
        found.append(NatsStatus(name=str(cluster.leader), leads=True, current=True, offline=False, lag=0))
    return tuple(sorted(found, key=lambda each: each.name))


def lacks_leader(nodes: Sequence[NatsStatus]) -> bool:
    """Return whether the stream has no leader among the NATS servers that store it, so that it accepts nothing."""
    return bool(nodes) and not any(node.leads for node in nodes)


def unheard(info: Any) -> float:
    """Return for how many seconds the leader of the stream has not heard a majority of the NATS servers that store it.

    :param info: the description of the stream, which only its leader sends
    """
    replicas = [] if info.cluster is None else info.cluster.replicas or []
    heard = sorted((replica.active or 0) / 1e9 for replica in replicas)
    return heard[(len(heard) - 1) // 2] if heard else 0.0  # the leader itself is one of the majority


def _config(cluster: str, replicas: int, limit: int) -> Any:
    from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

    return StreamConfig(
        name=stream_of(cluster),
        description="the journal of a cluster of Fyrehose servers, on its way from the leader to the others",
        subjects=[subject_of(cluster)],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        num_replicas=replicas,
        discard=DiscardPolicy.NEW,
        max_bytes=limit * 9 // 8,
        max_age=0,
        duplicate_window=DUPLICATES,
        allow_direct=True,
    )


async def connect(settings: ReplicationSettings, errors: list[Exception]) -> Any:
    """Return a connection of nats-py to a NATS server of the cluster.

    :param errors: a list to which refusals are added that NATS sends later and that no call raises
    :raises FyrehoseError: no NATS server can be reached
    """
    import nats
    from nats.errors import Error

    async def note(error: Exception) -> None:
        """Add an error to *errors*, because nats-py would only print its traceback, and raises no refusal of NATS."""
        errors.append(error)

    connecting = nats.connect(
        list(settings.servers),
        error_cb=note,
        max_reconnect_attempts=1,
        reconnect_time_wait=0.1,
        connect_timeout=CONNECT_TIMEOUT_S,
        **settings.connect_options(),
    )
    try:
        return await asyncio.wait_for(connecting, 2 * CONNECT_TIMEOUT_S)
    except Exception as error:
        # Prefer the server's reason for closing a connection to the system's error of the next attempt.
        why = next((each for each in reversed(errors) if isinstance(each, Error)), errors[-1] if errors else error)
        raise FyrehoseError(f"no NATS server of {settings.shown_servers} can be reached: {_why(why)}") from error


async def begin_again(settings: ReplicationSettings, first: LogEntry) -> None:
    """Delete the shared log of a cluster, and begin another one with the entry *first*.

    :raises FyrehoseError: NATS cannot be reached, or refuses
    """
    from nats.errors import Error
    from nats.js.errors import NotFoundError

    client = await connect(settings, [])
    try:
        jetstream = client.jetstream(timeout=PATIENCE)
        with suppress(NotFoundError):  # the old stream may be lost already
            await jetstream.delete_stream(stream_of(settings.cluster))
        await create(jetstream, settings.cluster, settings.replicas, settings.log_limit)
        await append_first(jetstream, settings.cluster, first)
    except (Error, OSError, TimeoutError) as error:
        raise FyrehoseError(
            f"JetStream does not begin a new stream {stream_of(settings.cluster)}: {_why(error)}; when a majority of "
            "the NATS servers runs, run the command again"
        ) from error
    finally:
        await client.close()


async def append_first(jetstream: Any, cluster: str, first: LogEntry, *, pause: float = 0.1) -> None:
    """Append *first* to the new stream of a cluster, which has no other entry.

    JetStream answers that a stream is created before each NATS server knows where its messages go, and a message that
    went nowhere may be sent again.

    :param jetstream: a context of nats-py
    :param pause: after how many seconds a message that went nowhere is sent again
    :raises nats.js.errors.NoStreamResponseError: after :data:`PATIENCE` seconds, messages still go nowhere
    """
    from nats.js.errors import NoStreamResponseError

    headers = {"Nats-Msg-Id": first.ident, "Nats-Expected-Last-Sequence": "0"}
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            await jetstream.publish(subject_of(cluster), first.pack(), headers=headers)
            return
        except NoStreamResponseError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(pause)


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
