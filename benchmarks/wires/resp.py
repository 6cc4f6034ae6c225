"""Redis streams in RESP 2: XADD in pipelines; XREAD, as many entries a reply as a client would take; groups.

Entries are counted by the end of their payload, with its CR and LF, which occurs nowhere else in a reply.
"""

from __future__ import annotations

import re
import socket

from fyrehose.bench.wires.base import Job, Rows, Wire, WorkerPool, WorkerWire, Wrong, payload

#: Limits: the messages of one block, the entries of one reply, and their bytes.
BLOCK, REPLY, REPLY_BYTES = 8_192, 1_000, 1 << 19


def command(*words: bytes) -> bytes:
    """Return one command."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Publisher(Wire):
    """A connection that sends XADD commands, and counts the ids that the server returns."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        frame = command(b"XADD", job.stream.encode(), b"*", b"d", payload(job.size))
        self._rows = Rows(frame, -1, max(1, min(BLOCK, job.messages)))

    def block(self, count: int) -> memoryview:
        return self._rows.take(count)

    def scan(self, data: bytearray, size: int) -> int:
        if size and data[0] != ord("$"):
            raise Wrong(bytes(data[:200]).decode(errors="replace"))
        lines = data.count(b"\n", 0, size)
        # Each id has two lines: its length, and the id itself.
        self.done += lines // 2
        used = data.rfind(b"\n", 0, size) + 1
        return used if not lines % 2 else data.rfind(b"$", 0, used)


class Subscriber(Wire):
    """A connection that repeatedly requests the entries after the last one, and waits for each answer."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._end = payload(job.size)[-24:] + b"\r\n"
        self._count = max(1, min(REPLY, REPLY_BYTES // (job.size + 64)))
        self._last = b"0-0"

    def begin(self) -> bytes:
        count = b"%d" % self._count
        stream = self.job.stream.encode()
        return command(b"XREAD", b"COUNT", count, b"BLOCK", b"0", b"STREAMS", stream, self._last)

    def scan(self, data: bytearray, size: int) -> int:
        # *1 | *2 | $n | the stream's name | *entries, then for each *2 | $n | its id | *2 | $1 | d | $n | its payload
        head = bytes(data[: min(size, 400)]).split(b"\r\n", 5)
        if len(head) < 6:
            return 0
        if head[0] != b"*1":
            raise Wrong(f"{head[0]!r} instead of a reply")
        entries = int(head[4][1:])
        if data.count(self._end, 0, size) < entries:
            return 0
        used = data.rfind(self._end, 0, size) + len(self._end)
        last = data.rfind(b"\r\n*2\r\n$1\r\nd\r\n", 0, used)
        self._last = bytes(data[data.rfind(b"\n", 0, last) + 1 : last])
        self.done += entries
        if self.done < self.job.messages:
            self.answers += self.begin()
        return used


_ID = re.compile(rb"\r\n(\d+-\d+)\r\n\*2\r\n")


class GroupConsumer(WorkerWire):
    """A consumer of a group: XREADGROUP and XACK of the entries in turn, each after the reply to the one before."""

    def __init__(self, job: Job, pool: WorkerPool) -> None:
        super().__init__(job, pool)
        self._end = payload(job.size)[-24:] + b"\r\n"
        self._stream, self._group = job.stream.encode(), b"work-%d" % job.extra["round"]
        count = b"%d" % self.most
        names = self._group, b"w%d" % id(self)
        self._read = command(
            b"XREADGROUP", b"GROUP", *names, b"COUNT", count, b"BLOCK", b"20000", b"STREAMS", self._stream, b">"
        )

    def hello(self, sock: socket.socket) -> None:
        sock.sendall(command(b"XGROUP", b"CREATE", self._stream, self._group, b"0"))
        said = sock.recv(1 << 16)
        if not said.startswith((b"+OK", b"-BUSYGROUP")):
            raise Wrong(repr(said))

    def begin(self) -> bytes:
        return self._read

    def scan(self, data: bytearray, size: int) -> int:
        if self.settling:
            used = data.find(b"\r\n", 0, size) + 2
            if used < 2:
                return 0
            if data[:used] != b":%d\r\n" % self.settling:
                raise Wrong(repr(bytes(data[:used])))
            self.settled(self.settling)
            self.answers += self._read
            return used
        # *1 | *2 | $n | the stream's name | *entries, then for each *2 | $n | its id | *2 | $1 | d | $n | its payload
        head = bytes(data[: min(size, 400)]).split(b"\r\n", 5)
        if head[0] == b"*-1":
            self.answers += self._read
            return 5
        if len(head) < 6:
            return 0
        if head[0] != b"*1":
            raise Wrong(f"{head[0]!r} instead of a reply")
        entries = int(head[4][1:])
        if data.count(self._end, 0, size) < entries:
            return 0
        self.settling = entries
        self.answers += command(b"XACK", self._stream, self._group, *_ID.findall(data, 0, size))
        return data.rfind(self._end, 0, size) + len(self._end)
