"""A service listens on an endpoint, with a TLS factory around its factory if there is one."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.endpoints import AdoptedStreamServerEndpoint
from twisted.internet.tcp import Port
from twisted.internet.testing import MemoryReactorClock
from twisted.protocols.policies import WrappingFactory

from fyrehose.errors import ConfigError
from fyrehose.net.endpoints import UNIX_PATH, TCPService, flaw_of
from fyrehose.net.sockets import WAITING
from fyrehose.net.tcp import TCPSettings
from fyrehose.net.tls import TLSSettings
from fyrehose.options import networks
from fyrehose.testing.certificates import Authority

from .test_tcp import make


def test_invalid_endpoints_are_refused() -> None:
    server = make()
    for endpoint in ("nonsense:1", "tcp", "tcp:http:x=y"):
        with pytest.raises(ConfigError, match="not a Twisted endpoint"):
            TCPService(server.clock, "toy", endpoint, server.factory)
    with pytest.raises(ConfigError, match=r"toy=ssl:1: cannot read .*server\.pem: No such file or directory"):
        TCPService(server.clock, "toy", "ssl:1", server.factory)


@pytest.mark.parametrize(
    ("endpoint", "proxies", "why"),
    [
        ("haproxy:tcp:5044", "", "each peer would be the load balancer; use toy=tcp: with toy.proxies"),
        ("tls:certificates:haproxy:tcp:5044", "", "each peer would be the load balancer"),
        ("ssl:5044:privateKey=key.pem", "10.0.0.0/8", "it hides the PROXY header; use toy=tcp: .*add toy.tls-certific"),
    ],
)
def test_an_endpoint_that_hides_the_clients_of_a_load_balancer_is_refused(
    endpoint: str, proxies: str, why: str
) -> None:
    server = make(proxies=networks(proxies))
    with pytest.raises(ConfigError, match=f"^invalid --listen toy={endpoint}: {why}"):
        TCPService(server.clock, "toy", endpoint, server.factory)


def test_a_reload_cannot_expect_headers_that_tls_hides(tmp_path: Path) -> None:
    own = Authority(tmp_path).issue("server", "localhost")
    server = make()
    endpoint = f"ssl:0:privateKey={own.key}:certKey={own.certificate}"
    service = TCPService(MemoryReactorClock(), "toy", endpoint, server.factory)
    with pytest.raises(ConfigError, match="it hides the PROXY header"):
        service.prepare(TCPSettings(proxies=networks("10.0.0.0/8")))


@pytest.mark.parametrize("endpoint", ["unix:haproxy", "tcp:0"])
def test_a_plain_endpoint_shows_the_headers_of_load_balancers(endpoint: str) -> None:
    server = make(proxies=networks("10.0.0.0/8"))
    assert not TCPService(MemoryReactorClock(), "toy", endpoint, server.factory).connections


@pytest.mark.parametrize(
    ("endpoint", "flaw"),
    [
        ("tcp:8119:interface=127.0.0.1:backlog=5", ""),
        ("tcp:port=8119:interface=\\:\\:1", ""),
        ("tcp:0", ""),
        ("tcp:65535:interface=localhost", ""),
        ("udp:2323", ""),
        ("ssl:8119:privateKey=a\\:b.pem:certKey=c.pem", ""),
        ("unix:/run/figg:mode=600:lockfile=0", ""),
        (f"unix:x{'é' * (UNIX_PATH // 2)}", ""),
        (f"unix:{'é' * (UNIX_PATH // 2 + 1)}", "its path has 108 bytes, and a Unix socket at most 107"),
        ("systemd:domain=INET:index=0", ""),
        ("onion:8119:key=x", ""),
        ("tcp:65536", "expected a port from 0 to 65535 after tcp:, not '65536'"),
        ("tcp:8119:mode=600", "it has an unknown part 'mode'; expected port, interface or backlog"),
        (
            "tcp:8119:interface=\\:\\:g",
            "interface=::g is no IP address; expected one of this machine, such as 127.0.0.1",
        ),
        ("udp:1:interface=lo", "lo is a network interface; expected an address, which `ip address show lo` lists"),
    ],
)
def test_flaw_of_an_endpoint_is_found_before_it_is_opened(endpoint: str, flaw: str) -> None:
    assert flaw_of(endpoint) == flaw


@pytest.mark.parametrize(("more", "backlog"), [("", WAITING), (":backlog=7", 7)])
def test_as_many_connections_wait_to_be_accepted_as_reconnect_at_once(more: str, backlog: int) -> None:
    class Reactor(MemoryReactorClock):
        def listenTCP(self, *of: Any, **named: Any) -> Port:
            port = Port(*of, **named, reactor=self)
            port.startListening()
            return port

    reactor, opened = Reactor(), list[Port]()
    service = TCPService(reactor, "toy", f"tcp:0:interface=127.0.0.1{more}", make().factory)
    service.startService().addCallback(opened.append)
    info = opened[0].socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    somaxconn = int(Path("/proc/sys/net/core/somaxconn").read_text())
    assert int.from_bytes(info[28:32], sys.byteorder) == min(backlog, somaxconn), "see tcp_get_info() of Linux"
    service.stopService()
    reactor.advance(0)


def test_with_a_certificate_a_factory_of_tls_listens_instead_of_the_inner_one(monkeypatch: pytest.MonkeyPatch) -> None:
    server, reactor = make(), MemoryReactorClock()
    around = WrappingFactory(server.factory)
    server.factory.settings = TLSSettings()
    monkeypatch.setattr("fyrehose.net.endpoints.add_tls", lambda *of: around)
    service = TCPService(reactor, "toy", "tcp:0:interface=127.0.0.1", server.factory)
    assert service.factory is server.factory
    service.startService()
    assert reactor.tcpServers[0][1].wrappedFactory is around
    service.stopService()


def test_a_listener_on_a_socket_of_systemd_can_be_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server, adopted, closed = make(), list[int](), list[Any]()

    class Reactor(MemoryReactorClock):
        def adoptStreamPort(self, descriptor: int, *of: Any) -> Any:
            adopted.append(os.fstat(descriptor).st_ino)
            port = self.listenTCP(0, of[1])
            port.stopListening = lambda: closed.append(port)
            return port

    with socket.create_server(("127.0.0.1", 0)) as passed:
        reactor = Reactor()
        monkeypatch.setattr(
            "fyrehose.net.endpoints.serverFromString",
            lambda *_: AdoptedStreamServerEndpoint(reactor, passed.fileno(), socket.AF_INET),
        )
        for _ in range(2):
            service = TCPService(reactor, "toy", "systemd:domain=INET:name=toy", server.factory)
            service.startService()
            service.stopService()
            assert len(closed) == len(adopted)
        assert adopted == [os.fstat(passed.fileno()).st_ino] * 2


def test_options_that_need_a_restart_are_those_that_differ() -> None:
    server = make()
    server.factory.fixed_options = ("timeout", "max_per_host")
    service = TCPService(server.clock, "toy", "tcp:0", server.factory)
    assert service.fixed(attrs.evolve(server.factory.settings, timeout=1.0, max_connections=7)) == ["timeout"]
    service.prepare(attrs.evolve(server.factory.settings, max_connections=7)).apply()
    assert server.factory.settings.max_connections == 7


@pytest.mark.parametrize("started", [True, False])
def test_a_service_stops_when_its_connections_are_closed(started: bool) -> None:
    server, reactor, stopped = make(auto=False), MemoryReactorClock(), list[object]()
    service = TCPService(reactor, "toy", "tcp:8119", server.factory)
    if started:
        service.startService()
    protocol, transport = server.connect()
    protocol.dataReceived(b"message\n")
    service.stopService().addCallback(stopped.append)
    assert (service.running, transport.disconnecting, stopped) == (0, False, [])
    server.journal.commit()
    assert (transport.value(), transport.disconnecting, stopped) == (b"ok message\n", True, [])
    server.lose(protocol)
    assert stopped == [None]
