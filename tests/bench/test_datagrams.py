"""Load on the backbone: pushes, lost datagrams and requests; the server is a thread with a socket."""

from __future__ import annotations

import socket
import threading
import time

from fyrehose.bench.datagrams import Datagrams
from fyrehose.bench.plans import Plan
from fyrehose.protocols.backbone.frames import Deliver, KeepAlive, KeepAliveAck, Push, Request, decode


class Backbone:
    """Deliver each push to its sender, except those whose ordinal is in ``lost``; an empty datagram ends the server."""

    def __init__(self, lost: frozenset[int] = frozenset(), held: int = 0) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.lost, self.held, self.pushed = lost, held, 0
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            data, source = self.sock.recvfrom(1 << 16)
            if not data:
                return
            said = decode(data)
            if isinstance(said, KeepAlive):
                self.sock.sendto(KeepAliveAck(token=said.token).serialize(), source)
            elif isinstance(said, Push):
                self.pushed += 1
                if self.pushed not in self.lost:
                    self.held += 1
                    self.sock.sendto(Deliver(seq=self.held, data=said.data).serialize(), source)
            elif isinstance(said, Request):
                for seq in range(said.first, said.last + 1):
                    if seq not in self.lost:
                        self.sock.sendto(Deliver(seq=seq, data=b"x" * 10).serialize(), source)

    def end(self) -> None:
        self.sock.sendto(b"", ("127.0.0.1", self.port))
        self.thread.join(10)
        self.sock.close()


def plan(backbone: Backbone, **changes: object) -> Plan:
    return Plan(wire="backbone", port=backbone.port, read_port=backbone.port, stream="s", size=10, **changes)  # type: ignore[arg-type]


def test_delivers_of_own_pushes_are_counted() -> None:
    backbone = Backbone()
    load = Datagrams(plan(backbone, publishers=[30], subscribers=1, expected=30, window=8), lost_s=60.0, quiet_s=60.0)
    load.connect()
    outcome = load.run(time.monotonic())
    load.close()
    backbone.end()
    assert (outcome.acknowledged, outcome.received, outcome.lost, backbone.pushed) == (30, 30, 0, 30)


def test_lost_datagrams_are_counted_and_the_load_continues() -> None:
    backbone = Backbone(lost=frozenset({3, 17}))
    load = Datagrams(plan(backbone, publishers=[20], subscribers=1, expected=20, window=1), lost_s=1.0, quiet_s=60.0)
    load.connect()
    outcome = load.run(time.monotonic())
    load.close()
    backbone.end()
    assert (outcome.received, outcome.lost, backbone.pushed) == (18, 2, 20)


def test_earlier_records_are_requested_by_number() -> None:
    backbone = Backbone(lost=frozenset({45}), held=50)
    load = Datagrams(plan(backbone, subscribers=1, expected=20, late=True, extra={"last": 50}), lost_s=1.0)
    load.connect()
    outcome = load.run(time.monotonic())
    load.close()
    backbone.end()
    assert (outcome.received, outcome.lost) == (19, 1)
