"""The PROXY header of a load balancer names the peer, in whatever pieces it arrives; anything else is refused."""

from __future__ import annotations

import ssl
import struct
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress

from fyrehose.broker.policy import parse
from fyrehose.net.foreign import SIGNATURE
from fyrehose.net.proxied import MOST_TEXT, ProxiedFactory, parse_header
from fyrehose.net.tls import TLSFactory
from fyrehose.options import networks
from fyrehose.testing import Transport, every_chunking
from fyrehose.testing.certificates import Authority

from . import test_failed_handshakes as handshakes
from .test_tcp import make

BALANCER, CLIENT = "10.9.0.1", "192.0.2.7"
TEXT = b"PROXY TCP4 192.0.2.7 192.0.2.1 50000 5044\r\n"
#: As HAProxy sends it: PROXY, TCP by IPv4, 12 bytes of addresses, and then one addition (UNIQUE_ID).
BINARY = SIGNATURE + bytes.fromhex("2111 0011 c0000207 c0000201 c350 13b4 05 0002 6162")
#: The same by IPv6, without any addition.
BINARY6 = SIGNATURE + bytes.fromhex(
    "2121 0024 20010db8000000000000000000000007 20010db8000000000000000000000001 c350 13b4"
)
V4, V6 = IPv4Address("TCP", CLIENT, 50_000), IPv6Address("TCP", "2001:db8::7", 50_000)
#: Complete headers, and the clients that they name.
GOLDEN = [
    (TEXT, V4),
    (b"PROXY TCP6 2001:db8::7 2001:db8::1 50000 5044\r\n", V6),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
    (b"PROXY UNKNOWN".ljust(105) + b"\r\n", None),
    (BINARY, V4),
    (BINARY6, V6),
    (SIGNATURE + bytes.fromhex("2000 0000"), None),  # LOCAL, a health check
    (SIGNATURE + bytes.fromhex("2011 000c c0000207 c0000201 c350 13b4"), None),  # LOCAL with the balancer's address
    (SIGNATURE + bytes.fromhex("2100 0000"), None),  # an unknown family
    (SIGNATURE + bytes.fromhex("2131 00d8") + bytes(216), None),  # a Unix socket of the balancer
]
MALFORMED = [
    b"GET / HTTP/1.1\r\n",
    b"PROXY\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 50000\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 50000 5044 1\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 50000 5044 x\r\n",
    b"PROXY UNKNOWN".ljust(106) + b"\r\n",  # 107 bytes are allowed
    b"PROXY TCP4 192.0.2.7  192.0.2.1 50000 5044\r\n",
    b"PROXY TCP4 2001:db8::7 2001:db8::1 50000 5044\r\n",
    b"PROXY TCP6 192.0.2.7 192.0.2.1 50000 5044\r\n",
    b"PROXY TCP6 fe80::1%eth0 fe80::2 50000 5044\r\n",
    b"PROXY UDP4 192.0.2.7 192.0.2.1 50000 5044\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 65536 5044\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 -1 5044\r\n",
    b"PROXY TCP4 192.0.2.256 192.0.2.1 50000 5044\r\n",
    "PROXY TCP4 192.0.2.7 192.0.2.1 \u0665 5044\r\n".encode(),  # a digit, and no ASCII
    b"PROXY TCP4 " + b"1" * MOST_TEXT,
    SIGNATURE + bytes.fromhex("1111 000c"),  # version 1
    SIGNATURE + bytes.fromhex("2211 000c"),  # no such command
    SIGNATURE + bytes.fromhex("2112 000c"),  # UDP
    SIGNATURE + bytes.fromhex("2111 000b"),  # too short for its addresses
    SIGNATURE + bytes.fromhex("2121 0023"),
    SIGNATURE + bytes.fromhex("2111 ffff"),  # longer than any header
]


