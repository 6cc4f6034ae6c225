"""The shared log on JetStream, with three real NATS servers on loopback, and the settings of streams."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from nats.js.errors import APIError
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from benchmarks.nats_servers import NatsNodes, program
from fyrehose.cluster.entries import MAX_DATA, EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.jetstream import JetStreamLog, judge, refusal
from fyrehose.cluster.shared_log import EntryRange, Refused, Unavailable
from fyrehose.cluster.stream import subject_of
from fyrehose.errors import ConfigError
from tests.doubles.patience import patiently

live = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server"),
]
A = EntryWriter("a", 1)


def takeover(epoch: int = 1) -> LogEntry:
    return LogEntry(EntryKind.TAKEOVER, epoch, A, 0)


def data(position: int, content: bytes = b"x") -> LogEntry:
    return LogEntry(EntryKind.DATA, 1, A, position, content)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsNodes]:
    with NatsNodes(tmp_path_factory.mktemp("nats")) as started:
        yield started


Run = Callable[[Callable[[JetStreamLog], Coroutine[Any, Any, None]]], Any]


@pytest.fixture
def run(nodes: NatsNodes, request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a coroutine with an open log of its own name, until it is done."""

    async def using(test: Callable[[JetStreamLog], Awaitable[None]]) -> None:
        # The streams of all tests together must fit into the space that the NATS servers reserve.
        name = request.node.name.replace("[", "-").replace("]", "")
        log = JetStreamLog(reactor, nodes.urls, name, limit=64 << 20)
        try:
            await patiently(lambda: log.open(lambda message: None))
            await test(log)
        finally:
            await log.close()

    return lambda test: Deferred.fromCoroutine(using(test))


async def until_unavailable(log: JetStreamLog, why: str) -> None:
    """Ask for the extent of *log* until it is unavailable for the reason *why*."""
    while True:
        try:
            await log.extent()
        except Unavailable as error:
            if why in str(error):
                return
        await deferLater(reactor, 0.2)


async def until_here(log: JetStreamLog, writer: EntryWriter, here: bool) -> None:
    """Ask until *writer* is here, or is not: the nodes learn of it late, and without an answer it counts as here."""
    deadline = reactor.seconds() + 120  # type: ignore[attr-defined]
    while await log.is_here(writer) is not here:
        assert reactor.seconds() < deadline, f"{writer} is {'not ' * here}here"  # type: ignore[attr-defined]
        await deferLater(reactor, 0.05)


