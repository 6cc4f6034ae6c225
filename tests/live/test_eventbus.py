"""Test the event bus of a real server with plain ZeroMQ sockets, which share no code with it."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.auth import create_certificates, load_certificate

from tests.live.conftest import fyrehose

pytestmark = [pytest.mark.live, pytest.mark.slow]

BUS = "eventbus=tcp:0:interface=127.0.0.1"
#: How long anything may take on a busy machine, in milliseconds.
PATIENCE = 60_000
TIME = b"2024-05-01T10:20:30.123Z"

Message = list[bytes]
Socket = zmq.Socket[bytes]


def event(n: int, topic: bytes = b"/a/", data: bytes | None = None) -> Message:
    identity = str(uuid.UUID(int=n, version=4)).encode()
    return [topic, b"null", b"me", TIME, identity, data or b"\xce%b" % n.to_bytes(4)]


def number(frame: bytes) -> int:
    (found,) = struct.unpack(">Q", frame)
    return int(found)


def binary(seq: int) -> bytes:
    return struct.pack(">Q", seq)


class Bus:
    """Plain sockets that connect to one server."""

    def __init__(self) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 11_000)
        self.port = 0
        self._sockets: list[Socket] = []  # keeps references, so that no socket is collected before it is closed

    def socket(self, kind: int, offset: int, **options: Any) -> Socket:
        socket = self.context.socket(kind)
        for name, value in {"LINGER": 0, "RCVTIMEO": PATIENCE, "SNDTIMEO": PATIENCE, **options}.items():
            socket.setsockopt(getattr(zmq, name), value)
        socket.connect(f"tcp://127.0.0.1:{self.port + offset}")
        self._sockets.append(socket)
        return socket

    def snapshot(self, **options: Any) -> Socket:
        return self.socket(zmq.DEALER, 0, **options)

    def subscriber(self, *topics: bytes, **options: Any) -> Socket:
        """Return a SUB socket whose subscription has arrived; its first events were received and discarded."""
        socket = self.socket(zmq.SUB, 1, **{"RCVHWM": 0, **options})
        for topic in (*topics, b"/ready/"):
            socket.setsockopt(zmq.SUBSCRIBE, topic)
        collector = self.collector()
        deadline = time.monotonic() + PATIENCE / 1000
        last = 0
        while not socket.poll(100):
            assert time.monotonic() < deadline
            last += 1
            collector.send_multipart(event(last, b"/ready/"))
        while socket.recv_multipart()[5] != event(last)[5]:
            pass
        return socket

    def collector(self, **options: Any) -> Socket:
        return self.socket(zmq.DEALER, 2, **{"SNDHWM": 0, **options})

    def patient_collector(self) -> Socket:
        """Return a collector that sends its events even after it was closed, once one of 1,023 sockets is free."""
        deadline = time.monotonic() + PATIENCE / 1000
        while time.monotonic() < deadline:
            try:
                return self.collector(LINGER=PATIENCE)
            except zmq.ZMQError:
                time.sleep(0.01)
        return self.collector(LINGER=PATIENCE)

    def sync(self, spec: bytes = b"", sequence: bytes = bytes(8), socket: Socket | None = None) -> list[Message]:
        """Return all messages from SYNCSTART to SYNCEND."""
        asking = self.snapshot() if socket is None else socket
        asking.send_multipart([b"SYNCSTART", spec, sequence])
        messages = [asking.recv_multipart()]
        while messages[-1][0] != b"SYNCEND":
            messages.append(asking.recv_multipart())
        if socket is None:
            asking.close()
        return messages

    def history(self, wanted: int, topic: bytes = b"/a/") -> list[Message]:
        """Return the SYNCs of ``topic`` as soon as there are at least ``wanted``."""
        deadline = time.monotonic() + PATIENCE / 1000
        while len(found := self.sync(topic)[:-1]) < wanted:
            assert time.monotonic() < deadline, f"{len(found)} of {wanted}"
            time.sleep(0.05)
        return found


@pytest.fixture
def bus() -> Iterator[Bus]:
    bus = Bus()
    yield bus
    bus.context.destroy(0)


@pytest.fixture
def serve(start: Any, bus: Bus) -> Callable[..., Any]:
    """Return a function that starts a server with the given options of the event bus."""

    def serving(*options: str, listen: str = BUS, extra: tuple[str, ...] = (), **more: Any) -> Any:
        words = [word for option in options for word in ("--option", f"eventbus.{option}")]
        server = start("--listen", listen, *words, *extra, **more)
        bus.port = server.port("eventbus")
        return server

    return serving


def test_every_command_of_the_event_bus_works_in_both_dialects(serve: Any, bus: Bus) -> None:
    serve()
    subscriber, collector = bus.subscriber(b"/a/"), bus.collector()
    sent = [event(1), event(2, b"/b/"), event(3, b"/a/b/", b"\xdd\xff\xff\xff\xff")]
    for frames in sent:
        collector.send_multipart(frames)
    got = [subscriber.recv_multipart() for _ in range(2)]
    assert [[frames[0], *frames[2:]] for frames in got] == [[frames[0], *frames[2:]] for frames in (sent[0], sent[2])]
    first, last = number(got[0][1]), number(got[1][1])
    assert last == first + 2
    syncs = bus.sync(b"/a/")
    assert syncs == [[b"SYNC", *frames] for frames in got] + [[b"SYNCEND", b"/a/", binary(last)]]
    decimal = [[frames[0], b"%d" % number(frames[1]), *frames[2:]] for frames in got]
    assert bus.sync(b"/a/", b"0") == [[b"SYNC", *frames] for frames in decimal] + [[b"SYNCEND", b"/a/", b"%d" % last]]
    assert bus.sync(b"/a/;/b/", b"%d" % first)[1:] == [
        [b"SYNC", *decimal[1]],
        [b"SYNCEND", b"/a/;/b/", b"%d" % last],
    ]
    assert bus.sync(b"/z/", b"1") == [[b"SYNCEND", b"/z/", b"1"]]


@pytest.mark.parametrize("name", ["select", "poll", "epoll"])
def test_events_are_served_with_each_reactor(serve: Any, bus: Bus, name: str) -> None:
    serve(before=("-n", "--reactor", name))
    subscriber, collector = bus.subscriber(b"/a/"), bus.collector()
    for n in range(2_000):
        collector.send_multipart(event(n))
    assert [subscriber.recv_multipart()[5] for n in range(2_000)] == [event(n)[5] for n in range(2_000)]
    assert len(bus.sync(b"/a/")) == 2_001


def test_every_event_of_thousands_of_short_connections_is_stored(
    serve: Any, bus: Bus, ladder: Callable[[int, int], int]
) -> None:
    """Publish like the reference program: a new connection for each event; 1,500, or 3,000 in ``make torture``.

    The server may have half as many connections at once.
    """
    count = ladder(1_500, 3_000)
    server = serve(f"max-connections={count // 2}")
    for n in range(count):
        collector = bus.patient_collector()
        collector.send_multipart(event(n))
        collector.close()
        if n % 500 == 499:  # wait until the server has closed these, however busy the machine is
            bus.history(n + 1)
    assert sorted(frames[6] for frames in bus.history(count)) == [event(n)[5] for n in range(count)]
    assert "too-many-connections" not in server.log, "closed connections are still counted"


def test_more_clients_than_the_server_admits_are_all_served(serve: Any, bus: Bus) -> None:
    """A full server closes the connection that has been idle longest; ZeroMQ's sockets connect again by themselves."""
    server = serve("max-connections=20")
    clients = [bus.snapshot() for _ in range(35)]
    deadline = time.monotonic() + PATIENCE / 1000
    for socket in clients:  # a request is lost if its connection is closed before it is read, so ask again
        socket.send_multipart([b"SYNCSTART", b"", bytes(8)])
        while not socket.poll(500):
            assert time.monotonic() < deadline
            socket.send_multipart([b"SYNCSTART", b"", bytes(8)])
        assert socket.recv_multipart() == [b"SYNCEND", b"", bytes(8)]
    server.wait_for("made-room from 127.0.0.1 at SNAPSHOT (port")


