"""A peer that speaks another protocol is named with the remedy, and each address in turn."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from fyrehose.net.foreign import SIGNATURE, foreign_client, foreign_server, without_tls
from fyrehose.net.tcp import TCPSettings
from fyrehose.net.tls import TLSSettings
from fyrehose.testing import Transport
from fyrehose.testing.certificates import Authority

from . import test_failed_handshakes as handshakes
from .test_tcp import make

HELLO = bytes.fromhex("160301 0200 01")
#: The beginning of a connection of RDP: mstshash, the cookie that scanners send.
RDP = bytes.fromhex("0300002b26e00000000000") + b"Cookie: mstshash=hello\r\n"


@pytest.mark.parametrize(
    ("beginning", "text"),
    [
        (HELLO, "the peer speaks TLS, and this listener has no certificate: set toy.tls-certificate, or turn TLS off"),
        (b"GET / HTTP/1.1\r\n", "the peer speaks HTTP: connect it to the port of the http or the admin listener"),
        (b"PRI * HTTP/2.0\r\n", "the peer speaks HTTP: connect"),
        (b"PROXY TCP4 192.0.2.7", "the peer sends a PROXY header: add its network to toy.proxies"),
        (SIGNATURE, "the peer sends a PROXY header: add its network to toy.proxies"),
        (RDP, "the peer speaks RDP, as scanners do: keep it away from this port by a firewall"),
        (b"2W\0\0\0\1", ""),
        (b"GETAWAY", ""),
        (b"", ""),
    ],
)
def test_the_client_of_another_protocol_is_named_with_the_remedy(beginning: bytes, text: str) -> None:
    found = foreign_client(beginning, "toy", TLSSettings().lacks_tls)
    assert found.startswith(text)
    assert bool(found) == bool(text)


def test_a_protocol_without_tls_advises_no_certificate() -> None:
    advice = "the peer speaks TLS, and toy does not expect it here: turn TLS off at the peer"
    assert foreign_client(HELLO, "toy", TCPSettings().lacks_tls) == advice


@pytest.mark.parametrize(
    ("beginning", "text"),
    [
        (HELLO, ""),
        (b"", ""),
        (
            b"POST / HTTP/1.1\r\n",
            "the peer speaks HTTP without TLS: turn TLS on at the peer, or off here (tcp: without ",
        ),
        (
            b"2W\0\0\0\1",
            r"the peer sends b'2W\x00\x00\x00\x01' without TLS: turn TLS on at the peer, or off here (tcp: without toy",
        ),
        (b"PROXY TCP4", "the peer sends a PROXY header: add its network to toy.proxies"),
    ],
)
def test_plain_bytes_for_a_listener_with_tls_are_named(beginning: bytes, text: str) -> None:
    found = without_tls(beginning, "toy")
    assert found.startswith(text)
    assert bool(found) == bool(text)


@pytest.mark.parametrize(
    ("beginning", "text"),
    [(b"HTTP/1.1 400", "an HTTP server"), (bytes(16), "a relink listener"), (b"\x15\x03\x03", "one that requires TLS")],
)
def test_a_server_of_another_protocol_is_named(beginning: bytes, text: str) -> None:
    assert foreign_server(beginning).startswith(text)
    assert foreign_server(b"2A") == ""


def test_each_address_and_each_mistake_is_logged_once_a_minute(log_lines: list[str]) -> None:
    server = make(timeout=30.0)
    server.broker.counters.seconds = server.clock.seconds
    for _ in range(2):
        for host, data in (("10.0.0.1", b"GET / "), ("10.0.0.2", b"GET / "), ("10.0.0.1", RDP[:11])):
            server.connect(host)[0].dataReceived(data)
        server.clock.advance(30)
    assert [line.partition(": the peer ")[::2] for line in log_lines] == [
        ("toy: frame-timeout from 10.0.0.1", "speaks HTTP: connect it to the port of the http or the admin listener"),
        ("toy: frame-timeout from 10.0.0.2", "speaks HTTP: connect it to the port of the http or the admin listener"),
        ("toy: frame-timeout from 10.0.0.1", "speaks RDP, as scanners do: keep it away from this port by a firewall"),
    ]
    assert server.count("frame-timeout") == 6


def test_a_violation_behind_valid_data_is_not_explained_by_its_beginning(log_lines: list[str]) -> None:
    protocol, _ = make().connect()
    for line in (b"GET / HTTP/1.1\n", b"!\n"):
        protocol.dataReceived(line)
    assert log_lines == ["toy: rude from 10.0.0.1: a line said !"]


def test_a_handshake_that_fails_for_plain_bytes_is_named(authority: Authority, log_lines: list[str]) -> None:
    world = handshakes.World(authority)
    for host in ("10.0.0.1", "10.0.0.2"):
        address = IPv4Address("TCP", host, 5000)
        transport: Any = Transport(peerAddress=address)  # type: ignore[no-untyped-call]
        protocol = world.outer.buildProtocol(address)
        protocol.makeConnection(transport)
        protocol.dataReceived(b"2W\0\0\0\1")
        world.clock.advance(10)  # OpenSSL may wait for more
        protocol.connectionLost(Failure(ConnectionDone()))
    assert [line.partition(" from ")[2] for line in log_lines] == [
        rf"{host}: the peer sends b'2W\x00\x00\x00\x01' without TLS: turn TLS on at the peer, or off here "
        "(tcp: without toy.tls-certificate)"
        for host in ("10.0.0.1", "10.0.0.2")
    ]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("notify", [True, False])
def test_what_is_acknowledged_after_the_end_of_the_input_still_arrives(
    authority: Authority, version: ssl.TLSVersion, notify: bool
) -> None:
    """Some writers close their sending side behind a window, with an alert of TLS or without one."""
    world = handshakes.World(authority)
    world.broker.journal.auto = False
    context = handshakes.client(authority, "writer")
    context.minimum_version = context.maximum_version = version
    client = world.connect(context)
    while not client.ready:
        client.step()
    if notify:
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()
    client.protocol.dataReceived(client.to_send.read())
    client.protocol.readConnectionLost()
    assert not client.transport.disconnecting
    world.broker.journal.commit()
    world.clock.advance(0)
    client.received.write(client.transport.value())
    assert client.tls.read(100) == b"ok hello\n"
    assert client.transport.disconnecting
    again = world.connect(context, session=client.tls.session)
    while not again.ready:
        again.step()
    assert not again.tls.session_reused, "its certificate is checked each time"


def test_connection_that_the_server_closes_waits_for_what_the_peer_still_sends(authority: Authority) -> None:
    client = handshakes.World(authority).connect(handshakes.client(authority, "writer"))
    while not client.ready:
        client.step()
    client.protocol.wrappedProtocol.finish()
    assert not client.transport.disconnecting, "the reset of a closed socket would discard what is sent to the peer"
    client.received.write(client.transport.value())
    assert client.tls.read(100) == b"ok hello\n"
    client.tls.unwrap()
    client.protocol.dataReceived(client.to_send.read())
    assert client.transport.disconnecting


def test_the_end_of_the_input_within_a_handshake_closes_the_connection(authority: Authority) -> None:
    client = handshakes.World(authority).connect(handshakes.client(authority, "writer"))
    client.protocol.readConnectionLost()
    assert client.transport.disconnecting