class TestWithRealServers:
    pytestmark = live

    @pytest.mark.slow
    def test_another_server_is_used_when_the_connected_one_does_not_answer(self, run: Run, nodes: NatsNodes) -> Any:
        async def test(log: JetStreamLog) -> None:
            frozen = log.connected_to
            node = next(node for node, url in enumerate(nodes.urls) if url.endswith(frozen))
            nodes.freeze(node)
            try:
                assert await patiently(lambda: log.append(takeover(), 0)) == 1
                while not log.connected_to:  # it may be on its way from one that has not answered meanwhile, either
                    await deferLater(reactor, 0.05)
                assert log.connected_to != frozen
                assert await patiently(log.extent) == EntryRange(1, 1)
            finally:
                nodes.thaw(node)

        return run(test)

    def test_an_entry_is_accepted_at_its_expected_place_only(self, run: Run) -> Any:
        async def test(log: JetStreamLog) -> None:
            assert await patiently(log.extent) == EntryRange(1, 0)
            assert await patiently(lambda: log.append(takeover(), 0)) == 1
            assert await patiently(lambda: log.append(data(0), 1)) == 2
            with pytest.raises(Refused) as refused:
                await patiently(lambda: log.append(takeover(2), 1))
            assert refused.value.last == 2
            assert await patiently(log.extent) == EntryRange(1, 2)

        return run(test)

    def test_a_repeated_append_is_answered_with_its_number_and_stored_once(self, run: Run) -> Any:
        async def test(log: JetStreamLog) -> None:
            for _ in range(3):
                assert await patiently(lambda: log.append(takeover(), 0)) == 1
            assert (await patiently(log.extent)).last == 1

        return run(test)

    def test_entries_are_read_as_they_were_appended(self, run: Run) -> Any:
        async def test(log: JetStreamLog) -> None:
            entries = [takeover(), data(0), data(1, b"y" * MAX_DATA)]
            for expect, entry in enumerate(entries):
                await patiently(log.append, entry, expect)
            found: list[tuple[int, LogEntry]] = []
            while len(found) < 3:  # a node may be a moment behind
                found = await patiently(log.read, 1, 10)
            assert found == list(enumerate(entries, 1))
            assert await patiently(log.read, 2, 1) == found[1:2]
            assert await patiently(log.read, 4, 10) == []

        return run(test)

    def test_purged_entries_are_gone_and_the_numbers_go_on(self, run: Run) -> Any:
        async def test(log: JetStreamLog) -> None:
            for expect in range(5):
                await patiently(log.append, data(expect), expect)
            await patiently(log.purge, 4)
            assert await patiently(log.extent) == EntryRange(4, 5)
            while await patiently(log.read, 1, 10):
                await deferLater(reactor, 0.05)
            assert await patiently(log.append, data(5), 5) == 6

        return run(test)

    def test_messages_and_requests_of_operators_reach_the_servers(self, run: Run, nodes: NatsNodes) -> Any:
        async def test(log: JetStreamLog) -> None:
            heard, asked = list[bytes](), list[bytes]()
            other = JetStreamLog(reactor, nodes.urls, log.name)
            await patiently(lambda: other.open(heard.append, None, asked.append))
            try:
                while not (heard and asked):
                    log.say(b"here I am")
                    log._ask(log._client.publish(subject_of(log.name, "members"), b"add a server"), answers=False)
                    await deferLater(reactor, 0.05)
            finally:
                await other.close()
            assert {*heard} == {b"here I am"}
            assert {*asked} == {b"add a server"}

        return run(test)

    def test_the_only_server_is_tried_again_after_it_has_refused_the_connection(
        self, run: Run, nodes: NatsNodes
    ) -> Any:
        """The NATS client gives up for good, for example if a new server does not know the password yet."""

        async def test(log: JetStreamLog) -> None:
            alone = JetStreamLog(reactor, nodes.urls[:1], log.name)
            await patiently(lambda: alone.open(lambda message: None))
            try:
                closed: Deferred[None] = Deferred()
                asyncio.run_coroutine_threadsafe(alone._client.close(), alone._loop).add_done_callback(
                    lambda _: reactor.callFromThread(closed.callback, None)
                )
                await closed
                assert await patiently(lambda: alone.append(takeover(), 0)) == 1
            finally:
                await alone.close()

        return run(test)

    def test_a_request_ends_with_the_connection_that_it_was_sent_on(self, run: Run, nodes: NatsNodes) -> Any:
        async def test(log: JetStreamLog) -> None:
            waits = JetStreamLog(reactor, nodes.urls, log.name, timeout=200.0)
            await patiently(lambda: waits.open(lambda message: None))
            node = nodes.ports.index(int(waits.connected_to.rpartition(":")[2]))
            try:
                nodes.freeze(node)
                appended = waits.append(takeover(), 0)
                nodes.kill(node)
                with pytest.raises(Unavailable):
                    await appended
                assert await patiently(lambda: waits.append(takeover(), 0)) == 1
            finally:
                nodes.start(node)
                await waits.close()

        return run(test)

    @pytest.mark.slow
    def test_a_request_ends_when_another_nats_server_leads_the_stream(self, run: Run, nodes: NatsNodes) -> Any:
        async def ended(log: JetStreamLog, position: int) -> bool:
            """Freeze the node that leads the stream, and return whether that ended the request; else it has ceased."""
            leads = next(int(node.name[1:]) for node in (await patiently(log.extent)).nodes if node.leads)
            others = [url for node, url in enumerate(nodes.urls) if node != leads]
            waits = JetStreamLog(reactor, others, log.name, timeout=200.0)
            await patiently(lambda: waits.open(lambda message: None))
            nodes.freeze(leads)
            why = ""
            try:
                try:
                    assert await waits.append(data(0), position) == position + 1
                except Unavailable as error:
                    why = str(error)
                    assert await patiently(lambda: waits.append(data(0), position)) == position + 1
            finally:
                nodes.thaw(leads)
                await waits.close()
            assert not why or "another NATS server leads the stream" in why
            return bool(why)

        async def test(log: JetStreamLog) -> None:
            assert await patiently(lambda: log.append(takeover(), 0)) == 1
            position = 1
            while not await ended(log, position):
                position += 1  # a busy machine has elected another leader meanwhile

        return run(test)

    def test_a_server_is_found_while_its_process_is_connected(self, run: Run, nodes: NatsNodes) -> Any:
        async def test(log: JetStreamLog) -> None:
            other, writer = JetStreamLog(reactor, nodes.urls, log.name), EntryWriter("a", 7)
            await patiently(lambda: other.open(lambda message: None, writer))
            try:
                await until_here(log, writer, True)
                await until_here(log, EntryWriter("a", 8), False)  # another process of that server
            finally:
                await other.close()
            await until_here(log, writer, False)

        return run(test)

    def test_appends_go_on_when_a_node_is_killed(self, run: Run, nodes: NatsNodes) -> Any:
        async def test(log: JetStreamLog) -> None:
            await patiently(log.append, takeover(), 0)
            nodes.kill(0)
            try:
                for position in range(3):
                    assert await patiently(log.append, data(position), position + 1) == position + 2
            finally:
                nodes.start(0)
            assert (await patiently(log.extent)).last == 4

        return run(test)

    def test_a_stream_that_deletes_messages_is_refused(self, run: Run) -> Any:
        async def test(log: JetStreamLog) -> None:
            import nats

            async def spoil() -> None:
                client = await nats.connect(list(log.servers))
                stream = client.jetstream()
                config = (await stream.stream_info(log.stream)).config
                config.max_age = 3600.0
                await stream.update_stream(config)
                await client.close()

            await deferToThread(asyncio.run, spoil())
            with pytest.raises(ConfigError, match="deletes messages by itself"):
                await patiently(log.open, lambda message: None)

        return run(test)


