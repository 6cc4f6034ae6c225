"""OTLP logs over HTTP: the messages of log records, as protobuf and as JSON, limits, and malformed bodies."""

from __future__ import annotations

import gzip
import json
import sys
from base64 import b64decode
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from fyrehose.imports import OTLP
from fyrehose.protocols.http.otlp import AROUND, JSON, LARGEST, MOST, PROTOBUF, VALUES, LogRecords
from fyrehose.protocols.http.session import STEPS, BodyRefused, HttpSession, PublishEnd, PublishPart, RequestLimits
from fyrehose.sessions import events_of
from fyrehose.testing import every_chunking
from fyrehose.web.session import RequestRefused

NOON = 1_795_867_200 * 10**9  # 2026-11-28T12:00:00Z
KINDS = (PROTOBUF, JSON)


def make(limit: int = 1 << 20) -> HttpSession:
    return HttpSession(None, limits=RequestLimits(message=limit, body=limit, logs="apps"))


def export(count: int = 1) -> ExportLogsServiceRequest:
    """Return a request of *count* log records of one resource and one scope."""
    export = ExportLogsServiceRequest()
    logs = export.resource_logs.add()
    logs.resource.attributes.add(key="service.name").value.string_value = "shop"
    scoped = logs.scope_logs.add()
    scoped.scope.name = "cart"
    for number in range(count):
        record = scoped.log_records.add(time_unix_nano=NOON + number, severity_text="WARN", severity_number=13)
        record.body.string_value = f"line {number}"
    return export


def encoded(export: ExportLogsServiceRequest, kind: str) -> bytes:
    """Return *export* as an exporter sends it; OTLP's JSON has ids as hexadecimal digits of either case."""
    if kind == PROTOBUF:
        return export.SerializeToString()
    found = MessageToDict(export, use_integers_for_enums=True)
    for logs in found.get("resourceLogs", ()):
        for scoped in logs.get("scopeLogs", ()):
            for record in scoped.get("logRecords", ()):
                for name in {"traceId", "spanId"} & record.keys():
                    record[name] = b64decode(record[name]).hex().upper()
    return json.dumps(found).encode()


