"""Who a peer is, by its address and by what it has proved (certificate, key, token), and what it may ask to do."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv6Address, ip_address

import attrs


class Action(StrEnum):
    """What a peer may want to do with a stream."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"  #: live or from the past: everything that reads
    ADMINISTER = "administer"  #: retire the stream


def digest(token: str) -> str:
    """What is kept of a token: its SHA-256, in hexadecimal."""
    return sha256(token.encode(errors="surrogateescape")).hexdigest()


@attrs.frozen(kw_only=True, slots=True)
class Identity:
    """Who a peer is, as far as it has proved it.

    :ivar host: its address; a peer on a Unix socket is on this machine
    :ivar certificates: the names in the certificate that it has shown and that was verified, the most telling first
    :ivar key: the public key that it has proved to own (CURVE, as Z85)
    :ivar token: the :func:`digest` of the token that it has shown
    """

    host: str = "127.0.0.1"
    certificates: tuple[str, ...] = ()
    key: str | None = None
    token: str | None = attrs.field(default=None, repr=False)

    @property
    def name(self) -> str | None:
        """What a certificate calls it."""
        return self.certificates[0] if self.certificates else None

    def __str__(self) -> str:
        proofs = [f"certificate {self.certificates[0]!r}"] if self.certificates else []
        proofs += [f"key {self.key}"] if self.key else []
        proofs += ["with a token"] if self.token else []
        return f"{self.host} ({', '.join(proofs)})" if proofs else self.host


@lru_cache(4096)
def network_of(host: str) -> str:
    """Return the network that limits per address count *host* under.

    An IPv4 address is its own network, also where it is written as an IPv6 address.  An IPv6 address counts with its
    whole /64, because one machine has all of that to choose from.  Anything else, such as the name that
    :func:`host_of` gives to a Unix socket, stands for itself.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"
