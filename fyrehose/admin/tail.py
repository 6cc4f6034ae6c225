"""Show the latest records of a stream, at a rate that a person can read.

This is not a subscription: a few times per second the end of the stream is read, and records that are left out are
counted.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import attrs

from fyrehose import ndjson
from fyrehose.broker.broker import Broker
from fyrehose.jsontext import dumped
from fyrehose.records import Record, Run, column_of
from fyrehose.sessions import PIECE

#: The time between two reads, in seconds.
INTERVAL = 0.25
#: Limit of the records that one read returns.
MOST_RECORDS = 50
#: Limit of the payload that is read from the journal at once, in bytes.
LOOKUP_BYTES = 1 << 20
#: How much payload of one record is shown at most, in bytes.
PART = 8 << 10
#: Limit of the bytes of an event besides its records, including the HTTP chunk around the event.
AROUND = 256


@attrs.define(eq=False)
class StreamTail:
    """A reader of the end of *stream*, which starts *back* records before the end."""

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
        runs = self.broker.read(self.stream, start, LOOKUP_BYTES)
        found = [one for run in runs for one in zip(_cut(run).records(), run.sizes, strict=True)][:MOST_RECORDS]
        if not found:
            self._next = last + 1
            return None
        shown = _latest(found)
        skipped = shown[0]["seq"] - self._next
        self._next = found[-1][0].seq + 1
        return {"skipped": skipped, "records": shown}


def _cut(run: Run) -> Run:
    """Return *run* with only the first :data:`PART` bytes of each payload, so that large payloads are not copied."""
    column = column_of(payload[:PART] for payload in run.payloads())
    return attrs.evolve(run, lengths=column.lengths, payload=column.payload)


def _latest(found: list[tuple[Record, int]]) -> list[dict[str, Any]]:
    """Return the last records of *found* that fit into one event, as objects for JSON, each with its size."""
    shown: list[dict[str, Any]] = []
    room = PIECE - AROUND
    for record, size in reversed(found):
        one = as_json(record, size)
        room -= len(dumped(one)) + len(", ")
        if room < 0:
            break
        shown.append(one)
    return shown[::-1]


def as_json(record: Record, size: int) -> dict[str, Any]:
    """Return *record* as an object for the page: its fields, the *size* of its payload, and its beginning as base64."""
    return {**ndjson.fields(record), "size": size, "payload": b64encode(record.payload).decode()}


def as_event(name: str, value: object) -> bytes:
    """Return a server-sent event with *value* as JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), dumped(value))
