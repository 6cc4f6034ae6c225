"""Twisted's TCP sockets, with fewer system calls.

    reading   up to READ bytes at once
    writing   immediately, up to UNSENT bytes; the rest waits in Twisted's buffer, and the producer is paused

Twisted itself buffers written data until the next turn of the reactor, waits until the kernel reports the socket as
writable, writes 128 KiB, and repeats.  For a subscriber that keeps up this costs three more system calls per delivery.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from struct import unpack
from typing import Any, cast

from twisted.internet.interfaces import IListeningPort, IPushProducer
from twisted.internet.tcp import Port, Server

#: Bytes that are read at once, as many as one cursor delivers in its turn (fyrehose.broker.fanout.TURN).
READ = 256 << 10
#: Bytes that are written at once.
WRITE = 128 << 10
#: The most bytes that the kernel holds for a connection before it has sent them.  Its buffer would take megabytes, and
#: an answer to a slow subscriber, such as a PONG, stands behind all of them.
UNSENT = 256 << 10
#: Linux's ioctl for what a socket holds and has not sent yet.
_SIOCOUTQNSD = 0x894B
#: Connections that are accepted in one turn of the reactor.  When a listener is full, each of them makes another close,
#: which takes until the next turn; Twisted would meanwhile accept hundreds, more than there are descriptors.
ACCEPTS = 16
#: Connections that may wait to be accepted.  Twisted's backlog of 50 is full at once when all clients reconnect, and a
#: client that finds it full tries again only after a second, then after two.
WAITING = 1_024


class PromptServer(Server):
    """The transport of an accepted connection, which writes without waiting for the reactor."""

    bufferSize = READ
    SEND_LIMIT = WRITE
    #: bytes that may be written before the kernel is asked again how many are unsent
    _room = 0

    def __init__(
        self, sock: socket.socket, protocol: Any, client: Any, server: Port, sessionno: int, reactor: Any
    ) -> None:
        super().__init__(sock, protocol, client, server, sessionno, reactor)
        # The reactor is told that the socket is writable only when less than this is unsent.
        with suppress(OSError, AttributeError):  # it is no TCP socket, or the system has no such option
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT - WRITE)

    def abortConnection(self) -> None:
        """Abort the connection, and drop the unsent data now: Twisted keeps it until the reactor's next turn."""
        super().abortConnection()  # type: ignore[no-untyped-call]
        self.dataBuffer, self.offset = b"", 0
        self._tempDataBuffer, self._tempDataLen = [], 0

    def write(self, data: bytes) -> None:
        self.writeSequence((data,))

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        """Write to the socket now; leave to the reactor what the socket does not take, and pause the producer."""
        pieces = list(filter(None, iovec))
        deferred = self.TLS or self.dataBuffer or self._tempDataLen or self.disconnecting or self._writeDisconnected
        if not pieces or deferred or not self.connected:
            super().writeSequence(pieces)  # type: ignore[no-untyped-call]
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(data) > self._room:
            self._room = UNSENT - _unsent(self.socket)
        try:
            written = (
                0 if self._room <= 0 else self.socket.send(data if len(data) <= WRITE else memoryview(data)[:WRITE])
            )
        except OSError:
            written = 0  # the buffer of the kernel is full, or the connection is lost; doWrite handles that in its turn
        self._room -= written
        if written == len(data):
            return
        self._room = 0  # doWrite will write as well
        # Twisted continues from the offset, so the rest need not be copied.
        self.dataBuffer, self.offset = data, written
        self.startWriting()  # type: ignore[no-untyped-call]
        if self.producer is not None and self.streamingProducer:
            self.producerPaused = True
            cast("IPushProducer", self.producer).pauseProducing()


def _unsent(sock: socket.socket) -> int:
    """Return how many bytes *sock* holds that were not sent; 0 if the system does not say."""
    try:
        return int(unpack("i", ioctl(sock, _SIOCOUTQNSD, bytes(4)))[0])
    except OSError:
        return 0


def remove_stale_socket(path: str) -> None:
    """Remove the Unix socket at *path*, and its lock, if a killed process left them and no process listens there.

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
            with suppress(OSError):  # listening reports the reason
                Path(stale).unlink()
    except (OSError, ValueError):
        return  # a process listens there, or it cannot be determined


def check_adopted(descriptor: int, family: int) -> None:
    """Check that an inherited descriptor is a listening stream socket of the address family of its endpoint.

    With a wrong family the addresses of peers would be misread, and access policies depend on them.

    :raises OSError: the descriptor is something else, or its socket does not listen
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


def tune_port(port: Any) -> Any:
    """Make *port*, which has just begun to listen, accept :data:`ACCEPTS` connections at a time, and return it.

    The connections of a TCP port become :class:`PromptServer` transports; other ports are returned unchanged.
    """
    if IListeningPort.providedBy(port) and isinstance(port, Port):
        if port.transport is Server:
            port.transport = PromptServer
        accept = port.doRead

        def accept_few() -> None:
            port.numberAccepts = min(port.numberAccepts, ACCEPTS)
            accept()  # type: ignore[no-untyped-call]

        port.doRead = accept_few  # type: ignore[method-assign]
    return port
