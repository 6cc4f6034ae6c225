"""An endpoint that connects by TLS: which files it takes.  tests/live/test_policy.py connects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import ClientFactory
from twisted.internet.testing import MemoryReactorClock
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

from fyrehose.cli.client.servers import server
from fyrehose.cli.client.tls import encrypted
from fyrehose.errors import ConfigError
from fyrehose.testing.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@implementer(IStreamClientEndpoint)
class Plain:
    """The endpoint of a server without TLS."""

    factory: Any = None

    def connect(self, factory: Any) -> Deferred[Any]:
        self.factory = factory
        return Deferred()


def test_connections_of_the_endpoint_are_wrapped(authority: Authority) -> None:
    plain, inside = Plain(), ClientFactory()
    encrypted(plain, "localhost", (authority.certificate,)).connect(inside)
    assert isinstance(plain.factory, TLSMemoryBIOFactory)
    assert plain.factory.wrappedFactory is inside


def test_client_certificate_and_key_may_share_a_file(authority: Authority, tmp_path: Path) -> None:
    own = authority.issue("me")
    both = tmp_path / "both.pem"
    both.write_bytes(Path(own.certificate).read_bytes() + Path(own.key).read_bytes())
    for words in ((own.certificate, own.key), (str(both),)):
        plain = Plain()
        encrypted(plain, "127.0.0.1", (authority.certificate, *words)).connect(ClientFactory())
        assert isinstance(plain.factory, TLSMemoryBIOFactory)


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
            encrypted(Plain(), "localhost", words)
    with pytest.raises(ConfigError, match=r"--tls nowhere\.pem: cannot read nowhere\.pem: No such file"):
        encrypted(Plain(), "localhost", ("nowhere.pem",))


def test_protocols_without_tcp_have_no_tls(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="protocol backbone has no TLS"):
        server("backbone", ("localhost", None), authority.certificate).publisher(MemoryReactorClock(), None, 1)
    made = server("figg", ("localhost", None), authority.certificate).publisher(MemoryReactorClock(), "s", 1)
    assert made is not None
