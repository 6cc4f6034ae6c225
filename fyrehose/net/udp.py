"""A UDP port that moves many datagrams per system call (trains), if the kernel supports it.

    doRead        recvmsg_into ... -> protocol.datagrams_received(data, segment, source) ... -> protocol.turn_over()
    write_train   queue -> sendmsg, with UDP_SEGMENT for several datagrams; unsent trains wait for doWrite

On the wire there is one message per datagram in either case.  An error of one destination (an ICMP error, a datagram
that is too large for its path, no buffer space) drops the datagram, is counted, and does not stop the port.

:class:`TrainProtocol` is the base of the server and of the client, which work over any UDP transport:

    UDPPort                  datagrams_received(train) ... turn_over()      send -> write_train, flush -> flush
    any other IUDPTransport  datagramReceived(datagram), a timer for        send -> write, once for each datagram
                             turn_over()
"""

from __future__ import annotations

import errno
import re
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from ipaddress import AddressValueError, IPv4Address
from struct import Struct
from typing import Any, Protocol

from twisted.internet import udp
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import CannotListenError, MessageLengthError
from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.internet.protocol import DatagramProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface, implementer

from fyrehose.errors import ConfigError
from fyrehose.net.lifecycle import Timers
from fyrehose.observe.counters import Counters
from fyrehose.records import Buffer

log = Logger()

#: The address of a socket: host and port.
Address = tuple[str, int]
#: The most bytes of a datagram over IPv4.
MOST_BYTES = 65_507


class DatagramTrain(Protocol):
    """DatagramTrain of one size in one buffer, a train; the last may be shorter."""

    @property
    def data(self) -> Buffer: ...

    @property
    def segment(self) -> int:
        """Return the size of each datagram but the last, in bytes."""

    @property
    def size(self) -> int:
        """Return the size of all datagrams together, in bytes."""

    def datagrams(self) -> Iterable[Buffer]: ...


class ITrainTransport(Interface):
    """A UDP transport that sends several datagrams to one address with one system call."""

    waiting = Attribute("The number of trains that wait to be sent.")

    def write_train(train: DatagramTrain, destination: Address) -> None:
        """Send *train* at the next :meth:`flush` at the latest."""

    def flush() -> None:
        """Send waiting trains until the kernel accepts no more."""


class TrainProtocol(DatagramProtocol):
    """A UDP protocol of trains of datagrams, over a :class:`~.udp.UDPPort` or any other UDP transport of Twisted.

    :ivar timers: the timers, which are cancelled when the port is closed
    :ivar name: the name in counters and log lines
    :ivar counters: counts errors, and what was dropped
    """

    noisy = False
    name: str
    counters: Counters
    transport: Any
    #: Send a train to an address, at the next :attr:`flush` at the latest.
    send: Callable[[DatagramTrain, Address], None]
    #: Send waiting trains until the kernel accepts no more.
    flush: Callable[[], None]
    timers: Timers

    # For subclasses.

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        """Process datagrams of *segment* bytes each (the last may be shorter); *data* is reused after the call."""
        raise NotImplementedError

    def turn_over(self) -> None:
        """Act on the datagrams of this turn of the reactor: all were passed to :meth:`datagrams_received`."""
        raise NotImplementedError

    def congested(self) -> None:
        """Stop sending, except for answers, because the socket is full and trains wait to be sent."""

    def relieved(self) -> None:
        """Send further datagrams, because the socket has taken all earlier ones."""

    @property
    def waiting(self) -> int:
        """Return the number of trains that wait to be sent; only a :class:`~.udp.UDPPort` lets trains wait."""
        return self.transport.waiting if ITrainTransport.providedBy(self.transport) else 0

    # Called by the port.

    def makeConnection(self, transport: Any) -> None:
        if ITrainTransport.providedBy(transport):
            self.send, self.flush = transport.write_train, transport.flush
        else:
            self.send, self.flush = self._write_each, lambda: None
        transport.maxPacketSize = MOST_BYTES  # Twisted's default truncates datagrams above 8,192 bytes
        super().makeConnection(transport)

    def stopProtocol(self) -> None:
        self.timers.clear()

    def datagramReceived(self, datagram: bytes, addr: Address) -> None:
        """Process one datagram; all datagrams that arrive before the next call of the timer make one turn."""
        self.timers.start(0, self.turn_over)
        self.datagrams_received(memoryview(datagram), max(len(datagram), 1), addr)

    def _write_each(self, train: DatagramTrain, destination: Address) -> None:
        for datagram in train.datagrams():
            try:
                self.transport.write(datagram, destination)
            except (OSError, MessageLengthError) as error:
                self.send_failed(error, destination)

    def send_failed(self, error: Exception, destination: Address) -> None:
        """Count a datagram that could not be sent, which affects no other destination."""
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, MessageLengthError):
            number = errno.EMSGSIZE
        cause = f"send-{errno.errorcode.get(number or 0, 'error')}"
        self.counters.refuse(log, self.name, cause, "{}:{}".format(*destination))


