"""Options of sockets: stale Unix sockets, inherited descriptors, the backlog of connections, and peers that vanish."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from twisted.internet.tcp import Connection, Port
from twisted.protocols.policies import ProtocolWrapper

#: Bytes that are read at once, as many as one cursor delivers in its turn (fyrehose.broker.fanout.TURN).
READ = 256 << 10
#: Connections that may wait to be accepted.  Twisted's backlog of 50 is full at once when all clients reconnect, and a
#: client that finds it full tries again only after a second, then after two.
WAITING = 1_024
#: Silence of a peer after which the kernel probes whether its machine is there, and the interval of probes, in seconds.
PROBE_AFTER_S, PROBE_INTERVAL_S = 20, 5
#: The shortest time in which the machine of a peer must acknowledge data or probes, in seconds.  It begins with the
#: first data after the machine has vanished, for a live answer by HTTP up to 15 s later: together less than a minute.
LEAST_DEAD_AFTER_S = 40.0


def remove_stale_socket(path: str) -> None:
    """Remove the Unix socket at *path*, and its lock, if no process listens there, because a killed process left them.

    Twisted checks only the process id in the lock, which in a container may by now belong to this or another process.
    """
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            probe.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        for stale in (path, f"{path}.lock"):
            with suppress(OSError):  # if the file stays, listening fails, and reports why
                Path(stale).unlink()
    except (OSError, ValueError):
        return  # a process listens there, or the attempt to connect does not show whether one does


def check_adopted(descriptor: int, family: int) -> None:
    """Check that an inherited descriptor is a listening stream socket of the address family of its endpoint.

    With a wrong family the addresses of peers would be misread, and access policies depend on them.

    :raises OSError: the descriptor is no such socket, or the socket does not listen
    """
    copy = os.dup(descriptor)
    try:
        found = socket.socket(fileno=copy)
    except OSError as error:
        os.close(copy)
        raise OSError(error.errno, f"descriptor {descriptor} is not a socket: {error.strerror}") from error
    with found:
        if found.type != socket.SOCK_STREAM:
            why = "is not a stream socket; use ListenStream= in the unit"
        elif found.family != family:
            name = socket.AddressFamily(found.family).name.removeprefix("AF_")
            why = f"is a socket of the domain {name}; use domain={name} in the endpoint"
        elif not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            why = "is a socket that does not listen"
        else:
            return
    raise OSError(errno.EINVAL, f"descriptor {descriptor} {why}")


def deepen_backlog(port: Any) -> Any:
    """Let :data:`WAITING` connections wait to be accepted by *port*, which has just begun to listen, and return it."""
    if isinstance(port, Port):
        port.socket.listen(WAITING)
    return port


def notice_dead_peer(transport: Any, dead_after_s: float) -> None:
    """Let the kernel end the connection of *transport* soon after the peer's machine or network has vanished.

    Without this, Linux probes an idle connection only after two hours, and sends unacknowledged data for 15 minutes.

    :param transport: a transport of a TCP connection, which may be inside of TLS; others are left alone
    :param dead_after_s: for how many seconds the peer's machine may acknowledge nothing, if that is more than
        LEAST_DEAD_AFTER_S.  The kernel counts a peer that is alive and does not read as dead, too.
    """
    while isinstance(transport, ProtocolWrapper):
        transport = transport.transport
    if not isinstance(transport, Connection):
        return
    sock = transport.getHandle()
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with suppress(AttributeError):  # the system is no Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_INTERVAL_S)
        milliseconds = int(max(dead_after_s, LEAST_DEAD_AFTER_S) * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