@pytest.mark.parametrize(("header", "client"), GOLDEN)
def test_a_header_is_incomplete_until_its_last_byte(header: bytes, client: object) -> None:
    for size in range(len(header)):
        assert parse_header(header[:size]) is None
    for rest in (b"", b"2W\0\0\0\1", header):
        assert parse_header(header + rest) == (client, len(header))


@pytest.mark.parametrize("data", MALFORMED)
def test_anything_but_a_header_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_header(data)


@given(st.ip_addresses(), st.integers(0, 65_535), st.binary(max_size=100), st.binary(max_size=10))
def test_both_versions_name_the_same_client(address: Any, port: int, additions: bytes, rest: bytes) -> None:
    text = f"PROXY TCP{address.version} {address} {address} {port} 1\r\n".encode()
    addresses = address.packed * 2 + struct.pack(">HH", port, 1) + additions
    family = {4: 0x11, 6: 0x21}[address.version]
    binary = SIGNATURE + struct.pack(">BBH", 0x21, family, len(addresses)) + addresses
    for header in (text, binary):
        found = parse_header(header + rest)
        assert found is not None
        client: Any = found[0]
        assert (ip_address(client.host), client.port, found[1]) == (address, port, len(header))


@given(st.one_of(st.just(b"PROXY "), st.just(SIGNATURE), st.just(b"")), st.binary(max_size=300))
def test_no_bytes_break_the_parser(start: bytes, rest: bytes) -> None:
    try:
        found = parse_header(start + rest)
    except ValueError:
        return
    assert found is None or 0 < found[1] <= len(start + rest)


def proxied(server: Any) -> ProxiedFactory:
    return ProxiedFactory(server.factory, server.factory)


def connect(factory: ProxiedFactory, address: Any = None) -> Any:
    """Connect from the load balancer, or from *address*, and return the transport."""
    address = IPv4Address("TCP", BALANCER, 40_000) if address is None else address
    transport: Any = Transport(peerAddress=address)  # type: ignore[no-untyped-call]
    transport.protocol = factory.buildProtocol(address)
    transport.protocol.makeConnection(transport)
    return transport


def trusting(**settings: Any) -> Any:
    return make(proxies=networks("10.9.0.0/16"), **settings)


@pytest.mark.parametrize(
    ("header", "address", "network"),
    [
        (TEXT, f"{CLIENT}:50000", CLIENT),
        (BINARY, f"{CLIENT}:50000", CLIENT),
        (BINARY6, "2001:db8::7:50000", "2001:db8::/64"),
    ],
)
def test_the_client_is_the_peer_in_whatever_pieces_the_header_arrives(
    header: bytes, address: str, network: str
) -> None:
    for pieces in every_chunking(header + b"one\n"):
        server = trusting(auto=True)
        transport = connect(proxied(server))
        for piece in pieces:
            transport.protocol.dataReceived(piece)
        assert transport.value() == b"ok one\n"
        [run] = server.journal.read("s", 1, 100)
        assert (run.producer, transport.protocol.network) == (address, network)
        assert transport.protocol.identity.host == address.removesuffix(":50000")
        assert not len(server.factory.holding)


def test_a_health_check_comes_from_the_balancer() -> None:
    server = trusting()
    transport = connect(proxied(server))
    transport.protocol.dataReceived(b"PROXY UNKNOWN\r\none\n")
    assert transport.protocol.address == f"{BALANCER}:40000"


def test_a_client_is_limited_by_its_own_address() -> None:
    server = trusting(max_per_host=1)
    factory = proxied(server)
    connect(factory).protocol.dataReceived(TEXT)
    again, other = connect(factory), connect(factory)
    again.protocol.dataReceived(TEXT)
    assert server.count("too-many-connections-from-one-host") == 1
    other.protocol.dataReceived(TEXT.replace(b"2.7", b"2.8"))
    assert other.protocol.network == "192.0.2.8"
    assert again.disconnecting


