"""NATS with JetStream: PUB and its acknowledgements, a push consumer and what it delivers, workers of a pull consumer.

A push consumer acknowledges no message, as the ordered consumers of the clients, and answers the server's requests of
flow control.  Messages are counted by the end of their payload, with its CR and LF.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
from typing import Any

from fyrehose.bench.wires.base import Job, Rows, Wire, WorkerPool, WorkerWire, Wrong, payload

#: The largest number of messages in one block.
BLOCK = 8_192
_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}\r\nPING\r\n'
_FLOW = b"FlowControl"


def pub(subject: bytes, reply: bytes, data: bytes) -> bytes:
    """Return one PUB; ``reply`` is a subject and a blank, or empty."""
    return b"PUB %s %s%d\r\n%s\r\n" % (subject, reply, len(data), data)


class _Client(Wire):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        #: beginning of the subjects of this client's replies
        self.inbox = b"_INBOX." + secrets.token_hex(8).encode()

    def hello(self, sock: socket.socket) -> None:
        self._until(sock, b"INFO")
        sock.sendall(_CONNECT)
        self._until(sock, b"PONG")
        # Subscribe both names: JetStream sends nothing to a client that has subscribed only a pattern.
        sock.sendall(b"SUB %s.api 1\r\nSUB %s.data 2\r\n" % (self.inbox, self.inbox))
        name = self.job.stream
        config = {"name": name, "subjects": [name], "storage": "file", "retention": "limits", "num_replicas": 1}
        sock.sendall(self._request(f"$JS.API.STREAM.CREATE.{name}", config))
        self._until(sock, b"stream_create_response")

    def _request(self, subject: str, content: dict[str, Any]) -> bytes:
        return pub(subject.encode(), self.inbox + b".api ", json.dumps(content).encode())

    @staticmethod
    def _until(sock: socket.socket, words: bytes) -> None:
        """Read lines until ``words`` are in them; the server also sends lines that nobody has requested."""
        said = b""
        while words not in said or not said.endswith(b"\r\n"):
            more = sock.recv(1 << 16)
            said += more
            if not more or b"-ERR" in said or b'"error"' in said:
                raise Wrong(f"the server said {said[-300:]!r}")

    def _asked(self, data: bytearray, size: int) -> None:
        """Answer the PINGs of the server, which it sends between messages."""
        if data.find(b"PING\r\n", 0, size) >= 0:
            self.answers += b"PONG\r\n"


class Publisher(_Client):
    """A connection that publishes with a reply subject, and counts the acknowledgements that arrive there."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        frame = pub(job.stream.encode(), self.inbox + b".data ", payload(job.size))
        self._rows = Rows(frame, -1, max(1, min(BLOCK, job.messages)))

    def block(self, count: int) -> memoryview:
        return self._rows.take(count)

    def scan(self, data: bytearray, size: int) -> int:
        used = data.rfind(b"\r\n", 0, size) + 2
        if used < 2 or (data[used - 3 : used] != b"}\r\n" and data[used - 6 : used] != b"PING\r\n"):
            # The last line announces a document that has not arrived yet, so stop before that line.
            used = data.rfind(b"}\r\n", 0, size) + 3
            if used < 3:
                return 0
        self.done += data.count(b'"seq":', 0, used)
        if data.find(b'"error"', 0, used) >= 0 or data.find(b"-ERR", 0, used) >= 0:
            raise Wrong(bytes(data[:400]).decode(errors="replace"))
        self._asked(data, used)
        return used


class Subscriber(_Client):
    """A push consumer from the stream's start."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._end = payload(job.size)[-24:] + b"\r\n"

    def begin(self) -> bytes:
        config = {
            "deliver_subject": self.inbox.decode() + ".data",
            "deliver_policy": "all",
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": 5_000_000_000,
        }
        name = self.job.stream
        return self._request(f"$JS.API.CONSUMER.CREATE.{name}", {"stream_name": name, "config": config})

    def begun(self, sock: socket.socket) -> None:
        self._until(sock, b"consumer_create_response")

    def scan(self, data: bytearray, size: int) -> int:
        used = data.rfind(self._end, 0, size) + len(self._end)
        if used < len(self._end):
            used = 0
        self.done += data.count(self._end, 0, used)
        at = data.find(_FLOW, 0, size)
        while at >= 0:
            # HMSG subject sid reply sizes | NATS/1.0 100 FlowControl Request | empty | empty
            end = data.find(b"\r\n\r\n\r\n", at, size) + 6
            if end < 6:
                break
            line = data.rfind(b"HMSG ", 0, at)
            self.answers += pub(bytes(data[line:at]).split(b" ")[3], b"", b"")
            used = max(used, end)
            at = data.find(_FLOW, end, size)
        self._asked(data, used)
        if not used and data.find(b'"error"', 0, size) >= 0:
            raise Wrong(bytes(data[:400]).decode(errors="replace"))
        return used


_DELIVERY = re.compile(rb"\r\nMSG \S+ 2 (\$JS\.ACK\.\S+) \d+\r\n")


class Puller(_Client, WorkerWire):
    """A worker of a pull consumer with AckExplicit: asks for messages, acknowledges each, and waits for the answers."""

    def __init__(self, job: Job, pool: WorkerPool) -> None:
        WorkerWire.__init__(self, job, pool)
        self.inbox = b"_INBOX." + secrets.token_hex(8).encode()
        self._consumer = f"work-{job.extra['round']}"
        self._wanted = 0

    def hello(self, sock: socket.socket) -> None:
        super().hello(sock)
        sock.sendall(b"SUB %s.ack 3\r\n" % self.inbox)
        name = self.job.stream
        config = {"durable_name": self._consumer, "ack_policy": "explicit", "max_ack_pending": 100_000}
        subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{name}.{self._consumer}"
        sock.sendall(self._request(subject, {"stream_name": name, "config": config}))
        self._until(sock, b"consumer_create_response")

    def begin(self) -> bytes:
        self._wanted = self.most
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.job.stream}.{self._consumer}"
        body = json.dumps({"batch": self.most, "no_wait": True}).encode()
        return pub(subject.encode(), self.inbox + b".data ", body)

    def scan(self, data: bytearray, size: int) -> int:
        used = data.rfind(b"\r\n", 0, size) + 2
        if used < 2:
            return 0
        self._asked(data, used)
        if self.settling:
            # MSG inbox.ack 3 0 | empty, for each acknowledgement
            count = data.count(b".ack 3 0\r\n\r\n", 0, used)
            self.settled(count)
            if not self.settling:
                self.answers += self.begin()
            used = data.rfind(b".ack 3 0\r\n\r\n", 0, used)
            return used + len(b".ack 3 0\r\n\r\n") if used >= 0 else 0
        found = _DELIVERY.findall(b"\r\n" + data[:used])
        statuses = data.count(b"NATS/1.0 ", 0, used)
        if len(found) < self._wanted and not statuses:
            return 0
        end = payload(self.job.size)[-24:] + b"\r\n"
        if data.count(end, 0, used) < len(found):
            return 0
        self.settling, reply = len(found), self.inbox + b".ack "
        self.answers += b"".join(pub(each, reply, b"+ACK") for each in found) if found else self.begin()
        return used