@pytest.mark.parametrize("count", [72, 73, 500, 5_000])
def test_all_clients_that_ask_for_a_snapshot_at_the_same_moment_are_answered(serve: Any, bus: Bus, count: int) -> None:
    """The text says that the server MUST respond; all requests come from one address."""
    server = serve()
    bus.collector().send_multipart(event(1))
    bus.history(1)
    asking = [bus.snapshot() for _ in range(count)]
    for socket in asking:
        socket.send_multipart([b"SYNCSTART", b"/a/", bytes(8)])
    for socket in asking:
        assert socket.recv_multipart()[0] == b"SYNC"
        assert socket.recv_multipart()[0] == b"SYNCEND"
    assert "too-many" not in server.log


def curve(server: Path, own: Path) -> dict[str, bytes | None]:
    """Return the options of a socket with the keys in these directories."""
    public, secret = load_certificate(own / "one.key_secret")
    return {
        "CURVE_SERVERKEY": load_certificate(server / "one.key")[0],
        "CURVE_PUBLICKEY": public,
        "CURVE_SECRETKEY": secret,
    }


class TestKeys:
    @pytest.fixture
    def keys(self, tmp_path: Path) -> tuple[Path, Path]:
        """Return the directories with the keys of the server and of its clients."""
        for name in ("server", "clients", "strangers"):
            tmp_path.joinpath(name).mkdir()
            create_certificates(tmp_path / name, "one")
        return tmp_path / "server", tmp_path / "clients"

    def test_clients_with_an_allowed_key_are_served_and_others_refused(
        self, serve: Any, bus: Bus, keys: tuple[Path, Path], tmp_path: Path
    ) -> None:
        server, clients = keys
        options = (f"server-key={server}/one.key_secret", f"client-keys={clients}")
        policy = tmp_path / "policy.toml"
        rule = '[[allow]]\n{}\npublish = "*"\nsubscribe = "*"\n'
        policy.write_text(rule.format('network = "0.0.0.0/0"') + rule.format('key = "*"'))
        running = serve(*options, listen="eventbus=tcp:0:interface=0.0.0.0", extra=("--policy", str(policy)))
        known = bus.snapshot(**curve(server, clients))
        assert bus.sync(socket=known) == [[b"SYNCEND", b"", bytes(8)]]
        for keys_of_stranger in (curve(server, tmp_path / "strangers"), {}):
            with pytest.raises(zmq.Again):
                bus.sync(socket=bus.snapshot(RCVTIMEO=500, SNDTIMEO=500, **keys_of_stranger))
        running.wait_for("unknown-key from 127.0.0.1")

    def test_subscribers_and_large_events_are_served_with_curve(
        self, serve: Any, bus: Bus, keys: tuple[Path, Path]
    ) -> None:
        server, clients = keys
        serve(f"server-key={server}/one.key_secret", f"client-keys={clients}")
        options = curve(server, clients)
        subscriber, collector = bus.socket(zmq.SUB, 1, **options), bus.collector(**options)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"/a/")
        while not subscriber.poll(100):
            collector.send_multipart(event(0))
        for n, size in enumerate((100, 300, 200_000, 3 << 20), 1):
            collector.send_multipart(event(n, data=bytes(size)))
        got = []
        while not got or got[-1] != 3 << 20:
            got.append(len(subscriber.recv_multipart()[5]))
        assert got[-4:] == [100, 300, 200_000, 3 << 20]
        syncs = bus.sync(socket=bus.snapshot(**options))
        assert [len(frames[6]) for frames in syncs[-5:-1]] == got[-4:]


