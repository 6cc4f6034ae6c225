"""Loads over TCP keep to their window and rate; the server is a thread with a socket."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest

from fyrehose.bench.plans import Plan
from fyrehose.bench.streams import StreamLoad
from fyrehose.bench.wires.base import Wrong, payload
from fyrehose.protocols.figg.frames import Ack, Publish

FRAME = len(Publish(topic="s", number=1, data=payload(10)).serialize())


class Acknowledger:
    """Read PUBLISHes of one connection, and acknowledge them when there are ``hold`` of them."""

    def __init__(self, hold: int, most: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.under_way: list[int] = []
        self.thread = threading.Thread(target=self._serve, args=(hold, most), daemon=True)
        self.thread.start()

    def _serve(self, hold: int, most: int) -> None:
        peer, _ = self.listener.accept()
        with self.listener, peer:
            peer.settimeout(60)
            data, acked = b"", 0
            while acked < most:
                data += peer.recv(1 << 16)
                if len(data) // FRAME - acked < hold:
                    continue
                self.under_way.append(len(data) // FRAME - acked)
                acked = len(data) // FRAME
                (number,) = struct.unpack_from(">Q", data, (acked - 1) * FRAME + 13)
                peer.sendall(Ack(number=number).serialize())
            while peer.recv(100):
                pass


def loaded(server: Acknowledger, **changes: object) -> StreamLoad:
    plan = Plan(wire="figg", port=server.port, read_port=server.port, stream="s", size=10, **changes)  # type: ignore[arg-type]
    load = StreamLoad(plan)
    load.connect()
    return load


def test_load_fills_its_window_and_never_exceeds_it() -> None:
    server = Acknowledger(hold=8, most=48)
    load = loaded(server, publishers=[48], window=8)
    outcome = load.run(time.monotonic())
    load.close()
    server.thread.join(10)
    assert outcome.acknowledged == 48
    assert server.under_way == [8] * 6
    assert outcome.latency == {}


def test_load_of_one_message_at_a_time_measures_latencies() -> None:
    server = Acknowledger(hold=1, most=5)
    load = loaded(server, publishers=[5], window=1)
    outcome = load.run(time.monotonic())
    load.close()
    server.thread.join(10)
    assert server.under_way == [1] * 5
    assert len(outcome.latency["acknowledged"]) == 3


def test_connection_closed_by_the_server_fails_the_load() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        load = StreamLoad(Plan(wire="figg", port=port, read_port=port, stream="s", size=10, publishers=[5], window=1))
        load.connect()
        listener.accept()[0].close()
        with pytest.raises((Wrong, OSError)):
            load.run(time.monotonic())
        load.close()


def test_wire_without_subscribers_is_an_error() -> None:
    plan = Plan(wire="lumberjack", port=1, read_port=1, stream="s", size=10, subscribers=1)
    with pytest.raises(Wrong, match="no subscribers"):
        StreamLoad(plan).connect()
