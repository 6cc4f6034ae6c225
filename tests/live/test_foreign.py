"""Each TCP listener names what speaks another protocol than its own, with the remedy."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from fyrehose.testing.certificates import Authority
from tests.live.conftest import PATIENCE, Start, listening

pytestmark = [pytest.mark.live, pytest.mark.slow]

NAMES = ("admin", "eventbus", "figg", "http", "lumberjack", "relink")
#: What peers send, and how the log names it.
FOREIGN = {
    bytes.fromhex("16030100c8010000c40303") + bytes(32): "the peer speaks TLS, and ",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n": "the peer speaks HTTP: connect it to the port of the http",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 50000 5044\r\n": "the peer sends a PROXY header: add its network to ",
    bytes.fromhex("0300002b26e00000000000") + b"Cookie: mstshash=hello\r\n": "the peer speaks RDP, as scanners do",
}


def send(port: int, data: bytes, number: int) -> None:
    """Send *data* from an address of its own, and wait until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE, (f"127.0.1.{number}", 0)) as peer, suppress(OSError):
        peer.sendall(data)
        while peer.recv(1_000):
            pass


def test_listeners_name_what_speaks_another_protocol(start: Start) -> None:
    server = start(*listening(*NAMES), *(word for name in NAMES for word in ("--option", f"{name}.timeout=3s")))
    for name in NAMES:
        for number, (data, said) in enumerate(FOREIGN.items(), 1):
            if said.startswith("the peer speaks HTTP") and name in ("admin", "http"):
                continue
            send(server.port(name), data, number)
            assert re.search(rf"{name}: [\w-]+ from 127\.0\.1\.{number}[^:]*: {said}", server.log), (name, said)


@pytest.mark.parametrize("kind", ["tcp", "ssl"])
def test_listeners_with_tls_name_what_is_not_encrypted(kind: str, start: Start, tmp_path: Path) -> None:
    own = Authority(tmp_path).issue("localhost", "127.0.0.1")
    names = [name for name in NAMES if name != "eventbus"]
    options, endpoint = [f"{name}.timeout=3s" for name in names], f"{kind}:0:interface=127.0.0.1"
    if kind == "ssl":
        endpoint += f":privateKey={own.key}:certKey={own.certificate}"
    else:
        files = f"certificate={own.certificate}", f"key={own.key}"
        options += [f"{name}.tls-{file}" for name in names for file in files]
    words = [word for name in names for word in ("--listen", f"{name}={endpoint}")]
    server = start(*words, *(word for each in options for word in ("--option", each)))
    for name in names:
        send(server.port(name), b"2W\0\0\0\1", 1)
        send(server.port(name), b"GET / HTTP/1.0\r\n\r\n", 2)
        for number, said in enumerate((r"sends b'2W\x00\x00\x00\x01'", "speaks HTTP"), 1):
            advice = f"without TLS: turn TLS on at the peer, or off here (tcp: without {name}.tls-certificate)"
            server.wait_for(f"from 127.0.1.{number}: the peer {said} {advice}")
    assert server.stop() == 0
