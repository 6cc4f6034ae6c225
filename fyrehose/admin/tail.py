"""Show the latest records of a stream, at a rate that a person can read.

This is not a subscription: a few times per second it reads the end of the stream, and counts the records it left out.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import attrs

from fyrehose import ndjson
from fyrehose.core.broker import Broker
from fyrehose.pieces import PIECE
from fyrehose.records import Record

#: The time between two reads, in seconds.
INTERVAL = 0.25
#: The most records returned by one read.
MOST_RECORDS = 50
#: The most payload read from the journal at once, in bytes.
READ = 1 << 20
#: The most payload shown of one record, in bytes.
PART = 8 << 10
#: The most bytes of an event besides its records, with the chunk around it.
AROUND = 256


@attrs.define(eq=False)
class StreamTail:
    """Reads the end of *stream* repeatedly, starting *back* records before its end."""

    broker: Broker
    stream: str
    back: int = MOST_RECORDS
    _next: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        oldest, last = self.broker.bounds(self.stream)
        self._next = max(oldest, last + 1 - self.back)

    def read(self) -> dict[str, Any] | None:
        """Return the latest records since the last call.

        :return: ``records``, the oldest first, and ``skipped``, the number of records left out before them; None if
            there are no new records
        """
        last = self.broker.bounds(self.stream)[1]
        if last < self._next:
            return None
        start = max(self._next, last + 1 - MOST_RECORDS)
        runs = self.broker.read(self.stream, start, READ)
        records = [record for run in runs for record in run.records()][:MOST_RECORDS]
        if not records:
            self._next = last + 1
            return None
        shown = _latest(records)
        skipped = records[-len(shown)].seq - self._next
        self._next = records[-1].seq + 1
        return {"skipped": skipped, "records": shown}


def _latest(records: list[Record]) -> list[dict[str, Any]]:
    """Return the last of *records* as objects, as many as fit into a piece."""
    shown: list[dict[str, Any]] = []
    room = PIECE - AROUND
    for record in reversed(records):
        one = as_json(record)
        room -= len(json.dumps(one, ensure_ascii=False).encode()) + len(", ")
        if room < 0:
            break
        shown.append(one)
    return shown[::-1]


def as_json(record: Record) -> dict[str, Any]:
    """Return *record* as an object for the page: its fields, and the beginning of its payload as base64."""
    known = ndjson.fields(record)
    return {**known, "size": len(record.payload), "payload": b64encode(record.payload[:PART]).decode()}


def as_event(name: str, value: object) -> bytes:
    """Return a server-sent event with *value* as JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps(value, ensure_ascii=False).encode())
