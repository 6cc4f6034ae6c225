"""What standard output is given: exactly the bytes of a payload, or JSON that anybody can read."""

from __future__ import annotations

from fyrehose.cli.formats import FORMATS, as_json, raw, text
from fyrehose.ndjson import lines
from fyrehose.records import Run

PAYLOADS = [b"one", b"", b"two\nlines", b"\xff\x00"]
RUN = Run.of("s", PAYLOADS, source="figg").numbered(7, 0)


def test_text_and_raw_change_no_byte() -> None:
    assert text(RUN) == b"one\n\ntwo\nlines\n\xff\x00\n"
    assert raw(RUN) == b"onetwo\nlines\xff\x00"
    assert text(RUN.slice(1, 3)) == b"\ntwo\nlines\n"
    assert raw(RUN.slice(1, 3)) == b"two\nlines"


def test_json_is_an_object_a_line() -> None:
    assert as_json(RUN) == lines((RUN,))


def test_every_format_has_a_name() -> None:
    assert set(FORMATS) == {"text", "raw", "json"}
