"""Convert the labels of an event (producer, timestamp, UUID) to the columns of a run, and back byte for byte.

Labels are sent as text, and a run stores timestamps and UUIDs as numbers.  The usual forms convert without loss:

    timestamp   2024-05-01T10:20:30.123Z              event_times    microseconds; the usual form has 3 digits and Z
    uuid        7d444840-9dc0-11d1-b245-5ffdce74fad2  event_ids      16 bytes; the usual form is lower case
    producer    UTF-8                                 producer

The content type of a run with the usual forms is ``application/msgpack``.  A parameter of the content type describes
any other form, so that the label is sent exactly as it was received:

    ; time=6+02:00          6 digits and this offset; events with the same form share a run
    ; uuid-case=upper       upper case
    ; timestamp="..."       the label itself, if no number and form restore it (also uuid="...")
    ; timestamp-base64=...  the same in base64, if it is not printable ASCII (also uuid-base64=...)
    ; producer=percent      not UTF-8: the column has %XX for each byte that is not plain ASCII

in: labels of at most 64 bytes      out: columns and constants of a run; and the other way round
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes
from uuid import UUID

from fyrehose.records import Run

CONTENT_TYPE = "application/msgpack"

#: A form of timestamps: the number of digits after the second, followed by the UTC offset as it is written.
Form = str
USUAL_TIME: Form = "3Z"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.(\d{1,6}))?(Z|[+-]\d\d:\d\d|)", re.ASCII)
_PARAMETER = re.compile(r'; ([a-z0-9-]+)=(?:"([^"]*)"|([^;"]*))')
_PRINTABLE = re.compile(rb"[ !#-\[\]-~]*")

#: A function that returns the label of a row of a run.
Label = Callable[[int], bytes]


class Labels(NamedTuple):
    """The labels of one event, in the form in which a run stores them."""

    producer: str
    content_type: str
    event_id: bytes | None
    event_time: int | None


def read_labels(producer: bytes, timestamp: bytes, uuid: bytes) -> Labels:
    """Convert labels of up to 64 bytes each to columns and constants; :class:`WireLabels` restores them."""
    time, time_note = _read_time(timestamp)
    event_id, uuid_note = _read_uuid(uuid)
    name, name_note = _read_producer(producer)
    notes = time_note + uuid_note + name_note
    return Labels(name, CONTENT_TYPE + notes if notes else CONTENT_TYPE, event_id, time)


class WireLabels:
    """The labels of a run's events as they are sent.

    A record that was published by another protocol has the name of that protocol as its producer, the time at which it
    was accepted as its timestamp, and a UUID that is derived from its stream and sequence.

    :param own: the source of records that the event bus has published
    :ivar usual: whether all labels have the usual forms, if the run has times and UUIDs
    """

    def __init__(self, run: Run, own: str) -> None:
        self._run, self.foreign = run, run.source != own
        self.usual = run.content_type == CONTENT_TYPE and not self.foreign
        self._notes = {} if self.foreign else _notes(run.content_type or "")
        producer = run.source if self.foreign else run.producer or ""
        self.producer = unquote_to_bytes(producer) if self._notes.get("producer") == "percent" else producer.encode()

    @cached_property
    def timestamp(self) -> Label:
        """Return the function that returns the timestamp of a row."""
        if self.foreign:
            accepted = write_time(self._run.time, USUAL_TIME)
            return lambda row: accepted
        return _verbatim(self._notes, "timestamp") or _times(self._run, self._notes.get("time", USUAL_TIME))

    @cached_property
    def uuid(self) -> Label:
        """Return the function that returns the UUID of a row."""
        if self.foreign:
            stream, first = self._run.stream, self._run.first_seq
            return lambda row: derived_uuid(stream, first + row)
        return _verbatim(self._notes, "uuid") or _uuids(self._run, self._notes.get("uuid-case") == "upper")


def derived_uuid(stream: str, seq: int) -> bytes:
    """Return the UUID of a record that was published without one; it is always the same for the same record."""
    digest = sha256(f"{stream}\0{seq}".encode()).digest()
    return str(UUID(bytes=digest[:16], version=4)).encode()


def write_time(micros: int, form: Form) -> bytes:
    """Return the timestamp of *micros* (microseconds since 1970 UTC) in *form*, which may truncate digits."""
    digits, zone = int(form[0]), form[1:]
    second, fraction = divmod(micros, 1_000_000)
    text = _second(second, zone)
    if digits:
        text += b"." + (b"%06d" % fraction)[:digits]
    return text + zone.encode()


@lru_cache(1024)
def _second(second: int, zone: str) -> bytes:
    moment = (_EPOCH + timedelta(seconds=second)).astimezone(_zone(zone))
    return moment.replace(tzinfo=None).isoformat().encode()


@lru_cache(64)
def _zone(zone: str) -> tzinfo:
    return datetime.fromisoformat(f"1970-01-01T00:00{zone}").tzinfo or UTC


@lru_cache(1024)
def _seconds(text: bytes, zone: str) -> int:
    moment = datetime.fromisoformat(text.decode()).replace(tzinfo=_zone(zone))
    return (moment - _EPOCH) // timedelta(seconds=1)


def _read_time(timestamp: bytes) -> tuple[int | None, str]:
    match = _TIMESTAMP.fullmatch(timestamp)
    if match is None:
        return None, _note("timestamp", timestamp)
    digits, zone = match[1] or b"", match[2].decode()
    form = f"{len(digits)}{zone}"
    try:
        micros = _seconds(timestamp[:19], zone) * 1_000_000 + int(digits.ljust(6, b"0"))
        exact = write_time(micros, form) == timestamp
    except (ValueError, OverflowError):  # the 30th of February, or a second before the year 1 in UTC
        return None, _note("timestamp", timestamp)
    if form == USUAL_TIME and exact:
        return micros, ""
    return micros, f"; time={form}" if exact else _note("timestamp", timestamp)


def _read_uuid(uuid: bytes) -> tuple[bytes | None, str]:
    try:
        event_id = bytes.fromhex(uuid.replace(b"-", b"").decode("ascii"))
    except ValueError:
        return None, _note("uuid", uuid)
    if len(event_id) != 16:
        return None, _note("uuid", uuid)
    usual = write_uuid(event_id)
    if usual == uuid:
        return event_id, ""
    return event_id, "; uuid-case=upper" if usual.upper() == uuid else _note("uuid", uuid)


def write_uuid(event_id: bytes) -> bytes:
    """Return the text of a UUID of 16 bytes."""
    return str(UUID(bytes=event_id)).encode()


def _read_producer(producer: bytes) -> tuple[str, str]:
    try:
        return producer.decode(), ""
    except UnicodeDecodeError:
        return quote_from_bytes(producer, safe=""), "; producer=percent"


def _note(name: str, label: bytes) -> str:
    if _PRINTABLE.fullmatch(label):
        return f'; {name}="{label.decode()}"'
    return f"; {name}-base64={urlsafe_b64encode(label).decode().rstrip('=')}"


@lru_cache(1024)
def _notes(content_type: str) -> dict[str, str]:
    return {name: quoted or plain for name, quoted, plain in _PARAMETER.findall(content_type)}


def _verbatim(notes: dict[str, str], name: str) -> Label | None:
    encoded = notes.get(f"{name}-base64")
    if encoded is not None:
        label = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    elif name in notes:
        label = notes[name].encode()
    else:
        return None
    return lambda row: label


def _times(run: Run, form: Form) -> Label:
    if run.event_times is None:
        return lambda row: b""
    times = memoryview(run.event_times).cast("q")
    return lambda row: write_time(times[row], form)


def _uuids(run: Run, upper: bool) -> Label:
    if run.event_ids is None:
        return lambda row: b""
    ids = memoryview(run.event_ids)
    if upper:
        return lambda row: write_uuid(bytes(ids[16 * row : 16 * row + 16])).upper()
    return lambda row: write_uuid(bytes(ids[16 * row : 16 * row + 16]))
