"""What comes into a stream, as much of it as a person can read.

It is no subscription: a few times a second it looks at the stream's end, shows the latest, and says how many it left
out.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import attrs

from fyrehose import ndjson
from fyrehose.core.broker import Broker
from fyrehose.records import Record

#: How often it looks, in seconds.
EVERY = 0.25
#: The most records that are shown at once.
SHOWN = 50
#: What is read for that at the most, and what is shown of one payload, in bytes.
READ = 1 << 20
PART = 8 << 10


@attrs.define(eq=False)
class Tail:
    """Looks at ``stream`` in ``broker``; begins with the last records that there are, ``back`` of them."""

    broker: Broker
    stream: str
    back: int = SHOWN
    _next: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        oldest, last = self.broker.bounds(self.stream)
        self._next = max(oldest, last + 1 - self.back)

    def look(self) -> dict[str, Any] | None:
        """What is new, the oldest first, and how many before it were left out; None if nothing is."""
        last = self.broker.bounds(self.stream)[1]
        if last < self._next:
            return None
        start = max(self._next, last + 1 - SHOWN)
        runs = self.broker.read(self.stream, start, READ)
        records = [record for run in runs for record in run.records()][:SHOWN]
        if not records:
            self._next = last + 1
            return None
        skipped = records[0].seq - self._next
        self._next = records[-1].seq + 1
        return {"skipped": skipped, "records": [shown(record) for record in records]}


def shown(record: Record) -> dict[str, Any]:
    """``record`` as the page takes it: what is known, and the beginning of its payload as base64."""
    known = ndjson.fields(record)
    return {**known, "size": len(record.payload), "payload": b64encode(record.payload[:PART]).decode()}


def as_event(name: str, value: object) -> bytes:
    """A server-sent event with ``value`` as JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps(value, ensure_ascii=False).encode())
