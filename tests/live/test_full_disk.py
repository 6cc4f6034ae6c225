"""A real server that starts with less free space than min-free, refuses publishes, and recovers without a restart."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fyrehose.testing.ports import free_port
from tests.live.conftest import FYREHOSE, PATIENCE, fyrehose, until

pytestmark = pytest.mark.live


def ask(method: str, port: int, path: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def listens(port: int) -> bool:
    """Return whether a server listens on *port*: a publish to a port on which none listens fails at once."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def publish(protocol: str, port: int, *words: str) -> subprocess.CompletedProcess[str]:
    return fyrehose("publish", "--protocol", protocol, "--to", f"127.0.0.1:{port}", *words, "x", status=None)


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
    until(lambda: listens(relink), "nothing listens on the port of Relink")
    for protocol, port in (("figg", figg), ("relink", relink)):
        told = publish(protocol, port, "--stream", "s", "--timeout", "30s")
        assert told.returncode == 0, told.stderr
    assert server.stop() == 0


def fill(server: Any, http: int) -> None:
    """Let writes beyond what the journal has now fail, as on a full disk."""
    assert ask("POST", http, "/streams/s", bytes(3 << 20))[0] == 200
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))


def make_room(server: Any) -> None:
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    server.wait_for("the journal is writable again")


def serve(start: Any, tmp_path: Path, *protocols: str) -> Any:
    file = tmp_path / "fyrehose.toml"
    names = [name for name in protocols if name != "backbone"]
    listen = "".join(f'{name} = "tcp:{free_port()}:interface=127.0.0.1"\n' for name in names)
    listen += '[option.journal]\nmin-free = "0"\n'
    file.write_text(f"[listen]\n{listen}")
    return start("--config", str(file))


def test_a_post_that_was_accepted_when_the_disk_fills_has_no_answer_and_is_stored_once(
    start: Any, tmp_path: Path
) -> None:
    server = serve(start, tmp_path, "http")
    http = server.port("http")
    fill(server, http)
    with socket.create_connection(("127.0.0.1", http), timeout=PATIENCE) as peer:
        began = time.monotonic()
        peer.sendall(b"POST /streams/s HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx")
        server.wait_for("the journal is read-only")
        status, answer = ask("POST", http, "/streams/s", b"y")
        assert (status, "cannot be written" in answer["error"]) == (503, True)
        try:
            heard = peer.recv(1000)
        except ConnectionResetError:
            heard = b""
        assert heard == b""
        assert time.monotonic() - began >= 4.5, "not before five seconds, less the second of a check"
    make_room(server)
    request = urllib.request.Request(f"http://127.0.0.1:{http}/streams/s", b"x", {"Idempotency-Key": "k"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answered:
        assert json.load(answered)["first"] == 2
    assert ask("POST", http, "/streams/s", b"z")[1]["first"] == 3
    assert server.stop() == 0


@pytest.mark.parametrize(("protocol", "once"), [("figg", False), ("lumberjack", False), ("relink", True)])
def test_a_client_whose_message_waits_for_room_ends_with_an_acknowledgement(
    start: Any, tmp_path: Path, protocol: str, once: bool
) -> None:
    server = serve(start, tmp_path, "http", protocol)
    http = server.port("http")
    fill(server, http)
    words = () if protocol == "lumberjack" else ("--stream", "s")
    line = [FYREHOSE, "publish", "--protocol", protocol, "--to", f"127.0.0.1:{server.port(protocol)}", *words]
    with subprocess.Popen([*line, "--timeout", "60s", "x"], stderr=subprocess.PIPE, text=True) as client:
        # The first message of Relink is that there is a link, without which the handshake has no answer.
        server.wait_for(f"{protocol}: {'handshake-timeout' if once else 'OutcomeUnknown'} from 127.0.0.1")
        make_room(server)
        told = client.communicate(timeout=PATIENCE)[1]
    assert (client.returncode, "1 message (1 byte) published and acknowledged" in told) == (0, True), told
    stream = "lumberjack" if protocol == "lumberjack" else "s"
    last = ask("GET", http, "/streams")[1]["streams"]
    count = next(each["last"] for each in last if each["name"] == stream) - (stream == "s")
    assert count == 1 if once else count in (1, 2)
    assert server.stop() == 0
