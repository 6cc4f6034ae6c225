"""The loops of plain Python do what the protocols say, as far as they are used here."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from benchmarks.loops import udp
from fyrehose.protocols.backbone.frames import Deliver, Flags, KeepAlive, KeepAliveAck, Push, decode
from fyrehose.protocols.figg.frames import Ack, Publish


@contextmanager
def loop(name: str) -> Iterator[list[int]]:
    words = [sys.executable, "-m", "benchmarks.loops", name]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield [int(word) for word in process.stdout.readline().split()[2:]]
        finally:
            process.kill()


def test_pushed_messages_are_delivered_with_numbers() -> None:
    assert udp.__doc__
    with loop("udp") as (port,), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(60)
        peer.connect(("127.0.0.1", port))
        peer.send(KeepAlive(address=("0.0.0.0", 1), flags=Flags(0), token=b"t" * 16).serialize())
        assert decode(peer.recv(100)) == KeepAliveAck(token=b"t" * 16)
        for seq, data in enumerate((b"one", b"two"), 1):
            peer.send(Push(data=data).serialize())
            assert decode(peer.recv(100)) == Deliver(seq=seq, data=data)


def test_publishes_are_acknowledged_when_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.chdir(tmp_path)
    with loop("figg") as (port,), socket.create_connection(("127.0.0.1", port), 60) as peer:
        frames = b"".join(Publish(topic="t", number=number, data=b"some data").serialize() for number in (1, 2))
        peer.sendall(frames[:-3])
        assert Ack.parse(peer.recv(100)[8:]) == Ack(number=1)
        peer.sendall(frames[-3:])
        assert Ack.parse(peer.recv(100)[8:]) == Ack(number=2)
    assert tmp_path.joinpath("written").read_bytes().startswith(frames)


def test_published_events_are_broadcast_with_numbers() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sub, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    with loop("zmq") as (out, into), context, sub as subscriber, dealer:
        subscriber.setsockopt(zmq.RCVTIMEO, 200)
        subscriber.subscribe(b"")
        subscriber.connect(f"tcp://127.0.0.1:{out}")
        dealer.connect(f"tcp://127.0.0.1:{into}")
        for _ in range(300):
            dealer.send_multipart([b"/t/", b"null", b"p", b"time", b"uuid", b"data"])
            try:
                found = subscriber.recv_multipart()
                break
            except zmq.Again:
                continue
    assert [found[0], *found[2:]] == [b"/t/", b"p", b"time", b"uuid", b"data"]
    assert int.from_bytes(found[1], "big") > 0
