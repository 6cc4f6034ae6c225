"""Load on the backbone: batches of datagrams (GSO), sent with as few system calls as the kernel allows.

A push is done when its DELIVER arrives at the socket that pushed.  A datagram that does not arrive for a while counts
as lost: the protocol permits losses, and the load has to continue.
"""

from __future__ import annotations

import select
import socket
import struct
import time

from fyrehose.bench.latencies import Latencies
from fyrehose.bench.plans import LoadOutcome, Plan
from fyrehose.bench.wires import backbone
from fyrehose.bench.wires.base import Wrong, payload

_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104
_SO_RCVBUFFORCE = 33
#: Size of the receive buffer, limited by the kernel; large, because a load maker must not lose datagrams.
_BUFFER = 64 << 20
_MOST_BYTES, _MOST_SEGMENTS, _MTU = 65_000, 60, 1_472
#: In seconds: interval of KEEPALIVEs; silence after which datagrams count as lost; silence that ends the load; limit of
#: a start.
KEEPALIVE, LOST, QUIET, PATIENCE = 1.0, 0.25, 1.0, 10.0
#: The largest number of sequences that one REQUEST may ask for.
RANGE = 10_000


class DatagramPeer:
    """The socket of one client of the backbone."""

    def __init__(self, plan: Plan, subscribe: bool) -> None:
        self.row = backbone.HEADER + plan.size
        self.received = 0
        self.last = 0
        self.others = 0
        self._buffer = memoryview(bytearray(1 << 16))
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        except OSError:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self.sock.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        self.sock.bind((plan.host, 0))
        self.sock.connect((plan.host, plan.port))
        self.sock.setblocking(False)
        self.port = self.sock.getsockname()[1]
        self.keepalive = backbone.keepalive(self.port, subscribe)

    def read(self) -> None:
        """Read and count all datagrams that have arrived."""
        while True:
            try:
                size, ancillary, _, _ = self.sock.recvmsg_into([self._buffer], 32)
            except BlockingIOError:
                return
            segment = size
            for level, kind, value in ancillary:
                if level == _SOL_UDP and kind == _UDP_GRO:
                    segment = struct.unpack("=i", value[:4])[0]
            self._count(size, segment)

    def _count(self, size: int, segment: int) -> None:
        if segment != self.row or size % segment:
            self.others += 1
            return
        count = size // segment
        first = backbone.sequence(self._buffer, 0)
        self.last = backbone.sequence(self._buffer, size - segment)
        if self.last - first != count - 1 or not first:
            raise Wrong(f"a batch of {count} datagrams has the sequences {first} to {self.last}")
        self.received += count


