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
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from twisted.internet import task
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.protocols import portforward

sys.path.insert(0, str(Path(__file__).parent))

import kills
import servers

from fyrehose.net.clients import Backoff, ConnectionOptions
from fyrehose.offline import dump
from fyrehose.protocols.relink.client import RelinkClient

LOOPBACK = "127.0.0.1"
STREAM = "transfer"
#: About how many bytes a message takes on the wire.
MESSAGE = 56


class Proxy(portforward.ProxyFactory):
    """A proxy between client and server that cuts connections in the middle of their data.

    :param cuts: how many cuts there are
    :param distance: the average number of bytes between cuts
    """

    noisy = False

    def __init__(self, reactor: Any, port: int, rnd: random.Random, cuts: int, distance: int) -> None:
        super().__init__(LOOPBACK, port)
        self.protocol = type("Near", (Half, portforward.ProxyServer), {"proxy": self, "reactor": reactor})
        far = type("Far", (Half, portforward.ProxyClient), {"proxy": self})
        factory = type("FarFactory", (portforward.ProxyClientFactory,), {"protocol": far, "noisy": False})
        self.protocol.clientProtocolFactory = factory
        self.reactor, self.rnd, self.left, self.distance = reactor, rnd, cuts, distance
        self.cuts = 0
        self.next = rnd.randrange(2 * distance)

    def let_through(self, size: int) -> int:
        """Return how many of ``size`` bytes pass before the next cut."""
        if not self.left or size <= self.next:
            self.next -= size
            return size
        return self.next

    def cut(self, half: Half) -> None:
        """Cut the connection while ``half`` sends; data in the other direction may still arrive."""
        self.cuts += 1
        self.left -= 1
        self.next = self.rnd.randrange(2 * self.distance)
        other, half.peer = half.peer, None
        half.transport.abortConnection()
        other.peer = None
        self.reactor.callLater(self.rnd.choice((0, 0, 0.05)), other.transport.loseConnection)


class Half:
    """One half of a connection through the proxy."""

    proxy: Proxy
    peer: Any
    transport: Any

    def dataReceived(self, data: bytes) -> None:
        passed = self.proxy.let_through(len(data))
        if self.peer is not None:
            self.peer.transport.write(data[:passed])
            if passed < len(data):
                self.proxy.cut(self)


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
    ports = servers.free_ports(("relink",))
    server, killed = kills.Serving(directory, ports=ports, only=True), 0
    proxy = Proxy(reactor, ports["relink"], rnd, args.cuts, max(1, args.messages * MESSAGE // 2 // max(1, args.cuts)))
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
                        server.start()
                        killed += 1
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
        status = server.kill(signal.SIGTERM)
        await port.stopListening()
    print(f"{proxy.cuts} cuts, {killed} kills; the server ended with {status}")
    return committed


async def run(reactor: Any, args: argparse.Namespace, directory: Path) -> None:
    began = time.monotonic()
    committed = await transfer(reactor, args, directory)
    found = [bytes(payload) for run in dump.runs(directory / "data", STREAM) for payload in run.payloads()]
    seconds = time.monotonic() - began
    print(f"{args.messages} messages sent, {len(committed)} committed, {len(found)} in the journal, {seconds:.0f} s")
    if found != committed:
        at = next((i for i, pair in enumerate(zip(found, committed, strict=False)) if pair[0] != pair[1]), len(found))
        raise SystemExit(f"the journal differs from what was committed, from message {at} on; see {directory}")
    print("exactly what was committed, each once, in order")
    servers.verdict(False, directory)


def main() -> None:
    args = kills.parser_of(__doc__, messages=100_000, cuts=500, kills=0, largest=50).parse_args()
    root = kills.root_of(args, "relink")
    task.react(lambda reactor: ensureDeferred(run(reactor, args, root)))


if __name__ == "__main__":
    main()
