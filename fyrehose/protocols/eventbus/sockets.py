"""Create the ZeroMQ sockets of the event bus with all limits set, and load CURVE keys."""

from __future__ import annotations

from pathlib import Path

import attrs
import zmq
from zmq.auth import load_certificate, load_certificates

from fyrehose.errors import ConfigError

#: Interval of heartbeats, and time after which a peer that does not answer them is disconnected, in milliseconds.
HEARTBEAT = 15_000
SILENCE = 45_000
#: Time limit of a handshake, in milliseconds.
HANDSHAKE = 10_000
#: How many connections the kernel queues until they are accepted.
BACKLOG = 4_096
#: Delay of a client before it reconnects, in milliseconds: initial and maximum.
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
        """Load the pair from a file NAME.key_secret, as ``zmq.auth.create_certificates`` writes it.

        :raises ConfigError: the file cannot be read, or has no valid key pair
        """
        public, secret = _certificate(path)
        if secret is None:
            raise ConfigError(f"{path} has no secret key; pass the file that ends in .key_secret")
        return cls(public, secret)


def load_public(path: str) -> bytes:
    """Load the public key from a file NAME.key.

    :raises ConfigError: the file cannot be read, or has no valid key
    """
    return _certificate(path)[0]


def load_clients(directory: str) -> frozenset[bytes]:
    """Load the public keys from all files NAME.key in *directory*.

    :raises ConfigError: the keys cannot be read, or there is none
    """
    try:
        keys = frozenset(load_certificates(directory))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the client keys in {directory}: {error}") from error
    if not keys:
        raise ConfigError(f"no client key in {directory}; copy the public key file NAME.key of each client there")
    return keys


def _certificate(path: str) -> tuple[bytes, bytes | None]:
    try:
        public, secret = load_certificate(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the key in {path}: {error}") from error
    if not all(key is None or len(key) == 40 for key in (public, secret)):
        raise ConfigError(f"the key in {path} is damaged: a key has 40 characters")
    return public, secret


def make_socket(context: Context, kind: int, host: str, *, largest: int, received: int, sent: int) -> Socket:
    """Return a new socket with all limits set.

    :param kind: type of the socket, for example ``zmq.ROUTER``
    :param host: the address that the socket will bind to or connect to
    :param largest: maximum size of a frame, in bytes; ZeroMQ disconnects a peer that sends a larger one
    :param received: number of messages from each peer that may wait to be read
    :param sent: number of messages to each peer that may wait to be sent
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
        (zmq.IPV6, int(":" in host)),
    ):
        socket.setsockopt(option, value)
    if kind == zmq.XPUB:
        socket.setsockopt(zmq.XPUB_MANUAL, 1)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    return socket


def address(host: str, port: int | str) -> str:
    """Return the ZeroMQ endpoint of *host* and *port*; port ``*`` is any free one."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def client_socket(
    context: Context, kind: int, host: str, server: bytes | None, own: Keys | None, *, sent: int
) -> Socket:
    """Return a new client socket, which reconnects by itself and queues no messages while it is disconnected.

    :param server: the server's public key, if the server uses CURVE
    :param own: the client's key pair; None: a new pair
    :param sent: number of messages that may wait to be sent
    """
    socket = make_socket(context, kind, host, largest=64 << 20, received=1_000, sent=sent)
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
