"""Test the memory budget of a real server over raw sockets, with peers that send large frames, and honest ones."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from typing import Any

import pytest

from tests.live.conftest import PATIENCE, resident

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1 << 20
PUBLISH, ACK = 5, 6


def publish(number: int, data: bytes) -> bytes:
    """Return a PUBLISH of Figg for the topic "t"."""
    body = struct.pack(">I1sQI", 1, b"t", number, len(data)) + data
    return struct.pack(">HHI", PUBLISH, 1, len(body)) + body


def acknowledged(number: int) -> bytes:
    return struct.pack(">HHIQ", ACK, 1, 8, number)


def connect(port: int, source: str) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE, source_address=(source, 0))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def test_many_honest_large_frames_finish_within_a_small_budget(start: Any, record_property: Any) -> None:
    server = start(
        *("--listen", "figg=tcp:0:interface=127.0.0.1", "--option", "server.memory=24M"),
        *("--option", "journal.segment-size=8M", "--option", "journal.keep-bytes=32M"),
    )
    before = resident(server.process.pid)
    frame = publish(1, bytes(6 * MIB))
    selector = selectors.DefaultSelector()
    for number in range(100):
        peer = connect(server.port("figg"), f"127.0.0.{1 + number % 2}")
        peer.setblocking(False)
        selector.register(peer, selectors.EVENT_WRITE | selectors.EVENT_READ, memoryview(frame))
    done = 0
    deadline = time.monotonic() + 240
    while done < 100:
        assert time.monotonic() < deadline, f"{done} of 100 were acknowledged: {server.log}"
        for key, events in selector.select(1.0):
            peer, left = key.fileobj, key.data
            assert isinstance(peer, socket.socket)
            if events & selectors.EVENT_READ:
                assert peer.recv(16) == acknowledged(1), server.log
                done += 1
                selector.unregister(peer)
                peer.close()
            elif left:
                left = left[peer.send(left[: 256 << 10]) :]
                selector.modify(peer, selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0), left)
    took = resident(server.process.pid, most=True) - before
    record_property("memory", took)
    print(f"100 frames of 6 MiB took {took >> 20} MiB at the most")
    # The budget; one read of each connection; several copies of a frame on its way from the buffer to the disk.
    assert took < (24 + 7 + 60) * MIB
    assert server.stop() == 0
    assert "Traceback" not in server.log
