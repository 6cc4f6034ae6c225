"""A UDP port that moves trains of datagrams: one call of the kernel for many, where the kernel can.

    doRead   recvmsg_into ... -> owner.datagrams_received(data, segment, source) ... -> owner.turn_over()
    send     queue -> sendmsg, with UDP_SEGMENT for trains of several datagrams; what does not go waits for doWrite

On the wire it is one message per datagram either way.  Whatever the kernel says about one destination (an ICMP error, a
datagram too large for its path, no room) costs that datagram, is counted, and never stops the port.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any, Protocol

from twisted.internet.address import IPv4Address
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.observe.counters import Counters
from fyrehose.protocols.backbone.frames import Address
from fyrehose.protocols.backbone.trains import Train

log = Logger()

#: What Python's socket module does not name (linux/udp.h, asm-generic/socket.h).
SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
SO_RXQ_OVFL = 40

#: What is read before others have their turn, in calls, datagrams and bytes: what one turn publishes is bounded, too.
READ_CALLS = 256
READ_TURN = 2_048
READ_BYTES = 1 << 20
#: Calls of sendmsg before others have their turn.
SEND_TURN = 128
#: Datagrams that answer one client (ACK, FORWARD) are dropped when so many trains wait.
MOST_WAITING = 4_096
#: What one call may bring: more than UDP_GRO ever joins.
READ_SIZE = 1 << 16
#: Segments above this are not tried with UDP_SEGMENT: an Ethernet frame has no room for them.
MAX_SEGMENT = 1_472

#: UDP_SEGMENT and UDP_GRO are refused in these words.
_REFUSED = {errno.EINVAL, errno.ENOPROTOOPT, errno.EIO, errno.EOPNOTSUPP}
_AGAIN = {errno.EAGAIN, errno.EWOULDBLOCK}

_U16 = Struct("=H")
_U32 = Struct("=I")
_INT = Struct("=i")


class Owner(Protocol):
    """Who uses a port."""

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        """Datagrams of ``segment`` bytes each (the last may be shorter); ``data`` is reused after the call."""

    def turn_over(self) -> None:
        """Nothing more comes in this turn."""

    def congested(self) -> None:
        """What was sent waits: send no more than answers."""

    def relieved(self) -> None:
        """Nothing waits any more."""


def udp_socket() -> socket.socket:
    """A non-blocking UDP socket, not bound yet."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def is_local(host: str) -> bool:
    """Whether ``host`` is an address of this machine."""
    with udp_socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


