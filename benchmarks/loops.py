"""Upper bounds: plain Python loops for the same messages, ``python -m benchmarks.loops figg|udp|zmq``.

They check nothing and bound nothing, and only the one for Figg stores anything.  They are what somebody writes on one
page: the backbone by recvfrom and sendto, the event bus by pyzmq's recv_multipart and send_multipart, and Figg's
publishers by a protocol of Twisted that writes and syncs what it has read before it answers.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Any

from fyrehose.bench.wires import backbone

#: The file that the loop for Figg writes again and again, in bytes; a sync that also allocates blocks takes longer.
FILE = 64 << 20


def figg() -> None:
    """Acknowledge PUBLISHes when a write and a sync have returned, for publishers whose frames are small and valid."""
    from twisted.internet import reactor
    from twisted.internet.endpoints import TCP4ServerEndpoint
    from twisted.internet.protocol import Factory, Protocol

    file = os.open("written", os.O_RDWR | os.O_CREAT)
    for begin in range(0, FILE, 1 << 20):
        os.pwrite(file, bytes(1 << 20), begin)
    os.fsync(file)
    frame, number = struct.Struct(">HHII"), struct.Struct(">Q")
    position = 0

    class Publisher(Protocol):
        transport: Any
        unread = b""

        def connectionMade(self) -> None:
            self.transport.setTcpNoDelay(True)

        def dataReceived(self, data: bytes) -> None:
            nonlocal position
            data = self.unread + data
            end = last = 0
            while len(data) - end >= frame.size:
                _, _, size, topic = frame.unpack_from(data, end)
                if len(data) - end < 8 + size:
                    break
                last = number.unpack_from(data, end + frame.size + topic)[0]
                end += 8 + size
            self.unread = data[end:]
            if not end:
                return
            if position + end > FILE:
                position = 0
            os.pwrite(file, data[:end], position)
            os.fdatasync(file)
            position += end
            self.transport.write(struct.pack(">HHIQ", 6, 1, 8, last))

    def listening(port: Any) -> None:
        print(f"listens on {port.getHost().port}", flush=True)

    TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(Factory.forProtocol(Publisher)).addCallback(listening)
    reactor.run()


def udp() -> None:
    """Number each PUSH and forward it to every client that has ever sent a KEEPALIVE."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    sock.bind(("127.0.0.1", 0))
    print(f"listens on {sock.getsockname()[1]}", flush=True)
    subscribers: list[tuple[str, int]] = []
    sequence = 0
    while True:
        data, source = sock.recvfrom(65_535)
        if data[0] == backbone.PUSH:
            sequence += 1
            datagram = b"\x01" + data[1:3] + sequence.to_bytes(6, "big") + data[9:]
            for subscriber in subscribers:
                sock.sendto(datagram, subscriber)
        elif data[0] == backbone.KEEPALIVE:
            if source not in subscribers:
                subscribers.append(source)
            sock.sendto(b"\x20" + data[-16:], source)


def zmq() -> None:
    """Number each event of the event bus's collector, and broadcast it on its publisher port."""
    import zmq

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    collector, publisher = context.socket(zmq.ROUTER), context.socket(zmq.PUB)
    publisher.setsockopt(zmq.SNDHWM, 10_000)
    ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in (publisher, collector)]
    print(f"listens on {ports[0]} {ports[1]}", flush=True)
    sequence = 0
    while True:
        _, topic, _, *labels = collector.recv_multipart()
        sequence += 1
        publisher.send_multipart([topic, sequence.to_bytes(8, "big"), *labels])


if __name__ == "__main__":
    {"figg": figg, "udp": udp, "zmq": zmq}[sys.argv[1]]()
