"""Test a real server with a peer written from fyrehose-backbone.txt alone: sockets and struct, none of our code.

The peer follows the rules of the text for clients: a KEEPALIVE each second, one REQUEST for each gap, and again each
second for what is still missing.  It drops received datagrams itself, by a seed, so that each run drops the same.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import attrs
import pytest

from tests.live.conftest import PATIENCE

pytestmark = pytest.mark.live

DELIVER, PUSH, REQUEST, KEEPALIVE, KEEPALIVE_ACK = 0x1, 0x2, 0x4, 0x10, 0x20
#: For how many seconds after a KEEPALIVE a client is a subscriber.
ALIVE = 5.0


@attrs.define(eq=False)
class TextPeer:
    """A publisher and subscriber as the text describes it.

    :ivar loss: the share of received datagrams that it drops
    :ivar port_field: the value of the field PORT; None for its own port
    :ivar messages: the DATA of each sequence
    :ivar acks: the number of received KEEPALIVE-ACKs
    """

    server: tuple[str, int]
    loss: float = 0.0
    port_field: int | None = None
    random: Random = attrs.field(factory=lambda: Random(29))
    messages: dict[int, bytes] = attrs.field(factory=dict)
    acks: int = 0
    highest: int = 0
    socket: socket.socket = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)

    def keep_alive(self) -> None:
        self.send(struct.pack(">B6s6s16s", KEEPALIVE, self.address(), bytes(6), self.random.randbytes(16)))

    def push(self, data: bytes) -> None:
        self.send(struct.pack(">BH6x", PUSH, len(data)) + data)

    def request(self, first: int, last: int) -> None:
        self.send(struct.pack(">B6s", REQUEST, self.address()) + first.to_bytes(6, "big") + last.to_bytes(6, "big"))

    def send(self, datagram: bytes) -> None:
        self.socket.sendto(datagram, self.server)

    def address(self) -> bytes:
        port = self.socket.getsockname()[1] if self.port_field is None else self.port_field
        return socket.inet_aton("127.0.0.1") + struct.pack(">H", port)

    def gaps(self, end: int) -> list[tuple[int, int]]:
        """Return the ranges that are missing up to *end*."""
        gaps: list[tuple[int, int]] = []
        for seq in range(1, end + 1):
            if seq in self.messages:
                continue
            if gaps and gaps[-1][1] == seq - 1:
                gaps[-1] = (gaps[-1][0], seq)
            else:
                gaps.append((seq, seq))
        return gaps

    def listen(self, wait: float = 0.0) -> None:
        """Receive all datagrams that have arrived; wait *wait* seconds for the first one."""
        select.select([self.socket], [], [], wait)
        while True:
            try:
                datagram = self.socket.recv(1 << 16)
            except BlockingIOError:
                return
            if self.random.random() >= self.loss:
                self.received(datagram)

    def received(self, datagram: bytes) -> None:
        if datagram[0] == KEEPALIVE_ACK:
            self.acks += 1
        elif datagram[0] == DELIVER:
            length, seq = int.from_bytes(datagram[1:3], "big"), int.from_bytes(datagram[3:9], "big")
            data = datagram[9:]
            assert len(data) == length
            assert self.messages.setdefault(seq, data) == data, "a sequence has two messages"
            if seq > self.highest + 1:  # rule 2: lower sequences are missing
                self.request(self.highest + 1, seq - 1)
            self.highest = max(self.highest, seq)

    def until(self, condition: Callable[[], bool]) -> None:
        """Receive until *condition* holds, without another KEEPALIVE, as long as the last one is valid.

        A machine may be so busy that it is not valid that long; then send another one, and ask for what was missed.
        """
        deadline, valid = time.monotonic() + PATIENCE, time.monotonic() + ALIVE
        while not condition():
            assert time.monotonic() < deadline, f"{len(self.messages)} messages, {self.acks} ACKs"
            self.listen(0.05)
            if time.monotonic() > valid:
                valid += ALIVE
                self.keep_alive()
                self.request(1, 100)


Connect = Callable[..., TextPeer]


@pytest.fixture
def connect(start: Any) -> Iterator[Connect]:
    """Return a function that makes peers of a server with the default options."""
    server = start("--data-dir", "data", "--listen", "backbone=udp:0:interface=127.0.0.1")
    address = "127.0.0.1", server.port("backbone")
    peers: list[TextPeer] = []

    def make(**settings: Any) -> TextPeer:
        peers.append(TextPeer(address, **settings))
        return peers[-1]

    yield make
    for peer in peers:
        peer.socket.close()


def test_one_keepalive_makes_a_subscriber_who_receives_every_deliver(connect: Connect) -> None:
    """Rules 2 and 3 of the text."""
    peer, publisher = connect(), connect()
    peer.keep_alive()
    peer.until(lambda: peer.acks >= 1)
    payloads = [b"%03d" % n * 300 for n in range(100)]
    for data in payloads:
        publisher.push(data)
    peer.until(lambda: len(peer.messages) == 100)
    assert peer.messages == dict(enumerate(payloads, 1))


def test_a_request_after_one_keepalive_is_answered(connect: Connect) -> None:
    """Rule 4 of the text; rule 5: the publisher has never sent a KEEPALIVE."""
    peer, publisher = connect(), connect()
    for _ in range(100):
        publisher.push(b"x" * 900)
    peer.keep_alive()
    peer.until(lambda: peer.acks >= 1)
    peer.request(1, 100)
    peer.until(lambda: len(peer.messages) == 100)


def test_a_peer_that_loses_a_fifth_of_the_datagrams_and_requests_each_gap_keeps_up(connect: Connect) -> None:
    peer = connect(loss=0.2)
    peer.keep_alive()
    expected = {seq: b"message %d" % seq for seq in range(1, 4_045)}
    for seq, data in expected.items():
        peer.push(data)
        if seq % 50 == 0:
            peer.listen(0.005)
    deadline = time.monotonic() + PATIENCE
    while len(peer.messages) < len(expected) and time.monotonic() < deadline:  # one round a second, as rule 1 says
        peer.keep_alive()
        for first, last in peer.gaps(len(expected)):
            peer.request(first, last)
        end = time.monotonic() + 1
        while time.monotonic() < end and len(peer.messages) < len(expected):
            peer.listen(0.05)
    assert len(peer.messages) == 4_044
    assert peer.messages == expected