def request(body: bytes, *headers: str, kind: str = PROTOBUF) -> bytes:
    lines = ["POST /v1/logs HTTP/1.1", "Host: x", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def published(events: list[Any]) -> list[dict[str, Any]]:
    parts = [event for event in events if isinstance(event, PublishPart)]
    assert all((part.stream, part.content_type) == ("apps", "application/json") for part in parts)
    return [json.loads(payload) for part in parts for payload in part.payloads]


def converted(body: bytes, kind: str) -> tuple[list[dict[str, Any]], LogRecords]:
    records = LogRecords()
    return [json.loads(message) for message in records.messages(body, kind) if message], records


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("coding", [None, "gzip"])
def test_each_log_record_is_a_message_in_every_chunking(kind: str, coding: str | None) -> None:
    body = encoded(export(2), kind)
    head = () if coding is None else ("Content-Encoding: gzip",)
    data = request(body if coding is None else gzip.compress(body), *head, kind=kind)
    for chunks in every_chunking(data, sizes=(1, 7, 64)):
        session = make()
        events = [event for chunk in chunks for event in events_of(session, chunk)]
        assert published(events) == [
            {
                "time": f"2026-11-28T12:00:00.00000000{number}Z",
                "severity": "WARN",
                "severity_number": 13,
                "body": f"line {number}",
                "resource": {"service.name": "shop"},
                "scope": {"name": "cart"},
            }
            for number in range(2)
        ]
        assert events[-1] == PublishEnd(content=b"{}" if kind == JSON else b"", content_type=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_log_record_is_in_its_message(kind: str) -> None:
    sent = export(2)
    scope = sent.resource_logs[0].scope_logs[0].scope
    scope.version = "1.2"
    scope.attributes.add(key="part").value.int_value = -(1 << 63)
    record, timeless = sent.resource_logs[0].scope_logs[0].log_records
    timeless.time_unix_nano, timeless.observed_time_unix_nano = 0, NOON
    record.observed_time_unix_nano, record.event_name, record.flags = NOON + 10**9, "sold", 1
    record.trace_id, record.span_id = bytes(range(16)), b"\xfe" * 8
    values = record.body.kvlist_value.values
    values.add(key="none").value.SetInParent()
    values.add(key="bytes").value.bytes_value = b"\xff\0"
    values.add(key="no").value.bool_value = False
    values.add(key="inf").value.double_value = float("inf")
    items = values.add(key="items").value.array_value.values
    items.add().int_value, items.add().double_value, items.add().string_value = 7, 0.5, "\u00e4"
    record.attributes.add(key="empty").value.string_value = ""
    ((message, second), records) = converted(encoded(sent, kind), kind)
    assert second["time"] == second["observed_time"] == "2026-11-28T12:00:00.000000000Z", "it has no time of its own"
    assert message == {
        "time": "2026-11-28T12:00:00.000000000Z",
        "observed_time": "2026-11-28T12:00:01.000000000Z",
        "severity": "WARN",
        "severity_number": 13,
        "event_name": "sold",
        "body": {
            "none": None,
            "bytes": "/wA=",
            "no": False,
            "inf": "Infinity",
            "items": [7, 0.5, "\u00e4"],
        },
        "attributes": {"empty": ""},
        "trace_id": "000102030405060708090a0b0c0d0e0f",
        "span_id": "fefefefefefefefe",
        "flags": 1,
        "resource": {"service.name": "shop"},
        "scope": {"name": "cart", "version": "1.2", "attributes": {"part": -(1 << 63)}},
    }
    assert not records.rejected


def test_resource_behind_its_log_records_is_in_their_messages() -> None:
    whole = export()
    logs = whole.resource_logs[0]
    resource, scoped = (part.SerializeToString() for part in (logs.resource, logs.scope_logs[0]))
    body = b"\x12" + bytes([len(scoped)]) + scoped + b"\x0a" + bytes([len(resource)]) + resource
    found, _ = converted(b"\x0a" + bytes([len(body)]) + body, PROTOBUF)
    assert found == converted(whole.SerializeToString(), PROTOBUF)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_log_record_above_a_limit_is_rejected_and_the_others_are_published(kind: str) -> None:
    sent = export(3)
    values = sent.resource_logs[0].scope_logs[0].log_records[1].body.array_value.values
    for _ in range(VALUES + 1):
        values.add()
    other = export(2)
    other.resource_logs[0].resource.attributes.add(key="big").value.string_value = "x" * AROUND
    sent.MergeFrom(other)  # these are rejected for another reason
    events = list(events_of(make(), request(encoded(sent, kind), kind=kind)))
    assert [each["body"] for each in published(events)] == ["line 0", "line 2"]
    content, why = events[-1].content, f"more than {VALUES:,} values in a log record"
    if kind == JSON:
        assert json.loads(content) == {"partialSuccess": {"rejectedLogRecords": "3", "errorMessage": why}}
    else:
        partial_success = ExportLogsServiceResponse.FromString(content).partial_success
        assert (partial_success.rejected_log_records, partial_success.error_message) == (3, why)


def test_large_log_record_is_rejected_before_it_is_parsed() -> None:
    sent = export(2)
    sent.resource_logs[0].scope_logs[0].log_records[0].body.string_value = "x" * LARGEST
    found, records = converted(sent.SerializeToString(), PROTOBUF)
    assert ([each["body"] for each in found], records.rejected) == (["line 1"], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_any_depth_are_answered(kind: str) -> None:
    if kind == JSON:
        nested = b'{"arrayValue":{"values":[' * 300 + b'{"boolValue":true}' + b"]}}" * 300
        body = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":' + nested + b"}]}]}]}"
    else:
        value = AnyValue(bool_value=True)
        for _ in range(40):
            value = AnyValue.FromString(AnyValue(array_value={"values": [value]}).SerializeToString())
        sent = export()
        sent.resource_logs[0].scope_logs[0].log_records[0].body.CopyFrom(value)
        body = sent.SerializeToString()
    *_, end = events_of(make(), request(body, kind=kind))
    assert isinstance(end, PublishEnd | RequestRefused | BodyRefused)


