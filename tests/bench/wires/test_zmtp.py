"""ZMTP by hand, against real ZeroMQ sockets and the event bus's own frames."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq

from fyrehose.bench.wires import zmtp
from fyrehose.bench.wires.base import Job, Wrong
from fyrehose.protocols.eventbus.frames import Broadcast, Dialect, Pub, Sync, SyncEnd, SyncStart

JOB = Job(stream="", size=40, messages=4)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def connected(made: zmq.Socket[bytes], wire: zmtp._Socket) -> socket.socket:
    port = made.bind_to_random_port("tcp://127.0.0.1")
    made.setsockopt(zmq.RCVTIMEO, 10_000)
    peer = socket.create_connection(("127.0.0.1", port), timeout=10)
    wire.hello(peer)
    return peer


def events(first: int, count: int, size: int = 40) -> list[bytes]:
    """BROADCASTs, as the server makes them, in ZMTP."""
    return [
        zmtp.multipart(
            *map(
                bytes,
                Broadcast(
                    topic="/bench/",
                    sequence=number,
                    dialect=Dialect.BINARY,
                    producer=zmtp.PRODUCER,
                    timestamp=zmtp.TIMESTAMP,
                    uuid=b"u" * 36,
                    data=zmtp.binary(b"x" * size),
                ).serialize(),
            )
        )
        for number in range(first, first + count)
    ]


@pytest.mark.parametrize("size", [0, 2, 128, 257, 258, 16_384])
def test_data_is_encoded_as_messagepack_binary(size: int) -> None:
    found = zmtp.binary(b"x" * size)
    assert len(found) == max(2, size)
    assert int.from_bytes(found[1 : 2 if found[0] == 0xC4 else 3], "big") == len(found) - (2 if found[0] == 0xC4 else 3)


@pytest.mark.parametrize("size", [40, 1_024])
def test_router_socket_receives_published_events(context: zmq.Context[zmq.Socket[bytes]], size: int) -> None:
    publisher = zmtp.ZmtpPublisherWire(Job(stream="", size=size, messages=4))
    with context.socket(zmq.ROUTER) as router, connected(router, publisher) as peer:
        peer.sendall(publisher.block(3))
        found = [Pub.parse(router.recv_multipart()[1:]) for _ in range(3)]
    assert len({one.uuid for one in found}) == 3
    assert {(one.topic, one.producer, len(bytes(one.data))) for one in found} == {("/bench/", b"load-maker", size)}


def test_a_subscriber_counts_the_events_that_it_receives(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    subscriber = zmtp.ZmtpSubscriberWire(JOB)
    with context.socket(zmq.XPUB) as publisher, connected(publisher, subscriber) as peer:
        peer.sendall(subscriber.begin())
        assert publisher.recv() == b"\x01/bench/"
        whole = bytearray(b"".join(events(1, 3)))
        publisher.send(b"/bench/", zmq.SNDMORE)
        publisher.send_multipart([(1).to_bytes(8, "big"), zmtp.PRODUCER, zmtp.TIMESTAMP, b"u" * 36, b"d" * 40])
        came = bytearray()
        while len(came) < len(whole) // 3:
            came += peer.recv(1 << 16)
    assert subscriber.scan(came, len(came)) == len(came)
    assert subscriber.done == 1


def test_events_are_counted_between_commands() -> None:
    subscriber = zmtp.ZmtpSubscriberWire(JOB)
    ping = zmtp.frame(b"\x04PING\0\0hi", 4)
    heard = bytearray(b"".join([*events(3, 2), ping, *events(5, 1)])) + events(6, 1)[0][:-1]
    assert subscriber.scan(heard, len(heard)) == len(heard) - len(events(6, 1)[0]) + 1
    assert subscriber.done == 3
    assert bytes(subscriber.answers) == zmtp.frame(b"\x04PONGhi", 4)


@pytest.mark.parametrize("cut", range(1, 12))
def test_command_in_several_pieces_is_parsed(cut: int) -> None:
    subscriber = zmtp.ZmtpSubscriberWire(JOB)
    ping = bytearray(zmtp.frame(b"\x04PING\0\0hi", 4))
    used = subscriber.scan(bytearray(ping[:cut]), cut)
    rest = ping[used:]
    assert subscriber.scan(rest, len(rest)) == len(rest)
    assert len(subscriber.answers) == 9


def test_sequences_that_do_not_rise_are_reported() -> None:
    for numbers in ((2, 2), (2, 1)):
        heard = bytearray(b"".join(events(number, 1)[0] for number in numbers))
        with pytest.raises(Wrong, match="rising"):
            zmtp.ZmtpSubscriberWire(JOB).scan(heard, len(heard))
    with pytest.raises(Wrong, match="flags"):
        zmtp.ZmtpSubscriberWire(JOB).scan(bytearray(b"\x01" * 20), 20)


def test_earlier_events_are_requested_and_counted() -> None:
    reader = zmtp.ZmtpSnapshotWire(JOB)
    parts = []
    asked = reader.begin()
    while asked:
        parts.append(asked[2 : 2 + asked[1]])
        asked = asked[2 + asked[1] :]
    assert SyncStart.parse(parts).sequence == 0
    synced = [zmtp.frame(b"SYNC", 1) + one for one in events(1, 4)]
    assert len(Sync.parse([b"SYNC", b"/bench/", (1).to_bytes(8, "big"), b"", b"", b"", b""]).serialize()) == 7
    end = SyncEnd(subtrees=b"/bench/", sequence=4, dialect=Dialect.BINARY).serialize()
    heard = bytearray(b"".join([*synced, zmtp.multipart(*map(bytes, end))]))
    assert reader.scan(heard, len(heard)) == len(heard)
    assert reader.done == 4
