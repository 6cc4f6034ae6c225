"""Everything of Twisted that Fyrehose uses although it may change with any version: private names and attributes.

    reading   up to READ bytes at once
    writing   immediately, up to UNSENT bytes; the rest waits in Twisted's buffer, and the producer is paused

Twisted itself buffers written data until the next turn of the reactor, waits until the kernel reports the socket as
writable, writes 128 KiB, and repeats.  For a subscriber that keeps up this costs three more system calls per delivery.

Twisted promises to keep its public interfaces.  The following parts do not belong to them:

- the send buffer of a connection (``dataBuffer``, ``offset``, ``_tempDataBuffer``, ``_tempDataLen``), its flags
  (``TLS``, ``_writeDisconnected``) and limits (``bufferSize``, ``SEND_LIMIT``), and that ``transport`` of a port is
  the class of its connections: :class:`PromptServer`, :func:`tune_port`
- the number of connections that a port accepts in one turn (``numberAccepts``): :func:`tune_port`
- the epoll object of a reactor (``_poller``), which is asked with ``poll(timeout, maxevents)``, its objects by
  descriptor (``_selectables``), and how it ends one (``_disconnectSelectable``): :func:`shorten_turns`
- the protocol that a connection passes its data to (``protocol``, ``wrappedProtocol``): :func:`hand_over`
- the path of a Unix endpoint (``_address``): :func:`path_of`
- the file of a log (``_file``, ``_openFile``): :class:`ReopeningLogFile`

No other module may use a private name of Twisted, which a test enforces.  ``make twisted`` runs the tests of this
module with the oldest version that setup.cfg allows, and with the newest one.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from fcntl import ioctl
from itertools import chain, islice, zip_longest
from struct import unpack
from typing import Any, cast

from twisted.internet.endpoints import UNIXServerEndpoint
from twisted.internet.interfaces import IListeningPort, IProtocol, IPushProducer
from twisted.internet.tcp import Port, Server
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper
from twisted.python.log import callWithLogger
from twisted.python.logfile import LogFile

from fyrehose.identity import network_of
from fyrehose.net.sockets import READ

log = Logger()

#: The event of epoll that something is readable; the number is the same on every Linux.
EPOLLIN = 1
#: Bytes that are written at once.
WRITE = 128 << 10
#: Limit of the unsent bytes of a connection in the kernel's buffer.  The buffer would take megabytes, and an answer to
#: a slow subscriber, such as a PONG, would have to wait behind all of them.
UNSENT = 256 << 10
#: Linux's ioctl for the number of bytes in the buffer of a socket that were not sent yet.
_SIOCOUTQNSD = 0x894B
#: Connections that a listener accepts in one turn of the reactor, each of which takes 0.02 to 0.04 ms.  All listeners
#: accept in the same turn.  The connections are served in turns of their networks, see newcomers.py.
ACCEPTS = 64
#: Events of sockets that are handled in one turn of the reactor, and of how many they are chosen; a simple one takes
#: 0.03 to 0.1 ms.
EVENTS, SEEN = 128, 4_096


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
        #: the network of the peer, which is looked up with each event while very many connections have events
        self.network = network_of(str(client[0]))
        # Let the kernel report the socket as writable only when less than UNSENT bytes are unsent.
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


class _Events:
    """The epoll object of a reactor: handles at most EVENTS events at once, and most of them itself.

    Twisted calls each object that has an event in a log context, which takes ten calls in Python.  Only ``log.msg``
    uses it, which nothing of Fyrehose calls.  So what is readable, and no more, is read here; the reactor gets the
    other events, such as the end of a connection.
    """

    def __init__(self, reactor: Any) -> None:
        poller = reactor._poller
        self.register, self.modify, self.unregister = poller.register, poller.modify, poller.unregister
        self._poll, self._selectables, self._disconnect = (
            poller.poll,
            reactor._selectables,
            reactor._disconnectSelectable,
        )

    def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
        """Wait for events; read what is readable, and return the other events."""
        others = []
        for found in self._fair(self._poll(timeout, min(maxevents, SEEN))):
            # An object that was removed by what was read before has no event any more.
            selectable = self._selectables.get(found[0])
            if found[1] != EPOLLIN or selectable is None:
                others.append(found)
                continue
            try:
                why = selectable.doRead()
            except BaseException as error:
                log.failure("reading failed, and ends a connection or a port; please report this bug")
                why = error
            if why:
                callWithLogger(selectable, self._disconnect, selectable, why, True)
        return others

    def _fair(self, found: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return EVENTS of the events *found*, or all if there are no more; each network has about as many of them.

        The kernel reports events in the order in which they happened.  So when thousands of connections of one host
        end together, those of others would wait for all of them.
        """
        if len(found) <= EVENTS:
            return found
        groups: dict[object, list[tuple[int, int]]] = {}
        for event in found:
            selectable = self._selectables.get(event[0])
            kind = selectable.network if isinstance(selectable, PromptServer) else type(selectable)
            groups.setdefault(kind, []).append(event)
        rounds = zip_longest(*groups.values())
        return list(islice(filter(None, chain.from_iterable(rounds)), EVENTS))


def shorten_turns(reactor: Any) -> None:
    """Let each turn of *reactor* handle at most :data:`EVENTS` events of its sockets, in few calls, if it uses epoll.

    Timers and producers then run between the events of thousands of peers that send or disconnect at the same moment,
    instead of after all of them.
    """
    try:
        from twisted.internet.epollreactor import EPollReactor
    except ImportError:  # the system has no epoll
        return
    if isinstance(reactor, EPollReactor):
        reactor._poller = _Events(reactor)


def hand_over(transport: Any, protocol: IProtocol, data: bytes = b"") -> None:
    """Replace the protocol of *transport* by *protocol*, which receives *data* and all that arrives from now on."""
    if isinstance(transport, ProtocolWrapper):  # of an endpoint that wraps connections, as TLS of Twisted does
        transport.wrappedProtocol = protocol
    else:
        transport.protocol = protocol
    protocol.makeConnection(transport)
    if data:
        protocol.dataReceived(data)


def path_of(endpoint: UNIXServerEndpoint) -> str:
    """Return the path of the socket on which *endpoint* listens."""
    return str(endpoint._address)


class ReopeningLogFile(LogFile):
    """A log file that can be opened again by its name."""

    @property
    def descriptor(self) -> int:
        """Return the descriptor of the open file."""
        return int(self._file.fileno())

    def reopen(self) -> None:
        """Open the file of that name, and close the one that was open.

        :raises OSError: the file cannot be opened; the other one stays open
        """
        before = self._file
        self._openFile()  # type: ignore[no-untyped-call]
        before.close()
