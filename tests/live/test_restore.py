"""Lose a server with all its files, restore an older backup, and let everybody who was connected go on."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.python.failure import Failure

from fyrehose.net.clients import ClientTarget, ConnectionOptions
from fyrehose.offline.branching import SKIPPED
from fyrehose.offline.dump import runs
from fyrehose.plugins import load
from fyrehose.protocols.backbone.client import BackboneClient
from fyrehose.protocols.backbone.session import BackboneOptions
from fyrehose.protocols.relink.client import RelinkClient
from fyrehose.protocols.relink.events import UnknownOutcome
from fyrehose.records import Run
from fyrehose.testing.ports import free_ports
from tests.live.conftest import eventually, fyrehose

pytestmark = pytest.mark.live

CLIENT = Path(__file__).parents[2] / "clients" / "javascript"
#: The errors by which a publisher is told that a message may be stored or not.
UNKNOWN = ("UnknownOutcome", "PushUnconfirmed")
#: How many messages of each publisher are accepted between the backup and the loss: more than any window.
LOST = 2_000


@attrs.define(eq=False)
class Pair:
    """A publisher and a subscriber of one protocol, each of which keeps its connection.

    :ivar stream: the stream that they name; None: the protocol has only one
    :ivar got: the messages that the subscriber got, with their numbers
    :ivar missing: the ranges of which the subscriber was told that they are missing
    """

    name: str
    stream: str | None
    publisher: Any
    tailer: Any
    got: list[tuple[int, bytes]] = attrs.field(factory=list)
    missing: list[tuple[int, int]] = attrs.field(factory=list)

    async def connect(self) -> None:
        self.publisher.prepare(self.stream)
        await self.publisher.connect()
        if self.tailer is not None:
            self.tailer.subscribe(self.stream, self._take, after=0, lost=lambda *lost: self.missing.append(lost[:2]))
            await self.tailer.connect()

    def _take(self, run: Run) -> None:
        self.got += [(seq, bytes(payload)) for seq, payload in enumerate(run.payloads(), run.first_seq)]

    async def publish(self, when: str, count: int) -> list[str]:
        """Publish messages that say *when*; return the outcome of each: "stored", or the name of the error."""
        waiting = []
        for number in range(count):
            await self.publisher.ready()
            done = self.publisher.publish(self.stream, f"{self.name} {when} {number}.".encode())
            waiting.append(done.addCallbacks(lambda _: "stored", lambda failure: type(failure.value).__name__))
        found: list[str] = await gatherResults(waiting)
        return found

    def heard(self, when: str) -> list[str]:
        """Return which messages that say *when* the subscriber got."""
        return said(when, [payload for _, payload in self.got])


def said(when: str, payloads: Sequence[bytes]) -> list[str]:
    """Return those messages of *payloads* that say *when*, without anything that their protocol puts around them."""
    found = [re.search(rb"\w+ %s \d+\." % when.encode(), payload) for payload in payloads]
    return [one[0].decode() for one in found if one is not None]


def expected(name: str, when: str, count: int) -> list[str]:
    return [f"{name} {when} {number}." for number in range(count)]


def lose_and_restore(server: Any, tmp_path: Path) -> None:
    """Kill the server, lose its files, and restore the backup in their place."""
    server.stop(signal.SIGKILL)
    shutil.rmtree(tmp_path / "data")
    fyrehose("journal", "restore", tmp_path / "backup", tmp_path / "data")


@pytest.fixture
def pairs() -> Any:
    """Return a list; its pairs are closed when the test has ended."""
    made: list[Pair] = []
    yield made
    for pair in made:
        for client in (pair.publisher, pair.tailer):
            if client is not None:
                pytest_twisted.blockon(client.close())


@pytest_twisted.ensureDeferred
async def test_clients_of_every_protocol_go_on_after_a_restore(start: Any, tmp_path: Path, pairs: list[Pair]) -> None:
    ports = dict(zip(("http", "figg", "relink", "lumberjack", "backbone", "eventbus"), free_ports(6, 3), strict=True))
    listen = [
        f"{name}={'udp' if name == 'backbone' else 'tcp'}:{port}:interface=127.0.0.1" for name, port in ports.items()
    ]
    words = [word for each in listen for word in ("--listen", each)]
    server = start("--data-dir", "data", *words)
    for name, port in ports.items():
        plugin: Any = load(name)
        stream = f"of {name}" if name in ("http", "figg", "relink") else None
        publisher = plugin.publisher(ClientTarget(reactor, "127.0.0.1", port), 256)
        if name == "backbone":  # a push has no identity, so one that is repeated may be stored twice
            publisher = BackboneClient(
                reactor, "127.0.0.1", port, options=BackboneOptions(window=256, retries=0, timeout=20.0)
            )
        pairs.append(Pair(name, stream, publisher, plugin.tailer(ClientTarget(reactor, "127.0.0.1", port))))
    await gatherResults([Deferred.fromCoroutine(pair.connect()) for pair in pairs])
    for pair in pairs:
        assert await pair.publish("before", 10) == ["stored"] * 10
    fyrehose("journal", "backup", tmp_path / "data", tmp_path / "backup")
    for pair in pairs:
        assert await pair.publish("lost", LOST) == ["stored"] * LOST
    reading = [pair for pair in pairs if pair.tailer is not None]
    await eventually(lambda: all(len(pair.heard("lost")) == LOST for pair in reading), lambda: counts(reading))
    lose_and_restore(server, tmp_path)
    server = start("--data-dir", "data", *words)
    outcomes = {pair.name: Counter(await pair.publish("meanwhile", 10)) for pair in pairs}
    for pair in pairs:
        assert set(outcomes[pair.name]) <= {"stored", *UNKNOWN}, outcomes
        assert await pair.publish("after", 10) == ["stored"] * 10, pair.name
    await eventually(lambda: all(len(pair.heard("after")) == 10 for pair in reading), lambda: counts(reading))
    for pair in reading:
        assert [pair.heard(when) for when in ("before", "lost", "after")] == [
            expected(pair.name, when, count) for when, count in (("before", 10), ("lost", LOST), ("after", 10))
        ], pair.name
        numbers = [seq for seq, _ in pair.got]
        assert numbers == sorted(set(numbers)), pair.name
        assert sum(last - first + 1 for first, last in pair.missing) > SKIPPED - LOST, (pair.name, pair.missing)
    assert server.stop() == 0
    stored = [bytes(payload) for run in runs(tmp_path / "data") for payload in run.payloads()]
    for pair in pairs:
        kept = {when: sorted(one for one in said(when, stored) if one.startswith(f"{pair.name} ")) for when in WHEN}
        assert kept["lost"] == []
        assert len(set(kept["meanwhile"])) == len(kept["meanwhile"]) >= outcomes[pair.name]["stored"], pair.name
        for when in ("before", "after"):
            assert kept[when] == expected(pair.name, when, 10), (pair.name, when)


#: Publishes each line of its input, with a plain and with a transactional link, and prints the outcome.
PROGRAM = """
import { createInterface } from "node:readline";
const { RelinkPublisher } = await import("./relink.js");
const [address] = process.argv.slice(1);
const made = (transactional) => new RelinkPublisher(address, "s", { transactional });
const links = { js: made(false), jstx: made(true) };
for await (const line of createInterface({ input: process.stdin })) {
  for (const [name, link] of Object.entries(links)) {
    await link.ready();
    const told = (outcome) => console.log(`${name} ${line} ${outcome}`);
    link.publish(`${name} ${line}.`).then(() => told("stored"), (error) => told(error.outcome));
  }
}
"""


@attrs.define(eq=False)
class Links:
    """Four publishers with Relink: clients in Python and in JavaScript, each with and without transactions.

    :ivar told: the outcome of each message
    """

    plain: RelinkClient
    transactional: RelinkClient
    node: subprocess.Popen[str]
    output: Path
    told: dict[str, str] = attrs.field(factory=dict)

    async def publish(self, when: str, count: int) -> None:
        """Publish *count* messages with each link, and wait for the outcome of each."""
        assert self.node.stdin is not None
        for number in range(count):
            self.node.stdin.write(f"{when} {number}\n")
        self.node.stdin.flush()
        for number in range(count):
            await self.plain.ready()
            self._note(f"py {when} {number}", self.plain.send(f"py {when} {number}.".encode()))
            await self._commit(f"pytx {when} {number}")
        names = [f"{name} {when} {number}" for name in LINKS for number in range(count)]
        await eventually(lambda: {*names} <= {*self.outcomes()}, lambda: Counter(n.split()[0] for n in self.outcomes()))

    async def _commit(self, name: str) -> None:
        try:
            async with self.transactional.transaction() as transaction:
                await transaction.send(f"{name}.".encode())
            self.told[name] = "stored"
        except UnknownOutcome:
            self.told[name] = "unknown"

    def _note(self, name: str, done: Deferred[None]) -> None:
        def unknown(failure: Failure) -> str:
            failure.trap(UnknownOutcome)
            return "unknown"

        done.addCallbacks(lambda _: "stored", unknown).addCallback(lambda how: self.told.update({name: how}))

    def outcomes(self) -> dict[str, str]:
        """Return the outcome of each message, of which every publisher was told."""
        lines = self.output.read_text().splitlines()
        return {**self.told, **dict(line.rsplit(" ", 1) for line in lines)}


#: The four links of :class:`Links`.
LINKS = ("py", "pytx", "js", "jstx")


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Callable[[int], Links]]:
    """Return a function that connects the four links to a port; they end with the test."""
    made: list[Links] = []

    def connect(port: int) -> Links:
        node = shutil.which("node")
        if node is None:
            pytest.skip("a program of others is not installed: node")
        clients = [
            RelinkClient(
                reactor,
                TCP4ClientEndpoint(reactor, "127.0.0.1", port),
                "publish:s",
                transactional=transactional,
                connection_options=ConnectionOptions(close_timeout=0.5),
            )
            for transactional in (False, True)
        ]
        output = tmp_path / "node"
        with output.open("w") as out:
            command = [node, "--input-type=module", "-e", PROGRAM, f"127.0.0.1:{port}"]
            process = subprocess.Popen(command, cwd=CLIENT, stdin=subprocess.PIPE, stdout=out, text=True)
        made.append(Links(*clients, process, output))
        return made[-1]

    yield connect
    for one in made:
        one.node.kill()
        one.node.communicate()
        for client in (one.plain, one.transactional):
            pytest_twisted.blockon(client.close())


@pytest.mark.parametrize("how", ["restore", "older copy"])
@pytest_twisted.ensureDeferred
async def test_relink_publishers_go_on_after_a_restore(
    how: str, start: Any, link: Callable[[int], Links], pairs: list[Pair], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    listen = ("--data-dir", "data", "--listen", f"relink=tcp:{port}:interface=127.0.0.1")
    server = start(*listen)
    links = link(port)
    await gatherResults([links.plain.connect(), links.transactional.connect()])
    plugin: Any = load("relink")
    target = ClientTarget(reactor, "127.0.0.1", port)
    pairs.append(Pair("reader", "s", plugin.publisher(target, 1), plugin.tailer(target)))
    await pairs[0].connect()
    await links.publish("before", 10)
    if how == "restore":
        fyrehose("journal", "backup", tmp_path / "data", tmp_path / "backup")
    else:
        shutil.copytree(tmp_path / "data", tmp_path / "backup")
    await links.publish("lost", LOST)
    await eventually(lambda: len(pairs[0].heard("lost")) == 4 * LOST, lambda: len(pairs[0].got))
    if how == "restore":
        lose_and_restore(server, tmp_path)
    else:
        server.stop(signal.SIGKILL)
        shutil.rmtree(tmp_path / "data")
        shutil.copytree(tmp_path / "backup", tmp_path / "data")
    server = start(*listen)
    await links.publish("meanwhile", 10)
    await links.publish("after", 10)
    if how == "older copy":
        server.wait_for(
            "this journal is an older copy, and gives out numbers again; stop the server, run `fyrehose journal"
        )
    for turn in ("later", "latest"):  # after a kill a link sends again what it takes for unacknowledged
        server.stop(signal.SIGKILL)
        server = start(*listen)
        await links.publish(turn, 1)
    assert server.stop() == 0
    told = links.outcomes()
    for when in ("before", "lost", "after"):
        assert {how for name, how in told.items() if f" {when} " in name} == {"stored"}, when
    payloads = [bytes(payload) for run in runs(tmp_path / "data") if run.stream == "s" for payload in run.payloads()]
    stored = Counter(payload.decode().rstrip(".") for payload in payloads)
    assert {name: count for name, count in stored.items() if count > 1 or " lost " in name} == {}
    assert {name for name, how in told.items() if how == "stored" and " lost " not in name} <= {*stored}


#: When a message was published.
WHEN = ("before", "lost", "meanwhile", "after")


def counts(pairs: Sequence[Pair]) -> list[object]:
    return [(pair.name, {when: len(pair.heard(when)) for when in WHEN}, pair.missing) for pair in pairs]
