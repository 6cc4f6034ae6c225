"""Authenticate connections: answer the ZAP requests that ZeroMQ sends for each new connection (ZeroMQ RFC 27).

    request   version  request id  domain  address  identity  mechanism  credentials...
    reply     version  request id  status  text  user id  metadata

The user id of a connection that subscribes is a number that no other connection of the server has.  ZeroMQ attaches it
to each message of the connection; the peer cannot change it.  A connection that publishes needs none: with one, each
event costs a third more, because it arrives in smaller turns.

A libzmq client that is answered with status 400 never reconnects.

in: the frames of a request      out: the frames of the reply, and the cause if the connection is refused
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from zmq.utils import z85

from fyrehose.identity import Action, Identity
from fyrehose.options import FileContent

#: The address at which ZeroMQ expects the ZAP handler of a context.
ADDRESS = "inproc://zeromq.zap.01"
#: The ZAP domain of a socket, by the action that it serves; ZeroMQ sends no ZAP requests for a socket without a domain.
DOMAINS = {Action.PUBLISH: b"eventbus.publish", Action.SUBSCRIBE: b"eventbus.subscribe"}

VERSION = b"1.0"


@attrs.frozen(slots=True, kw_only=True)
class Answer:
    """The answer to a ZAP request.

    :ivar frames: the frames of the reply
    :ivar cause: why the connection is refused, for the counter; None: it is admitted
    :ivar address: address of the peer
    :ivar wanted: the peer's identity and the action that it asks for; None: the request is invalid
    """

    frames: list[bytes]
    cause: str | None
    address: str
    wanted: tuple[Identity, Action] | None = None


@attrs.frozen(kw_only=True)
class Authenticator:
    """The authenticator of a server, which decides which connections are admitted.

    :ivar permits: returns whether the access policy permits an identity an action
    :ivar clients: public keys (Z85) of clients that may connect; None: a client may have any key
    :ivar curve: whether a client needs a key
    """

    permits: Callable[[Identity, Action], bool] = lambda identity, action: True
    clients: frozenset[bytes] | None = None
    curve: bool = False

    @property
    def contents(self) -> dict[str, FileContent]:
        """Return the keys of the clients as the content of their option; see :class:`.IReloading`."""
        return {} if self.clients is None else {"client_keys": FileContent.of(b"\n".join(sorted(self.clients)))}

    def answer(self, frames: Sequence[bytes], number: int) -> Answer:
        """Return the answer to a ZAP request, also to an invalid one; never raise.

        :param number: the number of the connection
        """
        request = frames[1] if len(frames) > 1 else b""
        action = next((action for action, domain in DOMAINS.items() if frames[2:3] == [domain]), None)
        if len(frames) < 6 or frames[0] != VERSION or action is None:
            return Answer(frames=_reply(request, b"500", b"not ZAP 1.0"), cause="bad-zap-request", address="?")
        address = address_of(frames)
        cause = self._key_refusal(frames[5], frames[6:]) if self.curve else None
        identity = Identity(host=address, key=z85.encode(frames[6]).decode() if self.curve and not cause else None)
        if cause is None and not self.may(identity, action):
            cause = "Forbidden"
        user = b"%d" % number if action is Action.SUBSCRIBE else b""
        reply = _reply(request, b"200" if cause is None else b"400", (cause or "OK").encode(), user)
        return Answer(frames=reply, cause=cause, address=address, wanted=(identity, action))

    def may(self, identity: Identity, action: Action) -> bool:
        """Return whether *identity* may connect for *action*."""
        known = self.clients is None or (identity.key is not None and identity.key.encode() in self.clients)
        return known and self.permits(identity, action)

    def _key_refusal(self, mechanism: bytes, credentials: Sequence[bytes]) -> str | None:
        if mechanism != b"CURVE" or len(credentials) != 1 or len(credentials[0]) != 32:
            return "no-key"
        if self.clients is not None and z85.encode(credentials[0]) not in self.clients:
            return "unknown-key"
        return None


def address_of(frames: Sequence[bytes]) -> str:
    """Return the address of the peer that a ZAP request is about."""
    return frames[3].decode("ascii", "replace") if len(frames) > 3 else "?"


def _reply(request: bytes, status: bytes, text: bytes, user: bytes = b"") -> list[bytes]:
    return [VERSION, request, status, text, user, b""]
