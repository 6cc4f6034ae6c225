"""Peers are identified by their address and certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.testing import StringTransport
from zope.interface import alsoProvides

from fyrehose.identity import Identity
from fyrehose.net.peers import MOST_NAMES, certificate_names, host_of, identify, identity_at, producer_of
from fyrehose.records import MAX_NAME
from fyrehose.testing.certificates import Authority


class Shown:
    """A peer's certificate, as pyOpenSSL hands it out."""

    def __init__(self, path: str) -> None:
        self.path = path

    def to_cryptography(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(Path(self.path).read_bytes())


def transport(address: Any, certificate: str | None = None) -> Any:
    made: Any = StringTransport(peerAddress=address)
    alsoProvides(made, ISSLTransport)
    made.getPeerCertificate = lambda: None if certificate is None else Shown(certificate)
    return made


@pytest.mark.parametrize(
    ("address", "host"),
    [(IPv4Address("TCP", "10.0.0.1", 9), "10.0.0.1"), (IPv6Address("TCP", "::1", 9), "::1")],
)
def test_a_peer_is_identified_by_the_host_of_its_address(address: Any, host: str) -> None:
    assert identify(StringTransport(peerAddress=address)) == identify(transport(address)) == Identity(host=host)
    assert host_of(address) == host


def test_a_peer_on_a_unix_socket_is_on_this_machine() -> None:
    assert identify(transport(UNIXAddress(None))) == Identity(host="127.0.0.1")
    assert host_of(UNIXAddress(None)) == "UNIXAddress"
    assert host_of(None) == "NoneType"


def test_names_of_a_certificate_are_read(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("beats-7", "beat.example", "10.0.0.9", "beats-7")
    names = ("beats-7", "beat.example", "10.0.0.9")
    assert identify(transport(IPv4Address("TCP", "10.0.0.1", 9), issued.certificate)) == Identity(
        host="10.0.0.1", certificates=names
    )
    assert identify(transport(UNIXAddress(None), issued.certificate)) == Identity(certificates=names)


def test_a_certificate_without_names_gives_no_identity(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue(None)
    assert certificate_names(transport(UNIXAddress(None), issued.certificate)) == ()


def test_long_names_are_skipped_and_their_number_is_bounded(tmp_path: Path) -> None:
    long, many = "x" * 60 + ".", [f"host{n}.example" for n in range(2 * MOST_NAMES)]
    issued = Authority(tmp_path).issue("short", long * 5 + "example", *many)
    names = certificate_names(transport(UNIXAddress(None), issued.certificate))
    assert names == ("short", *many[: MOST_NAMES - 1])


def test_a_peer_without_a_host_counts_as_one_on_this_machine() -> None:
    assert identity_at(IPv4Address("TCP", "10.0.0.1", 5)) == Identity(host="10.0.0.1")
    for nothing in (UNIXAddress("/run/figg"), None):
        assert identity_at(nothing) == Identity(), "it is on this machine"


def test_the_producer_is_the_name_of_the_certificate_and_the_address() -> None:
    assert producer_of(Identity(host="10.0.0.1"), "10.0.0.1:5000") == "10.0.0.1:5000"
    named = Identity(host="10.0.0.1", certificates=("writer-7", "alias"))
    assert producer_of(named, "10.0.0.1:5000") == "writer-7 (10.0.0.1:5000)"
    long = producer_of(Identity(certificates=("x" * 255,)), "10.0.0.1:5000")
    assert len(long) == MAX_NAME
    assert long.endswith("x (10.0.0.1:5000)")
