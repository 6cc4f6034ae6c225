"""A UDP port that moves many datagrams per system call (trains), if the kernel supports it.

    doRead   recvmsg_into ... -> owner.datagrams_received(data, segment, source) ... -> owner.turn_over()
    send     queue -> sendmsg, with UDP_SEGMENT for several datagrams; unsent trains wait for doWrite

On the wire there is one message per datagram in either case.  An error of one destination (an ICMP error, a datagram
that is too large for its path, no buffer space) drops the datagram, is counted, and does not stop the port.
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

#: Constants that Python's socket module does not have (linux/udp.h, asm-generic/socket.h).
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
#: Answers to one client (ACK, FORWARD) are dropped while this many trains wait to be sent.
MOST_WAITING = 4_096
#: Buffer size of one call, in bytes; UDP_GRO joins less than this.
READ_SIZE = 1 << 16
#: Maximum segment size for UDP_SEGMENT, in bytes: larger datagrams do not fit into an Ethernet frame.
MAX_SEGMENT = 1_472

#: Errors by which kernels refuse UDP_SEGMENT and UDP_GRO.
_REFUSED = {errno.EINVAL, errno.ENOPROTOOPT, errno.EIO, errno.EOPNOTSUPP}
_AGAIN = {errno.EAGAIN, errno.EWOULDBLOCK}

_U16 = Struct("=H")
_U32 = Struct("=I")
_INT = Struct("=i")


class Owner(Protocol):
    """The user of a port."""

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        """Process datagrams of *segment* bytes each (the last may be shorter); *data* is reused after the call."""

    def turn_over(self) -> None:
        """End a turn: all datagrams of it were passed to :meth:`datagrams_received`."""

    def congested(self) -> None:
        """Stop sending, except for answers, because trains wait to be sent."""

    def relieved(self) -> None:
        """Continue to send, because no train waits any more."""


def udp_socket() -> socket.socket:
    """Return a non-blocking UDP socket, not bound yet."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    return sock


def is_local(host: str) -> bool:
    """Return whether *host* is an address of this machine."""
    with udp_socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


