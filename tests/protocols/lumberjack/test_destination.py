"""Test forwarding to lumberjack servers, into peers written from docs/protocols/lumberjack.md."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.protocol import Factory, Protocol

from fyrehose.forward.destination import DONE, Around, BatchOutcome, place
from fyrehose.protocols.lumberjack.destination import LumberjackTable, lumberjack
from fyrehose.records import Run


class Peer(Factory):
    """A reader that acknowledges windows, or does with each what the test says.

    :ivar plan: what becomes of each window: ``ack``, ``part`` (it acknowledges half, and dies) or ``die``
    :ivar events: those of acknowledged windows
    """

    def __init__(self, *plan: str) -> None:
        self.plan, self.events = list(plan), []  # type: ignore[var-annotated]
        self.open: dict[Protocol, Deferred[None]] = {}
        self.port: Any = reactor.listenTCP(0, self, interface="127.0.0.1")  # type: ignore[attr-defined]

    def buildProtocol(self, addr: Any) -> Protocol:
        return Connection(self)

    def window(self, events: list[bytes], transport: Any) -> bool:
        """Handle a window; return whether the peer lives."""
        step = self.plan.pop(0) if self.plan else "ack"
        count = {"ack": len(events), "part": len(events) // 2, "die": 0}[step]
        self.events += events[:count]
        if count:
            transport.write(struct.pack(">ccI", b"2", b"A", count))
        if step != "ack":
            transport.loseConnection()
        return step == "ack"

    async def stop(self) -> None:
        for connection, lost in list(self.open.items()):
            connection.transport.abortConnection()  # type: ignore[union-attr]
            await lost
        await self.port.stopListening()


class Connection(Protocol):
    """One connection of a writer."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.data, self.size = peer, b"", 0
        self.events: list[bytes] = []
        self.alive = True

    def connectionMade(self) -> None:
        self.peer.open[self] = Deferred()

    def connectionLost(self, reason: Any = None) -> None:
        self.peer.open.pop(self).callback(None)

    def dataReceived(self, data: bytes) -> None:
        self.data += data if self.alive else b""
        while self.alive and len(self.data) >= 6 and self.parse():
            pass

    def parse(self) -> bool:
        """Handle one frame, if it is complete."""
        kind, number = self.data[1:2], int.from_bytes(self.data[2:6], "big")
        if kind == b"W":
            self.size, self.data = number, self.data[6:]
            return True
        size = number + 6 if kind == b"C" else int.from_bytes(self.data[6:10], "big") + 10
        if len(self.data) < size:
            return False
        frame, self.data = self.data[:size], self.data[size:]
        if kind == b"C":
            self.data = zlib.decompress(frame[6:]) + self.data
            return True
        self.events.append(frame[10:])
        if len(self.events) == self.size:
            self.alive = self.peer.window(self.events, self.transport)
            self.events = []
        return True


@pytest.fixture
def sending() -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(*peers: Peer, **keys: Any) -> Any:
        ports = [peer.port.getHost().port for peer in peers]
        table = LumberjackTable(
            name="n", streams="s", to=tuple(place(f"lumberjack://127.0.0.1:{port}") for port in ports), **keys
        )
        endpoints = [HostnameEndpoint(reactor, "127.0.0.1", port) for port in ports]
        made.append((lumberjack.sender(table, Around(reactor, endpoints, lambda: "")), peers))
        return made[-1][0]

    yield make
    for sender, peers in made:
        pytest_twisted.blockon(sender.close())
        for peer in peers:
            pytest_twisted.blockon(Deferred.fromCoroutine(peer.stop()))


def run_of(count: int, first: int = 1) -> Run:
    payloads = [b'{"n": %d}' % number for number in range(first, first + count)]
    return Run.of("s", payloads, source="figg", first_seq=first)


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("compression", [0, 3])
async def test_batch_is_done_when_all_windows_are_acknowledged(compression: int, sending: Any) -> None:
    peer = Peer()
    sender = sending(peer, window=10, compression=compression)
    assert await sender.send([run_of(25)]) == DONE
    assert [json.loads(event)["n"] for event in peer.events] == list(range(1, 26))


@pytest_twisted.ensureDeferred
async def test_events_are_sent_again_to_a_peer_that_dies(sending: Any) -> None:
    peer = Peer("die", "ack", "part", "die")
    sender = sending(peer, window=10)
    assert await sender.send([run_of(40)]) == DONE
    assert not sender.problem, "the problem of an earlier connection is still shown"
    assert sorted({json.loads(event)["n"] for event in peer.events}) == list(range(1, 41))


@pytest_twisted.ensureDeferred
async def test_another_peer_takes_what_the_first_one_does_not(sending: Any) -> None:
    first, second = Peer(*["die"] * 50), Peer()
    sender = sending(first, second, window=10)
    assert await sender.send([run_of(40)]) == DONE
    assert sorted(json.loads(event)["n"] for event in second.events) == list(range(1, 41))


@pytest_twisted.ensureDeferred
async def test_records_that_are_no_text_are_refused(sending: Any) -> None:
    sender = sending(Peer())
    outcome: BatchOutcome = await sender.send([Run.of("s", [b"\xff", b"x"], source="figg", first_seq=1)])
    assert [run.first_seq for run, _ in outcome.refused] == [1]
