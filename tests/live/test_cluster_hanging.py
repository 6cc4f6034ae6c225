"""A leader whose HTTP listener accepts connections and answers nothing hands over."""

from __future__ import annotations

import re
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import attrs
import pytest

from benchmarks.local_cluster import Cluster
from fyrehose.testing.ports import free_ports
from tests.live.conftest import with_nats
from tests.live.test_cluster import PATIENCE, leader_of, publish, wait_for_leader

pytestmark = with_nats(300)


@attrs.define(eq=False)
class Front:
    """A proxy in front of a server's listener: it passes everything on, unless it hangs.

    :ivar ports: for each port of a front, that of the listener behind it
    :ivar connections: how many connections each front has accepted
    :ivar hanging: the ports of the fronts that accept connections and pass nothing on
    """

    ports: dict[int, int]
    hanging: set[int] = attrs.field(factory=set)
    connections: Counter[int] = attrs.field(factory=Counter)
    _servers: list[ThreadingTCPServer] = attrs.field(factory=list, init=False)

    def start(self) -> None:
        front = self

        class Handler(BaseRequestHandler):
            def handle(self) -> None:
                front.pass_on(int(self.server.server_address[1]), self.request)

        for port in self.ports:
            self._servers.append(ThreadingTCPServer(("127.0.0.1", port), Handler))
            threading.Thread(target=self._servers[-1].serve_forever).start()

    def stop(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def pass_on(self, port: int, client: socket.socket) -> None:
        """Copy everything between *client* and the listener behind *port*, until one of them closes."""
        self.connections[port] += 1
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[port])) as listener:
            ends = {client: listener, listener: client}
            while True:
                for readable in select.select([*ends], [], [])[0]:
                    data = readable.recv(65536)
                    if not data:
                        return
                    if port not in self.hanging:
                        ends[readable].sendall(data)


@pytest.fixture
def front() -> Iterator[Front]:
    ports = free_ports(6)
    made = Front(dict(zip(ports[:3], ports[3:], strict=True)))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def cluster(tmp_path: Path, front: Front) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    for server, (port, behind) in zip(made.servers.values(), front.ports.items(), strict=True):
        figg, _, page = server.ports
        server.ports = (figg, port, page)
        server.listen = {"http": f"tcp:{behind}"}
    with made:
        yield made


def test_leader_whose_listener_hangs_hands_over(cluster: Cluster, front: Front) -> None:
    publish(cluster, b"before")
    leader = leader_of(cluster)
    deadline, asked = time.monotonic() + PATIENCE, front.connections[leader.ports[1]]
    while front.connections[leader.ports[1]] < asked + 2:  # until the leader has asked itself, and once again
        assert time.monotonic() < deadline, leader.log[-3000:]
        time.sleep(0.1)
    front.hanging.add(leader.ports[1])
    wait_for_leader(cluster, lambda found: found is not leader)
    assert "does not answer, so another server should lead" in leader.log
    assert re.search("hands over to [abc], because its listener does not answer", leader.log)
    front.hanging.clear()
    assert publish(cluster, b"after") >= 2
