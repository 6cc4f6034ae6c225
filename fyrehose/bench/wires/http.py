"""HTTP/1.1 (RFC 9112): POSTs of one message, or of many as NDJSON, and their answers."""

from __future__ import annotations

import re

from fyrehose.bench.wires.base import Job, Wire, Wrong, payload

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


def line(size: int) -> bytes:
    """Return a JSON object and a line feed, ``size`` bytes with both, or longer if it cannot be that short."""
    bare = b'{"message": ""}\n'
    return bare[:-3] + payload(max(0, size - len(bare))) + bare[-3:]


class HttpPublisherWire(Wire):
    """Sends POSTs, counts the messages of the answers with status 200.  ``extra``: batch (messages of a body)."""

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
        while (end := data.find(_HEAD_END, used, size)) >= 0:
            if not data.startswith(b"HTTP/1.1 200 ", used):
                raise Wrong(repr(bytes(data[used : used + 200])))
            length = _LENGTH.search(data, used, end + 2)
            if length is None:
                raise Wrong("an answer without Content-Length")
            after = end + len(_HEAD_END) + int(length[1])
            if after > size:
                break
            self.done += self._under_way.pop(0)
            used = after
        return used

    def _post(self, messages: int) -> bytes:
        found = self._bodies.get(messages)
        if found is None:
            one = "batch" not in self.job.extra
            body = payload(self.job.size) if one else line(self.job.size) * messages
            kind = "text/plain" if one else "application/x-ndjson"
            head = (
                f"POST /streams/{self.job.stream} HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            found = self._bodies[messages] = head.encode() + body
        return found