#: Constants that Python's socket module does not have (linux/in.h, linux/udp.h, asm-generic/socket.h).
IP_MTU_DISCOVER = 10
IP_PMTUDISC_DONT = 0
SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
SO_RXQ_OVFL = 40

#: Upper bounds of one turn of reading: calls, datagrams and bytes; they also bound the batch that is published.
READ_CALLS = 256
READ_TURN = 2_048
READ_BYTES = 1 << 20
#: Upper bound of calls of sendmsg in one turn.
SEND_TURN = 128
#: Buffer size of one call, in bytes; UDP_GRO joins datagrams to less than this size.
READ_SIZE = 1 << 16
#: Size of the ancillary data of one call, in bytes: the segment, and the datagrams that the kernel dropped.
ANCILLARY = socket.CMSG_SPACE(4) * 2
#: Maximum segment size for UDP_SEGMENT, in bytes: larger datagrams do not fit into an Ethernet frame.
MAX_SEGMENT = 1_472

#: The errors with which kernels refuse UDP_SEGMENT and UDP_GRO.
_REFUSED = {errno.EINVAL, errno.ENOPROTOOPT, errno.EIO, errno.EOPNOTSUPP}
_AGAIN = {errno.EAGAIN, errno.EWOULDBLOCK}

_U16 = Struct("=H")
_U32 = Struct("=I")
_INT = Struct("=i")


def is_local(host: str) -> bool:
    """Return whether *host* is an address of this machine."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def host_towards(destination: Address) -> str:
    """Return the address of this machine from which datagrams to *destination* are sent."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect(destination)
        host: str = probe.getsockname()[0]
    return host


