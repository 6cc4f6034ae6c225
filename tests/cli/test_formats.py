"""What standard output is given: exactly the bytes of a payload, or JSON that anybody can read."""

from __future__ import annotations

import json
from base64 import b64decode
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from fyrehose.cli.formats import FORMATS, as_json, raw, text
from fyrehose.records import Run

PAYLOADS = [b"one", b"", b"two\nlines", b"\xff\x00"]
RUN = Run.of("s", PAYLOADS, source="figg").numbered(7, 0)


def test_text_and_raw_change_no_byte() -> None:
    assert text(RUN) == b"one\n\ntwo\nlines\n\xff\x00\n"
    assert raw(RUN) == b"onetwo\nlines\xff\x00"
    assert text(RUN.slice(1, 3)) == b"\ntwo\nlines\n"
    assert raw(RUN.slice(1, 3)) == b"two\nlines"


def test_json_says_what_is_known_and_nothing_else() -> None:
    lines = as_json(RUN).splitlines()
    assert json.loads(lines[0]) == {"stream": "s", "seq": 7, "source": "figg", "payload": "one"}
    assert json.loads(lines[3]) == {"stream": "s", "seq": 10, "source": "figg", "payload_base64": "/wA="}
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
    assert json.loads(as_json(run.numbered(1, 1_700_000_000_000_000))) == {
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
def test_every_payload_comes_back_from_json(payloads: list[bytes]) -> None:
    lines = as_json(Run.of("s", payloads, source="x").numbered(1, 0)).split(b"\n")
    assert lines.pop() == b""
    shown = [json.loads(line) for line in lines]
    back = [b64decode(o["payload_base64"]) if "payload_base64" in o else o["payload"].encode() for o in shown]
    assert back == payloads
    assert [o["seq"] for o in shown] == list(range(1, len(payloads) + 1))


def test_every_format_has_a_name() -> None:
    assert set(FORMATS) == {"text", "raw", "json"}
