"""Who is at the other end of a connection: its address, and what its certificate proves.

in: a transport of Twisted's      out: Identity
"""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.interfaces import IAddress

from fyrehose.identity import Identity
from fyrehose.records import MAX_NAME

#: Names of one certificate that are looked at; more of them are no way to make us busy.
MOST_NAMES = 100


def host_of(address: IAddress | None) -> str:
    """The host of a peer's address, for limits and log lines."""
    return str(getattr(address, "host", None) or type(address).__name__)


def identify(transport: Any) -> Identity:
    """Who the peer of ``transport`` is, as far as it is known by now: by TLS, that is when the handshake is over."""
    return attrs.evolve(identity_at(transport.getPeer()), certificates=certificate_names(transport))


def identity_at(address: IAddress | None) -> Identity:
    """Return the identity of a peer of which nothing is known but its address.

    A peer without one, such as one on a Unix socket, is on this machine.
    """
    host = getattr(address, "host", None)
    return Identity() if host is None else Identity(host=str(host))


def certificate_names(transport: Any) -> tuple[str, ...]:
    """The names in a certificate that was verified: its common names, then those of other kinds.

    None without TLS, and where the peer has shown no certificate.
    """
    peer = getattr(transport, "getPeerCertificate", lambda: None)()
    if peer is None:
        return ()
    # Here and not above: who uses no TLS need not pay for it.
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    certificate = peer.to_cryptography()
    names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    kinds = (x509.DNSName, x509.IPAddress, x509.RFC822Name, x509.UniformResourceIdentifier)
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names += [str(name.value) for name in others if isinstance(name, kinds)]
    except x509.ExtensionNotFound:
        pass  # a certificate need not have any
    # A name that is cut off would be another's.
    return tuple(dict.fromkeys(name for name in names if 0 < len(name.encode()) <= MAX_NAME))[:MOST_NAMES]
