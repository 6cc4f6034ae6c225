"""Packets as our own decoder reads them, and our own packets counted."""

from __future__ import annotations

import socket

import pytest

from fyrehose.bench.wires.base import Job, Wrong, payload
from fyrehose.bench.wires.relink import SAY_EVERY, RelinkPublisherWire, RelinkSubscriberWire, hello, message
from fyrehose.protocols.relink.frames import (
    PING,
    PONG,
    Ack,
    Acknowledgement,
    Hello,
    Message,
    Op,
    Operation,
    Terms,
    pack_reply,
    pack_version,
)

JOB = Job(stream="s", size=21, messages=10)


def packets(*kinds: object) -> bytearray:
    return bytearray(b"".join(kind.serialize(0) for kind in kinds))  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [0, 7, 8, 128, 65_535, 65_536])
def test_message_equals_that_of_the_relink_frames(size: int) -> None:
    assert message(payload(size)) == Message(channels=(0,), parts=(payload(size),)).serialize(0)


@pytest.mark.parametrize("name", ["publish:s", "subscribe:stream@0"])
def test_hello_equals_that_of_the_relink_handshake(name: str) -> None:
    assert hello(name) == Hello(terms=Terms(endpoint=name)).serialize()


def test_blocks_are_whole_messages() -> None:
    assert bytes(RelinkPublisherWire(JOB).block(3)) == message(payload(21)) * 3


def test_consumed_acknowledgements_are_counted_with_and_without_a_number() -> None:
    publisher = RelinkPublisherWire(JOB)
    heard = packets(
        Acknowledgement(channels=(0,), kind=Ack.RECEIVED, number=8),
        Acknowledgement(channels=(0,), kind=Ack.CONSUMED, number=3),
        PING,
        Acknowledgement(channels=(0,), kind=Ack.CONSUMED),
    )
    assert publisher.scan(heard + b"\0", len(heard) + 1) == len(heard)
    assert publisher.done == 5
    assert bytes(publisher.answers) == PONG.serialize()


def test_acknowledged_numbers_wrap_at_32_bits() -> None:
    publisher = RelinkPublisherWire(JOB)
    publisher.done = (1 << 32) - 2
    publisher.scan(packets(Acknowledgement(channels=(0,), kind=Ack.CONSUMED, number=5)), 8)
    assert publisher.done == (1 << 32) + 6


def test_packets_that_a_listener_must_not_send_are_reported() -> None:
    with pytest.raises(Wrong):
        RelinkPublisherWire(JOB).scan(packets(Operation(channels=(0,), kind=Op.CLOSE)), 8)


def test_messages_are_counted_between_other_packets() -> None:
    subscriber, one = RelinkSubscriberWire(JOB), message(payload(21))
    heard = bytearray(pack_reply(1, 2) + one * 2 + PING.serialize() + one * 3 + one[:10])
    assert subscriber.scan(heard, len(heard)) == len(heard) - 10
    assert subscriber.done == 5
    assert bytes(subscriber.answers) == PONG.serialize()
    assert subscriber.scan(heard, 7) == 0


def test_consumed_messages_are_acknowledged_in_time() -> None:
    subscriber, one = RelinkSubscriberWire(Job(stream="s", size=21, messages=SAY_EVERY + 1)), message(payload(21))
    heard = bytearray(pack_reply(1, 2) + one * SAY_EVERY)
    subscriber.scan(heard, len(heard))
    said = Acknowledgement(channels=(0,), kind=Ack.CONSUMED, number=SAY_EVERY - 1).serialize(0)
    assert bytes(subscriber.answers) == said
    subscriber.scan(bytearray(one), len(one))
    assert bytes(subscriber.answers[8:]) == Acknowledgement(
        channels=(0,), kind=Ack.CONSUMED, number=SAY_EVERY
    ).serialize(0)


def test_the_handshake_is_half_duplex() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(pack_version(0) + pack_reply(1, 0))
        publisher = RelinkPublisherWire(JOB)
        publisher.hello(ours)
        assert theirs.recv(100) == pack_version(0)
        assert publisher.begin() == hello("publish:s")
        with pytest.raises(Wrong, match="no link"):
            publisher.begun(ours)
