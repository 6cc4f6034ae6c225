"""A new shared log in place of an old one, with real NATS servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fyrehose.errors import FyrehoseError
from fyrehose.replication.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.replication.settings import ReplicationSettings
from fyrehose.replication.stream import begin_again, stream_of, subject_of
from fyrehose.testing.nats import NatsNodes, program
from fyrehose.testing.ports import free_port

FIRST = LogEntry(EntryKind.TAKEOVER, 1_800_000_000, EntryWriter("a", 7), 4096)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NatsNodes]:
    with NatsNodes(tmp_path, count=1) as started:
        yield started


@pytest.mark.live
@pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server")
def test_the_new_log_has_one_entry_whatever_the_old_one_had(node: NatsNodes) -> None:
    settings = ReplicationSettings(servers=tuple(node.urls), cluster="x", name="a", replicas=1)

    async def run() -> tuple[Any, Any]:
        import nats

        client = await nats.connect(node.urls)
        try:
            jetstream = client.jetstream()
            await begin_again(settings, FIRST)
            for _ in range(3):
                await jetstream.publish(subject_of("x"), b"an entry of the old log")
            await begin_again(settings, FIRST)
            found = await jetstream.stream_info(stream_of("x"))
            return found.state, await jetstream.get_msg(stream_of("x"), seq=1)
        finally:
            await client.close()

    state, message = asyncio.run(run())
    assert (state.first_seq, state.last_seq, state.messages) == (1, 1, 1)
    assert LogEntry.unpack(message.data) == FIRST


@pytest.mark.live
def test_without_nats_it_says_which_servers_were_tried() -> None:
    port = free_port()
    settings = ReplicationSettings(servers=(f"nats://127.0.0.1:{port}",), name="a")
    with pytest.raises(FyrehoseError, match=f"no NATS server of nats://127.0.0.1:{port} can be reached"):
        asyncio.run(begin_again(settings, FIRST))
