"""Trains over a transport that moves one datagram per call."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from twisted.internet.error import MessageLengthError
from twisted.internet.task import Clock

from fyrehose.net.lifecycle import Timers
from fyrehose.net.udp import TrainProtocol
from fyrehose.observe.counters import Counters
from fyrehose.protocols.backbone.frames import Address
from fyrehose.protocols.backbone.gso_batches import Train

THERE = ("10.0.0.2", 4000)
AWAY = ("10.9.9.9", 4000)


class FakeTransport:
    """The part of Twisted's UDP port that a protocol uses."""

    maxPacketSize = 8_192

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Address]] = []
        self.error: Exception | None = None

    def write(self, datagram: bytes, addr: Address) -> None:
        if self.error is not None and addr == AWAY:
            raise self.error
        self.sent.append((bytes(datagram), addr))


class Listener(TrainProtocol):
    name = "backbone"

    def __init__(self) -> None:
        self.reactor, self.counters, self.transport = Clock(), Counters(), None
        self.timers = Timers(self.reactor)
        self.seen: list[Any] = []
        self.port = FakeTransport()
        self.makeConnection(self.port)

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        self.seen.append((bytes(data), segment, source))

    def turn_over(self) -> None:
        self.seen.append("turn")


def test_datagrams_that_arrive_together_are_one_turn() -> None:
    listener = Listener()
    for datagram in (b"one", b"", b"three"):
        listener.datagramReceived(datagram, THERE)
    listener.reactor.advance(0)
    listener.datagramReceived(b"four", AWAY)
    listener.reactor.advance(0)
    assert listener.seen == [
        (b"one", 3, THERE),
        (b"", 1, THERE),
        (b"three", 5, THERE),
        "turn",
        (b"four", 4, AWAY),
        "turn",
    ]
    assert listener.reactor.getDelayedCalls() == []


def test_closing_the_port_processes_the_datagrams_of_the_turn() -> None:
    listener = Listener()
    listener.datagramReceived(b"one", THERE)
    listener.doStop()
    assert listener.reactor.getDelayedCalls() == []
    assert listener.seen == [(b"one", 3, THERE)]


def test_batch_is_written_one_datagram_at_a_time() -> None:
    listener = Listener()
    listener.send(Train(b"aabbc", 2), THERE)
    listener.flush()
    assert listener.port.sent == [(b"aa", THERE), (b"bb", THERE), (b"c", THERE)]
    assert listener.waiting == 0


def test_large_datagrams_are_not_truncated() -> None:
    assert Listener().port.maxPacketSize == 65_507


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (MessageLengthError("message too long"), "send-EMSGSIZE"),
        (OSError(errno.ENOBUFS, "no buffer space"), "send-ENOBUFS"),
        (BlockingIOError(errno.EAGAIN, "no room"), "send-EAGAIN"),
        (OSError("something else"), "send-error"),
    ],
)
def test_threat_error_of_one_destination_affects_no_other(error: Exception, cause: str) -> None:
    listener = Listener()
    listener.port.error = error
    listener.send(Train(b"aabb", 2), AWAY)
    listener.send(Train(b"cc", 2), THERE)
    assert listener.port.sent == [(b"cc", THERE)]
    assert listener.counters.counts["backbone", cause] == 2
