"""HTTP/1.1 (RFC 9112): send POSTs of one message or of NDJSON, and count the answers; lease records as workers."""

from __future__ import annotations

import json
import re
import socket

from fyrehose.bench.wires.base import Job, Wire, WorkerPool, WorkerWire, Wrong, payload

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


def line(size: int) -> bytes:
    """Return a JSON object and a line feed, ``size`` bytes with both, or longer if it cannot be that short."""
    bare = b'{"message": ""}\n'
    return bare[:-3] + payload(max(0, size - len(bare))) + bare[-3:]


def _request(method: str, path: str, kind: str, body: bytes) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _end(data: bytearray, begin: int, size: int) -> tuple[int, int]:
    """Return where the body of the answer at *begin* begins and ends; 0 and 0 if the answer is incomplete.

    :raises Wrong: the server refuses
    """
    head = data.find(_HEAD_END, begin, size)
    if head < 0:
        return 0, 0
    if not data.startswith(b"HTTP/1.1 200 ", begin):
        raise Wrong(repr(bytes(data[begin : begin + 200])))
    length = _LENGTH.search(data, begin, head + 2)
    if length is None:
        raise Wrong("the server sent an answer without Content-Length")
    body = head + len(_HEAD_END)
    end = body + int(length[1])
    return (body, end) if end <= size else (0, 0)


class HttpPublisherWire(Wire):
    """A connection that sends POSTs, and counts acknowledged messages.  ``extra``: batch (messages of a body)."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.unit = min(int(job.extra.get("batch", 1)), job.messages)
        self._bodies: dict[int, bytes] = {}
        self._under_way: list[int] = []

    def block(self, count: int) -> memoryview:
        bodies = [self.unit] * (count // self.unit)
        if count % self.unit:
            bodies.append(count % self.unit)
        self._under_way += bodies
        return memoryview(b"".join(self._post(messages) for messages in bodies))

    def scan(self, data: bytearray, size: int) -> int:
        used = 0
        while end := _end(data, used, size)[1]:
            self.done += self._under_way.pop(0)
            used = end
        return used

    def _post(self, messages: int) -> bytes:
        found = self._bodies.get(messages)
        if found is None:
            one = "batch" not in self.job.extra
            body = payload(self.job.size) if one else line(self.job.size) * messages
            kind = "text/plain" if one else "application/x-ndjson"
            found = self._bodies[messages] = _request("POST", f"/streams/{self.job.stream}", kind, body)
        return found


_SEQ = re.compile(rb'"seq": (\d+)')
_TOKEN = re.compile(rb'"token": ("[^"]+")')


class HttpWorkerWire(WorkerWire):
    """A worker that alternately leases and settles records, by one request at a time.

    Records with consecutive numbers and the same token, as all have that were never leased before, are settled as one
    range.
    """

    def __init__(self, job: Job, pool: WorkerPool) -> None:
        super().__init__(job, pool)
        self._name = f"work-{job.extra['round']}"
        body = {"consumer": f"w{id(self)}", "most": self.most, "wait": 20}
        self._lease = self._post("lease", json.dumps(body).encode())

    def _post(self, action: str, body: bytes) -> bytes:
        return _request("POST", f"/subscriptions/{self._name}/{action}", "application/json", body)

    def hello(self, sock: socket.socket) -> None:
        """Create the shared subscription of the job, and wait for the whole answer.

        Each round has one of its own, and all their windows together have to fit into the share of one address.
        """
        body = {"stream": self.job.stream, "shared": True, "window": 10_000}
        sock.sendall(_request("PUT", f"/subscriptions/{self._name}", "application/json", json.dumps(body).encode()))
        data = bytearray()
        while not _end(data, 0, len(data))[1]:
            more = sock.recv(1 << 16)
            if not more:
                raise Wrong(f"the server closed the connection after {bytes(data)!r}")
            data += more

    def begin(self) -> bytes:
        return self._lease

    def scan(self, data: bytearray, size: int) -> int:
        """Handle one whole answer: settle the messages that it leases, or lease more; return how many bytes it has."""
        body, end = _end(data, 0, size)
        if not end:
            return 0
        if self.settling:
            if data.find(b'"refused": []', body, end) < 0:
                raise Wrong(repr(bytes(data[body : body + 200])))
            self.settled(self.settling)
            self.answers += self._lease
            return end
        items = self._items(data, body, end)
        self.answers += self._post("settle", b'{"done": [%b]}' % items) if items else self._lease
        return end

    def _items(self, data: bytearray, body: int, end: int) -> bytes:
        """Return the leased records of an answer, as the item of ``done`` that settles them."""
        first = _SEQ.search(data, body, end)
        if first is None:
            return b""
        begin = int(first[1])
        at = data.rfind(b'"seq": ', body, end)
        last, token = int(_SEQ.match(data, at, end)[1]), _TOKEN.search(data, body, end)  # type: ignore[index]
        assert token is not None, "each record has a token"
        count = data.count(b'"token": ', body, end)
        self.settling = count
        if last - begin + 1 == count == data.count(b'"token": %b' % token[1], body, end):
            return b"[[%d, %d], %b]" % (begin, last, token[1])
        records = json.loads(data[body:end])["records"]
        return json.dumps([[each["seq"], each["token"]] for each in records]).encode()[1:-1]
