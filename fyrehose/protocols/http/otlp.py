"""OTLP logs: each log record of a POST to /v1/logs becomes a JSON object, which is a message of its own.

    {"resourceLogs": [{"resource", "scopeLogs": [{"scope", "logRecords": [...]}]}]}, as protobuf or as JSON
    -> {"time": "2026-11-28T12:00:00.000000001Z", "severity": "INFO", "body": ..., "attributes": {...},
        "trace_id": "...", "resource": {...}, "scope": {...}}, one for each log record

Protobuf is parsed one log record at a time, because a parsed message may take forty times its bytes.  Each message
repeats the resource and the scope, which exporters send once, so their size is limited, and that of all messages.

Specification: OTLP 1.10, "OTLP/HTTP Request" and "Partial Success"; OpenTelemetry's data model of logs.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from math import isfinite, isnan
from typing import Any

import attrs

from fyrehose.jsontext import dumped, loaded

PROTOBUF, JSON = "application/x-protobuf", "application/json"
#: The path of a POST of logs.
PATH = ("v1", "logs")
#: Limits of one log record: its bytes as protobuf, and the values in it; another one is rejected.
LARGEST, VALUES = 256 << 10, 10_000
#: Limit of what messages repeat, a resource and a scope, in bytes of JSON; a log record with more is rejected.
AROUND = 16 << 10
#: Limit of the messages of one request together, in bytes: a small request may repeat a resource very often.
MOST = 64 << 20
_MALFORMED = "malformed protobuf: expected an ExportLogsServiceRequest"


class TooMuch(Exception):
    """One log record exceeds a limit, so that it is rejected, and no other."""


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number at *at*, and the offset behind it.

    :raises ValueError: it does not end before *end*, or has more than ten bytes
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError(_MALFORMED)


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each field of a protobuf message, and where its value begins and ends.

    The number is 0 if the value has no length of its own: no such field is needed here.

    :raises ValueError: the message is malformed
    """
    while at < end:
        tag, at = _varint(data, at, end)
        kind, size = tag & 7, 0
        if kind == 0:
            _, at = _varint(data, at, end)
        elif kind == 2:
            size, at = _varint(data, at, end)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(_MALFORMED)
        if at + size > end:
            raise ValueError(_MALFORMED)
        yield tag >> 3 if kind == 2 else 0, at, at + size
        at += size


def _moment(nanoseconds: int) -> str | None:
    if not 0 < nanoseconds < 1 << 64:
        return None
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


def _number(found: Any, bits: int = 64) -> int:
    """Return an integer of OTLP's JSON, which may be a text.

    :raises ValueError: it is none, or has more than *bits*
    """
    if (isinstance(found, str) and len(found) <= 20) or type(found) is int:
        number = int(found)
        if -(1 << bits - 1) <= number < 1 << bits:
            return number
    raise ValueError(f"expected an integer, not {str(found)[:40]!r}")


def _double(found: Any) -> float:
    """Return a number of OTLP's JSON, which may have no fraction.

    :raises ValueError: it is none, or no double comes near to it
    """
    try:
        return float(_of(float, float(found) if type(found) is int else found))
    except OverflowError:
        raise ValueError(f"expected a double, not an integer of {len(str(found))} digits") from None


def _of(kind: type, found: Any) -> Any:
    """Return *found*, a value of OTLP's JSON.

    :raises ValueError: it is not of *kind*
    """
    if not isinstance(found, kind):
        raise ValueError(f"expected {kind.__name__}, not {str(found)[:40]!r}")
    return found


