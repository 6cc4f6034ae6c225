"""The stream in JetStream that stores the shared log: how it is created, and replaced by a new one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fyrehose.errors import FyrehoseError
from fyrehose.replication.entries import LogEntry
from fyrehose.replication.settings import ReplicationSettings

#: For how long JetStream recognizes a repeated append; later ones fail because of their condition.
DUPLICATES = 120.0
#: How long NATS may take to answer, in seconds.
PATIENCE = 10.0


def stream_of(cluster: str) -> str:
    """Return the name of the stream of a cluster."""
    return f"FYREHOSE_{cluster}"


def subject_of(cluster: str) -> str:
    """Return the subject of the entries of a cluster."""
    return f"fyrehose.{cluster}.log"


async def create(jetstream: Any, cluster: str, replicas: int) -> Any:
    """Create the stream of a cluster; return its description.

    :param jetstream: a context of nats-py
    """
    from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

    config = StreamConfig(
        name=stream_of(cluster),
        description="the journal of a cluster of Fyrehose servers, on its way from the leader to the others",
        subjects=[subject_of(cluster)],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        num_replicas=replicas,
        discard=DiscardPolicy.NEW,
        max_age=0,
        duplicate_window=DUPLICATES,
        allow_direct=True,
    )
    return await jetstream.add_stream(config)


async def begin_again(settings: ReplicationSettings, first: LogEntry) -> None:
    """Delete the shared log of a cluster, and begin another one with the entry *first*.

    :raises FyrehoseError: NATS does not do it
    """
    import nats
    from nats.errors import Error
    from nats.js.errors import NotFoundError

    async def quiet(error: Exception) -> None:
        """Ignore *error*, which nats-py would print with a traceback; if it matters, connecting fails as well."""

    try:
        client = await nats.connect(
            list(settings.servers),
            error_cb=quiet,
            max_reconnect_attempts=1,
            connect_timeout=PATIENCE,
            **settings.connect_options(),
        )
    except (Error, OSError, TimeoutError) as error:
        raise FyrehoseError(f"no NATS server of {', '.join(settings.servers)} can be reached: {_why(error)}") from error
    try:
        jetstream = client.jetstream(timeout=PATIENCE)
        with suppress(NotFoundError):  # it is lost already
            await jetstream.delete_stream(stream_of(settings.cluster))
        await create(jetstream, settings.cluster, settings.replicas)
        headers = {"Nats-Msg-Id": first.ident, "Nats-Expected-Last-Sequence": "0"}
        await jetstream.publish(subject_of(settings.cluster), first.pack(), headers=headers)
    except (Error, OSError, TimeoutError) as error:
        raise FyrehoseError(
            f"JetStream does not begin a new stream {stream_of(settings.cluster)}: {_why(error)}; when a majority of "
            "the NATS servers runs, run the command again"
        ) from error
    finally:
        await client.close()


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
