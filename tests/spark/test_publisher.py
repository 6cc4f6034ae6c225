"""The blocking publisher, with a server that a script of the test controls."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from struct import pack, unpack_from
from typing import Any

import attrs
import pytest

from fyrehose.errors import ConfigError, InvalidName, PayloadTooLarge, PublishError
from fyrehose.protocols.figg.frames import Publish
from fyrehose.spark import publisher as module
from fyrehose.spark.publisher import SparkPublisher, parse_place


@attrs.define
class Peer:
    """Takes PUBLISH frames; each connection does what its script says, and further connections are refused."""

    listening: socket.socket
    scripts: list[str]
    seen: list[list[tuple[str, int, bytes]]] = attrs.field(factory=list)

    def run(self) -> None:
        for script in self.scripts:
            connection, _ = self.listening.accept()
            self.seen.append([])
            if len(self.seen) == len(self.scripts):
                self.listening.close()
            with connection:
                self.serve(connection, script, self.seen[-1])

    def serve(self, connection: socket.socket, script: str, seen: list[tuple[str, int, bytes]]) -> None:
        buffer = bytearray()
        while data := connection.recv(1 << 16):
            buffer += data
            while len(buffer) >= 8 and len(buffer) >= 8 + (size := unpack_from(">I", buffer, 4)[0]):
                kind, body = unpack_from(">H", buffer)[0], bytes(buffer[8 : 8 + size])
                del buffer[: 8 + size]
                assert kind == 5
                frame = Publish.parse(body)
                seen.append((frame.topic, frame.number, frame.data))
                if script == "acks all":
                    connection.sendall(pack(">HHIQ", 6, 1, 8, frame.number))
                elif script == "acks one and closes":
                    connection.sendall(pack(">HHIQ", 6, 1, 8, 1))
                    return
                elif script == "talks rubbish":
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    return
                elif script == "closes":
                    return


@pytest.fixture
def peer() -> Iterator[Any]:
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def start(*scripts: str, **options: Any) -> tuple[Peer, SparkPublisher]:
            options = {"patience": 60.0, "sleep": lambda seconds: None, **options}
            made = Peer(listening, list(scripts))
            threads.append(threading.Thread(target=made.run, daemon=True))
            threads[-1].start()
            return made, SparkPublisher("127.0.0.1", listening.getsockname()[1], **options)

        yield start
    for thread in threads:
        thread.join(5)


def test_flush_returns_when_every_message_is_acknowledged(peer: Any) -> None:
    server, publisher = peer("acks all")
    for i in range(3000):
        publisher.publish(f"s{i % 2}", b"%d" % i)
    publisher.flush()
    assert publisher.acknowledged == 3000
    publisher.close()
    assert server.seen == [[(f"s{i % 2}", i + 1, b"%d" % i) for i in range(3000)]]


def test_unacknowledged_messages_are_sent_again_with_the_same_numbers(peer: Any) -> None:
    server, publisher = peer("acks one and closes", "closes", "acks all")
    for i in range(3):
        publisher.publish("s", b"%d" % i)
    publisher.flush()
    publisher.close()
    assert publisher.acknowledged == 3
    assert server.seen[2] == [("s", 2, b"1"), ("s", 3, b"2")]


def test_window_bounds_unacknowledged_messages(peer: Any) -> None:
    _, publisher = peer("acks all", window_bytes=100_000)
    for published in range(1, 51):
        publisher.publish("s", bytes(30_000))
        assert (published - publisher.acknowledged) * 30_000 < 100_000
    publisher.flush()
    publisher.close()


@pytest.mark.parametrize(
    ("script", "reason"), [("closes", "closed the connection"), ("talks rubbish", "does not speak Figg")]
)
def test_repeated_connection_failures_are_an_error(peer: Any, script: str, reason: str) -> None:
    _, publisher = peer(*[script] * module.TRIES)
    publisher.publish("s", b"x")
    with pytest.raises(PublishError, match=f"{reason}.*; 0 messages are acknowledged and 1 are not"):
        publisher.flush()


def test_silent_server_is_an_error_after_the_timeout(peer: Any) -> None:
    _, publisher = peer(*["is silent"] * module.TRIES, patience=0.02)
    publisher.publish("s", b"x")
    with pytest.raises(PublishError, match="no answer within"):
        publisher.flush()


def test_rate_limits_publishing(peer: Any) -> None:
    slept: list[float] = []
    _, publisher = peer("acks all", rate=10.0, seconds=lambda: 0.0, sleep=slept.append)
    for _ in range(4):
        publisher.publish("s", b"x")
    publisher.flush()
    publisher.close()
    assert slept == pytest.approx([0.1, 0.2, 0.3])


def test_invalid_names_and_large_payloads_are_refused() -> None:
    publisher = SparkPublisher("127.0.0.1", 1)
    for name in ("", "x" * 256):
        with pytest.raises(InvalidName):
            publisher.publish(name, b"")
    with pytest.raises(PayloadTooLarge):
        publisher.publish("s", bytes((16 << 20) + 1))


def test_server_address_is_parsed() -> None:
    assert parse_place("127.0.0.1:8119") == ("127.0.0.1", 8119)
    assert parse_place("[::1]:1") == ("::1", 1)
    for wrong in ("", "host", ":1", "h:x", "h:0", "h:99999"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            parse_place(wrong)
