#!/usr/bin/env python3
"""Send transactions over a connection that is cut, to a server that is killed, and check that each is stored once.

    relink_transfer.py [--messages N] [--cuts N] [--kills N] [--largest N] [--seed S] [--directory DIR]

Starts a real server and a proxy that breaks its connections at random, sends messages in transactions of 1 to LARGEST
(some are rolled back), then reads the journal.  The exit status is 0 if it has exactly the committed messages, in
order.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from twisted.internet import task
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.error import ConnectError
from twisted.internet.protocol import Factory, Protocol

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.journal.journal import FileJournal
from fyrehose.net.clients import Backoff, ConnectionOptions
from fyrehose.protocols.relink.client import RelinkClient
from fyrehose.testing.ports import free_port

LOOPBACK = "127.0.0.1"
STREAM = "transfer"
#: About how many bytes a message takes on the wire.
MESSAGE = 56


class Half(Protocol):
    """One half of a connection through the proxy."""

    transport: Any

    def __init__(self, proxy: Proxy, far: bool = False) -> None:
        self.proxy, self.far = proxy, far
        self.other: Half | None = None
        self.waiting: list[bytes] = []

    def connectionMade(self) -> None:
        self.proxy.halves.add(self)
        if not self.far:
            self.proxy.join(self)

    def dataReceived(self, data: bytes) -> None:
        passed = self.proxy.let_through(len(data))
        if self.other is None:
            self.waiting.append(data[:passed])
        else:
            self.other.transport.write(data[:passed])
        if passed < len(data):
            self.proxy.cut(self)

    def connectionLost(self, reason: Any = None) -> None:
        self.proxy.halves.discard(self)
        if self.other is not None:
            self.other.transport.loseConnection()


class Proxy(Factory):
    """A proxy between client and server that cuts connections in the middle of their data.

    :param cuts: how many cuts there are
    :param distance: the average number of bytes between cuts
    """

    noisy = False

    def __init__(self, reactor: Any, port: int, rnd: random.Random, cuts: int, distance: int) -> None:
        self.reactor, self.port = reactor, port
        self.rnd, self.left, self.distance = rnd, cuts, distance
        self.halves: set[Half] = set()
        self.cuts = 0
        self.next = rnd.randrange(2 * distance)

    def let_through(self, size: int) -> int:
        """Return how many of ``size`` bytes pass before the next cut."""
        if not self.left or size <= self.next:
            self.next -= size
            return size
        return self.next

    def buildProtocol(self, addr: Any) -> Half:
        return Half(self)

    def join(self, near: Half) -> None:
        def made(far: Half) -> None:
            if near not in self.halves:
                far.transport.abortConnection()
                return
            near.other, far.other = far, near
            far.transport.writeSequence(near.waiting)

        factory = Factory.forProtocol(lambda: Half(self, far=True))
        factory.noisy = False
        endpoint = TCP4ClientEndpoint(self.reactor, LOOPBACK, self.port)
        connected = endpoint.connect(factory)
        connected.addCallbacks(made, lambda failure: (failure.trap(ConnectError), near.transport.abortConnection()))

    def cut(self, half: Half) -> None:
        """Cut the connection while ``half`` sends; data in the other direction may still arrive."""
        self.cuts += 1
        self.left -= 1
        self.next = self.rnd.randrange(2 * self.distance)
        other = half.other
        half.other = None
        half.transport.abortConnection()
        if other is not None:
            other.other = None
            self.reactor.callLater(self.rnd.choice((0, 0, 0.05)), other.transport.loseConnection)


class Server:
    """A ``twistd fyrehose`` process that is killed again and again."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port
        self.kills = 0
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        twistd = Path(sys.executable).with_name("twistd")
        words = ["--data-dir", "data", "--listen", f"relink=tcp:{self.port}:interface={LOOPBACK}"]
        with self.directory.joinpath("log").open("ab") as log:
            return subprocess.Popen(
                [str(twistd), "-n", "fyrehose", *words], cwd=self.directory, stdout=log, stderr=subprocess.STDOUT
            )

    def kill(self) -> None:
        """Kill the server, and start it again at once."""
        self.process.kill()
        self.process.wait()
        self.kills += 1
        self.process = self.start()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@asynccontextmanager
async def client_of(reactor: Any, port: int) -> AsyncIterator[RelinkClient]:
    lost: list[Any] = []
    endpoint = TCP4ClientEndpoint(reactor, LOOPBACK, port)
    client = RelinkClient(
        reactor,
        endpoint,
        f"publish:{STREAM}",
        transactional=True,
        on_lost=lost.append,
        connection_options=ConnectionOptions(retry=Backoff(0.02, 0.5)),
    )
    await client.connect()
    yield client
    await client.close()
    if lost:
        raise SystemExit(f"the link was lost {len(lost)} times")


async def transfer(reactor: Any, args: argparse.Namespace, directory: Path) -> list[bytes]:
    """Send all messages; return the committed ones, in order."""
    rnd = random.Random(args.seed)
    server = Server(directory, free_port())
    proxy = Proxy(reactor, server.port, rnd, args.cuts, max(1, args.messages * MESSAGE // 2 // max(1, args.cuts)))
    port = await TCP4ServerEndpoint(reactor, 0, interface=LOOPBACK).listen(proxy)
    committed: list[bytes] = []
    results: list[Deferred[None]] = []
    kill_at = sorted(rnd.randrange(args.messages) for _ in range(args.kills))
    try:
        async with client_of(reactor, port.getHost().port) as client:
            sent = 0
            while sent < args.messages:
                size = min(rnd.randint(1, args.largest), args.messages - sent)
                transaction = await client.transaction().begin()
                batch = [b"%d %s" % (number, rnd.randbytes(rnd.randrange(60))) for number in range(sent, sent + size)]
                for message in batch:
                    if kill_at and sent >= kill_at[0]:
                        del kill_at[0]
                        await task.deferLater(reactor, rnd.random() * 0.2)
                        server.kill()
                    await transaction.send(message)
                    sent += 1
                if rnd.random() < 0.15:
                    transaction.rollback()
                else:
                    results.append(transaction.commit())
                    committed += batch
            for result in results:
                await result
    finally:
        status = server.stop()
        for half in list(proxy.halves):
            half.transport.abortConnection()
        await port.stopListening()
    print(f"{proxy.cuts} cuts, {server.kills} kills; the server ended with {status}")
    return committed


async def journal_of(reactor: Any, directory: Path) -> list[bytes]:
    """Return the messages in the journal, in order."""
    broker = Broker(reactor, FileJournal(reactor, directory / "data"), Sequencer())
    await broker.open()
    found: list[bytes] = []
    while runs := broker.read(STREAM, len(found) + 1, 4 << 20):
        for run in runs:
            found += map(bytes, run.payloads())
    await broker.close()
    return found


async def run(reactor: Any, args: argparse.Namespace, directory: Path) -> None:
    began = time.monotonic()
    committed = await transfer(reactor, args, directory)
    found = await journal_of(reactor, directory)
    seconds = time.monotonic() - began
    print(f"{args.messages} messages sent, {len(committed)} committed, {len(found)} in the journal, {seconds:.0f} s")
    if found != committed:
        at = next((i for i, pair in enumerate(zip(found, committed, strict=False)) if pair[0] != pair[1]), len(found))
        raise SystemExit(f"the journal differs from what was committed, from message {at} on")
    print("exactly what was committed, each once, in order")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--cuts", type=int, default=500)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--largest", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = args.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        task.react(lambda reactor: ensureDeferred(run(reactor, args, directory)))


if __name__ == "__main__":
    main()
