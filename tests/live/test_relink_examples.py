"""Kill and restart the server of Relink's examples in Go and JavaScript: nothing may be lost or doubled."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fyrehose.testing.ports import free_port
from tests.live.conftest import program, stored

EXAMPLES = Path(__file__).parents[2] / "examples" / "relink"
#: How many lines the client receives between two kills of the server.
BETWEEN = 2_000

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]


def go(directory: Path) -> list[str]:
    """Build the client in Go, without a network; return the command that runs it."""
    environment = {**os.environ, "GOCACHE": str(directory / "cache"), "GOPROXY": "off", "GOFLAGS": "-mod=mod"}
    words = [program("go"), "build", "-o", str(directory / "publish"), "."]
    subprocess.run(words, cwd=EXAMPLES / "go", env=environment, check=True, timeout=300)
    return [str(directory / "publish")]


def node(directory: Path) -> list[str]:
    """Return the command that runs the client in JavaScript."""
    return [program("node"), str(EXAMPLES / "node" / "publish.mjs")]


def lines_of(directory: Path) -> list[bytes]:
    return [each["payload"].encode() for each in stored(directory / "data", "lines")]


class Cutter(threading.Thread):
    """A proxy that cuts connections after some bytes, within packets and within handshakes, *cuts* times in all."""

    def __init__(self, port: int, cuts: int) -> None:
        super().__init__(daemon=True)
        self.server, self.left, self.dice = port, cuts, random.Random(23)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]

    def run(self) -> None:
        with self.listening:
            while True:
                near, _ = self.listening.accept()
                with near, socket.create_connection(("127.0.0.1", self.server)) as far:
                    self.left -= 1
                    if not self.pass_on(near, far, self.dice.choice([30, 300, 60_000]) if self.left >= 0 else None):
                        return

    def pass_on(self, near: socket.socket, far: socket.socket, most: int | None) -> bool:
        """Copy bytes in both directions, about *most* at most; return False if a peer has ended the connection."""
        left = self.dice.randrange(most) if most else 1 << 62
        while left > 0:
            for one in select.select([near, far], [], [])[0]:
                data = one.recv(min(left, 1 << 14))
                if not data:
                    return most is not None
                (far if one is near else near).sendall(data)
                left -= len(data)
        return True


@pytest.mark.parametrize("per_transaction", ["0", "7"])
@pytest.mark.parametrize("make", [go, node])
def test_every_line_is_stored_once_and_in_order_over_cut_connections(
    make: Any, per_transaction: str, start: Any, tmp_path: Path
) -> None:
    command = make(tmp_path)
    server = start("--data-dir", "data", "--listen", "relink=tcp:0:interface=127.0.0.1")
    cutter = Cutter(server.port("relink"), 40)
    cutter.start()
    lines = [b"line %d " % number + b"x" * (number % 300) for number in range(20_000)]
    client = subprocess.run(
        [*command, f"127.0.0.1:{cutter.port}", "lines", per_transaction],
        input=b"\n".join(lines),
        capture_output=True,
        timeout=200,
    )
    assert (client.returncode, client.stderr) == (0, b"")
    cutter.join(60)
    assert cutter.left < 0, "not all cuts were made"
    assert server.stop() == 0
    assert lines_of(tmp_path) == lines


@pytest.mark.parametrize("per_transaction", ["0", "7"])
@pytest.mark.parametrize("make", [go, node])
def test_every_line_is_stored_once_and_in_order_over_kills(
    make: Any, per_transaction: str, start: Any, tmp_path: Path
) -> None:
    """The sizes include an empty message and messages that do not fit into 16 bits."""
    command = make(tmp_path)
    dice = random.Random(17)
    # The server finds the links of a listener by its endpoint, so that must be the same after a restart.
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
    assert lines_of(tmp_path) == lines


def published(port: int, lines: list[bytes]) -> None:
    """Publish *lines* to the stream ``lines``."""
    words = [program("node"), str(EXAMPLES / "node" / "publish.mjs"), f"127.0.0.1:{port}", "lines"]
    assert subprocess.run(words, input=b"\n".join(lines), timeout=200, check=True).returncode == 0


def follow(port: int, *words: str) -> subprocess.Popen[bytes]:
    command = [program("node"), str(EXAMPLES / "node" / "follow.mjs"), f"127.0.0.1:{port}", "lines", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_every_line_is_followed_once_and_in_order_over_cut_connections(start: Any, tmp_path: Path) -> None:
    server = start("--data-dir", "data", "--listen", "relink=tcp:0:interface=127.0.0.1")
    lines = [b"line %d " % number + b"x" * (number % 300) for number in range(10_000)]
    published(server.port("relink"), lines)
    cutter = Cutter(server.port("relink"), 40)
    cutter.start()
    with follow(cutter.port, str(len(lines))) as client:
        printed, errors = client.communicate(timeout=200)
    assert (client.returncode, errors) == (0, b"")
    assert printed.splitlines() == lines
    cutter.join(60)
    assert cutter.left < 0, "not all cuts were made"
    assert server.stop() == 0


def test_a_named_subscription_is_followed_once_and_in_order_over_kills(start: Any, tmp_path: Path) -> None:
    port = free_port()
    listen = ("--data-dir", "data", "--listen", f"relink=tcp:{port}:interface=127.0.0.1")
    server = start(*listen)
    lines = [b"line %d" % number for number in range(8_000)]
    published(port, lines)
    found: list[bytes] = []
    for part in range(2):  # the second program continues after the first one
        with follow(port, "4000", "reader") as client:
            assert client.stdout is not None
            while len(found) < 4_000 * part + 2_000:
                found.append(client.stdout.readline().rstrip(b"\n"))
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
            server = start(*listen)
            found += client.stdout.read().splitlines()
            assert client.stderr is not None
            assert client.stderr.read() == b""
        assert client.returncode == 0
    assert found == lines
    assert server.stop() == 0
