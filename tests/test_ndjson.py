"""Test records as JSON: every field with a value is included, and every payload survives."""

from __future__ import annotations

import json
from base64 import b64decode
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose import ndjson
from fyrehose.ndjson import (
    CHECKED,
    END,
    KEPT,
    STEP,
    TextCheck,
    TextChecks,
    as_object,
    head_of,
    lines,
    objects,
    piece_of,
    record_of,
)
from fyrehose.records import Run

RUN = Run.of("s", [b"one", b"", b"two\nlines", b"\xff\x00"], source="figg").numbered(7, 0)


def test_json_omits_fields_without_a_value() -> None:
    found = lines((RUN,)).splitlines()
    assert json.loads(found[0]) == {"stream": "s", "seq": 7, "source": "figg", "payload": "one"}
    assert json.loads(found[3]) == {"stream": "s", "seq": 10, "source": "figg", "payload_base64": "/wA="}
    run = Run.of(
        "ä",
        [b"{}"],
        source="eventbus",
        producer="p",
        topic="/a/",
        content_type="application/json",
        producer_seq=0,
        event_ids=bytes(range(16)),
        event_times=pack("<q", -5),
    )
    assert json.loads(lines((run.numbered(1, 1_700_000_000_000_000),))) == {
        "stream": "ä",
        "seq": 1,
        "time": 1_700_000_000_000_000,
        "source": "eventbus",
        "producer": "p",
        "topic": "/a/",
        "content_type": "application/json",
        "producer_seq": 0,
        "event_id": "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "event_time": -5,
        "payload": "{}",
    }


@given(st.lists(st.binary(max_size=30), min_size=1))
def test_every_payload_survives_json(payloads: list[bytes]) -> None:
    found = lines((Run.of("s", payloads, source="x").numbered(1, 0),)).split(b"\n")
    assert found.pop() == b""
    shown = [json.loads(line) for line in found]
    back = [b64decode(o["payload_base64"]) if "payload_base64" in o else o["payload"].encode() for o in shown]
    assert back == payloads
    assert [o["seq"] for o in shown] == list(range(1, len(payloads) + 1))


@given(
    st.lists(st.binary(max_size=10) | st.text(max_size=10).map(str.encode), min_size=1),
    st.fixed_dictionaries({name: st.none() | st.text(max_size=5) for name in ("producer", "topic", "content_type")}),
    st.text(min_size=1, max_size=5),
    st.integers(0, 1 << 48),
    st.integers(0, 1 << 50),
)
def test_runs_and_single_records_have_the_same_json(
    payloads: list[bytes], labels: dict[str, str | None], stream: str, first: int, time: int
) -> None:
    run = Run.of(stream, payloads, source="x", **labels).numbered(first, time)
    assert lines((run,)).split(b"\n")[:-1] == [as_object(record) for record in run.records()]


def test_unknown_fields_are_omitted() -> None:
    run = Run.of("s", [b"x"], source="").numbered(3, 0)
    assert list(objects(run)) == [b'{"stream": "s", "seq": 3, "payload": "x"}']
    [record] = run.records()
    assert as_object(record) == b'{"stream": "s", "seq": 3, "payload": "x"}'


@pytest.mark.parametrize(
    "payload", ["ä€𝄞".encode() * 40_000, b"\1" * 300_000, b"\xff" * 200_000, b"x" * 300_000 + b"\xe2\x82", b""]
)
def test_the_joined_pieces_of_a_record_equal_its_json(payload: bytes) -> None:
    run = Run.of("s", [payload], source="http", topic="t").numbered(7, 1)
    view, check = memoryview(payload), TextCheck()
    assert check.proceed(view)
    text = bool(check.text)
    whole = head_of(run, text)
    begin = 0
    while begin < len(payload):
        piece, begin = piece_of(view, begin, text)
        assert len(piece) <= 6 * STEP
        whole += piece
    assert whole + END == next(objects(run))


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", True),
        (b"a" * CHECKED, True),
        ("€".encode() * CHECKED, True),
        ("€".encode()[:1], False),
        (b"\xff" + b"a" * 2 * CHECKED, False),
        (b"a" * CHECKED + b"\xff", False),
    ],
)
def test_a_payload_is_checked_in_calls_of_bounded_length(payload: bytes, text: bool) -> None:
    check = TextCheck()
    calls = 1
    while not check.proceed(memoryview(payload)):
        calls += 1
    assert calls <= max(1, -(-len(payload) // CHECKED))
    assert check.text is text


def test_readers_of_one_record_share_its_check_and_the_latest_checks_are_kept() -> None:
    checks = TextChecks()
    runs = [Run.of("s", [b"x"], source="test").numbered(seq, 1) for seq in range(1, KEPT + 2)]
    found = [checks.of(run) for run in runs[:-1]]
    assert checks.of(runs[0]) is found[0]
    assert checks.of(runs[-1]) not in found
    assert checks.of(runs[0]) is found[0]
    assert checks.of(runs[1]) is not found[1], "the least recently used check is still kept"


@pytest.mark.parametrize(
    ("payload", "content_type", "value"),
    [
        (b'{"a": [1.50, "\xc3\xbc"]}', "application/json", '{"a": [1.50, "\u00fc"]}'),
        (b" \n[1,\r\n2]\n", "Application/JSON; charset=utf-8", "  [1,  2] "),
        ('"\u2028\u0085"'.encode(), "application/json", '"\\u2028\\u0085"'),
        (b"12345678901234567890.0", "application/json", "12345678901234567890.0"),
        (b'{"a": 1}', None, '"{\\"a\\": 1}"'),
        (b'{"a": 1}', "text/plain", '"{\\"a\\": 1}"'),
        (b"{broken", "application/json", '"{broken"'),
        (b"[NaN]", "application/json", '"[NaN]"'),
        (b'"\\ud800"', "application/json", '"\\"\\\\ud800\\""'),
        (b"", "application/json", '""'),
    ],
)
def test_json_message_is_a_value_in_one_line_if_asked_for(payload: bytes, content_type: str | None, value: str) -> None:
    for more in ({}, {"producer_seq": 7}):
        run = Run.of("s", [payload], source="t", content_type=content_type, **more).numbered(1, 5)
        (line,) = ndjson.lines([run], values=True).decode().splitlines()
        assert line.endswith(f', "payload": {value}}}')
        assert json.loads(line)["payload"] == json.loads(value)
        assert json.loads(ndjson.lines([run]))["payload"] == payload.decode()


def test_bytes_and_very_large_messages_are_no_values() -> None:
    run = Run.of("s", [b"\xff", b"1" * (ndjson.MOST_PARSED + 1)], source="t", content_type="application/json").numbered(
        1, 5
    )
    first, second = map(json.loads, ndjson.lines([run], values=True).splitlines())
    assert first["payload_base64"] == "/w=="
    assert isinstance(second["payload"], str)


@pytest.mark.parametrize("run", [RUN, RUN.slice(3, 4)])
def test_record_is_read_from_its_object(run: Run) -> None:
    full = Run.of("s", [b"x"], source="eventbus", topic="t", event_ids=bytes(16), event_times=bytes(8)).numbered(1, 9)
    for each in (run, full):
        assert [record_of(json.loads(found)) for found in objects(each)] == list(each.records())
