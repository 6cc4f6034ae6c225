"""Records as JSON: an object a line, for people and for whatever reads JSON.

    {"stream": "log", "seq": 7, "time": 1763683200000000, "source": "figg", "payload": "..."}

Times are microseconds since 1970 UTC.  What is not known is left out.  A payload that is not UTF-8 is in
``payload_base64`` instead.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from fyrehose.records import Record, Run


def known(record: Record) -> dict[str, Any]:
    """What there is to say of ``record``, but its payload."""
    everything: dict[str, Any] = {
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
    return {name: value for name, value in everything.items() if value is not None}


def as_object(record: Record) -> bytes:
    """``record`` as JSON, without a line feed within or behind it."""
    shown = known(record)
    try:
        shown["payload"] = record.payload.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = b64encode(record.payload).decode()
    return json.dumps(shown, ensure_ascii=False).encode()


def lines(runs: Iterable[Run]) -> bytes:
    """A line for each record."""
    return b"".join(b"%b\n" % as_object(record) for run in runs for record in run.records())