class Datagrams:
    """The load of one process: a publisher that also subscribes, only subscribers, or a client with requests.

    :param lost_s: silence after which datagrams count as lost, in seconds
    :param quiet_s: silence that ends the load, in seconds
    """

    def __init__(self, plan: Plan, *, lost_s: float = LOST, quiet_s: float = QUIET) -> None:
        self.plan, self._lost_s, self._quiet_s = plan, lost_s, quiet_s
        self.peers: list[DatagramPeer] = []
        self.lost = 0
        self._total = sum(plan.publishers)
        self._poll = select.epoll()
        row = backbone.HEADER + plan.size
        self._together = min(_MOST_SEGMENTS, _MOST_BYTES // row, plan.window) if row <= _MTU else 1
        self._batch = memoryview(backbone.push(payload(plan.size)) * self._together)
        self._options = [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", row))]
        self._row = row
        measured = self._total and (plan.rate or plan.window == 1)
        self._latencies = Latencies(self._total, plan.rate) if measured else None

    def connect(self) -> None:
        """Subscribe, and wait for the server's reply.

        :raises Wrong: no reply arrives
        """
        for _ in range(max(self.plan.subscribers, bool(self._total))):
            peer = DatagramPeer(self.plan, subscribe=not self.plan.late)
            self.peers.append(peer)
            self._poll.register(peer.sock, select.EPOLLIN)
        deadline = time.monotonic() + PATIENCE
        while not all(peer.others for peer in self.peers):
            if time.monotonic() > deadline:
                raise Wrong("no KEEPALIVE was answered")
            self._keep_alive()
            time.sleep(0.1)
            for peer in self.peers:
                peer.read()

    def _keep_alive(self) -> None:
        for peer in self.peers:
            peer.sock.send(peer.keepalive)

    def run(self, start: float) -> LoadOutcome:
        """Push, request or only count messages, until all have arrived or no more arrive."""
        # Send a KEEPALIVE, because the server forgets subscribers after 5 s, and the load may start later than that.
        self._keep_alive()
        while (early := start - time.monotonic()) > 0:
            time.sleep(early)
        before = time.process_time()
        ended = self._ask(start) if self.plan.late else self._push(start)
        cpu = time.process_time() - before
        return LoadOutcome(
            began=start,
            ended=ended,
            cpu=cpu,
            acknowledged=self.peers[0].received if self._total else 0,
            received=sum(peer.received for peer in self.peers),
            lost=self.lost,
            latency={"arrived": self._latencies.percentiles} if self._latencies is not None else {},
        )

    def _push(self, start: float) -> float:
        """Push all messages, and count until every subscriber has them."""
        first, sent, heard, said = self.peers[0], 0, start, start
        expected = self._total or self.plan.expected
        if self._latencies is not None:
            self._latencies.begin(start)
        while min(peer.received for peer in self.peers) + self.lost < expected:
            sent = self._fill(first, sent)
            if self._read():
                heard = time.monotonic()
                if self._latencies is not None:
                    self._latencies.done(min(first.received + self.lost, self._total), heard)
            now = time.monotonic()
            if now - said > KEEPALIVE:
                self._keep_alive()
                said = now
            if self._total and sent > first.received + self.lost and now - heard > self._lost_s:
                self.lost = sent - first.received
                heard = now
            elif now - heard > (self._quiet_s if first.received else PATIENCE):
                self.lost = expected - min(peer.received for peer in self.peers)
        return heard

    def _fill(self, peer: DatagramPeer, sent: int) -> int:
        """Push as much as the window and the rate allow; return the number pushed so far."""
        while sent < self._total:
            count = min(self._together, self._total - sent, self.plan.window - (sent - peer.received - self.lost))
            if self.plan.rate and self._latencies is not None:
                count = min(count, self._latencies.due(time.monotonic()) - sent)
            elif count < min(self._together, self._total - sent):
                break
            if count <= 0 or not self._send(peer, count):
                break
            sent += count
            if self._latencies is not None:
                self._latencies.sent(sent, time.monotonic())
        return sent

    def _send(self, peer: DatagramPeer, count: int) -> bool:
        data = self._batch[: count * self._row]
        try:
            peer.sock.sendmsg([data], self._options if count > 1 else [])
        except BlockingIOError:
            select.select([], [peer.sock], [], 1.0)
            return False
        return True

    def _ask(self, start: float) -> float:
        """Request all messages, one range at a time; messages of a range that do not arrive are lost."""
        peer, last = self.peers[0], int(self.plan.extra["last"])
        heard, upto = start, last - self.plan.expected
        while upto < last:
            upto, before = min(upto + RANGE, last), upto
            want = peer.received + upto - before
            peer.sock.send(backbone.request(peer.port, before + 1, upto))
            asked = time.monotonic()
            while peer.received < want and time.monotonic() - asked < self._lost_s:
                if self._read():
                    heard = asked = time.monotonic()
            self.lost += want - peer.received
        return heard

    def _read(self) -> bool:
        """Wait a few milliseconds (less if there is a rate) for a datagram; return whether one arrived."""
        before = sum(peer.received for peer in self.peers)
        select.select([self._poll], [], [], 0.0002 if self.plan.rate else 0.02)
        if self._poll.poll(0):
            for peer in self.peers:
                peer.read()
        return sum(peer.received for peer in self.peers) > before

    def close(self) -> None:
        """Close the sockets."""
        for peer in self.peers:
            peer.sock.close()
        self._poll.close()
