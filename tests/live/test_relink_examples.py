"""Relink's example clients in Go and JavaScript lose and double nothing when their server is killed and restarted."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "relink-publisher"
FYREHOSE = Path(sys.executable).with_name("fyrehose")
#: How many lines the client gets between two kills of the server.
BETWEEN = 2_000

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]


def program(name: str) -> str:
    """Return the path of a compiler or an interpreter, or skip the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"a program of others is not installed: {name}")
    return found


def go(directory: Path) -> list[str]:
    """Build the client in Go, without a network; return the command that runs it."""
    environment = {**os.environ, "GOCACHE": str(directory / "cache"), "GOPROXY": "off", "GOFLAGS": "-mod=mod"}
    words = [program("go"), "build", "-o", str(directory / "publish"), "."]
    subprocess.run(words, cwd=EXAMPLES / "go", env=environment, check=True, timeout=300)
    return [str(directory / "publish")]


def node(directory: Path) -> list[str]:
    """Return the command that runs the client in JavaScript."""
    return [program("node"), str(EXAMPLES / "node" / "main.mjs")]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def stored(directory: Path) -> list[bytes]:
    """Return the payloads of the stream."""
    words: list[Any] = [FYREHOSE, "journal", "dump", directory / "data", "--stream", "lines", "--format", "json"]
    dumped = subprocess.run(words, capture_output=True, check=True, timeout=60).stdout
    return [json.loads(line)["payload"].encode() for line in dumped.splitlines()]


@pytest.mark.parametrize("per_transaction", ["0", "7"])
@pytest.mark.parametrize("make", [go, node])
def test_every_line_is_stored_once_and_in_order_over_kills(
    make: Any, per_transaction: str, start: Any, tmp_path: Path
) -> None:
    """The sizes include an empty message and messages that do not fit into 16 bits."""
    command = make(tmp_path)
    dice = random.Random(17)
    # The server finds the links of a listener by its endpoint, so it has to be the same after a restart.
    port = free_port()
    listen = ("--data-dir", "data", "--listen", f"relink=tcp:{port}:interface=127.0.0.1")
    server = start(*listen)
    client = subprocess.Popen(
        [*command, f"127.0.0.1:{port}", "lines", per_transaction],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    lines = []
    try:
        assert client.stdin is not None
        for kill in range(4):
            for number in range(BETWEEN):
                size = 70_000 if number % 500 == 0 else dice.randrange(100)
                lines.append(b"%d %d " % (kill, number) + b"x" * size if number else b"")
                client.stdin.write(lines[-1] + b"\n")
                if number == BETWEEN // 2 and kill < 3:
                    time.sleep(dice.random() / 10)
                    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
                    server = start(*listen)
            client.stdin.flush()
        client.stdin.close()
        assert client.wait(120) == 0
    finally:
        client.kill()
        client.wait()
        assert client.stderr is not None
        errors = client.stderr.read()
        client.stderr.close()
    assert errors == b""
    assert server.stop() == 0
    assert stored(tmp_path) == lines
