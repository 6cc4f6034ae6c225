"""Write records as newline-delimited JSON, one object per line.

    {"stream": "log", "seq": 7, "time": 1763683200000000, "source": "figg", "payload": "..."}

Times are microseconds since 1970 UTC.  Fields that are unknown, or without a value, are omitted.  A payload that is not
UTF-8 is encoded in ``payload_base64`` instead.
"""

from __future__ import annotations

import json
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring
from typing import Any
from uuid import UUID

import attrs

from fyrehose.kernels import columns
from fyrehose.records import Buffer, Record, Run

#: Bytes of a payload in a piece; a character may need six times as many in JSON.  A multiple of 3, for base64.
STEP = 3 * 7_000
#: Bytes of a payload that are decoded at once to find out whether it is UTF-8.
CHECKED = 64 << 10
_Decoder = getincrementaldecoder("utf-8")


def fields(record: Record) -> dict[str, Any]:
    """Return the fields of *record* that have a value, without its payload."""
    candidates: dict[str, Any] = {
        "stream": record.stream,
        "seq": record.seq or None,
        "time": record.time or None,
        "source": record.source or None,
        "producer": record.producer,
        "topic": record.topic,
        "content_type": record.content_type,
        "producer_seq": record.producer_seq,
        "event_id": None if record.event_id is None else str(UUID(bytes=record.event_id)),
        "event_time": record.event_time,
    }
    return {name: value for name, value in candidates.items() if value is not None}


def as_object(record: Record) -> bytes:
    """Return *record* as a JSON object in UTF-8, without any line feed."""
    shown = fields(record)
    try:
        shown["payload"] = record.payload.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = b64encode(record.payload).decode()
    return json.dumps(shown, ensure_ascii=False).encode()


def objects(run: Run) -> Iterator[bytes]:
    """Yield each record of *run* as a JSON object in UTF-8.

    The fields that all records have in common are encoded once, unless records have columns of their own.
    """
    around = _around(run)
    if around is None:
        yield from map(as_object, run.records())
        return
    head, middle = around
    for seq, payload in enumerate(run.payloads(), run.first_seq):
        try:
            text = f'"payload": {encode_basestring(str(payload, "utf-8"))}}}'
        except UnicodeDecodeError:
            text = f'"payload_base64": "{b64encode(payload).decode()}"}}'
        yield f"{{{head}{seq}{middle}{text}".encode()


def joined(run: Run, between: bytes, begin: str = "") -> bytes:
    """Return the records of *run* as JSON objects in UTF-8, each followed by *between*.

    :param begin: further members that come first, such as ``"token": "1.1", ``
    """
    around = _around(run)
    if around is not None:
        head, middle = f"{{{begin}{around[0]}".encode(), f'{around[1]}"payload": "'.encode()
        found = columns.texts(run.lengths, run.payload, run.first_seq, head, middle, b'"}' + between)
        if found is not None:
            return found
    first = begin.encode()
    return b"".join(b"{%b%b%b" % (first, each[1:], between) for each in objects(run))


def _around(run: Run) -> tuple[str, str] | None:
    """Return the members before and behind the number of each record; None if they are not the same for all."""
    if not run.first_seq or any(each is not None for each in (run.producer_seq, run.event_ids, run.event_times)):
        return None
    labels = {"producer": run.producer, "topic": run.topic, "content_type": run.content_type}
    constants = {"time": run.time or None, "source": run.source or None, **labels}
    known = {name: value for name, value in constants.items() if value is not None}
    common = json.dumps(known, ensure_ascii=False)[1:-1]
    return f'"stream": {encode_basestring(run.stream)}, "seq": ', f", {common}, " if known else ", "


def head_of(run: Run, text: bool | None = None) -> tuple[bytes, bool]:
    """Return the beginning of the first record of *run* as a JSON object, up to its payload, and whether that is text.

    :param text: whether the payload is text; None: find out

    The rest of the object are pieces of its payload (:func:`piece_of`) and :data:`END`.
    """
    whole = next(objects(attrs.evolve(run.slice(0, 1), lengths=bytes(4), payload=b"")))
    text = is_text([next(run.payloads())]) if text is None else text
    return whole.removesuffix(b'"payload": ""}') + (b'"payload": "' if text else b'"payload_base64": "'), text


#: The end of an object whose payload was written in pieces.
END = b'"}'


def is_text(payloads: Iterable[memoryview]) -> bool:
    """Return whether *payloads*, end to end, are UTF-8, without a copy of all of them."""
    decoder = _Decoder()
    try:
        for payload in payloads:
            for begin in range(0, len(payload), CHECKED):
                decoder.decode(payload[begin : begin + CHECKED])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def piece_of(payload: memoryview, begin: int, text: bool) -> tuple[bytes, int]:
    """Return the piece of *payload* that begins at *begin* as it stands in a JSON object, and its end.

    It holds at most STEP bytes of the payload, and ends behind a whole character.
    """
    data, used = encoded(payload[begin : begin + STEP], text, final=begin + STEP >= len(payload))
    return data, begin + used


def encoded(data: Buffer, text: bool, final: bool) -> tuple[bytes, int]:
    """Return *data* as it stands in a JSON object, and how many of its bytes that has.

    :param final: whether nothing follows; otherwise the last bytes may have to wait for what follows
    """
    if not text:
        used = len(data) if final else len(data) - len(data) % 3
        return b64encode(memoryview(data)[:used]), used
    decoder = _Decoder()
    found = decoder.decode(data, final)
    return encode_basestring(found)[1:-1].encode(), len(data) - len(decoder.getstate()[0])


def lines(runs: Iterable[Run]) -> bytes:
    """Return the records of *runs* as newline-delimited JSON in UTF-8."""
    return b"".join(joined(run, b"\n") for run in runs)
