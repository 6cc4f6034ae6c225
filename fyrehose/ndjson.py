"""Write records as newline-delimited JSON, one object per line.

    {"stream": "log", "seq": 7, "time": 1763683200000000, "source": "figg", "payload": "..."}

Times are microseconds since 1970 UTC.  Fields that are unknown, or without a value, are omitted.  A payload that is not
UTF-8 is encoded in ``payload_base64`` instead; one that is JSON can be a value instead of a text.  No object has a
character at which some program ends a line.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any
from uuid import UUID

import attrs

from fyrehose.jsontext import dumped, loaded, one_line, quoted
from fyrehose.kernels import columns
from fyrehose.records import Buffer, Record, Run

#: Bytes of a payload in a piece: a multiple of 3, for base64.  In JSON, a piece may be six times as long.
STEP = 3 * 7_000
#: Bytes of a payload that one call checks to find out whether the payload is UTF-8, and bytes that are decoded at once.
CHECKED, DECODED = 4 << 20, 64 << 10
#: The largest message that is parsed as JSON, in bytes: parsing a larger one would block the reactor for too long.
MOST_PARSED = 4 << 20
#: Limit of the number of records whose checks are kept.
KEPT = 1_024
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


def record_of(fields: Mapping[str, Any]) -> Record:
    """Return the record of a JSON object as :func:`as_object` makes it; further fields are ignored.

    :raises KeyError: a field that every record has is missing
    """
    constants = {name: fields.get(name) for name in ("producer", "topic", "content_type", "producer_seq", "event_time")}
    return Record(
        stream=fields["stream"],
        seq=fields["seq"],
        time=fields.get("time", 0),
        source=fields.get("source", ""),
        event_id=UUID(fields["event_id"]).bytes if "event_id" in fields else None,
        payload=fields["payload"].encode() if "payload" in fields else b64decode(fields["payload_base64"]),
        **constants,
    )


def as_object(record: Record, values: bool = False) -> bytes:
    """Return *record* as a JSON object in UTF-8, without any line feed; for *values* see :func:`objects`."""
    return b"%b, %b}" % (dumped(fields(record))[:-1], _payload(record.payload, values and _is_json(record)).encode())


def objects(run: Run, values: bool = False) -> Iterator[bytes]:
    """Yield each record of *run* as a JSON object in UTF-8.

    The fields that all records have in common are encoded once, unless the run has optional columns.

    :param values: whether the payload of a JSON message of at most :data:`MOST_PARSED` bytes is a value
    """
    around = _around(run)
    if around is None:
        for record in run.records():
            yield as_object(record, values)
        return
    values = values and _is_json(run)
    head, middle = around
    for seq, payload in enumerate(run.payloads(), run.first_seq):
        yield f"{{{head}{seq}{middle}{_payload(payload, values)}}}".encode()


def _is_json(labels: Run | Record) -> bool:
    """Return whether the messages with these labels say that they are JSON."""
    return (labels.content_type or "").partition(";")[0].strip().lower() == "application/json"


def _payload(payload: Buffer, value: bool) -> str:
    """Return the member of an object that has *payload*, as a value if *value* is true and the payload is JSON."""
    try:
        text = str(payload, "utf-8")
        if value and len(payload) <= MOST_PARSED:
            with suppress(ValueError):
                loaded(bytes(payload))
                return f'"payload": {one_line(text)}'
        return f'"payload": {quoted(text)}'
    except UnicodeDecodeError:
        return f'"payload_base64": "{b64encode(payload).decode()}"'


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
    """Return the JSON members before and behind the number of each record; None if the records differ in them."""
    if not run.first_seq or not run.producer_seq is run.event_ids is run.event_times is None:
        return None
    known: dict[str, object] = {"stream": run.stream, "seq": 0}
    if run.time:
        known["time"] = run.time
    if run.source:
        known["source"] = run.source
    for name, label in (("producer", run.producer), ("topic", run.topic), ("content_type", run.content_type)):
        if label is not None:
            known[name] = label
    head, number, middle = dumped(known).decode()[1:-1].partition('"seq": 0')  # quotes within a text are escaped
    return f"{head}{number[:-1]}", f"{middle}, "


def head_of(run: Run, text: bool) -> bytes:
    """Return the beginning of the first record of *run* as a JSON object, up to its payload.

    :param text: whether the payload is UTF-8, see :class:`TextCheck`

    The rest of the object is made of pieces of its payload (:func:`piece_of`) and :data:`END`.
    """
    whole = next(objects(attrs.evolve(run.slice(0, 1), lengths=bytes(4), payload=b"")))
    return whole.removesuffix(b'"payload": ""}') + (b'"payload": "' if text else b'"payload_base64": "')


#: The end of an object whose payload was written in pieces.
END = b'"}'


@attrs.define(eq=False)
class TextCheck:
    """A check whether a payload is UTF-8, which takes several calls and copies nothing.

    :ivar text: whether the payload is UTF-8; None: not known yet
    """

    text: bool | None = attrs.field(default=None, init=False)
    _decoder: Any = attrs.field(factory=lambda: _Decoder(), init=False)
    _at: int = attrs.field(default=0, init=False)  #: how much of the payload is checked

    def proceed(self, payload: memoryview) -> bool:
        """Check the next CHECKED bytes of *payload*; return whether the whole payload is checked."""
        if self.text is not None:
            return True
        end = min(self._at + CHECKED, len(payload))
        last = end == len(payload)
        try:
            for begin in range(self._at, end, DECODED):
                self._decoder.decode(payload[begin : min(begin + DECODED, end)])
            if last:
                self._decoder.decode(b"", final=True)
                self.text = True
        except UnicodeDecodeError:
            self.text = False
        self._at = end
        return last or self.text is False


class TextChecks:
    """A cache of the latest checks of large records, so that all readers of a record share one check."""

    def __init__(self) -> None:
        self._check_of = lru_cache(KEPT)(lambda stream, seq: TextCheck())

    def of(self, run: Run) -> TextCheck:
        """Return the check of the first record of *run*; begin a new check if none is kept."""
        return self._check_of(run.stream, run.first_seq)


def piece_of(payload: memoryview, begin: int, text: bool) -> tuple[bytes, int]:
    """Return the piece of *payload* that begins at *begin*, as the content of a JSON string, and where the piece ends.

    A piece holds at most STEP bytes of the payload, and ends behind a whole character.

    :param text: whether the payload is UTF-8; otherwise it is encoded in base64
    """
    data = payload[begin : begin + STEP]
    if not text:
        return b64encode(data), begin + len(data)
    decoder = _Decoder()
    found = decoder.decode(data, begin + STEP >= len(payload))
    return quoted(found)[1:-1].encode(), begin + len(data) - len(decoder.getstate()[0])


def lines(runs: Iterable[Run], values: bool = False) -> bytes:
    """Return the records of *runs* as newline-delimited JSON in UTF-8; for *values* see :func:`objects`."""
    if values:
        return b"".join(b"%b\n" % each for run in runs for each in objects(run, values))
    return b"".join(joined(run, b"\n") for run in runs)
