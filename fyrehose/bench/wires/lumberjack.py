"""Lumberjack v2 (specs: lumberjack.txt): send prepared windows of J frames, compressed or not, and count A frames."""

from __future__ import annotations

import json
import struct
import zlib
from collections import deque

from fyrehose.bench.wires.base import Job, Wire, Wrong, payload

#: Events of a window, as Beats have it.
BATCH = 2_048
_ACK = struct.Struct(">2sI")


def event(size: int) -> bytes:
    """Return an event as Filebeat sends it, of ``size`` bytes, or longer if it cannot be that short."""
    document = {
        "@timestamp": "2024-05-01T10:20:30.123Z",
        "@metadata": {"beat": "filebeat", "type": "_doc", "version": "8.13.2"},
        "host": {"name": "web-17.example.org"},
        "log": {"offset": 184467, "file": {"path": "/var/log/nginx/access.log"}},
        "input": {"type": "filestream"},
        "ecs": {"version": "8.0.0"},
        "message": "",
    }
    bare = len(json.dumps(document, separators=(",", ":")))
    document["message"] = payload(max(0, size - bare)).decode()
    return json.dumps(document, separators=(",", ":")).encode()


def varied(document: bytes, number: int) -> bytes:
    """Return ``document`` with other digits, but still JSON, because log lines are similar, but not equal."""
    stamp = b"%d" % (100_000 + number * 7919 % 900_000)
    return document.replace(b"184467", stamp).replace(b"abcdef", stamp)


def window(size: int, count: int, level: int) -> bytes:
    """Return a window: a W frame, then ``count`` events."""
    document = event(size)
    frames = bytearray()
    for number in range(1, count + 1):
        text = varied(document, number)
        frames += b"2J" + struct.pack(">II", number, len(text)) + text
    head = b"2W" + struct.pack(">I", count)
    if not level:
        return head + frames
    packed = zlib.compress(frames, level)
    return head + b"2C" + struct.pack(">I", len(packed)) + packed


class LumberjackPublisherWire(Wire):
    """A writer that sends windows, and counts acknowledgements.  ``extra``: level (0 to 9), batch (events of a
    window)."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.unit = min(int(job.extra.get("batch", BATCH)), job.messages)
        self._level = int(job.extra.get("level", 0))
        self._prepared: dict[int, memoryview] = {}
        self._window(self.unit)
        self._window(job.messages % self.unit or self.unit)
        self._waiting: deque[int] = deque()
        self._partly = 0

    def _window(self, count: int) -> memoryview:
        if count not in self._prepared:
            self._prepared[count] = memoryview(window(self.job.size, count, self._level))
        return self._prepared[count]

    def block(self, count: int) -> memoryview:
        self._waiting.append(count)
        return self._window(count)

    def scan(self, data: bytearray, size: int) -> int:
        """Count the events that whole ACK frames acknowledge, and return how many bytes these frames have."""
        whole = size - size % 6
        for at in range(0, whole, 6):
            kind, number = _ACK.unpack_from(data, at)
            if kind != b"2A" or not self._waiting or number > self._waiting[0]:
                raise Wrong(f"{kind!r} {number} instead of an acknowledgement of {list(self._waiting)}")
            self.done += max(0, number - self._partly)
            self._partly = max(number, self._partly)
            if number == self._waiting[0]:
                self._waiting.popleft()
                self._partly = 0
        return whole
