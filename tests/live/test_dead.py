"""Test dead letters of a real server, with a client that repeats a refused message first, and with the command."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from fyrehose.protocols.figg.frames import Ack, Publish
from fyrehose.protocols.figg.session import FiggClientSession
from tests.live.conftest import PATIENCE, fyrehose, stored

pytestmark = [pytest.mark.live, pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs" / "streams.md").read_text()
(BLOCK,) = re.findall(r"<!-- run: dead -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
CONFIG = """
[[stream]]
name = "small"
max-payload = {most}
"""


def send_again_until_acknowledged(port: int, messages: list[tuple[str, bytes]], attempts: int) -> int:
    """Publish like the Go SDK: on each connection everything without an ACK, in order; return how many have one."""
    acknowledged = 0
    for _ in range(attempts):
        session = FiggClientSession()
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as peer:
            for number, (stream, payload) in enumerate(messages, 1):
                if number > acknowledged:
                    peer.sendall(Publish(topic=stream, number=number, data=payload).serialize())
            while acknowledged < len(messages) and (data := peer.recv(4096)):
                acks = [event.number for event in session.receive_data(data) if isinstance(event, Ack)]
                acknowledged = max([acknowledged, *acks])
        if acknowledged == len(messages):
            break
    return acknowledged


def test_refused_message_is_kept_listed_replayed_and_deleted(start: Any, tmp_path: Path) -> None:
    config = tmp_path / "fyrehose.toml"
    config.write_text(CONFIG.format(most=3))
    serve, listing, replaying = (line.split()[1:] for line in BLOCK.replace("\\\n", " ").splitlines())
    words = ["--config", str(config), *(re.sub(r":81\d\d:", ":0:", word) for word in serve[1:])]
    server = start(*words)
    messages = [("t", b"before"), ("small", b"too large"), ("t", b"behind it"), ("small", b"delete me")]
    assert send_again_until_acknowledged(server.port("figg"), messages, attempts=1) == 4

    def dead(*words: str, status: int = 0) -> str:
        url = f"http://127.0.0.1:{server.port('http')}"
        done = fyrehose("dead", *words, "--url", url, status=status)
        return str(done.stdout + done.stderr)

    listed = [json.loads(line) for line in dead("list", "--format", "json").splitlines()]
    assert [(each["letter"], each["why"], each["size"], each["belongs"]) for each in listed] == [
        ("dead.figg/1", "PayloadTooLarge", 9, "small"),
        ("dead.figg/2", "PayloadTooLarge", 9, "small"),
    ]
    assert "PayloadTooLarge" in dead(*listing[1:])
    assert json.loads(dead("show", "dead.figg/1"))["payload"] == "too large"
    assert "exceeds the limit of 3 bytes" in dead("replay", "dead.figg/1", status=1)
    assert "1 letter deleted" in dead("delete", "dead.figg/2")
    server.stop(signal.SIGKILL)
    config.write_text(CONFIG.format(most=100))
    server = start(*words)
    assert "1 letter replayed" in dead(*replaying[1:])
    assert "there are no dead letters" in dead("list")
    assert server.stop() == 0
    assert [each["payload"] for each in stored(server.directory / "data", "small")] == ["too large"]
