"""Identities of peers (address, certificate, key, token), and the actions that an access policy allows them."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address

import attrs

from fyrehose.options import Network


class Action(StrEnum):
    """An action on a stream, as access policies name it."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"  #: every kind of reading: live or from the past
    CONSUME = "consume"  #: create named subscriptions, move their positions, and delete them
    ADMINISTER = "administer"  #: retire the stream


def digest(token: str) -> str:
    """Return the SHA-256 of *token* in hexadecimal, which is all that the server stores of a token."""
    return sha256(token.encode(errors="surrogateescape")).hexdigest()


@attrs.frozen(kw_only=True, slots=True)
class Identity:
    """The identity of a peer, with the parts that the peer has proved.

    :ivar host: the peer's address; for a peer on a Unix socket, the loopback address
    :ivar certificates: the names in the verified client certificate, common names first
    :ivar key: the public key that the peer has proved to own (CURVE, as Z85)
    :ivar token: the :func:`digest` of the token that the peer sent
    :ivar signed: the token itself, if it has the form of a signed token (:mod:`fyrehose.broker.signed`)
    """

    host: str = "127.0.0.1"
    certificates: tuple[str, ...] = ()
    key: str | None = None
    token: str | None = attrs.field(default=None, repr=False)
    signed: str | None = attrs.field(default=None, repr=False)

    @property
    def name(self) -> str | None:
        """Return the first name in the peer's certificate, or None without a certificate."""
        return self.certificates[0] if self.certificates else None

    def __str__(self) -> str:
        proofs = [f"certificate {self.certificates[0]!r}"] if self.certificates else []
        proofs += [f"key {self.key}"] if self.key else []
        proofs += ["with a token"] if self.token else []
        return f"{self.host} ({', '.join(proofs)})" if proofs else self.host


@lru_cache(4096)
def network_of(host: str) -> str:
    """Return the network to which *host* belongs for limits per address.

    An IPv4 address is its own network, even if written as an IPv4-mapped IPv6 address.  An IPv6 address counts with its
    whole /64, because one machine can use any address of it.  Any other text, such as the name that
    :func:`~fyrehose.net.peers.host_of` gives to a Unix socket, is returned unchanged.
    """
    address = _address(host.partition("%")[0])
    if address is None:
        return host
    if isinstance(address, IPv4Address) or address.is_loopback:
        return str(address)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


def in_networks(host: str, networks: tuple[Network, ...]) -> bool:
    """Return whether the address *host* is in one of *networks*."""
    address = _address(host)
    return address is not None and any(address in network for network in networks)


@lru_cache(4096)
def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