def command(*words: str, data: bytes = b"") -> bytes:
    return fyrehose(*words, input=data, text=False).stdout


def test_events_are_tailed_with_other_protocols_and_theirs_by_the_event_bus(start: Any, bus: Bus) -> None:
    """Figg and the backbone read the bus's events byte for byte, and the bus reads what they publish."""
    others = ("--listen", "figg=tcp:0:interface=127.0.0.1", "--listen", "backbone=udp:0:interface=127.0.0.1")
    server = start("--listen", BUS, *others, "--option", "backbone.stream=eventbus")
    bus.port = server.port("eventbus")
    at = f"127.0.0.1:{bus.port}"
    figg, backbone = (f"127.0.0.1:{server.port(name)}" for name in ("figg", "backbone"))
    lines = [b"line %d" % n for n in range(500)]
    command("publish", "--protocol", "eventbus", "--to", at, "--stream", "notes", data=b"\n".join(lines) + b"\n")
    command("publish", "--protocol", "figg", "--to", figg, "--stream", "eventbus", "by figg")
    tail = ("--since", "start", "--count", "501")
    assert command("tail", "--protocol", "eventbus", "--from", at, *tail).splitlines() == [*lines, b"by figg"]
    stored = [frames[6] for frames in bus.sync()[:-1]]
    raw = ("--format", "raw", *tail)
    expected = b"".join(stored[:500]) + b"by figg"
    assert command("tail", "--protocol", "figg", "--from", figg, "--stream", "eventbus", *raw) == expected
    assert command("tail", "--protocol", "backbone", "--from", backbone, *raw) == expected
    only = ("--stream", "notes", "--since", "500", "--count", "1")
    assert command("tail", "--protocol", "eventbus", "--from", at, *only) == b"line 499\n"
