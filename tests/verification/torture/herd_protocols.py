"""Clients for herd.py that reconnect like the real client of their protocol, written with sockets and struct alone.

    Figg        like Go's SDK: at once after a lost connection; 1, 2, 4 ... 30 s after a failed connect; pings
    Lumberjack  like Filebeat: 1, 2, 4 ... 60 s, half of that at random; compression level 3; gives up after
                30 s of silence
    Http        one persistent connection; 0.5, 1 ... 10 s
    Backbone    a KEEPALIVE each second; a few of the clients push, and wait until the message is delivered to them

Relink's clients are in herd_relink.py (0.1, 0.2 ... 30 s), those of the event bus in herd_bus.py (libzmq: 0.1 s).
"""

from __future__ import annotations

import os
import random
import re
from typing import Any

import wire
from herd_clients import Client, Outcome, Spec, StreamClient
from herd_relink import Relink


class Figg(StreamClient):
    """A client that publishes to one of ten topics; one in ten also reads its topic, from its last position."""

    def __init__(self, spec: Spec, number: int, crowd: Any) -> None:
        super().__init__(spec, number, crowd)
        self.topic = f"{self.spec.label}-{number % 10}"
        self.reads = number % 100 < 10
        self.position: int | None = None
        self.frames = wire.Frames()
        self.pings, self.ping_at, self.refusals = 0, 0.0, 0
        self.waits_for: set[str] = set()

    def begin(self) -> None:
        self.frames, self.pings, self.refusals = wire.Frames(), 0, 0
        self.ping_at = self.made + 2
        self.waits_for = {"ack", "data"} if self.reads else {"ack"}
        if self.reads:
            self.crowd.send(self, wire.attach(self.topic.encode(), self.position))
        self.resend()

    def message(self, payloads: list[bytes]) -> bytes:
        self.waits_for = {"ack", "data"} if self.reads else {"ack"}
        return wire.publish(self.topic.encode(), self.sent, payloads[0])

    def tick(self, now: float) -> None:
        if now >= self.ping_at:
            if self.pings >= 2:
                self.lost(now)
                return
            self.pings, self.ping_at = self.pings + 1, now + 2
            self.crowd.send(self, wire.ping(int(now * 1000)))

    def heard(self, chunk: bytes, now: float) -> None:
        for kind, _, number, data in self.frames.feed(chunk):
            if kind == wire.PONG:
                self.pings -= 1
            elif kind == wire.ACK and number == self.sent:
                self._came("ack", now)
            elif kind == wire.ATTACHED:
                if self.position is not None and number != self.position:
                    self.wrong.append(f"attached to {self.topic} at {number}, but asked for {self.position}")
                self.position = number
            elif kind == wire.DATA:
                if self.position is None or number != self.position + 1:
                    self.wrong.append(f"{self.topic} {number} follows {self.position}")
                self.position = number
                self.delivered(self.topic, number, data)
                if self.began is not None and data == self.payload(self.sent):
                    self._came("data", now)

    def _came(self, what: str, now: float) -> None:
        self.waits_for.discard(what)
        if self.began is not None and not self.waits_for:
            self.acknowledged(now)

    def delay(self, refused: bool) -> float:
        self.refusals = self.refusals + 1 if refused else 0
        # The SDK does not wait here; 5 ms, because this one process stands for a thousand.
        return min(30.0, 2.0 ** (self.refusals - 1)) * random.uniform(0.8, 1.2) if refused else 0.005


class Lumberjack(StreamClient):
    """A client that sends batches of ten compressed events."""

    batch = 10

    def begin(self) -> None:
        self.answers = wire.Acknowledgements()
        self.resend()

    def message(self, payloads: list[bytes]) -> bytes:
        return wire.window(payloads, level=3)

    def heard(self, chunk: bytes, now: float) -> None:
        for kind, sequence in self.answers.feed(chunk):
            if kind != b"2A":
                self.wrong.append(f"the server sent {kind!r} {sequence}")
            if sequence == self.batch and self.began is not None:
                self.acknowledged(now)

    def tick(self, now: float) -> None:
        if self.began is not None and now - max(self.began, self.made) > 30:
            self.lost(now)

    def delay(self, refused: bool) -> float:
        whole = min(60.0, 2.0 ** (self.failures - 1))
        return whole / 2 + random.random() * whole / 2


class Http(StreamClient):
    """A client that POSTs on one persistent connection."""

    answer = b""

    def begin(self) -> None:
        self.answer = b""
        self.resend()

    def message(self, payloads: list[bytes]) -> bytes:
        (body,) = payloads
        head = f"POST /streams/{self.spec.label} HTTP/1.1\r\nHost: 127.0.0.1:{self.crowd.ports['http']}\r\n"
        return f"{head}Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def heard(self, chunk: bytes, now: float) -> None:
        self.answer += chunk
        head, found, rest = self.answer.partition(b"\r\n\r\n")
        size = re.search(rb"(?i)content-length: *(\d+)", head)
        if not found or size is None or len(rest) < int(size[1]):
            return
        self.answer = b""
        if head.split()[1] == b"200" and self.began is not None:
            self.acknowledged(now)
        else:
            self.lost(now)  # connect and send again later, as after any invalid answer

    def delay(self, refused: bool) -> float:
        return min(10.0, 0.5 * 2.0 ** (self.failures - 1))


#: How many KEEPALIVEs may be answered late: those of a minute, because an answer that comes late is one, too.
TOKENS = 300


class Backbone(Client):
    """A subscriber without a journal; one in fifty also publishes, and repeats what is not delivered in a second."""

    def __init__(self, spec: Spec, number: int, crowd: Any) -> None:
        super().__init__(spec, number, crowd)
        self.sock = crowd.open_datagrams(self)
        self.tokens: list[bytes] = []
        self.acked_at = self.again_at = 0.0
        self.publishes = number % 50 == 0

    def wake(self, now: float) -> None:
        self.tokens = [*self.tokens[-TOKENS:], os.urandom(16)]
        port = self.sock.getsockname()[1]
        self.crowd.datagram(self, wire.keepalive(port, self.tokens[-1], wire.ANY))
        if self.publishes and self.acked_at > self.mark:
            if self.began is None and now >= self.publish_at:
                self.next_message(now)
            if self.began is not None and now >= self.again_at:
                self.again_at = now + 1
                self.crowd.datagram(self, wire.push(self.under_way()[0]))
        self.at = now + min(0.9, max(0.05, self.spec.pause))

    def heard(self, datagram: bytes, now: float) -> None:
        if datagram[0] == wire.KEEPALIVE_ACK:
            if datagram[1:] in self.tokens:
                self.acked_at = now
                if not self.publishes:
                    self.served(now)
            return
        found = wire.delivered(datagram)
        if found is None:
            self.wrong.append(f"the server sent {datagram[:20].hex()}")
            return
        if self.publishes:
            self.delivered("backbone", *found)
            if self.began is not None and found[1] == self.payload(self.sent):
                self.again_at = 0.0
                self.acknowledged(now)

    def outcome(self, now: float) -> Outcome:
        found = super().outcome(now)
        if not self.publishes:
            found.worst = now - self.acked_at
        return found


KINDS: dict[str, type[Client]] = {
    "figg": Figg,
    "lumberjack": Lumberjack,
    "relink": Relink,
    "http": Http,
    "backbone": Backbone,
}
