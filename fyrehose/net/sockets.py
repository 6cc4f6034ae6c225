"""The sockets of the TCP protocols: Twisted's own, with less between a protocol and the kernel.

    reading   as much at once as a turn of the reactor may take
    writing   at once, while the kernel takes it; what it leaves waits for Twisted's buffers, and the producer with it

Twisted keeps whatever is written until the next turn of the reactor, asks the kernel whether the socket can be written,
writes 128 KiB, and asks again.  For a subscriber who keeps up that is three system calls too many a delivery.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from twisted.internet.interfaces import IListeningPort, IPushProducer
from twisted.internet.tcp import Port, Server

#: What is read at once, in bytes: so much may take its turn of the reactor (fyrehose.core.fanout.TURN).
READ = 256 << 10
#: What is given to the kernel at once, in bytes.
WRITE = 1 << 20
#: Connections that are accepted in one turn of the reactor.  When a listener is full each of them makes another close,
#: which needs the next turn for that; Twisted would accept hundreds meanwhile, beyond the descriptors that there are.
ACCEPTS = 16
#: Connections that may wait to be accepted.  Twisted's 50 are full in a moment when all clients come back at once, and
#: whoever finds no room tries again after a second, then after two.
WAITING = 1_024


class PromptServer(Server):
    """A connection that a :class:`twisted.internet.tcp.Port` has accepted."""

    bufferSize = READ
    SEND_LIMIT = WRITE

    def write(self, data: bytes) -> None:
        self.writeSequence((data,))

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        pieces = [piece for piece in iovec if piece]
        later = self.TLS or self.dataBuffer or self._tempDataLen or self.disconnecting or self._writeDisconnected
        if not pieces or later or not self.connected:
            super().writeSequence(pieces)  # type: ignore[no-untyped-call]
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        written = self.writeSomeData(data)
        if not isinstance(written, int):
            written = 0  # the connection is lost, which doWrite finds out in its turn
        if written == len(data):
            return
        # What is left is not copied: Twisted goes on from an offset.
        self.dataBuffer, self.offset = data, written
        self.startWriting()  # type: ignore[no-untyped-call]
        if self.producer is not None and self.streamingProducer:
            self.producerPaused = True
            cast("IPushProducer", self.producer).pauseProducing()


def clear(path: str) -> None:
    """Take away a Unix socket that nobody listens at any more, and its lock: whoever made them was killed.

    Twisted goes by the number of the process in the lock; in a container that is ours, or that of another by now.
    """
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            probe.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        for left in (path, f"{path}.lock"):
            with suppress(OSError):  # listening will say what is wrong
                Path(left).unlink()
    except (OSError, ValueError):
        return  # somebody listens, or it cannot be told


def check_adopted(descriptor: int, family: int) -> None:
    """See that a descriptor that somebody has handed over is what an endpoint says of it.

    Else addresses of peers would be read as what they are not, and policies go by them.

    :raises OSError: it is something else, or nobody listens at it
    """
    copy = os.dup(descriptor)
    try:
        found = socket.socket(fileno=copy)
    except OSError as error:
        os.close(copy)
        raise OSError(error.errno, f"descriptor {descriptor} is no socket: {error.strerror}") from error
    with found:
        if found.type != socket.SOCK_STREAM:
            why = "is a socket of another kind: a unit says ListenStream= for TCP"
        elif found.family != family:
            name = socket.AddressFamily(found.family).name.removeprefix("AF_")
            why = f"is a socket of the domain {name}: say domain={name}"
        elif not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            why = "is a socket that nobody listens at"
        else:
            return
    raise OSError(errno.EINVAL, f"descriptor {descriptor} {why}")


def deepen(port: Any) -> Any:
    """``port``, which has just begun to listen, with room for :data:`WAITING` connections that wait to be accepted."""
    if isinstance(port, Port):
        port.socket.listen(WAITING)
    return port


def prompt(port: Any) -> Any:
    """Make *port*, which has just begun to listen, accept :data:`ACCEPTS` connections at a time, and return it.

    If it is a port for TCP, they are :class:`PromptServer` connections.
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