def test_messages_of_a_request_have_a_limit_together() -> None:
    sent = export(MOST // AROUND + 10)
    sent.resource_logs[0].resource.attributes.add(key="big").value.string_value = "x" * (AROUND - 200)
    with pytest.raises(ValueError, match="each repeats its resource and scope"):
        for _ in LogRecords().messages(sent.SerializeToString(), PROTOBUF):
            pass


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\x0a\x05ab", PROTOBUF),
        (b"\x0b", PROTOBUF),
        (b"\x80" * 11, PROTOBUF),
        (b"\x0a\x06\x0a\x02\x0a\x05\x12\x00", PROTOBUF),
        (b"\x0a\x08\x12\x06\x12\x04\x2a\x02\x0a\x05", PROTOBUF),
        (b"[]", JSON),
        (b"{", JSON),
        (b'{"resourceLogs": {}}', JSON),
        (b'{"resourceLogs": [7]}', JSON),
        (b'{"resourceLogs": [{"resource": []}, {"scopeLogs": [{"scope": 1}]}]}', JSON),
        *(
            (b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [%b]}]}]}' % record, JSON)
            for record in (
                b'{"timeUnixNano": true}',
                b'{"timeUnixNano": "x"}',
                b'{"timeUnixNano": 1e400}',
                b'{"timeUnixNano": 36893488147419103232}',
                b'{"severityText": []}',
                b'{"body": "text"}',
                b'{"body": {"stringValue": 5}}',
                b'{"body": {"doubleValue": []}}',
                b'{"body": {"doubleValue": 1e999}}',
                b'{"body": {"doubleValue": 1%b}}' % (b"0" * 400),
                b'{"body": {"stringValue": "\\ud800"}}',
                b'{"attributes": [{"key": 1}]}',
            )
        ),
    ],
)
def test_malformed_body_is_refused(body: bytes, kind: str) -> None:
    *_, refusal = events_of(make(), request(body, kind=kind))
    assert isinstance(refusal, RequestRefused)
    assert (refusal.status, refusal.cause) == (400, "bad-body")


@given(st.binary(max_size=200), st.sampled_from(KINDS))
def test_no_body_raises(body: bytes, kind: str) -> None:
    *_, end = events_of(make(), request(body, kind=kind))
    assert isinstance(end, PublishEnd | RequestRefused | BodyRefused)


@given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_no_damage_of_a_body_raises(at: int, damage: bytes) -> None:
    body = bytearray(export(4).SerializeToString())
    at %= len(body)
    body[at : at + len(damage)] = damage
    *_, end = events_of(make(), request(bytes(body)))
    assert isinstance(end, PublishEnd | RequestRefused | BodyRefused)


def test_few_log_records_are_converted_in_one_turn() -> None:
    session = make()
    events = session.receive_data(request(export(10 * STEPS).SerializeToString()))
    turns = [len(published(events))]
    while session.more:
        turns.append(len(published(session.next_events())))
    assert sum(turns) == 10 * STEPS
    assert max(turns) <= STEPS


def test_request_behind_a_body_waits_for_its_answer() -> None:
    session = make()
    events = list(
        events_of(session, request(export(3 * STEPS).SerializeToString()) + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    )
    assert isinstance(events[-1], PublishEnd)
    assert b"".join(session.data_to_send()) == b""
    session.respond(200, events[-1].content, events[-1].content_type)
    list(events_of(session, b""))
    assert b"".join(session.data_to_send()).count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(
    ("line", "kind", "status", "cause"),
    [
        ("POST /v1/logs", "text/plain", 415, "bad-content-type"),
        ("POST /v1/logs?x=1", PROTOBUF, 400, "bad-query"),
        ("GET /v1/logs", PROTOBUF, 405, "bad-method"),
        ("POST /v1/traces", PROTOBUF, 404, "no-such-path"),
    ],
)
def test_other_requests_are_refused(line: str, kind: str, status: int, cause: str) -> None:
    data = request(b"", kind=kind).replace(b"POST /v1/logs", line.encode(), 1)
    *_, refusal = events_of(make(), data)
    assert isinstance(refusal, RequestRefused)
    assert (refusal.status, refusal.cause) == (status, cause)


def test_server_without_the_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, OTLP.module, None)
    (refusal,) = make().receive_data(request(b"\0"))
    assert isinstance(refusal, RequestRefused)
    assert (refusal.status, "pip install 'fyrehose[otlp]'" in refusal.detail) == (501, True)


@pytest.mark.parametrize("kind", KINDS)
def test_body_above_the_limit_is_refused(kind: str) -> None:
    *_, refusal = events_of(make(1_000), request(encoded(export(100), kind), kind=kind))
    assert isinstance(refusal, RequestRefused)
    assert refusal.status == 413
