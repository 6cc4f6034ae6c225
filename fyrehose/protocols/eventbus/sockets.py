"""The sockets of the event bus, with every limit that ZeroMQ has set, and keys where they are used.

in: options      out: sockets, bound or connected
"""

from __future__ import annotations

from pathlib import Path

import attrs
import zmq
from zmq.auth import load_certificate, load_certificates

from fyrehose.errors import ConfigError

#: A peer that says nothing is asked after so long, and is gone after so long again, in milliseconds.
HEARTBEAT = 15_000
SILENCE = 45_000
#: A handshake takes no longer, in milliseconds.
HANDSHAKE = 10_000
#: Connections that the system keeps for us until they are accepted.
BACKLOG = 4_096
#: How long a client waits before it connects again, in milliseconds: at first, and at the most.
RECONNECT = 100
RECONNECT_MOST = 5_000

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


@attrs.frozen(slots=True)
class Keys:
    """A CURVE key pair, as text (Z85)."""

    public: bytes
    secret: bytes = attrs.field(repr=False)

    @classmethod
    def load(cls, path: str) -> Keys:
        """The pair in the file at ``path``, as ``zmq.auth.create_certificates`` writes it (NAME.key_secret).

        :raises ConfigError: there is none
        """
        public, secret = _certificate(path)
        if secret is None:
            raise ConfigError(f"{path} has no secret key: name the file that ends in .key_secret")
        return cls(public, secret)


def load_public(path: str) -> bytes:
    """The public key in the file at ``path`` (NAME.key).

    :raises ConfigError: there is none
    """
    return _certificate(path)[0]


def load_clients(directory: str) -> frozenset[bytes]:
    """The public keys in the files NAME.key of ``directory``.

    :raises ConfigError: they cannot be read, or there is none
    """
    try:
        keys = frozenset(load_certificates(directory))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the client keys in {directory} cannot be read: {error}") from error
    if not keys:
        raise ConfigError(f"{directory} has no client key: each is a file NAME.key")
    return keys


def _certificate(path: str) -> tuple[bytes, bytes | None]:
    try:
        public, secret = load_certificate(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the key in {path} cannot be read: {error}") from error
    if not all(key is None or len(key) == 40 for key in (public, secret)):
        raise ConfigError(f"the key in {path} is damaged: keys have 40 characters")
    return public, secret


def make_socket(context: Context, kind: int, *, largest: int, received: int, sent: int) -> Socket:
    """A socket with limits.

    :param largest: the largest frame that it takes, in bytes; whoever sends a larger one is cut off
    :param received: messages that wait to be read, from each peer
    :param sent: messages that wait to be sent, to each peer
    """
    socket = context.socket(kind)
    for option, value in (
        (zmq.MAXMSGSIZE, largest),
        (zmq.RCVHWM, received),
        (zmq.SNDHWM, sent),
        (zmq.LINGER, 0),
        (zmq.HANDSHAKE_IVL, HANDSHAKE),
        (zmq.HEARTBEAT_IVL, HEARTBEAT),
        (zmq.HEARTBEAT_TIMEOUT, SILENCE),
        (zmq.HEARTBEAT_TTL, SILENCE),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.BACKLOG, BACKLOG),
    ):
        socket.setsockopt(option, value)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    return socket


def address(host: str, port: int | str) -> str:
    """``host`` and ``port`` as ZeroMQ writes them."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def client_socket(context: Context, kind: int, server: bytes | None, own: Keys | None, *, sent: int) -> Socket:
    """A client's socket, which connects again by itself and sends nothing while it is not connected.

    :param server: the server's public key, where it uses CURVE
    :param own: the client's pair; None: one for this once
    """
    socket = make_socket(context, kind, largest=64 << 20, received=1_000, sent=sent)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MOST)
    if kind == zmq.DEALER:
        socket.setsockopt(zmq.IMMEDIATE, 1)
    if server is not None:
        if own is None:
            own = Keys(*zmq.curve_keypair())
        socket.curve_publickey, socket.curve_secretkey = own.public, own.secret
        socket.curve_serverkey = server
    return socket