def test_the_policy_judges_the_client(log_lines: list[str]) -> None:
    server = trusting()
    server.broker.guard.change(parse({"allow": [{"network": BALANCER, "publish": "s"}]}))
    transport = connect(proxied(server))
    transport.protocol.dataReceived(TEXT + b"one\n")
    assert transport.disconnecting
    assert [line.partition(": ")[2].partition(":")[0] for line in log_lines] == [f"forbidden-address from {CLIENT}"]


def test_tls_begins_behind_the_header_and_waits_after_failed_handshakes_of_the_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    world = handshakes.World(authority, proxies=networks(f"{BALANCER}/32"))
    tls: TLSFactory = world.outer
    world.outer = ProxiedFactory(tls, world.inner)
    for _ in range(2):  # the second one is delayed, and keeps what came with its header
        client = world.connect(handshakes.client(authority, "writer"), BALANCER)
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        client.protocol.dataReceived(TEXT + client.to_send.read())
        world.finish(client)
        assert client.heard == b"ok hello\n"
        assert client.transport.protocol.wrappedProtocol.producer == f"writer ({CLIENT}:50000)"
        client.leave()
        tls.wrappedFactory.holding.handshakes.count(CLIENT)
    assert world.count("handshakes-delayed") == 1
    assert world.count("proxy-header") == 0


def test_a_malformed_header_is_refused_with_one_line_for_each_balancer(log_lines: list[str]) -> None:
    server = trusting()
    factory = proxied(server)
    for host in (BALANCER, BALANCER, "10.9.0.2"):
        transport = connect(factory, IPv4Address("TCP", host, 1))
        transport.protocol.dataReceived(b"one\n")
        transport.protocol.dataReceived(TEXT)
        assert transport.disconnecting
        assert not transport.value()
    said = "expected a PROXY header, not b'one\\n'; does the load balancer send it (send-proxy)?"
    assert log_lines == [f"toy: proxy-header from {host}: {said}" for host in (BALANCER, "10.9.0.2")]
    assert server.count("proxy-header") == 3


def test_a_late_header_is_refused(log_lines: list[str]) -> None:
    server = trusting(timeout=9.0)
    transport = connect(proxied(server))
    transport.protocol.dataReceived(TEXT[:-1])
    server.clock.advance(2.9)
    assert not transport.disconnecting
    server.clock.advance(0.2)
    assert transport.disconnecting
    assert "no complete PROXY header in time" in log_lines[0]
    transport.protocol.dataReceived(TEXT[-1:])
    assert server.count("connections") == 0


def test_connections_without_a_header_are_bounded_in_number() -> None:
    server = trusting(max_connections=1)
    factory = proxied(server)
    waiting = [connect(factory) for _ in range(50)]
    assert sum(not each.disconnecting for each in waiting) == server.factory.most_held


def test_a_listener_that_closes_closes_connections_without_a_header(log_lines: list[str]) -> None:
    server = trusting()
    transport = connect(proxied(server))
    drained = server.factory.drain()
    assert transport.disconnecting
    server.lose(transport.protocol)
    assert drained.called
    assert log_lines == []


def test_a_header_from_elsewhere_is_data(log_lines: list[str]) -> None:
    server = trusting()
    transport = connect(proxied(server), IPv4Address("TCP", "10.8.0.1", 1))
    transport.protocol.dataReceived(TEXT)
    assert transport.protocol.network == "10.8.0.1"


def test_a_balancer_on_a_unix_socket_counts_as_this_machine() -> None:
    server = make(proxies=networks("127.0.0.0/8"))
    transport = connect(proxied(server), UNIXAddress("/run/balancer"))
    transport.protocol.dataReceived(TEXT)
    assert transport.protocol.network == CLIENT


def test_the_networks_of_balancers_can_change_while_the_listener_is_open() -> None:
    server = make()
    factory = proxied(server)
    server.factory.configure(trusting().factory.settings)
    transport = connect(factory)
    transport.protocol.dataReceived(TEXT)
    assert transport.protocol.network == CLIENT
