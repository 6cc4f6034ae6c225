"""HAProxy with send-proxy in front of listeners: the clients are the peers, with and without TLS behind the header."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import pack
from typing import Any

import attrs
import pytest

from fyrehose.testing.certificates import Authority
from fyrehose.testing.ports import free_ports
from tests.live.conftest import PATIENCE, Start, haproxy, listening, until

#: The balancer connects from 127.0.0.1, and the client from this address.
CLIENT = "127.0.0.7"
CONFIG = """
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen http
    bind 127.0.0.1:{fronts[0]}
    server one 127.0.0.1:{http} {send} check inter 200ms
listen lumberjack
    bind 127.0.0.1:{fronts[1]}
    server one 127.0.0.1:{lumberjack} {send} check inter 200ms
"""

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
]


@attrs.frozen
class Balanced:
    """A server, and the ports of HAProxy in front of its listeners."""

    server: Any
    http: int
    lumberjack: int
    authority: Authority

    def records(self, stream: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.http}/streams/{stream}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return [json.loads(line) for line in answer]


@pytest.fixture(params=["send-proxy", "send-proxy-v2"])
def balanced(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Iterator[Balanced]:
    authority = Authority(tmp_path)
    own = authority.issue("localhost", "127.0.0.1")
    options = [
        "http.proxies=127.0.0.1/32",
        "lumberjack.proxies=127.0.0.1/32",
        f"lumberjack.tls-certificate={own.certificate}",
        f"lumberjack.tls-key={own.key}",
        f"lumberjack.tls-authorities={authority.certificate}",
        "lumberjack.tls-client-auth=required",
    ]
    server = start(*listening("http", "lumberjack"), *(word for each in options for word in ("--option", each)))
    fronts = free_ports(2)
    ports = {name: server.port(name) for name in ("http", "lumberjack")}
    with haproxy(CONFIG.format(fronts=fronts, send=request.param, **ports), tmp_path):
        for port in fronts:
            connect(port).close()
        yield Balanced(server, *fronts, authority)


def connect(port: int) -> socket.socket:
    """Connect from :data:`CLIENT` as soon as HAProxy listens."""

    def connected() -> socket.socket | None:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), PATIENCE, (CLIENT, 0))
        return None

    return until(connected, "HAProxy does not listen")


def test_a_client_of_http_behind_haproxy_is_the_producer(balanced: Balanced) -> None:
    client = http.client.HTTPConnection("127.0.0.1", balanced.http, PATIENCE, (CLIENT, 0))
    client.connect()
    port = client.sock.getsockname()[1]
    client.request("POST", "/streams/s", b"hello")
    assert client.getresponse().status == 200
    assert [record["producer"] for record in balanced.records("s")] == [f"{CLIENT}:{port}"]
    client.close()


def test_a_lumberjack_writer_proves_its_certificate_behind_haproxy(balanced: Balanced) -> None:
    issued = balanced.authority.issue("web-7")
    context = ssl.create_default_context(cafile=balanced.authority.certificate)
    context.load_cert_chain(issued.certificate, issued.key)
    with context.wrap_socket(connect(balanced.lumberjack), server_hostname="127.0.0.1") as writer:
        port = writer.getsockname()[1]
        event = b'{"message":"hello"}'
        writer.sendall(b"2W" + pack(">I", 1) + b"2J" + pack(">II", 1, len(event)) + event)
        while (answer := writer.recv(6)) == b"2A" + bytes(4):
            pass  # on a busy machine the server asks for patience
        assert answer == b"2A" + pack(">I", 1)
    assert [record["producer"] for record in balanced.records("lumberjack")] == [f"web-7 ({CLIENT}:{port})"]
    assert "proxy-header" not in balanced.server.log, "the health checks of HAProxy are understood, too"


def test_a_client_that_does_not_come_through_haproxy_is_told_so_in_the_log(balanced: Balanced) -> None:
    """127.0.0.1 is the balancer, so a header is expected; anything else of it is refused."""
    port = balanced.server.port("http")
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    balanced.server.wait_for("http: proxy-header from 127.0.0.1: expected a PROXY header, not b'GET / HTTP/1.1")
    with socket.create_connection(("127.0.0.1", port), PATIENCE, (CLIENT, 0)) as client:
        client.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.")