def _listed(parent: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of the list *name* of *parent*."""
    return (_of(dict, each) for each in _of(list, parent.get(name, [])))


@attrs.define
class _Values:
    """Converts the values of one log record, or of what surrounds it, from protobuf or from OTLP's JSON."""

    _left: int = VALUES

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooMuch(f"more than {VALUES:,} values in a log record")

    def pairs(self, found: Iterable[Any]) -> dict[str, Any]:
        """Return the attributes of a protobuf message."""
        return {pair.key: self.value(pair.value) for pair in found}

    def value(self, message: Any) -> Any:
        """Return a protobuf AnyValue as a value of JSON; bytes become base64."""
        self._count()
        for field, found in message.ListFields():
            if field.name == "kvlist_value":
                return self.pairs(found.values)
            if field.name == "array_value":
                return [self.value(each) for each in found.values]
            if field.name == "bytes_value":
                return b64encode(found).decode()
            if field.name == "double_value" and not isfinite(found):
                return (
                    "NaN" if isnan(found) else "Infinity" if found > 0 else "-Infinity"
                )  # as protobuf's JSON has them
            return found
        return None

    def json_pairs(self, parent: Mapping[str, Any], name: str = "attributes") -> dict[str, Any]:
        """Return the attributes of an object of OTLP's JSON."""
        found = _listed(parent, name)
        return {_of(str, pair.get("key", "")): self.json_value(pair.get("value", {})) for pair in found}

    def json_value(self, holder: Any) -> Any:
        """Return an AnyValue of OTLP's JSON as a value of JSON."""
        self._count()
        for kind, found in _of(dict, holder).items():
            if kind == "kvlistValue":
                return self.json_pairs(_of(dict, found), "values")
            if kind == "arrayValue":
                return [self.json_value(each) for each in _listed(_of(dict, found), "values")]
            if kind == "intValue":
                return _number(found)
            if kind in ("stringValue", "bytesValue", "boolValue"):
                return _of(bool if kind == "boolValue" else str, found)
            if kind == "doubleValue":
                return found if isinstance(found, str) else _double(found)
        return None


@attrs.define
class LogRecords:
    """Converts the log records of one request.

    :ivar rejected: how many log records were rejected so far
    :ivar why: why the first of them was rejected
    """

    rejected: int = 0
    why: str = ""
    _room: int = MOST

    def messages(self, body: bytes, kind: str) -> Iterator[bytes]:
        """Yield the message of each log record, and an empty one for each other part, which takes time as well.

        :param kind: the content type of *body*
        :raises ValueError: *body* is malformed, or its messages exceed :data:`MOST`; the text is for the peer
        """
        return self._of_json(body) if kind == JSON else self._of_protobuf(body)

    def answer(self, kind: str) -> bytes:
        """Return the body of the answer to a request of the content type *kind*: an ExportLogsServiceResponse."""
        if kind == JSON:
            rejection = {"rejectedLogRecords": str(self.rejected), "errorMessage": self.why}
            return json.dumps({"partialSuccess": rejection} if self.rejected else {}).encode()
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

        answer = ExportLogsServiceResponse()
        if self.rejected:
            answer.partial_success.rejected_log_records = self.rejected
            answer.partial_success.error_message = self.why
        return bytes(answer.SerializeToString())

    # Internals.

    def _of_protobuf(self, body: bytes) -> Iterator[bytes]:
        for logs, first, last in _fields(body, 0, len(body)):
            yield b""
            if logs != 1:
                continue
            resource = yield from _first_field(body, first, last)
            for scoped, begin, end in _fields(body, first, last):
                yield b""
                if scoped != 2:
                    continue
                scope = yield from _first_field(body, begin, end)
                around = _around(partial(_surroundings, resource, scope))
                for number, at, to in _fields(body, begin, end):
                    yield self._message(partial(_record, body[at:to]), around) if number == 2 else b""

    def _of_json(self, body: bytes) -> Iterator[bytes]:
        for logs in _listed(_of(dict, loaded(body)), "resourceLogs"):
            yield b""
            for scoped in _listed(logs, "scopeLogs"):
                yield b""
                around = _around(partial(_json_surroundings, logs.get("resource", {}), scoped.get("scope", {})))
                for record in _listed(scoped, "logRecords"):
                    yield self._message(partial(_json_record, record), around)

    def _message(self, convert: Callable[[], dict[str, Any]], around: dict[str, Any] | str) -> bytes:
        """Return the message of a log record, empty if it is rejected.

        :param around: what surrounds it, or why that is rejected
        """
        try:
            if isinstance(around, str):
                raise TooMuch(around)
            message = dumped(_filled(convert()) | around)
        except (TooMuch, RecursionError) as error:
            self.rejected += 1
            self.why = self.why or str(error)
            return b""
        self._room -= len(message)
        if self._room < 0:
            raise ValueError(f"the messages of one request exceed {MOST} bytes: each repeats its resource and scope")
        return message


def _first_field(body: bytes, first: int, last: int) -> Generator[bytes, None, bytes]:
    """Find field 1 of the message at these offsets, which may be before or behind others."""
    found = b""
    for number, at, to in _fields(body, first, last):
        yield b""
        if number == 1:
            found = body[at:to]
    return found


def _parsed(kind: Callable[[], Any], data: bytes) -> Any:
    """Parse a protobuf message of a generated class.

    :raises TooMuch: it is larger than :data:`LARGEST`
    :raises ValueError: it is malformed
    """
    from google.protobuf.message import DecodeError

    if len(data) > LARGEST:
        raise TooMuch(f"a log record of {len(data)} bytes; the limit is {LARGEST}")
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise ValueError(_MALFORMED) from None
    return message


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Return those of *fields* that were sent; the body also if it is empty."""
    return {name: value for name, value in fields.items() if name == "body" or value not in (None, "", 0, {})}


def _record(data: bytes) -> dict[str, Any]:
    """Return the fields of a protobuf LogRecord."""
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

    record, values = _parsed(LogRecord, data), _Values()
    return {
        "time": _moment(record.time_unix_nano or record.observed_time_unix_nano),
        "observed_time": _moment(record.observed_time_unix_nano),
        "severity": record.severity_text,
        "severity_number": record.severity_number,
        "event_name": record.event_name,
        "body": values.value(record.body),
        "attributes": values.pairs(record.attributes),
        "trace_id": record.trace_id.hex(),
        "span_id": record.span_id.hex(),
        "flags": record.flags,
    }


def _json_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a log record of OTLP's JSON."""
    values = _Values()
    time, observed = (_number(record.get(name, 0)) for name in ("timeUnixNano", "observedTimeUnixNano"))
    return {
        "time": _moment(time or observed),
        "observed_time": _moment(observed),
        "severity": _of(str, record.get("severityText", "")),
        "severity_number": _number(record.get("severityNumber", 0)),
        "event_name": _of(str, record.get("eventName", "")),
        "body": values.json_value(record.get("body", {})),
        "attributes": values.json_pairs(record),
        "trace_id": _of(str, record.get("traceId", "")).lower(),
        "span_id": _of(str, record.get("spanId", "")).lower(),
        "flags": _number(record.get("flags", 0)),
    }


def _surroundings(resource: bytes, scope: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the attributes of a protobuf Resource, and an InstrumentationScope."""
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    found, values = _parsed(InstrumentationScope, scope), _Values()
    named = {"name": found.name, "version": found.version, "attributes": values.pairs(found.attributes)}
    return values.pairs(_parsed(Resource, resource).attributes), named


def _json_surroundings(resource: Any, scope: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the attributes of a resource, and a scope, of OTLP's JSON."""
    values, found = _Values(), _of(dict, scope)
    name, version = (_of(str, found.get(name, "")) for name in ("name", "version"))
    named = {"name": name, "version": version, "attributes": values.json_pairs(found)}
    return values.json_pairs(_of(dict, resource)), named


def _around(convert: Callable[[], tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any] | str:
    """Return what all messages of a scope have in common, or why its log records are rejected."""
    try:
        resource, scope = convert()
    except (TooMuch, RecursionError) as error:
        return str(error)
    around = _filled({"resource": resource, "scope": _filled(scope)})
    if len(dumped(around)) > AROUND:
        return f"a resource and a scope of more than {AROUND} bytes"
    return around