@implementer(IReadWriteDescriptor, ITrainTransport)
class UDPPort(udp.Port):
    """A UDP port of Twisted that also moves trains; :meth:`startListening` binds it.

    :param receive_buffer: size of the socket's receive buffer, in bytes
    :param batching: whether to use UDP_SEGMENT and UDP_GRO, which move several datagrams per system call
    """

    protocol: TrainProtocol

    def __init__(
        self,
        port: int,
        protocol: TrainProtocol,
        interface: str = "",
        reactor: Any = None,
        receive_buffer: int = 4 << 20,
        batching: bool = True,
    ) -> None:
        super().__init__(port, protocol, interface, reactor=reactor)  # type: ignore[no-untyped-call]
        self._receive_buffer = receive_buffer
        self._batching = batching
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._drops = 0
        #: trains, their destinations, and the number of bytes that were sent of each
        self._queue: deque[tuple[DatagramTrain, Address, int]] = deque()
        self._congested = False
        self._calls = 0

    # Called by the owner and the protocol.

    def startListening(self) -> None:
        """Bind the socket, and start to read.

        :raises CannotListenError: the address is in use, or is not one of this machine
        """
        try:
            super().startListening()  # type: ignore[no-untyped-call]
        except CannotListenError:
            self.socket.close()  # which Twisted leaves to the garbage collector
            raise
        self._set_up(self.socket)

    def createInternetSocket(self) -> socket.socket:
        self.socket: socket.socket = super().createInternetSocket()
        return self.socket

    def stopListening(self) -> Deferred[None]:
        """Close the socket at once; waiting trains are discarded."""
        self.connectionLost()
        return succeed(None)

    def write_train(self, train: DatagramTrain, destination: Address) -> None:
        """Send *train* at the next :meth:`flush`; the protocol has to respect :meth:`TrainProtocol.congested`."""
        self._queue.append((train, destination, 0))

    def flush(self) -> None:
        """Send waiting trains until the kernel accepts no more."""
        if not self._congested:
            self.doWrite()

    @property
    def waiting(self) -> int:
        """Return the number of trains that wait to be sent."""
        return len(self._queue)

    # Called by the reactor.

    def connectionLost(self, reason: Failure | None = None) -> None:
        self._queue.clear()
        if self.connected:  # the reactor calls it for a port, too, that was closed while it was reading
            super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def doRead(self) -> None:
        self._read()
        self._call(self.protocol.turn_over)

    def doWrite(self) -> None:
        """Send queued trains until the socket is full or the turn is over; notify the protocol if some have to wait."""
        self._calls = 0
        while self._queue and self.connected and self._calls < SEND_TURN:
            train, destination, sent = self._queue[0]
            sent = self._send_some(train, destination, sent)
            if sent < train.size:
                self._queue[0] = (train, destination, sent)
                break
            self._queue.popleft()
        if self._queue and not self._congested:
            self._congested = True
            self.startWriting()  # type: ignore[no-untyped-call]
            self.protocol.congested()
        elif self._congested and not self._queue:
            self._congested = False
            self.stopWriting()  # type: ignore[no-untyped-call]
            self.protocol.relieved()

    # Reading.

    def _set_up(self, sock: socket.socket) -> None:
        name = self.protocol.name
        with suppress(OSError):  # the size that the kernel has set is logged
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        got = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it for its own needs
        if got < self._receive_buffer:
            message = "{name}: receive buffer of {got} bytes instead of {wanted}: raise net.core.rmem_max"
            log.info(message, name=name, got=got, wanted=self._receive_buffer)
        # Linux sets "don't fragment" on UDP by default.  Where a firewall drops the ICMP errors of a link with a small
        # MTU, a large datagram would be lost each time; without the flag the router fragments it.
        try:
            sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
        except OSError as error:
            log.info("{name}: datagrams cannot be fragmented on their way: {error}", name=name, error=str(error))
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        except OSError:
            log.info("{name}: this kernel does not report the datagrams that it drops", name=name)
        if self._batching:
            try:
                sock.setsockopt(SOL_UDP, UDP_GRO, 1)
            except OSError as error:
                self._no_batching(error)

    def _read(self) -> None:
        """Read one turn; pass consecutive datagrams of one source and one size to the protocol as one train."""
        buffer = self._buffer
        source: Address | None = None
        start = end = segment = datagrams = 0
        for _ in range(READ_CALLS):
            if datagrams >= READ_TURN or end > READ_BYTES - READ_SIZE or not self.connected:
                break
            try:
                size, ancillary, _, sender = self.socket.recvmsg_into([buffer[end : end + READ_SIZE]], ANCILLARY)
            except OSError as error:
                if error.errno in _AGAIN:
                    break
                # This is most likely an ICMP error for a datagram that was sent earlier; its destination is unknown
                # here.
                protocol = self.protocol
                protocol.counters.refuse(
                    log, protocol.name, "receive-error", "{}:{}".format(*self.socket.getsockname()), str(error)
                )
                continue
            each = self._segment(ancillary, size) if ancillary else size
            if sender != source or each != segment or (end - start) % segment:
                self._hand_over(start, end, segment, source)
                source, segment, start = sender, each, end
            end += size
            datagrams += -(-size // each) if each else 1
            if not each:  # an empty datagram cannot be part of a train
                self._hand_over(start, end, 1, source)
                source, start = None, end
        self._hand_over(start, end, segment, source)

    def _hand_over(self, start: int, end: int, segment: int, source: Address | None) -> None:
        if source is not None:
            self._call(self.protocol.datagrams_received, self._buffer[start:end], segment, source)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call *function* if the port is open; log its exceptions, so that no datagram stops the port."""
        try:
            if self.connected:
                function(*arguments)
        except Exception:
            log.failure("{name}: processing datagrams failed; please report this bug", name=self.protocol.name)

    def _segment(self, ancillary: list[tuple[int, int, bytes]], size: int) -> int:
        """Read *ancillary*: return the size of each datagram, and count the datagrams that the kernel dropped."""
        segment = size
        for level, kind, value in ancillary:
            if level == SOL_UDP and kind == UDP_GRO:
                segment = _INT.unpack(value[:4])[0] or size
            elif level == socket.SOL_SOCKET and kind == SO_RXQ_OVFL:
                drops = _U32.unpack(value[:4])[0]  # the kernel's total, which wraps at 2^32
                if drops != self._drops:
                    lost = (drops - self._drops) & 0xFFFFFFFF
                    self.protocol.counters.add(self.protocol.name, "dropped-by-kernel", lost)
                    self._drops = drops
        return segment

    # Sending.

    def _send_some(self, train: DatagramTrain, destination: Address, sent: int) -> int:
        """Send *train* from byte *sent* on.

        :return: the number of bytes that are finished; less than the size of the train only if the kernel has no room
        """
        view, segment = memoryview(train.data), train.segment
        batch = self._batching and segment <= MAX_SEGMENT and train.size - sent > segment
        refused: OSError | None = None
        while sent < train.size:
            end = train.size if batch else min(sent + segment, train.size)
            error = self._send_once(view[sent:end], destination, segment if batch else 0)
            if error is None:
                sent = end
                if refused is not None and refused.errno in _REFUSED:
                    self._no_batching(refused)
                refused = None
            elif error.errno in _AGAIN:
                return sent
            elif batch and (error.errno in _REFUSED or error.errno == errno.EMSGSIZE):
                # The kernel may not support batches; after EMSGSIZE only the path has a smaller MTU.  Single datagrams
                # can be fragmented.
                batch, refused = False, error
            else:
                # The destination is the cause, so the rest of the train would fail, too.
                self.protocol.send_failed(error, destination)
                return train.size
        return sent

    def _send_once(self, data: memoryview, destination: Address, segment: int) -> OSError | None:
        self._calls += 1
        options = [(SOL_UDP, UDP_SEGMENT, _U16.pack(segment))] if segment else []
        try:
            try:
                self.socket.sendmsg([data], options, 0, destination)
            except ConnectionRefusedError:
                # The error belongs to an earlier datagram, and the kernel has cleared it; this one was not sent yet.
                self.socket.sendmsg([data], options, 0, destination)
        except OSError as error:
            return error
        return None

    def _no_batching(self, error: OSError) -> None:
        self._batching = False
        message = "{name}: the kernel does not support batches of datagrams ({error}): using one system call for each"
        log.info(message, name=self.protocol.name, error=str(error))


def parse_endpoint(protocol: str, endpoint: str) -> Address:
    """Parse ``udp:PORT[:interface=IP]``; without an interface the server listens on all of them.

    :raises ConfigError: the endpoint is invalid
    """
    found = re.fullmatch(r"udp:([0-9]{1,5})(?::interface=([0-9.]+))?", endpoint)
    try:
        if found is not None and int(found[1]) <= 65_535:
            return str(IPv4Address(found[2] or "0.0.0.0")), int(found[1])
    except AddressValueError:
        pass
    raise ConfigError(
        f"invalid --listen '{protocol}={endpoint}': expected udp:PORT or udp:PORT:interface=IP (IPv4 only)"
    )