@implementer(IReadWriteDescriptor)
class UDPPort:
    """One UDP socket in a reactor.

    :param address: the address to bind
    :param protocol: the name in counters and log lines
    :param receive_buffer: size of the socket's receive buffer, in bytes
    :param batching: use UDP_SEGMENT and UDP_GRO
    :ivar address: the address that the port is bound to
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
        self._requested_address = address
        self._protocol = protocol
        self._counters = counters
        self._receive_buffer = receive_buffer
        self._batching = batching
        self._make_socket = make_socket
        self._socket: socket.socket | None = None
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._ancillary = socket.CMSG_SPACE(4) * 2
        self._drops = 0
        #: trains, their destinations, and the number of bytes that were sent of each
        self._queue: deque[tuple[Train, Address, int]] = deque()
        self._congested = False
        self._calls = 0
        self.address = address

    # Called by the owner.

    def listen(self) -> None:
        """Bind the socket, and start to read.

        :raises CannotListenError: the address is in use, or is not one of this machine
        """
        sock = self._make_socket()
        try:
            sock.bind(self._requested_address)
        except OSError as error:
            sock.close()
            host, port = self._requested_address
            raise CannotListenError(host, port, error) from error
        self._socket = sock
        self.address = sock.getsockname()
        self._set_up(sock)
        self._reactor.addReader(self)

    def getHost(self) -> IPv4Address:
        """Return the address that the port is bound to."""
        return IPv4Address("UDP", *self.address)

    def answer(self, datagram: bytes, destination: Address) -> None:
        """Send one small datagram, or drop it if MOST_WAITING trains wait."""
        if len(self._queue) >= MOST_WAITING:
            self._counters.add(self._protocol, "answers-dropped")
            return
        self.send(Train(datagram, len(datagram)), destination)

    def send(self, train: Train, destination: Address) -> None:
        """Send *train* at the next :meth:`flush`; the owner has to respect :meth:`Owner.congested`."""
        self._queue.append((train, destination, 0))

    def flush(self) -> None:
        """Send waiting trains until the kernel accepts no more."""
        if not self._congested:
            self._send_waiting()

    @property
    def waiting(self) -> int:
        """Number of trains that wait to be sent."""
        return len(self._queue)

    def stop_reading(self) -> None:
        """Stop reading; waiting trains are still sent."""
        if self._socket is not None:
            self._reactor.removeReader(self)

    def close(self) -> None:
        """Close the socket; waiting trains are discarded."""
        sock, self._socket = self._socket, None
        self._queue.clear()
        if sock is not None:
            self._reactor.removeReader(self)
            self._reactor.removeWriter(self)
            sock.close()

    # Called by the reactor.

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        return self._protocol

    def connectionLost(self, reason: Failure) -> None:
        """Close the port, because the reactor is stopping or the descriptor is bad."""
        self.close()

    def doRead(self) -> None:
        if self._socket is None:
            return
        self._read()
        try:
            self._owner.turn_over()
        except Exception:
            log.failure("{protocol}: ending a turn failed; please report this bug", protocol=self._protocol)

    def doWrite(self) -> None:
        self._send_waiting()

    # Reading.

    def _set_up(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        except OSError as error:
            log.warn(
                "{protocol}: cannot set the receive buffer to {size} bytes: {error}",
                protocol=self._protocol,
                size=self._receive_buffer,
                error=str(error),
            )
        got = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it for its own needs
        if got < self._receive_buffer:
            log.info(
                "{protocol}: receive buffer of {got} bytes instead of {wanted}: raise net.core.rmem_max",
                protocol=self._protocol,
                got=got,
                wanted=self._receive_buffer,
            )
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        except OSError:
            log.info("{protocol}: this kernel does not report the datagrams that it drops", protocol=self._protocol)
        if self._batching:
            try:
                sock.setsockopt(SOL_UDP, UDP_GRO, 1)
            except OSError as error:
                self._no_batching(error)

    def _read(self) -> None:
        """Read one turn; pass consecutive datagrams from one source and of one size to the owner as one train."""
        sock, buffer, ancillary_size = self._socket, self._buffer, self._ancillary
        assert sock is not None
        source: Address | None = None
        start = end = segment = datagrams = 0
        for _ in range(READ_CALLS):
            if datagrams >= READ_TURN or end > READ_BYTES - READ_SIZE or self._socket is None:
                break
            try:
                size, ancillary, _, sender = sock.recvmsg_into([buffer[end : end + READ_SIZE]], ancillary_size)
            except OSError as error:
                if error.errno in _AGAIN:
                    break
                # Most likely an ICMP error for a datagram that was sent earlier; its destination is unknown here.
                self._counters.refuse(log, self._protocol, "receive-error", str(self.address), str(error))
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
        if source is None or self._socket is None:
            return
        try:
            self._owner.datagrams_received(self._buffer[start:end], segment, source)
        except Exception:
            # A bug that one datagram triggers must not stop the port for all other peers.
            log.failure("{protocol}: processing a datagram failed; please report this bug", protocol=self._protocol)

    def _segment(self, ancillary: list[tuple[int, int, bytes]], size: int) -> int:
        """Return the size of each datagram from the ancillary data, and count the datagrams that the kernel dropped."""
        segment = size
        for level, kind, value in ancillary:
            if level == SOL_UDP and kind == UDP_GRO:
                segment = _INT.unpack(value[:4])[0] or size
            elif level == socket.SOL_SOCKET and kind == SO_RXQ_OVFL:
                self._count_drops(_U32.unpack(value[:4])[0])
        return segment

    def _count_drops(self, drops: int) -> None:
        """Count datagrams that did not fit into the receive buffer.

        :param drops: the kernel's total, which wraps at 2^32
        """
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
        self._update_congestion()

    def _update_congestion(self) -> None:
        if self._queue and not self._congested:
            self._congested = True
            self._reactor.addWriter(self)
            self._owner.congested()
        elif self._congested and not self._queue:
            self._congested = False
            self._reactor.removeWriter(self)
            self._owner.relieved()

    def _send_some(self, sock: socket.socket, train: Train, destination: Address, sent: int) -> int:
        """Send *train* from byte *sent* on.

        :return: the number of bytes that are finished; less than the size of the train only if the kernel has no room
        """
        view = memoryview(train.data)
        segment = train.segment
        suspect: OSError | None = None
        if self._batching and train.size - sent > segment and segment <= MAX_SEGMENT:
            error = self._send_once(sock, view[sent:], destination, segment)
            if error is None:
                return train.size
            if error.errno in _AGAIN:
                return sent
            if error.errno in _REFUSED:
                suspect = error
            elif error.errno != errno.EMSGSIZE:  # the path has a smaller MTU: single datagrams can be fragmented
                self._count_error(error, destination)
                return train.size
        while True:
            error = self._send_once(sock, view[sent : sent + segment], destination, 0)
            if error is None:
                if suspect is not None:
                    self._no_batching(suspect)
                    suspect = None
            elif error.errno in _AGAIN:
                return sent
            else:
                # The destination is the cause, so the rest of the train would fail, too.
                self._count_error(error, destination)
                return train.size
            sent = min(sent + segment, train.size)
            if sent >= train.size:
                return train.size

    def _send_once(self, sock: socket.socket, data: memoryview, destination: Address, segment: int) -> OSError | None:
        self._calls += 1
        options = [(SOL_UDP, UDP_SEGMENT, _U16.pack(segment))] if segment else []
        try:
            sock.sendmsg([data], options, 0, destination)
        except ConnectionRefusedError:
            # The error belongs to an earlier datagram, and the kernel has cleared it; this one was not sent yet.
            try:
                sock.sendmsg([data], options, 0, destination)
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
            "{protocol}: the kernel does not support batches of datagrams ({error}): using one system call for each",
            protocol=self._protocol,
            error=str(error),
        )
