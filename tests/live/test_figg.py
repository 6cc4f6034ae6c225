"""Test Figg over real sockets: with hand-made bytes, so that no error of our codec can hide."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from typing import Any

import attrs
import pytest

from tests.live.conftest import PATIENCE

pytestmark = pytest.mark.live

FIGG = ("--listen", "figg=tcp:0:interface=127.0.0.1")
ATTACH, ATTACHED, DETACH, DETACHED, PUBLISH, ACK, DATA, PING, PONG = range(1, 10)


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">HHI", kind, 1, len(payload)) + payload


def field(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def publish(number: int, data: bytes, topic: bytes = b"t") -> bytes:
    return frame(PUBLISH, field(topic) + struct.pack(">Q", number) + field(data))


def attach(topic: bytes, offset: int | None = None, flag: int = 0x8000) -> bytes:
    flags = 0 if offset is None else flag
    return frame(ATTACH, struct.pack(">H", flags) + field(topic) + struct.pack(">Q", offset or 0))


def ack(number: int) -> tuple[int, bytes]:
    return ACK, struct.pack(">Q", number)


def attached(topic: bytes, offset: int) -> tuple[int, bytes]:
    return ATTACHED, field(topic) + struct.pack(">Q", offset)


def data(number: int, payload: bytes) -> tuple[int, bytes]:
    return DATA, field(b"t") + struct.pack(">Q", number) + field(payload)


@attrs.define(eq=False)
class Peer:
    """A plain socket that speaks Figg with hand-made bytes."""

    port: int
    socket: socket.socket = attrs.field(init=False)
    stream: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()

    def say(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def hear(self) -> tuple[int, bytes] | None:
        """Return type and payload of the next frame; None when the server has closed the connection."""
        header = self.stream.read(8)
        if not header:
            return None
        kind, version, size = struct.unpack(">HHI", header)
        assert version == 1
        return kind, self.stream.read(size)

    def acknowledged(self, number: int) -> None:
        """Read ACKs, which must rise, until ``number`` is acknowledged."""
        last = 0
        while last != number:
            heard = self.hear()
            assert heard is not None, f"closed after ACK {last}"
            assert heard[0] == ACK
            (this,) = struct.unpack(">Q", heard[1])
            assert last < this <= number
            last = this


def ioctl_unread(peer: socket.socket) -> int:
    """Return how many bytes have arrived at *peer* and are unread."""
    return int(struct.unpack("i", fcntl.ioctl(peer, termios.FIONREAD, bytes(4)))[0])


def test_every_message_of_figg_has_the_specified_bytes(start: Any) -> None:
    port = start(*FIGG).port("figg")
    with Peer(port) as writer, Peer(port) as reader:
        reader.say(attach(b"t"))
        assert reader.hear() == attached(b"t", 0)
        writer.say(publish(41, b"one"), publish(42, b""), publish(43, b"\x00\xff"))
        writer.acknowledged(43)
        expected = [data(1, b"one"), data(2, b""), data(3, b"\x00\xff")]
        assert [reader.hear() for _ in range(3)] == expected
        for flag in (0x8000, 0x0001, 0xFFFF):
            reader.say(attach(b"t", 1, flag))
            assert reader.hear() == attached(b"t", 1)
            assert [reader.hear() for _ in range(2)] == expected[1:]
        reader.say(attach(b"t", 1 << 63))
        assert reader.hear() == attached(b"t", 0), "the offset is one of another journal"
        assert [reader.hear() for _ in range(3)] == expected
        reader.say(frame(DETACH, field(b"t")), frame(DETACH, field(b"never")), frame(PING, struct.pack(">Q", 7)))
        assert reader.hear() == (DETACHED, field(b"t"))
        assert reader.hear() == (DETACHED, field(b"never"))
        assert reader.hear() == (PONG, struct.pack(">Q", 7))
        writer.say(publish(44, b"nobody hears this"))
        writer.acknowledged(44)
        reader.say(frame(PING, struct.pack(">Q", 8)))
        assert reader.hear() == (PONG, struct.pack(">Q", 8))


def test_a_peer_that_has_finished_sending_still_gets_its_ack(start: Any) -> None:
    port = start(*FIGG).port("figg")
    with Peer(port) as peer:
        peer.say(*(publish(i + 1, b"x" * 1000) for i in range(1000)))
        peer.socket.shutdown(socket.SHUT_WR)
        peer.acknowledged(1000)
        assert peer.hear() is None


def test_few_bytes_are_sent_before_the_answer_to_a_ping_of_a_slow_subscriber(start: Any) -> None:
    port = start(*FIGG).port("figg")
    payload, count = bytes(10_000), 2_000  # 20 MB
    with Peer(port) as writer:
        for first in range(1, count + 1, 200):
            writer.say(*(publish(number, payload) for number in range(first, first + 200)))
            writer.acknowledged(first + 199)
    with socket.socket() as slow:
        # unread bytes in the peer's own buffer count, too
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        slow.settimeout(PATIENCE)
        slow.connect(("127.0.0.1", port))
        slow.sendall(attach(b"t", 0))
        read = unread = 0
        while read < 1 << 20 or unread != (unread := ioctl_unread(slow)):  # until nothing more arrives
            if read < 1 << 20:
                read += len(slow.recv(10_000))
            else:
                time.sleep(0.2)
        slow.sendall(frame(PING, struct.pack(">Q", 7)))
        pong, before = frame(PONG, struct.pack(">Q", 7)), b""
        while pong not in before:
            before += slow.recv(10_000)
    assert before.index(pong) <= 512 << 10
