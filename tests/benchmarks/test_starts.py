"""What is accepted first; starts with a journal are in tests/live/test_bench.py."""

from __future__ import annotations

import socket
import threading

import pytest

from benchmarks.starts import ENDS, accepted
from fyrehose.bench.wires.base import Wrong
from fyrehose.protocols.figg.frames import Ack, Publish


def answer(listener: socket.socket, said: bytes, heard: list[bytes]) -> None:
    peer, _ = listener.accept()
    with peer:
        heard.append(peer.recv(1 << 16))
        peer.sendall(said)


@pytest.mark.parametrize("said", [Ack(number=1).serialize(), b""])
def test_the_first_message_is_sent_and_its_acknowledgement_awaited(said: bytes) -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener, said, heard))
        thread.start()
        port = listener.getsockname()[1]
        if said:
            accepted(port)
        else:
            with pytest.raises(Wrong, match="closed"):
                accepted(port)
        thread.join(10)
    assert Publish.parse(heard[0][8:]).number == 1


def test_server_is_stopped_or_killed_before_a_start() -> None:
    assert set(ENDS) == {"clean", "killed"}
