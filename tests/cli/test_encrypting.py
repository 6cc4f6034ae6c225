"""A reactor that connects by TLS: which files it takes, and what it hands on.  tests/live/test_policy.py connects."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.interfaces import IReactorTCP, IReactorTime
from twisted.internet.protocol import ClientFactory
from twisted.internet.testing import MemoryReactorClock
from twisted.protocols.tls import TLSMemoryBIOFactory

from fyrehose.cli.encrypting import Encrypted
from fyrehose.cli.places import server
from fyrehose.errors import ConfigError
from fyrehose.testing.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_what_connects_is_wrapped_and_all_else_is_the_reactors(authority: Authority) -> None:
    reactor = MemoryReactorClock()
    encrypted = Encrypted(reactor, "localhost", (authority.certificate,))
    assert IReactorTCP.providedBy(encrypted)
    assert IReactorTime.providedBy(encrypted)
    assert encrypted.seconds() == reactor.seconds()
    inside = ClientFactory()
    encrypted.connectTCP("127.0.0.1", 8119, inside, timeout=5, bindAddress=None)
    host, port, around, timeout, _ = reactor.tcpClients[0]
    assert (host, port, timeout) == ("127.0.0.1", 8119, 5)
    assert isinstance(around, TLSMemoryBIOFactory)
    assert around.wrappedFactory is inside


def test_our_certificate_and_its_key_in_one_file_or_two(authority: Authority, tmp_path: Path) -> None:
    own = authority.issue("me")
    both = tmp_path / "both.pem"
    both.write_bytes(Path(own.certificate).read_bytes() + Path(own.key).read_bytes())
    for words in ((own.certificate, own.key), (str(both),)):
        Encrypted(MemoryReactorClock(), "127.0.0.1", (authority.certificate, *words))


def test_files_that_cannot_be_used(authority: Authority, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    own = authority.issue("me")
    for words in (
        (str(empty),),
        (own.key,),
        (authority.certificate, own.certificate),
        (authority.certificate, str(empty)),
    ):
        with pytest.raises(ConfigError, match="should be PEM files: the authority's certificate, ours, and its key"):
            Encrypted(MemoryReactorClock(), "localhost", words)
    with pytest.raises(ConfigError, match=r"--tls nowhere\.pem: nowhere\.pem cannot be read: No such file"):
        Encrypted(MemoryReactorClock(), "localhost", ("nowhere.pem",))


def test_protocols_without_tcp_have_no_tls(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="backbone does not speak TLS"):
        server("backbone", ("localhost", None), authority.certificate).publisher(MemoryReactorClock(), None, 1)
    made = server("figg", ("localhost", None), authority.certificate).publisher(MemoryReactorClock(), "s", 1)
    assert made is not None
