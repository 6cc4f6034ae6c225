"""Relink clients for herd.py, written from the protocol's text: they resume their links.

publishers   ``publish:NAME``, one channel without transactions
subscribers  a few clients, ``subscribe:NAME@0``; over one link each record must come once
"""

from __future__ import annotations

import random
import time
from typing import Any

import wire
from herd_clients import Outcome, Spec, StreamClient

#: One in READERS clients subscribes, among the first AMONG clients.
READERS, AMONG = 20, 200


class Relink(StreamClient):
    """A connector; one in twenty subscribes to what the others publish.

    :ivar received: how many messages the peer has received or, for a subscriber, how many this client has
    :ivar first: the number of the first message on this link
    """

    received = 0
    first = 1

    def __init__(self, spec: Spec, number: int, crowd: Any) -> None:
        super().__init__(spec, number, crowd)
        self.subscribes = number % READERS == 1 and number < AMONG
        self.came, self.last = time.monotonic(), 0.0
        name = f"{'subscribe' if self.subscribes else 'publish'}:{spec.label}{'@0' * self.subscribes}"
        self.peer = wire.RelinkLink(name.encode())

    def begin(self) -> None:
        self.crowd.send(self, self.peer.connect())

    def ready(self) -> bool:
        return self.peer.state == "open" and not self.subscribes

    def message(self, payloads: list[bytes]) -> bytes:
        (data,) = payloads
        return wire.relink_message(data)

    def heard(self, chunk: bytes, now: float) -> None:
        for what, value in self.peer.feed(chunk):
            if what == "say":
                self.crowd.send(self, value)
            elif what == "begun":
                self._begun()
            elif what == "resumed":
                self._open(now)
            elif what in ("received", "consumed"):
                self._acknowledged(what == "consumed", value, now)
            elif what == "message":
                self._message(value, now)
            else:
                self.wrong.append(f"the server sent {value[:16].hex()}")
            if self.sock is None:
                return

    def _begun(self) -> None:
        if self.peer.begun > 1 and (self.acked or self.received):
            self.wrong.append("its link was lost")
        self.received, self.first = 0, self.acked + 1
        self.peer.report = b""
        self.read.clear()
        self._open(self.made)

    def _open(self, now: float) -> None:
        if self.received + self.first <= self.sent:
            self.resend()
        self.crowd.wake_at(self, now)

    def _acknowledged(self, consumed: bool, number: int | None, now: float) -> None:
        """Handle ``received`` or ``consumed``, which acknowledge everything up to a number, or the next message."""
        done = self.acked - self.first + 1
        upto = (number if number is not None else done if consumed else self.received) + 1
        self.received = max(self.received, upto)
        if upto > self.sent - self.first + 1:
            self.wrong.append(
                f"the server acknowledged {upto} messages, but only {self.sent - self.first + 1} were sent"
            )
        elif consumed and upto > done and self.began is not None:
            self.acknowledged(now)

    def _message(self, data: bytes, now: float) -> None:
        """Handle a record for a subscriber."""
        self.received += 1
        self.delivered(self.spec.label, self.received, data)
        self.worst = max(self.worst, now - self.last if self.last else 0.0)
        self.last = now
        self.peer.report = wire.relink_consumed(self.received - 1)
        self.crowd.send(self, self.peer.report)
        self.failures = 0
        self.served(now)

    def delay(self, refused: bool) -> float:
        return min(30.0, 0.1 * 2.0 ** (self.failures - 1)) * random.uniform(0.5, 1.0)

    def outcome(self, now: float) -> Outcome:
        found = super().outcome(now)
        if self.subscribes:
            found.worst = max(self.worst, now - (self.last or self.came))
        return found
