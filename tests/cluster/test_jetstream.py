"""The shared log on JetStream, with three real NATS servers on loopback, and the settings of streams."""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from nats.js.errors import APIError
from twisted.internet import reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater

from benchmarks.nats_servers import NatsNodes, program
from fyrehose.cluster.entries import MAX_DATA, EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.jetstream import JetStreamLog, judge, refusal
from fyrehose.cluster.shared_log import EntryRange, Refused, Unavailable
from fyrehose.cluster.stream import subject_of
from fyrehose.errors import ConfigError
from fyrehose.observe.meters import NatsStatus
from tests.doubles.jetstream import Nats, nats_servers
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


#: What the leader of a stream says of the other NATS servers: it hears them, it hears none, and it does not lead.
HEARS, CUT, LEADERLESS = (
    {"leader": leader, "replicas": [{"name": "n2", "current": True, "active": active}]}
    for leader, active in (("n1", 0), ("n1", 9_000_000_000), ("", 0))
)


@attrs.define(eq=False)
class Conversation:
    """A shared log on NATS servers in memory that lose requests and answers, refuse, end connections and lead no more.

    :ivar known: the numbers that the entries with these positions and expected numbers have
    :ivar heard, asked: what the functions of the last opening were called with, and must have been called with
    :ivar secret: the password, which can be read; None: it cannot
    """

    nats: Nats
    dice: Random
    log: JetStreamLog = attrs.field(init=False)
    known: dict[tuple[int, int], int] = attrs.field(factory=dict)
    position: int = 0
    heard: tuple[list[bytes], list[bytes]] = attrs.field(factory=lambda: ([], []))
    asked: tuple[list[bytes], list[bytes]] = attrs.field(factory=lambda: ([], []))
    secret: str | None = "secret"
    branches: Counter[str] = attrs.field(factory=Counter)

    def __attrs_post_init__(self) -> None:
        options = {"user": "a", "password": self.password}
        self.log = JetStreamLog(reactor, self.nats.urls, self.nats.name, 2, 90 << 20, timeout=60.0, options=options)

    def password(self) -> str:
        if self.secret is None:
            self.branches["password cannot be read"] += 1
            raise ConfigError("the password cannot be read")
        return self.secret

    async def until(
        self, done: Callable[[], object], what: str, ask: Callable[[], Deferred[Any]] = lambda: succeed(None)
    ) -> None:
        deadline = reactor.seconds() + 20  # type: ignore[attr-defined]
        while not done():
            assert reactor.seconds() < deadline, f"{what}, and has not"  # type: ignore[attr-defined]
            with suppress(Unavailable):
                await ask()
            await deferLater(reactor, 0.002)

    async def fails(self, asked: Deferred[Any], why: str) -> None:
        with pytest.raises(Unavailable, match=why):
            await asked

    async def open(self) -> None:
        """Open the log anew, as a server does that has filled its journal; or begin with another connection.

        Sometimes close it while it connects to a NATS server that does not answer, after it has left another one.
        """
        leaving = len(self.nats.urls) > 1 and self.dice.random() < 0.4
        if leaving:
            await self.until(lambda: len(self.nats.connections) == 1, "the connection before was to end")
            for server in self.nats.servers:
                server.frozen = not server.connections
            self.nats.cluster = CUT
            await self.fails(self.log.extent(), "has heard no majority")
            await self.until(
                lambda: any(server.unanswered for server in self.nats.servers), "the server was to be left"
            )
            self.nats.cluster = None
            self.branches["closed while leaving"] += 1
        if leaving or self.dice.random() < 0.5:
            await self.log.close()
            await self.fails(self.log.extent(), "the connection to NATS is closed")
            await self.until(lambda: not self.nats.connections, "all connections were to end")
        for server in self.nats.servers:
            server.frozen, server.unanswered = False, 0
        self.heard, self.asked = ([], []), ([], [])
        assert self.nats.config is not None
        if self.dice.random() < 0.3:
            self.nats.config["max_age"] = 10**12
            with pytest.raises(ConfigError, match="it deletes messages by itself"):
                await self.log.open(self.heard[0].append, A, self.asked[0].append)
            self.nats.config["max_age"] = 0
            self.branches["deletes entries"] += 1
        assert await self.log.open(self.heard[0].append, A, self.asked[0].append) == []

    async def append(self) -> None:
        """Append an entry; sometimes again, sometimes with another number than the next."""
        nats, expect = self.nats, self.nats.last + self.dice.choice([0, 0, 0, 0, -1, 1])
        self.position += 1
        position, expect = self.dice.choice([(self.position, expect), *self.known])
        entry = data(position, b"x" * self.dice.choice([1, 40_000]))
        expected = self.known.get((position, expect), nats.last + 1 if expect == nats.last else None)
        nats.dumb, self.log.timeout = (True, 0.001) if self.dice.random() < 0.1 else (False, 60.0)
        if nats.dumb:
            came = len(nats.requests)
            await self.fails(self.log.append(entry, expect), "NATS does not answer: .*imeout")
            await self.until(lambda: len(nats.requests) > came, "the append was to arrive")
            nats.dumb, self.log.timeout = False, 60.0
            self.branches["answer lost"] += expected is not None
        if expected is None:
            with pytest.raises(Refused) as refused:
                await self.log.append(entry, expect)
            assert refused.value.last == nats.last
        else:
            self.branches["repeated"] += (position, expect) in self.known
            assert await self.log.append(entry, expect) == expected
            self.known[position, expect] = expected

    async def extent(self) -> None:
        nats, nodes = self.nats, ()
        nats.cluster = self.dice.choice([None, HEARS, LEADERLESS])
        if nats.cluster is LEADERLESS:
            await self.fails(self.log.extent(), "the stream FYREHOSE_x has no leader at present")
        elif nats.cluster:
            both = (("n1", True), ("n2", False))
            nodes = tuple(
                NatsStatus(name=name, leads=leads, current=True, offline=False, lag=0) for name, leads in both
            )
        if nats.cluster is not LEADERLESS:
            expected = EntryRange(nats.first or 1, nats.last, nats.size, 90 << 20, nodes, 2)
            assert attrs.asdict(await self.log.extent()) == attrs.asdict(expected)
        nats.cluster = None

    async def read(self) -> None:
        nats, most = self.nats, self.dice.choice([1, 2, 10])
        number = self.dice.randint(1, nats.last + 2)
        numbers = [*itertools.takewhile(nats.entries.__contains__, range(number, number + most))]
        nats.old, nats.dumb = self.dice.random() < 0.2, self.dice.random() < 0.2
        if nats.dumb:
            self.log.timeout = 0.001
            await self.fails(self.log.read(number, most), "NATS does not answer: TimeoutError")
        else:
            found = await self.log.read(number, most)
            expected = numbers[:1] if nats.old else numbers
            assert found == [(each, LogEntry.unpack(nats.entries[each])) for each in expected]
        self.log.timeout, nats.old, nats.dumb = 60.0, False, False

    async def purge(self) -> None:
        number = self.dice.randint(1, self.nats.last + 1)
        await self.log.purge(number)
        assert all(each >= number for each in self.nats.entries), f"the log begins at {self.nats.first}, not {number}"

    async def talk(self) -> None:
        """Send messages, of which those of the servers, and those of operators, reach the functions of this opening."""
        await self.log.extent()  # without a connection, messages are lost
        said = b"%d" % len(self.heard[1])
        self.heard[1].append(said)
        self.log.say(said)
        assert not await self.log.is_here(EntryWriter("a", 2)), "another process of that server is not here"
        self.asked[1].append(b"request " + said)
        self.nats.publish(subject_of("x", "members"), b"request " + said)
        await self.until(lambda: len(self.asked[0]) >= len(self.asked[1]), "the request of an operator was to arrive")

    async def end(self) -> None:
        """End the requests under way: with the connection, or as another NATS server leads the stream."""
        await self.log.extent()
        elected, came = self.dice.random() < 0.5, len(self.nats.requests)
        self.nats.deaf = True
        under_way = [self.log.extent(), self.log.purge(1)]
        await self.until(lambda: len(self.nats.requests) == came + 2, "both requests were to arrive")
        self.nats.deaf = False
        if elected:
            self.nats.publish("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.FYREHOSE_x", b"{}")
        else:
            for server in self.nats.servers:
                server.leave()
        for each in under_way:
            await self.fails(each, "the connection to NATS has ended, or another NATS server leads the stream")
        self.branches["another leads" if elected else "connection ended"] += 1

    async def refuse(self) -> None:
        self.nats.error = {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"}
        request, why = self.dice.choice(
            [
                (
                    lambda: self.log.append(data(0), self.nats.last),
                    r"NATS refuses: maximum bytes exceeded \(code 10077",
                ),
                (self.log.extent, r"NATS refuses: maximum bytes exceeded \(code 10077\)"),
                (lambda: self.log.read(1, 1), "cannot read the shared log: status 503 maximum bytes exceeded"),
            ]
        )
        await self.fails(request(), why)
        self.nats.error = None

    async def cut_off(self) -> None:
        """Let the leader of the stream hear no other server: it is left, if there is another one to connect to."""
        await self.log.extent()
        before, alone = self.log.connected_to, len(self.nats.urls) == 1
        self.secret = self.dice.choice(["secret", None])
        self.nats.cluster, self.nats.requests = CUT, []
        tried = self.branches["password cannot be read"]
        await self.fails(self.log.extent(), "the stream's leader, n1, has heard no majority for 9.0 s")
        asked = "$JS.API.STREAM.LEADER.STEPDOWN.FYREHOSE_x"
        await self.until(lambda: asked in self.nats.requests, "the leader was to be asked to step down")
        self.nats.cluster = None
        if alone:
            for connection in self.nats.connections:
                connection.refuse()
            await self.until(lambda: not self.nats.connections, "the client was to give up")
            self.secret = "secret"
            await self.until(lambda: self.nats.connections, "the only server was to be tried again", self.log.extent)
        elif self.secret is None:
            await self.until(lambda: self.branches["password cannot be read"] > tried, "a connection was to be tried")
            await self.until(lambda: self.log.connected_to, "the connection before was to be kept")
            self.secret = "secret"
            assert self.log.connected_to == before
        else:
            await self.until(lambda: self.log.connected_to not in ("", before), "another server was to be connected")
        await self.until(lambda: self.log.connected_to, "a server was to be connected")

    async def check(self) -> None:
        if self.heard[1]:
            await self.until(lambda: len(self.heard[0]) >= len(self.heard[1]), "a message was to arrive")
        assert self.heard[0] == self.heard[1]
        assert self.asked[0] == self.asked[1]

    async def run(self, steps: int) -> None:
        await self.log.open(self.heard[0].append, A, self.asked[0].append)
        often = [self.append] * 6 + [self.extent, self.read, self.read, self.talk] * 2
        seldom = [self.open, self.purge, self.end, self.refuse, self.cut_off]
        for step in [self.extent] * 4 + self.dice.choices(often + seldom, k=steps):  # at first of an empty log
            self.branches[step.__name__] += 1
            await step()
            await self.check()


def test_a_log_on_nats_servers_that_fail_has_what_they_have_accepted() -> Any:
    async def test() -> None:
        branches: Counter[str] = Counter()
        for seed in range(2):
            with nats_servers("x", 1 + seed) as nats:
                conversation = Conversation(nats, Random(seed))
                await conversation.run(100)
                await conversation.log.close()
                branches += conversation.branches
        assert len(branches) == 16, f"a branch never ran: {branches}"

    return Deferred.fromCoroutine(test())


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
