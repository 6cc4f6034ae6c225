"""A real server that starts with less free space than min-free, refuses publishes, and recovers without a restart."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fyrehose.testing.ports import free_port

FYREHOSE = Path(sys.executable).with_name("fyrehose")
PATIENCE = 60.0

pytestmark = pytest.mark.live


def ask(method: str, port: int, path: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def wait_until_listening(port: int) -> None:
    """Wait until a server listens on *port*: a publish to a port on which none listens fails at once."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, f"nothing listens on port {port}"
        time.sleep(0.05)


def publish(protocol: str, port: int, *words: str) -> subprocess.CompletedProcess[str]:
    line = [str(FYREHOSE), "publish", "--protocol", protocol, "--to", f"127.0.0.1:{port}", *words, "x"]
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE)


def test_server_that_starts_with_too_little_disk_says_so_and_recovers(start: Any, tmp_path: Path) -> None:
    file, relink = tmp_path / "fyrehose.toml", free_port()
    listen = f'[listen]\nrelink = "tcp:{relink}:interface=127.0.0.1"\n' + "".join(
        f'{name} = "tcp:0:interface=127.0.0.1"\n' for name in ("http", "figg", "lumberjack", "admin")
    )
    file.write_text(f'{listen}[option.journal]\nmin-free = "1000TiB"\n')
    server = start("--config", str(file))
    http, figg = server.port("http"), server.port("figg")
    shared = json.dumps({"stream": "s", "shared": True}).encode()
    for method, path, body in (
        ("POST", "/streams/s", b"x"),
        ("DELETE", "/streams/s", None),
        ("PUT", "/subscriptions/w", shared),
    ):
        status, answer = ask(method, http, path, body)
        assert status == 503, answer
        assert "GiB free, less than journal.min-free (1,000.0 TiB)" in answer["error"]
        assert "`fyrehose doctor`" in answer["error"]
    leased = ask("POST", http, "/subscriptions/w/lease", b'{"consumer": "c"}')
    assert leased[0] == 404, "a server that is alone knows which subscriptions exist"
    assert ask("GET", server.port("admin"), "/ready")[0] == 503
    for protocol, port, words in (("figg", figg, ("--stream", "s")), ("lumberjack", server.port("lumberjack"), ())):
        told = publish(protocol, port, *words, "--timeout", "3s")
        assert told.returncode == 1
        assert "the disk of the server may be full" in told.stderr
        server.wait_for(f"{protocol}: ReadOnly from 127.0.0.1: the server's disk has")
    assert server.log.count("relink: the listener stays closed until its links can be written: the server's disk") == 1
    file.write_text(listen)  # with the default of min-free, for which there is room
    server.reload()
    server.wait_for("the journal is writable again")
    assert ask("POST", http, "/streams/s", b"x")[0] == 200
    wait_until_listening(relink)
    for protocol, port in (("figg", figg), ("relink", relink)):
        told = publish(protocol, port, "--stream", "s", "--timeout", "30s")
        assert told.returncode == 0, told.stderr
    assert server.stop() == 0
