"""Records as JSON: an object a line, for people and for whatever reads JSON.

    {"stream": "log", "seq": 7, "time": 1763683200000000, "source": "figg", "payload": "..."}

Times are microseconds since 1970 UTC.  What is not known is left out.  A payload that is not UTF-8 is in
``payload_base64`` instead.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring
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


def objects(run: Run) -> Iterator[bytes]:
    """The records of ``run`` as JSON, one by one; what they have in common is put into words once."""
    own = (run.producer_seq, run.event_ids, run.event_times)
    if not run.first_seq or any(column is not None for column in own):
        yield from map(as_object, run.records())
        return
    labels = {"producer": run.producer, "topic": run.topic, "content_type": run.content_type}
    constants = {"time": run.time or None, "source": run.source, **labels}
    said = json.dumps({name: value for name, value in constants.items() if value is not None}, ensure_ascii=False)
    before, between = f'{{"stream": {encode_basestring(run.stream)}, "seq": ', f", {said[1:-1]}, "
    for seq, payload in enumerate(run.payloads(), run.first_seq):
        try:
            text = f'"payload": {encode_basestring(str(payload, "utf-8"))}}}'
        except UnicodeDecodeError:
            text = f'"payload_base64": "{b64encode(payload).decode()}"}}'
        yield f"{before}{seq}{between}{text}".encode()


def lines(runs: Iterable[Run]) -> bytes:
    """A line for each record."""
    return b"".join(b"%b\n" % each for run in runs for each in objects(run))
