"""Publish a message to a cluster and read it back, with clients that know all of its servers.

python cluster_client.py MESSAGE HOST:FIGG HOST:FIGG ...
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.task import react

from fyrehose import Run
from fyrehose.net import AnyServer
from fyrehose.protocols.figg import FiggClient


async def main(reactor: Any, message: bytes, addresses: list[str]) -> None:
    # A connection to a machine that is lost must not wait for long.
    servers = AnyServer([clientFromString(reactor, f"tcp:{address}:timeout=5") for address in addresses])
    client = FiggClient(reactor, servers)
    client.connect()
    await client.publish("orders", message)  # fires when the leader has acknowledged it

    found: Deferred[str] = Deferred()

    def take(run: Run) -> None:
        if message in map(bytes, run.payloads()) and not found.called:
            found.callback(run.stream)

    client.subscribe("orders", take, after=0)
    print(f"{message.decode()!r} is in {await found}")
    await client.close()


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, sys.argv[1].encode(), sys.argv[2:])))
