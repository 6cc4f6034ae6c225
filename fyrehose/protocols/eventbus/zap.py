"""Who may connect: the answers to what ZeroMQ asks about each new connection (ZAP, ZeroMQ RFC 27).

    request   version  request id  domain  address  identity  mechanism  credentials...
    reply     version  request id  status  text  user id  metadata

in: the frames of a request      out: the frames of the reply, and why it was refused
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import attrs
from zmq.utils import z85

from fyrehose.settings import Network

#: Where ZeroMQ asks; one socket in each context answers.
ADDRESS = "inproc://zeromq.zap.01"
#: What our sockets are called in a question; one without a name is not asked about.
DOMAIN = b"eventbus"

VERSION = b"1.0"


@attrs.frozen(slots=True, kw_only=True)
class Answer:
    """A reply, and what is to be counted: nothing where the connection is allowed."""

    frames: list[bytes]
    cause: str | None
    address: str


@attrs.frozen(kw_only=True)
class Door:
    """Who may connect.

    :ivar allow: networks; empty: all
    :ivar clients: public keys (Z85); None: any
    :ivar curve: whether a key is needed at all
    """

    allow: tuple[Network, ...] = ()
    clients: frozenset[bytes] | None = None
    curve: bool = False

    def answer(self, frames: Sequence[bytes], *, full: bool = False) -> Answer:
        """The answer to a question, whatever its frames are.

        :param full: there are as many connections as there may be
        """
        request = frames[1] if len(frames) > 1 else b""
        if len(frames) < 6 or frames[0] != VERSION:
            return Answer(frames=_reply(request, b"500", b"not ZAP 1.0"), cause="bad-zap-request", address="?")
        address = frames[3].decode("ascii", "replace")
        cause = "too-many-connections" if full else self._refusal(address, frames[5], frames[6:])
        if cause is None:
            return Answer(frames=_reply(request, b"200", b"OK"), cause=None, address=address)
        return Answer(frames=_reply(request, b"400", cause.encode()), cause=cause, address=address)

    def _refusal(self, address: str, mechanism: bytes, credentials: Sequence[bytes]) -> str | None:
        if self.allow and not self._near(address):
            return "not-allowed"
        if not self.curve:
            return None
        if mechanism != b"CURVE" or len(credentials) != 1 or len(credentials[0]) != 32:
            return "no-key"
        if self.clients is not None and z85.encode(credentials[0]) not in self.clients:
            return "unknown-key"
        return None

    def _near(self, address: str) -> bool:
        try:
            host = ip_address(address)
        except ValueError:
            return False
        mapped = getattr(host, "ipv4_mapped", None)
        return any((mapped or host) in network for network in self.allow)


def _reply(request: bytes, status: bytes, text: bytes) -> list[bytes]:
    return [VERSION, request, status, text, b"", b""]
