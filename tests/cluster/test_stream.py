"""A new shared log in place of an old one, with real NATS servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nats.js.api import ClusterInfo, PeerInfo
from nats.js.errors import APIError
from twisted.internet.defer import Deferred

from benchmarks.nats_servers import NatsNodes, program
from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.cluster.stream import (
    NO_ROOM,
    append_first,
    begin_again,
    create,
    lacks_leader,
    limit_of,
    nodes_of,
    stream_of,
    subject_of,
    unheard,
)
from fyrehose.errors import FyrehoseError
from fyrehose.testing.ports import free_port

FIRST = LogEntry(EntryKind.TAKEOVER, 1_800_000_000, EntryWriter("a", 7), 4096)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NatsNodes]:
    with NatsNodes(tmp_path, count=1) as started:
        yield started


@pytest.mark.live
@pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server")
def test_a_new_shared_log_has_one_entry_whatever_the_old_one_had(node: NatsNodes) -> None:
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
def test_beginning_again_without_nats_names_the_servers_that_were_tried() -> None:
    port = free_port()
    settings = ReplicationSettings(servers=(f"nats://127.0.0.1:{port}",), name="a")
    with pytest.raises(FyrehoseError, match=f"no NATS server of nats://127.0.0.1:{port} can be reached"):
        asyncio.run(begin_again(settings, FIRST))


def test_the_first_entry_is_sent_again_until_the_nats_servers_know_the_new_stream() -> None:
    from nats.js.errors import NoStreamResponseError

    sent: list[tuple[str, bytes]] = []

    class NewStream:
        async def publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
            assert headers == {"Nats-Msg-Id": FIRST.ident, "Nats-Expected-Last-Sequence": "0"}
            sent.append((subject, payload))
            if len(sent) < 3:
                raise NoStreamResponseError

    asyncio.run(append_first(NewStream(), "x", FIRST, pause=0.0))
    assert sent == [(subject_of("x"), FIRST.pack())] * 3


def test_a_description_says_which_nats_servers_store_the_stream_and_whether_one_leads() -> None:
    from nats.js.api import StreamInfo

    def alone() -> dict[str, Any]:
        state = {"messages": 0, "bytes": 0, "first_seq": 1, "last_seq": 0, "consumer_count": 0}
        return {"config": {"name": "x"}, "state": state, "did_create": False}

    def described(leader: str) -> Any:
        late = {"name": "n2", "current": False, "active": 1000, "lag": 7}
        lost = {"name": "n1", "current": False, "offline": True, "active": 1}
        return StreamInfo.from_response(alone() | {"cluster": {"leader": leader, "replicas": [late, lost]}})

    assert nodes_of(StreamInfo.from_response(alone())) == ()
    nodes = nodes_of(described("n3"))
    assert [(node.name, node.leads, node.current, node.offline, node.lag) for node in nodes] == [
        ("n1", False, False, True, 0),
        ("n2", False, False, False, 7),
        ("n3", True, True, False, 0),
    ]
    assert not lacks_leader(nodes)
    assert not lacks_leader(()), "one server that is alone says nothing of this"
    assert lacks_leader(nodes_of(described("")))


@pytest.mark.parametrize(
    ("active", "seconds"),
    [(None, 0.0), ((), 0.0), ((9.0,), 9.0), ((9.0, 1.0), 1.0), ((9.0, 0.5, 8.0), 8.0), ((9.0, 0.5, 3.0, 1.0), 1.0)],
)
def test_a_description_says_since_when_its_sender_has_heard_no_majority(
    active: tuple[float, ...] | None, seconds: float
) -> None:
    replicas = [PeerInfo(name=f"n{at}", active=int(each * 1e9)) for at, each in enumerate(active or ())]
    cluster = None if active is None else ClusterInfo(leader="n9", replicas=replicas or None)
    assert unheard(SimpleNamespace(cluster=cluster)) == seconds


@pytest.mark.parametrize("code", NO_ROOM)
@pytest.mark.parametrize(("room", "created"), [(999, 512), (288, 256), (287, 128), (36, 32), (35, 0)])
def test_stream_is_as_large_as_nats_has_space_for_down_to_24_mib(room: int, created: int, code: int) -> None:
    """The stream has an eighth more than the limit, beyond which the leader refuses messages."""

    class JetStream:
        async def add_stream(self, config: Any) -> Any:
            if config.max_bytes > room << 20:
                raise APIError(code=500, err_code=code)
            return config

    made: list[Any] = []
    wanted = Deferred.fromCoroutine(create(JetStream(), "x", 3, 512 << 20))
    wanted.addCallbacks(made.append, lambda failure: failure.trap(APIError))
    assert [limit_of(config) >> 20 for config in made] == ([created] if created else [])


@pytest.mark.parametrize(("most", "limit"), [(None, 0), (-1, 0), (0, 0), (1, 0), (9, 8), (900, 800)])
def test_stream_without_a_size_has_no_limit(most: int | None, limit: int) -> None:
    assert limit_of(SimpleNamespace(max_bytes=most)) == limit
