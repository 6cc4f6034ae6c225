"""Identify the peer of a connection by its address and its certificate.

a Twisted transport -> Identity
"""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress, ISSLTransport

from fyrehose.identity import Identity
from fyrehose.records import MAX_NAME

#: Addresses with a host and a port.
INET = (IPv4Address, IPv6Address)
#: How many names of one certificate are considered, so that a certificate with very many cannot cost much time.
MOST_NAMES = 100
#: The kinds of proof that a peer may send after it was accepted: a certificate, with TLS.
PROOFS = frozenset({"certificate"})


def host_of(address: IAddress | None) -> str:
    """Return the host of a peer's address, for limits and log lines."""
    return address.host if isinstance(address, INET) else type(address).__name__


def port_of(address: IAddress | None) -> int | None:
    """Return the port of a peer's address; None if the address has no port."""
    return address.port if isinstance(address, INET) else None


def certificate_of(transport: Any) -> Any:
    """Return the certificate of the peer, an :class:`OpenSSL.crypto.X509`; None without TLS or a certificate."""
    return transport.getPeerCertificate() if ISSLTransport.providedBy(transport) else None


def identify(transport: Any) -> Identity:
    """Return the identity of the peer of *transport*; its certificate is known only after the TLS handshake."""
    return attrs.evolve(identity_at(transport.getPeer()), certificates=certificate_names(transport))


def identity_at(address: IAddress | None) -> Identity:
    """Return the identity of a peer by its address alone.

    A peer without a host, for example on a Unix socket, counts as loopback.
    """
    return Identity(host=address.host) if isinstance(address, INET) else Identity()


def producer_of(identity: Identity, address: str) -> str:
    """Return the producer of a peer's messages: ``10.0.0.1:5000``, or with a certificate ``NAME (10.0.0.1:5000)``.

    :param address: the address of the peer, with its port
    """
    if identity.name is None:
        return address
    place = f" ({address})"
    return identity.name[: MAX_NAME - len(place)] + place


def certificate_names(transport: Any) -> tuple[str, ...]:
    """Return the names in the verified certificate of the peer: its common names, then its alternative names.

    Without TLS or a client certificate the result is empty.
    """
    peer = certificate_of(transport)
    if peer is None:
        return ()
    # Import this module here, because its import is slow, and only TLS needs it.
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    certificate = peer.to_cryptography()
    names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    kinds = (x509.DNSName, x509.IPAddress, x509.RFC822Name, x509.UniformResourceIdentifier)
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names += [str(name.value) for name in others if isinstance(name, kinds)]
    except x509.ExtensionNotFound:
        pass  # alternative names are optional
    # Skip long names; a truncated one could equal the name of another peer.
    return tuple(dict.fromkeys(name for name in names if 0 < len(name.encode()) <= MAX_NAME))[:MOST_NAMES]