@implementer(IReadWriteDescriptor)
class UDPPort:
    """One bound socket in a reactor.

    :param protocol: what counters and log lines call it
    :param batching: whether to use UDP_SEGMENT and UDP_GRO
    """

    def __init__(
        self,
        reactor: Any,
        owner: Owner,
        address: Address,
        *,
        protocol: str,
        counters: Counters,
        receive_buffer: int = 4 << 20,
        batching: bool = True,
        make_socket: Callable[[], socket.socket] = udp_socket,
    ) -> None:
        self._reactor = reactor
        self._owner = owner
        self._wanted = address
        self._protocol = protocol
        self._counters = counters
        self._receive_buffer = receive_buffer
        self._batching = batching
        self._make_socket = make_socket
        self._socket: socket.socket | None = None
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._ancillary = socket.CMSG_SPACE(4) * 2
        self._drops = 0
        #: trains, where to, and how much of each has gone
        self._queue: deque[tuple[Train, Address, int]] = deque()
        self._congested = False
        self._calls = 0
        self.address = address

    # What its owner calls.

    def listen(self) -> None:
        """Bind, and read from now on.

        :raises CannotListenError: the address is taken, or not ours
        """
        made = self._make_socket()
        try:
            made.bind(self._wanted)
        except OSError as error:
            made.close()
            host, port = self._wanted
            raise CannotListenError(host, port, error) from error
        self._socket = made
        self.address = made.getsockname()
        self._set_up(made)
        self._reactor.addReader(self)

    def getHost(self) -> IPv4Address:
        """Where it is bound."""
        return IPv4Address("UDP", *self.address)

    def answer(self, datagram: bytes, destination: Address) -> None:
        """Send one small datagram, unless very much waits already."""
        if len(self._queue) >= MOST_WAITING:
            self._counters.add(self._protocol, "answers-dropped")
            return
        self.send(Train(datagram, len(datagram)), destination)

    def send(self, train: Train, destination: Address) -> None:
        """Send ``train`` at the next :meth:`flush`; whoever sends more than answers heeds :meth:`Owner.congested`."""
        self._queue.append((train, destination, 0))

    def flush(self) -> None:
        """Send what waits, as far as the kernel takes it."""
        if not self._congested:
            self._send_waiting()

    @property
    def waiting(self) -> int:
        """How many trains have not gone yet."""
        return len(self._queue)

    def stop_reading(self) -> None:
        """Take nothing more in; what waits is still sent."""
        if self._socket is not None:
            self._reactor.removeReader(self)

    def close(self) -> None:
        """Give the address back; what waits is lost."""
        made, self._socket = self._socket, None
        self._queue.clear()
        if made is not None:
            self._reactor.removeReader(self)
            self._reactor.removeWriter(self)
            made.close()

    # What the reactor calls.

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        return self._protocol

    def connectionLost(self, reason: Failure) -> None:
        """The reactor is done with the descriptor: it stopped, or the descriptor is broken."""
        self.close()

    def doRead(self) -> None:
        if self._socket is None:
            return
        self._read()
        try:
            self._owner.turn_over()
        except Exception:
            log.failure("{protocol}: a turn could not be ended", protocol=self._protocol)

    def doWrite(self) -> None:
        self._send_waiting()

    # Reading.

    def _set_up(self, made: socket.socket) -> None:
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        except OSError as error:
            log.warn(
                "{protocol}: the receive buffer stays as it is: {error}", protocol=self._protocol, error=str(error)
            )
        got = made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it for its own needs
        if got < self._receive_buffer:
            log.info(
                "{protocol}: the kernel gives a receive buffer of {got} bytes, not {wanted} (net.core.rmem_max)",
                protocol=self._protocol,
                got=got,
                wanted=self._receive_buffer,
            )
        try:
            made.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        except OSError:
            log.info("{protocol}: this kernel does not say how many datagrams it drops", protocol=self._protocol)
        if self._batching:
            try:
                made.setsockopt(SOL_UDP, UDP_GRO, 1)
            except OSError as error:
                self._no_batching(error)

    def _read(self) -> None:
        """One turn: what follows on from one source and is of one size is handed over as one train."""
        made, buffer, ancillary_size = self._socket, self._buffer, self._ancillary
        assert made is not None
        source: Address | None = None
        start = end = segment = datagrams = 0
        for _ in range(READ_CALLS):
            if datagrams >= READ_TURN or end > READ_BYTES - READ_SIZE or self._socket is None:
                break
            try:
                size, ancillary, _, sender = made.recvmsg_into([buffer[end : end + READ_SIZE]], ancillary_size)
            except OSError as error:
                if error.errno in _AGAIN:
                    break
                # An ICMP error to something that we sent, most likely: whom it concerns, it tells by silence.
                self._counters.refuse(log, self._protocol, "receive-error", str(self.address), str(error))
                continue
            each = self._segment(ancillary, size) if ancillary else size
            if sender != source or each != segment or (end - start) % segment:
                self._hand_over(start, end, segment, source)
                source, segment, start = sender, each, end
            end += size
            datagrams += -(-size // each) if each else 1
            if not each:  # nothing can follow on from an empty one
                self._hand_over(start, end, 1, source)
                source, start = None, end
        self._hand_over(start, end, segment, source)

    def _hand_over(self, start: int, end: int, segment: int, source: Address | None) -> None:
        if source is None or self._socket is None:
            return
        try:
            self._owner.datagrams_received(self._buffer[start:end], segment, source)
        except Exception:
            # A bug met by one datagram is no reason to be deaf to all others.
            log.failure("{protocol}: a datagram could not be handled", protocol=self._protocol)

    def _segment(self, ancillary: list[tuple[int, int, bytes]], size: int) -> int:
        """What the kernel says besides: how large each datagram is, and how many it had no room for."""
        segment = size
        for level, kind, value in ancillary:
            if level == SOL_UDP and kind == UDP_GRO:
                segment = _INT.unpack(value[:4])[0] or size
            elif level == socket.SOL_SOCKET and kind == SO_RXQ_OVFL:
                self._count_drops(_U32.unpack(value[:4])[0])
        return segment

    def _count_drops(self, drops: int) -> None:
        """The kernel's own count of what did not fit into the receive buffer; it wraps at 2^32."""
        if drops != self._drops:
            self._counters.add(self._protocol, "dropped-by-kernel", (drops - self._drops) & 0xFFFFFFFF)
            self._drops = drops

    # Sending.

    def _send_waiting(self) -> None:
        self._calls = 0
        while self._queue and self._socket is not None and self._calls < SEND_TURN:
            train, destination, sent = self._queue[0]
            sent = self._send_some(self._socket, train, destination, sent)
            if sent < train.size:
                self._queue[0] = (train, destination, sent)
                break
            self._queue.popleft()
        self._tell()

    def _tell(self) -> None:
        if self._queue and not self._congested:
            self._congested = True
            self._reactor.addWriter(self)
            self._owner.congested()
        elif self._congested and not self._queue:
            self._congested = False
            self._reactor.removeWriter(self)
            self._owner.relieved()

    def _send_some(self, made: socket.socket, train: Train, destination: Address, sent: int) -> int:
        """Send ``train`` from byte ``sent`` on; how far it got, which is the end unless the kernel has no room."""
        view = memoryview(train.data)
        segment = train.segment
        suspect: OSError | None = None
        if self._batching and train.size - sent > segment and segment <= MAX_SEGMENT:
            error = self._send_once(made, view[sent:], destination, segment)
            if error is None:
                return train.size
            if error.errno in _AGAIN:
                return sent
            if error.errno in _REFUSED:
                suspect = error
            elif error.errno != errno.EMSGSIZE:  # this path has smaller packets: one by one they go in fragments
                self._count_error(error, destination)
                return train.size
        while True:
            error = self._send_once(made, view[sent : sent + segment], destination, 0)
            if error is None:
                if suspect is not None:
                    self._no_batching(suspect)
                    suspect = None
            elif error.errno in _AGAIN:
                return sent
            else:
                # It is the destination, then: the rest of the train would fare no better.
                self._count_error(error, destination)
                return train.size
            sent = min(sent + segment, train.size)
            if sent >= train.size:
                return train.size

    def _send_once(self, made: socket.socket, data: memoryview, destination: Address, segment: int) -> OSError | None:
        self._calls += 1
        options = [(SOL_UDP, UDP_SEGMENT, _U16.pack(segment))] if segment else []
        try:
            made.sendmsg([data], options, 0, destination)
        except ConnectionRefusedError:
            # What an earlier datagram met is reported now and forgotten; this one has not been tried.
            try:
                made.sendmsg([data], options, 0, destination)
            except OSError as error:
                return error
        except OSError as error:
            return error
        return None

    def _count_error(self, error: OSError, destination: Address) -> None:
        cause = f"send-{errno.errorcode.get(error.errno or 0, 'error')}"
        self._counters.refuse(log, self._protocol, cause, "{}:{}".format(*destination))

    def _no_batching(self, error: OSError) -> None:
        self._batching = False
        log.info(
            "{protocol}: the kernel refuses to batch datagrams ({error}): they go and come one by one",
            protocol=self._protocol,
            error=str(error),
        )
