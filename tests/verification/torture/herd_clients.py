"""The common part of the clients of herd.py, whatever protocol they speak.

Each client has at most one unacknowledged message (lumberjack: one batch), keeps it until it is acknowledged, and sends
it again on its next connection.  A payload names its client and its number: ``{"m":"NAME:CLIENT:NUMBER:....."}``.

    Spec          clients of one kind: how many, from which address, how often they publish
    Client        one client, its unacknowledged message, and how long it waits
    StreamClient  the same with a TCP connection that is made again when it is lost
    Outcome       what became of one client
"""

from __future__ import annotations

import random
import re
import zlib
from typing import Any, ClassVar

import attrs

#: One in so many messages is large, if the client sends large ones.
LARGE = 10
PAYLOAD = re.compile(rb'\{"m":"([a-z-]+):(\d+):(\d+):\.*"\}')


@attrs.frozen
class Spec:
    """Clients of one kind.

    :ivar name: the beginning of their payloads: letters and dashes
    :ivar pause: about how long each client waits after an acknowledgement before it publishes again, in seconds
    :ivar large: the size of every tenth message, in bytes; 0 if none is large
    :ivar fresh: whether they close their connection after each acknowledgement, and connect again for the next message
    """

    protocol: str
    count: int = 1
    name: str = ""
    address: str = "127.0.0.1"
    pause: float = 2.0
    large: int = 0
    fresh: bool = False

    @property
    def label(self) -> str:
        return self.name or self.protocol


@attrs.define
class Outcome:
    """The result of one client.

    :ivar acked: the number of its last acknowledged message; they are numbered 1, 2, 3 ...
    :ivar worst: the longest that a message waited for its acknowledgement, in seconds
    :ivar waits: how long each acknowledged message waited
    :ivar read: (stream, seq, checksum) of each delivered record; seq is 0 where the protocol does not tell it
    """

    spec: Spec
    number: int
    acked: int
    sent: int
    worst: float
    waits: list[float]
    wrong: list[str]
    read: list[tuple[str, int, int]]


class Client:
    """The base of all clients.

    :ivar at: when :meth:`wake` must be called
    :ivar mark: when the server last ended; what arrives on older connections does not count
    :ivar back: when it was first served after that; None if it was not yet
    """

    #: How many messages are sent together.
    batch: ClassVar[int] = 1

    def __init__(self, spec: Spec, number: int, crowd: Any) -> None:
        self.spec, self.number, self.crowd = spec, number, crowd
        self.acked = self.sent = 0
        self.at = self.mark = self.publish_at = 0.0
        self.began: float | None = None  #: when the messages under way were first sent
        self.back: float | None = None
        self.worst = 0.0
        self.waits: list[float] = []
        self.wrong: list[str] = []
        self.read: list[tuple[str, int, int]] = []

    def payload(self, n: int) -> bytes:
        head = f'{{"m":"{self.spec.label}:{self.number}:{n}:'.encode()
        size = self.spec.large if n % LARGE == 0 and self.spec.large else 60
        return head + b"." * (size - len(head)) + b'"}'

    def under_way(self) -> list[bytes]:
        return [self.payload(n) for n in range(self.acked + 1, self.sent + 1)]

    def next_message(self, now: float) -> list[bytes]:
        """Return the messages to send now."""
        self.sent = self.acked + self.batch
        self.began = now
        return self.under_way()

    def acknowledged(self, now: float) -> None:
        """Record that the messages that were sent are acknowledged."""
        assert self.began is not None
        self.waits.append(now - self.began)
        self.worst = max(self.worst, now - self.began)
        self.began = None
        self.acked = self.sent
        self.publish_at = now + self.spec.pause * random.uniform(0.5, 1.5)
        self.served(now)

    def served(self, now: float) -> None:
        self.back = now if self.back is None else self.back

    def delivered(self, stream: str, seq: int, data: bytes) -> None:
        self.read.append((stream, seq, zlib.crc32(data)))

    def marked(self, now: float) -> None:
        """Record that the server has ended."""
        self.mark, self.back = now, None

    def wake(self, now: float) -> None:
        """Act at the time ``at``, and set it to the next time."""

    def outcome(self, now: float) -> Outcome:
        worst = max(self.worst, 0.0 if self.began is None else now - self.began)
        return Outcome(self.spec, self.number, self.acked, self.sent, worst, self.waits, self.wrong, self.read)


class StreamClient(Client):
    """A client with a TCP connection.

    :ivar made: when its connection was made
    :ivar failures: failed connects, or connections without an acknowledgement, in a row
    """

    sock: Any = None
    out: bytearray
    connecting = False
    made = 0.0
    failures = 0
    connections = 0

    def wake(self, now: float) -> None:
        if self.sock is None:
            self.crowd.connect(self)
            self.at = now + 30
            return
        if self.connecting:  # the connect has not finished within 30 s
            self.lost(now)
            return
        if self.ready() and self.began is None and now >= self.publish_at:
            self.crowd.send(self, self.message(self.next_message(now)))
        idle = self.began is None and self.ready()
        self.at = min(now + 1, max(self.publish_at, now + 0.001)) if idle else now + 1
        self.tick(now)

    def connected(self, now: float) -> None:
        self.made = now
        self.connections += 1
        self.begin()
        self.at = now

    def acknowledged(self, now: float) -> None:
        super().acknowledged(now)
        self.failures = 0
        if self.spec.fresh:
            self.crowd.close(self)
            self.crowd.wake_at(self, self.publish_at)
        else:
            self.crowd.wake_at(self, max(self.publish_at, now))

    def served(self, now: float) -> None:
        if self.made > self.mark:
            super().served(now)

    def lost(self, now: float, refused: bool = False) -> None:
        """Close a lost connection, or one that could not be made (``refused``), and connect again later."""
        self.crowd.close(self)
        self.failures += 1
        self.crowd.wake_at(self, now + self.delay(refused))

    def resend(self) -> None:
        if self.began is not None:
            self.crowd.send(self, self.message(self.under_way()))

    def ready(self) -> bool:
        return True

    def tick(self, now: float) -> None:
        """Do what is due; called at least once a second while the client is connected."""

    def begin(self) -> None:
        raise NotImplementedError

    def message(self, payloads: list[bytes]) -> bytes:
        raise NotImplementedError

    def heard(self, chunk: bytes, now: float) -> None:
        raise NotImplementedError

    def delay(self, refused: bool) -> float:
        raise NotImplementedError
