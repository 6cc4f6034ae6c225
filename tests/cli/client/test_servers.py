"""Servers: which protocol, where, and whether it has what is asked for."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from twisted.internet.error import ConnectionRefusedError as NobodyListens
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from fyrehose.cli.client.failures import TIMES
from fyrehose.cli.client.servers import ROUNDS, ServerAddress, protocol_to_tail, server
from fyrehose.cli.client.tls import encrypted
from fyrehose.cli.client.values import ADDRESSES
from fyrehose.cli.command import main
from fyrehose.errors import ConfigError
from fyrehose.interfaces import Abilities
from fyrehose.testing.certificates import Authority


class Publisher:
    def __init__(self) -> None:
        self.streams: list[str | None] = []

    def prepare(self, stream: str | None) -> None:
        self.streams.append(stream)


def plugin(publisher: Any = None, tailer: Any = None) -> Any:
    return SimpleNamespace(publisher=lambda *a: publisher, tailer=lambda *a: tailer, abilities=Abilities())


def test_default_port_is_that_of_the_protocol() -> None:
    assert str(server("backbone", ("127.0.0.1", None)).failures) == "backbone at 127.0.0.1:2323"
    assert str(server("figg", ("::1", 5)).failures) == "figg at [::1]:5"


@pytest.mark.parametrize("tls", ["", ",", "ca.pem,", "ca.pem,,key.pem"])
def test_empty_tls_file_name_is_refused(tls: str) -> None:
    with pytest.raises(ConfigError, match="invalid --tls"):
        server("figg", ("127.0.0.1", None), tls)


def test_missing_publisher_or_subscriber_of_a_protocol_is_reported() -> None:
    nothing = ServerAddress("lumberjack", "h", 1, plugin())
    with pytest.raises(ConfigError, match="protocol lumberjack has no publisher"):
        nothing.publisher(MemoryReactorClock(), None, 1)
    with pytest.raises(ConfigError, match="protocol lumberjack has no subscriber"):
        nothing.tailer(MemoryReactorClock(), None)
    with pytest.raises(ConfigError, match="protocol lumberjack has no transactions"):
        nothing.publisher(MemoryReactorClock(), None, 1, 5)


def test_clients_are_made_for_the_stream_and_errors_name_it() -> None:
    publisher, tailer = Publisher(), object()
    both = ServerAddress("figg", "h", 1, plugin(publisher, tailer))
    assert (both.publisher(MemoryReactorClock(), None, 1), both.failures.wanted) == (publisher, "publish")
    assert (both.publisher(MemoryReactorClock(), "a", 1), both.failures.wanted) == (publisher, "publish into 'a'")
    assert publisher.streams == [None, "a"]
    assert (both.tailer(MemoryReactorClock(), "a\x1b"), both.failures.wanted) == (tailer, r"read 'a\x1b'")


@pytest.mark.parametrize("stream", ["", "x" * 256, "\u00e4" * 128])
def test_invalid_stream_name_is_refused(stream: str) -> None:
    both = ServerAddress("figg", "h", 1, plugin(Publisher(), object()))
    with pytest.raises(ConfigError, match=r"the name has (0|256) bytes; expected 1 to 255 bytes"):
        both.publisher(MemoryReactorClock(), stream, 1)
    with pytest.raises(ConfigError, match="expected 1 to 255 bytes"):
        both.tailer(MemoryReactorClock(), stream)


def test_a_pattern_or_a_subscription_needs_a_protocol_that_has_them() -> None:
    figg = ServerAddress("figg", "h", 1, plugin(None, object()))
    with pytest.raises(ConfigError, match=r"use --protocol http for the pattern 'logs\.\*'"):
        figg.tailer(MemoryReactorClock(), "logs.*")
    with pytest.raises(ConfigError, match="protocol figg has no named subscriptions; use --protocol http or relink"):
        figg.tailer(MemoryReactorClock(), "s", named=True)
    http = server("http", ("h", None))
    assert http.tailer(MemoryReactorClock(), "logs.*") is not None
    assert http.tailer(MemoryReactorClock(), "s", named=True) is not None


def test_protocol_without_clients_is_refused() -> None:
    with pytest.raises(ConfigError, match="protocol admin has no command-line client"):
        server("admin", ("h", None))


def test_tail_uses_http_where_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        tried.append(address)
        if address[0] == "without":
            raise ConnectionRefusedError
        return socket.socket()

    monkeypatch.setattr("fyrehose.cli.client.servers.socket.create_connection", connect)
    assert [protocol_to_tail((host, None)) for host in ("with", "without")] == ["http", "figg"]
    assert tried == [("with", 8117), ("without", 8117)]
    assert [protocol_to_tail(("h", port)) for port in (8117, 8119, 1234)] == ["http", "figg", "figg"]
    assert len(tried) == 2, "a port says which protocol it is"


@pytest.mark.parametrize("protocol", ["figg", "relink", "http", "lumberjack"])
def test_a_client_with_several_addresses_goes_to_the_next_one(protocol: str) -> None:
    reactor = MemoryReactorClock()
    stream = None if protocol == "lumberjack" else "s"
    at = server(protocol, ("10.0.0.1", 1), others=[("10.0.0.2", 2)])
    if protocol == "http":
        client = at.tailer(reactor, stream)
        client.subscribe(stream, lambda run: None)
    else:
        client = at.publisher(reactor, stream, 10)
    ended: list[str] = []
    client.connect().addErrback(lambda failure: ended.append(failure.getErrorMessage()))
    assert [port for _, port, *_ in reactor.tcpClients] == [1]
    reactor.connectors[0].stopConnecting()
    factory = reactor.tcpClients[0][2]
    factory.clientConnectionFailed(reactor.connectors[0], Failure(NobodyListens(111)))
    reactor.advance(1.0)
    assert [port for _, port, *_ in reactor.tcpClients] == [1, 2]
    factory = reactor.tcpClients[1][2]
    reactor.connectors[1].stopConnecting()
    factory.clientConnectionFailed(reactor.connectors[1], Failure(NobodyListens(111)))
    reactor.advance(1.0)
    (text,) = ended
    assert text.startswith(f"cannot connect to {protocol} at 10.0.0.1:1, 10.0.0.2:2: Connection refused; ")
    assert len(reactor.tcpClients) == 2


def test_addresses_are_separated_by_commas() -> None:
    found = ADDRESSES.convert("10.0.0.1, 10.0.0.2:9,[::1]:7", None, None)
    assert found == (("10.0.0.1", None), ("10.0.0.2", 9), ("::1", 7))
    assert "expected HOST:PORT" in CliRunner().invoke(main, ["publish", "--to", "a:1,b:x", "x"]).output


def test_followers_that_close_connections_do_not_count_as_a_refusal_at_once() -> None:
    at = server("figg", ("10.0.0.1", None), others=[("10.0.0.2", 9), ("::1", None)])
    assert at.failures.name == "figg at 10.0.0.1:8119, 10.0.0.2:9, [::1]:8119"
    assert at.failures.times == 3 * ROUNDS * TIMES
    assert server("figg", ("10.0.0.1", None)).failures.times == TIMES


@pytest.mark.parametrize("protocol", ["backbone", "eventbus"])
def test_protocols_with_several_connections_accept_only_one_address(protocol: str) -> None:
    at = server(protocol, ("10.0.0.1", None), others=[("10.0.0.2", None)])
    with pytest.raises(ConfigError, match=f"protocol {protocol} takes one address"):
        at.publisher(MemoryReactorClock(), None, 1)


def test_the_certificate_of_each_server_is_checked_for_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def watched(endpoint: Any, host: str, paths: tuple[str, ...]) -> Any:
        checked.append(host)
        return encrypted(endpoint, host, paths)

    monkeypatch.setattr("fyrehose.cli.client.tls.encrypted", watched)
    at = server("figg", ("one.test", 1), Authority(tmp_path).certificate, [("two.test", 2)])
    at.publisher(MemoryReactorClock(), "s", 1)
    assert sorted(checked) == ["one.test", "two.test"]
