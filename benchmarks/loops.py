"""Upper bounds: plain Python loops for the same datagrams and events, ``python -m benchmarks.loops udp|zmq``.

Neither stores anything, checks anything or bounds anything.  They are what somebody writes on one page: the backbone by
recvfrom and sendto, the event bus by pyzmq's recv_multipart and send_multipart.
"""

from __future__ import annotations

import socket
import sys

from benchmarks.wires import backbone


def udp() -> None:
    """Serve rules 1 to 3 of the backbone, for clients that never leave."""
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
    """Serve the COLLECTOR and PUBLISHER of the event bus."""
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
    {"udp": udp, "zmq": zmq}[sys.argv[1]]()
