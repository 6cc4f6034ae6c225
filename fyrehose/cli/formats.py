"""How a run of records looks on standard output: text, JSON, or the payloads alone."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from uuid import UUID

from fyrehose.records import Record, Run

Format = Callable[[Run], bytes]


def text(run: Run) -> bytes:
    """Each payload, and a line feed."""
    return b"".join(b"%b\n" % bytes(payload) for payload in run.payloads())


def raw(run: Run) -> bytes:
    """The payloads end to end."""
    return bytes(run.payload)


def as_json(run: Run) -> bytes:
    """An object a line, without what is not known."""
    return b"".join(_line(record) for record in run.records())


def _line(record: Record) -> bytes:
    known: dict[str, Any] = {
        "stream": record.stream,
        "seq": record.seq or None,
        "time": record.time or None,
        "source": record.source,
        "producer": record.producer,
        "topic": record.topic,
        "content_type": record.content_type,
        "producer_seq": record.producer_seq,
        "event_id": None if record.event_id is None else str(UUID(bytes=record.event_id)),
        "event_time": record.event_time,
    }
    shown = {name: value for name, value in known.items() if value is not None}
    try:
        shown["payload"] = record.payload.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = b64encode(record.payload).decode()
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


FORMATS: dict[str, Format] = {"text": text, "raw": raw, "json": as_json}
