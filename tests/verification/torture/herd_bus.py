"""Event bus clients for herd.py: three pyzmq sockets each, as in the protocol's text, with libzmq's own reconnects.

A client subscribes to a topic of its own, asks for a snapshot of it, and publishes to it; an event is acknowledged when
it is broadcast.  An event that is not broadcast within two seconds is sent again, and so is a SYNCSTART without an
answer for ten: the connection may have been lost with it, which libzmq does not report.
"""

from __future__ import annotations

import time
from typing import Any

import wire
from herd_clients import Client, Outcome, Spec

#: After how many seconds an event that was not broadcast, and a request without an answer, are sent again.
AGAIN, ASK_AGAIN = 2.0, 10.0
#: After how many acknowledged events a client asks for another snapshot.
ASK_EVERY = 5


class BusClient(Client):
    """One client.

    :ivar asked: when it asked for a snapshot; None if it waits for none
    :ivar last: the highest number that it received
    :ivar synced: the highest number of the present snapshot
    :ivar broadcast: the highest number of a broadcast
    """

    def __init__(self, spec: Spec, number: int, bus: Bus) -> None:
        super().__init__(spec, number, bus)
        zmq = bus.zmq
        self.topic = f"/{spec.label}/{number}/".encode()
        self.last = self.synced = self.broadcast = 0
        self.again_at, self.asks = 0.0, 0
        self.asked: float | None = None
        self.ask_at = ASK_EVERY
        self.made = time.monotonic()
        self.snapshot, self.events, self.collector = (
            bus.open(kind, offset, spec.address) for kind, offset in ((zmq.DEALER, 0), (zmq.SUB, 1), (zmq.DEALER, 2))
        )
        self.events.setsockopt(zmq.SUBSCRIBE, self.topic)
        self.ask(self.made)

    def ask(self, now: float) -> None:
        if self.asked is None or now - self.asked > ASK_AGAIN:
            self.asked, self.asks = now, self.asks + 1
            self.crowd.send(self.snapshot, [b"SYNCSTART", self.topic, self.last.to_bytes(8, "big")])

    def tick(self, now: float) -> None:
        if self.asked is not None:
            self.ask(now)
        elif self.began is None and self.acked >= self.ask_at:
            self.ask_at = self.acked + ASK_EVERY
            self.ask(now)
        if self.began is None and now >= self.publish_at and self.asked is None:
            self.next_message(now)
            self.again_at = now
        if self.began is not None and now >= self.again_at:
            if self.again_at > self.began:
                self.ask(now)  # it may have missed a broadcast
            self.again_at = now + AGAIN
            (data,) = self.under_way()
            self.crowd.send(self.collector, wire.bus_event(self.topic, self.number, self.sent, data))

    def heard_snapshot(self, message: list[bytes], now: float) -> None:
        if message[0] == b"SYNC":
            seq = int.from_bytes(message[2], "big")
            if seq <= self.synced and self.asks == 1:  # the answer to a repeated request begins again
                self.wrong.append(f"SYNC {seq} after SYNC {self.synced}")
            self.synced = seq
            self._event(seq, message[6], now)
        elif message[0] == b"SYNCEND":
            if self.asked is not None:
                self.worst = max(self.worst, now - self.asked)
            self.asked, self.asks, self.synced = None, 0, 0
            self.last = max(self.last, int.from_bytes(message[2], "big"))
            if self.sent == 0:
                self.publish_at = now
        else:
            self.wrong.append(f"SNAPSHOT sent {message[:1]!r}")

    def heard_event(self, message: list[bytes], now: float) -> None:
        seq = int.from_bytes(message[1], "big")
        if message[0] != self.topic:
            self.wrong.append(f"PUBLISHER sent the topic {message[0]!r}")
        else:
            if seq <= self.broadcast:
                self.wrong.append(f"BROADCAST {seq} after BROADCAST {self.broadcast}")
            self.broadcast = seq
            self._event(seq, message[5], now)

    def outcome(self, now: float) -> Outcome:
        found = super().outcome(now)
        found.worst = max(found.worst, 0.0 if self.asked is None else now - self.asked)
        return found

    def _event(self, seq: int, data: bytes, now: float) -> None:
        """Record an event from a snapshot or a broadcast; the second copy of an event is ignored."""
        if seq <= self.last:
            return
        self.last = seq
        self.delivered("eventbus", seq, data)
        if self.began is not None and data == self.payload(self.sent):
            self.acknowledged(now)


class Bus:
    """The sockets of many clients."""

    def __init__(self, specs: list[Spec], ports: dict[str, int]) -> None:
        import zmq

        self.zmq = zmq
        self.base = ports["eventbus"]
        self.context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 3 * sum(spec.count for spec in specs) + 10)
        self.poller = zmq.Poller()
        self.clients = [BusClient(spec, number, self) for spec in specs for number in range(spec.count)]
        self.heard: dict[Any, Any] = {}
        for client in self.clients:
            self.heard[client.snapshot] = client.heard_snapshot
            self.heard[client.events] = client.heard_event
            self.poller.register(client.snapshot, zmq.POLLIN)
            self.poller.register(client.events, zmq.POLLIN)
        self.ticked = 0.0

    def open(self, kind: int, offset: int, address: str) -> Any:
        made = self.context.socket(kind)
        made.setsockopt(self.zmq.LINGER, 200)
        made.connect(f"tcp://{address}:0;127.0.0.1:{self.base + offset}")
        return made

    def send(self, socket: Any, message: list[bytes]) -> None:
        try:
            socket.send_multipart(message, self.zmq.NOBLOCK)
        except self.zmq.Again:
            """There is no room: it is sent again."""

    def turn(self, seconds: float) -> None:
        for socket, _ in self.poller.poll(int(seconds * 1000)):
            now = time.monotonic()
            try:
                while True:
                    self.heard[socket](socket.recv_multipart(self.zmq.NOBLOCK), now)
            except self.zmq.Again:
                continue
        now = time.monotonic()
        if now - self.ticked > 0.05:
            self.ticked = now
            for client in self.clients:
                client.tick(now)