def heard(spy: socket.socket, line: bytes) -> bool:
    """Receive from a NATS server until it has sent *line*; return False if it ends the connection before."""
    said = b""
    while line not in said:
        if not (more := spy.recv(65536)):
            return False
        said += more
    return True


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server")
def test_a_stream_leader_that_hears_no_other_server_is_asked_to_hand_over_and_left(tmp_path: Path, torture: Any) -> Any:
    nodes = NatsNodes(tmp_path)
    routes = torture("cluster_proxy").Routes(nodes.routes)
    routes.start()
    nodes.proxies = routes.ports
    log = JetStreamLog(reactor, nodes.urls, "x", limit=64 << 20)

    async def test() -> None:
        await patiently(lambda: log.open(lambda message: None))
        assert await patiently(lambda: log.append(takeover(), 0)) == 1
        leads = next(int(node.name[1:]) for node in (await patiently(log.extent)).nodes if node.leads)
        leader = nodes.urls[leads].removeprefix("nats://")
        while log.connected_to != leader:
            await log.close()
            await patiently(lambda: log.open(lambda message: None))
        with socket.create_connection(("127.0.0.1", nodes.ports[leads]), timeout=60) as spy:
            spy.sendall(b"CONNECT {}\r\nSUB $JS.API.STREAM.LEADER.STEPDOWN.FYREHOSE_x 1\r\nPING\r\n")
            assert heard(spy, b"PONG\r\n")
            routes.cut(leads, ["deaf"])
            await until_unavailable(log, f"the stream's leader, n{leads}, has heard no majority for")
            assert heard(spy, b"MSG $JS.API.STREAM.LEADER.STEPDOWN.FYREHOSE_x 1 0")
        assert await patiently(lambda: log.append(data(0), 1)) == 2
        assert log.connected_to != leader

    async def whole() -> None:
        try:
            with nodes:
                await test()
        finally:
            await log.close()
            routes.stop()

    return Deferred.fromCoroutine(whole())


def test_a_server_that_is_not_there_is_unavailable() -> Any:
    async def test() -> None:
        log = JetStreamLog(reactor, ["nats://127.0.0.1:1"], "none", timeout=0.2)
        with pytest.raises(Unavailable, match="closed"):
            await log.append(takeover(), 0)
        log.say(b"nobody hears it")
        await log.close()

    return Deferred.fromCoroutine(test())


@attrs.define
class Config:
    """The settings of a stream as nats-py returns them."""

    storage: str = "file"
    retention: str = "limits"
    subjects: tuple[str, ...] = ("fyrehose.x.log",)
    num_replicas: int = 3
    max_age: float = 0.0
    max_msgs: int = -1
    max_bytes: int = -1
    discard: str = "old"
    max_msgs_per_subject: int = -1
    max_msg_size: int = -1
    no_ack: bool = False
    allow_direct: bool = True


def judged(**changes: Any) -> list[str]:
    return judge(Config(**changes), "FYREHOSE_x", "fyrehose.x.log", 3)


def test_a_stream_with_the_right_settings_has_no_warnings() -> None:
    assert judged() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"storage": "memory"}, "stored in memory; it must be stored in files"),
        ({"retention": "workqueue"}, "must be limits"),
        ({"max_age": 60.0}, "max_age is 60"),
        ({"max_msgs": 5}, "max_msgs is 5"),
        ({"max_bytes": 5}, "max_bytes is 5"),
        ({"max_msgs_per_subject": 5}, "max_msgs_per_subject is 5"),
        ({"subjects": ("other",)}, "does not have the subject"),
        ({"no_ack": True}, "no_ack"),
        ({"allow_direct": False}, "allow_direct"),
        ({"max_msg_size": 1000}, "max_msg_size is 1000"),
    ],
)
def test_a_stream_that_would_lose_entries_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        judged(**change)


def test_a_stream_that_refuses_entries_above_its_limit_is_accepted() -> None:
    assert judged(max_bytes=1 << 20, discard="new") == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (APIError(400, "maximum bytes exceeded", 10077), "NATS refuses: maximum bytes exceeded (code 10077)"),
        (APIError(404, "stream not found", 10059), "NATS refuses: stream not found (code 10059)"),
        (APIError(503, "JetStream system temporarily unavailable", 10008), ""),
        (APIError(409, "duplicate message id is in process", 10158), ""),
        (APIError(503), ""),
        (TimeoutError(), ""),
    ],
)
def test_only_errors_that_nats_has_answered_are_told_as_its_answers(answer: Exception, said: str) -> None:
    assert refusal(answer) == said


def test_too_few_replicas_are_warned_about() -> None:
    for replicas in (1, None):
        (warning,) = judged(num_replicas=replicas)
        assert "has 1 replicas, and 3 are configured" in warning
