"""Test the memory budget of a real server over raw sockets, with peers that send large frames, and honest ones."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.conftest import PATIENCE, listening, resident

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


#: The first bytes of a PUBLISH of 16 MiB.
BEGINNING = publish(1, bytes(16 * MIB - 100))[:100]


class Tricklers:
    """Connections of one address that announce 16 MiB each, send the first bytes of it, and then 9 kB a second."""

    step, pause = 900, 0.1

    def __init__(self, port: int, count: int, first: int) -> None:
        self.port, self.first = port, first
        self.rounds = self.lost = 0
        self._enough = threading.Event()
        self._peers = [self._begin() for _ in range(count)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _begin(self) -> socket.socket:
        peer = connect(self.port, "127.0.0.1")
        peer.sendall(BEGINNING)
        peer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            left = memoryview(bytes(self.first))
            while left:
                left = left[peer.send(left) :]
        return peer

    def _run(self) -> None:
        while not self._enough.wait(self.pause):
            for number, peer in enumerate(self._peers):
                try:
                    with contextlib.suppress(BlockingIOError):
                        peer.send(bytes(self.step))
                except OSError:
                    self.lost += 1
                    peer.close()
                    self._peers[number] = self._begin()
            self.rounds += 1

    def go_on(self) -> bool:
        """Wait until each connection has sent once more; return whether all of them could."""
        before = self.rounds
        deadline = time.monotonic() + PATIENCE
        while self.rounds < before + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._thread.is_alive() and self.rounds > before

    def stop(self) -> None:
        self._enough.set()
        self._thread.join(PATIENCE)
        for peer in self._peers:
            peer.close()


@contextlib.contextmanager
def trickling(port: int, count: int, first: int) -> Iterator[Tricklers]:
    tricklers = Tricklers(port, count, first)
    try:
        assert tricklers.go_on()
        yield tricklers
        assert tricklers.go_on(), "the attack has ended too early"
    finally:
        tricklers.stop()


@pytest.mark.parametrize("first", [0, MIB - 65_536, 1_400_000])
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_200_connections_that_trickle_large_frames_do_not_delay_others(
    start: Any, source: str, first: int, record_property: Any
) -> None:
    server = start(*listening("figg", "http"), "--option", "figg.max-per-host=300")
    with trickling(server.port("figg"), 200, first) as tricklers:
        waits = {}
        with connect(server.port("figg"), source) as honest:
            for number, size in enumerate((MIB, 200_000, 3 * MIB, 10), 1):
                began = time.monotonic()
                honest.sendall(publish(number, bytes(size)))
                assert honest.recv(16, socket.MSG_WAITALL) == acknowledged(number)
                waits[f"Figg, {size} bytes"] = time.monotonic() - began
        with connect(server.port("http"), source) as honest:
            began = time.monotonic()
            honest.sendall(
                b"POST /streams/s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n" + bytes(300_000)
            )
            assert honest.recv(15) == b"HTTP/1.1 200 OK"
            waits["HTTP, 300000 bytes"] = time.monotonic() - began
    for what, wait in waits.items():
        record_property(what, wait)
        print(f"{source}, {first} bytes first: {what}: {1000 * wait:.0f} ms; {tricklers.lost} connections were dropped")
    assert server.stop() == 0
    assert "Traceback" not in server.log


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
