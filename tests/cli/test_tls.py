"""A reactor that connects by TLS: which files it takes, and what it hands on.  tests/live/test_policy.py connects."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.interfaces import IReactorTCP, IReactorTime
from twisted.internet.protocol import ClientFactory
from twisted.internet.testing import MemoryReactorClock
from twisted.protocols.tls import TLSMemoryBIOFactory

from fyrehose.cli.servers import server
from fyrehose.cli.tls import TLSReactor
from fyrehose.errors import ConfigError
from fyrehose.testing.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_only_tcp_connections_of_the_reactor_are_wrapped(authority: Authority) -> None:
    reactor = MemoryReactorClock()
    encrypted = TLSReactor(reactor, "localhost", (authority.certificate,))
    assert IReactorTCP.providedBy(encrypted)
    assert IReactorTime.providedBy(encrypted)
    assert encrypted.seconds() == reactor.seconds()
    inside = ClientFactory()
    encrypted.connectTCP("127.0.0.1", 8119, inside, timeout=5, bindAddress=None)
    host, port, around, timeout, _ = reactor.tcpClients[0]
    assert (host, port, timeout) == ("127.0.0.1", 8119, 5)
    assert isinstance(around, TLSMemoryBIOFactory)
    assert around.wrappedFactory is inside


def test_client_certificate_and_key_may_share_a_file(authority: Authority, tmp_path: Path) -> None:
    own = authority.issue("me")
    both = tmp_path / "both.pem"
    both.write_bytes(Path(own.certificate).read_bytes() + Path(own.key).read_bytes())
    for words in ((own.certificate, own.key), (str(both),)):
        reactor = MemoryReactorClock()
        TLSReactor(reactor, "127.0.0.1", (authority.certificate, *words)).connectTCP("127.0.0.1", 1, ClientFactory())
        assert isinstance(reactor.tcpClients[0][2], TLSMemoryBIOFactory)


def test_invalid_pem_files_are_refused(authority: Authority, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    own = authority.issue("me")
    for words in (
        (str(empty),),
        (own.key,),
        (authority.certificate, own.certificate),
        (authority.certificate, str(empty)),
    ):
        with pytest.raises(ConfigError, match="expected PEM files: the authority's certificate, and optionally"):
            TLSReactor(MemoryReactorClock(), "localhost", words)
    with pytest.raises(ConfigError, match=r"--tls nowhere\.pem: cannot read nowhere\.pem: No such file"):
        TLSReactor(MemoryReactorClock(), "localhost", ("nowhere.pem",))


def test_protocols_without_tcp_have_no_tls(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="protocol backbone has no TLS"):
        server("backbone", ("localhost", None), authority.certificate).publisher(MemoryReactorClock(), None, 1)
    made = server("figg", ("localhost", None), authority.certificate).publisher(MemoryReactorClock(), "s", 1)
    assert made is not None
