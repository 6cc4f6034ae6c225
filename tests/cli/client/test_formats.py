"""What standard output is given: exactly the bytes of a payload, or JSON that anybody can read."""

from __future__ import annotations

import json

from fyrehose.cli.client.formats import FORMATS, as_json, chosen, raw, text
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


def test_text_of_several_streams_names_the_stream() -> None:
    run = Run.of("logs.\x1b", [b"one", b"two"], source="http").numbered(7, 0)
    assert chosen("text", False, many=True)(run) == b"logs.\x1b: one\nlogs.\x1b: two\n"
    assert chosen("text", True, many=True)(run) == b"logs.\\x1b: one\nlogs.\\x1b: two\n"
    assert chosen("text", False)(run) == b"one\ntwo\n"
    assert chosen("raw", False, many=True)(run) == b"onetwo"
    assert json.loads(chosen("json", False, many=True)(run).splitlines()[0])["stream"] == "logs.\x1b"


def test_every_format_has_a_name() -> None:
    assert set(FORMATS) == {"text", "raw", "json"}


def test_characters_that_a_terminal_would_interpret_are_escaped() -> None:
    hostile = [
        b"\x1b]0;owned\x07",
        "\x9b31m\x7f".encode(),
        b"a\tb\r\nc",
        b"\xff\xc3",
        "\u202egnp.exe".encode(),
        b"w\xc3\xb6",
    ]
    run = Run.of("s", hostile, source="x").numbered(1, 0)
    expected = "\\x1b]0;owned\\x07\n\\x9b31m\\x7f\na\\x09b\\x0d\nc\n\\xff\\xc3\n\\u202egnp.exe\nwö\n"
    assert chosen("text", terminal=True)(run).decode() == expected
    shown = chosen("json", terminal=True)(run.slice(1, 2)).decode()
    assert "\\u009b31m\\u007f" in shown
    assert json.loads(shown)["payload"] == "\x9b31m\x7f", "it is the same JSON"
    for form in FORMATS:
        every = Run.of("s", [bytes([code]) for code in range(256)], source="x").numbered(1, 0)
        shown = chosen(form, terminal=True)(every).decode()
        assert shown.replace("\n", "").isprintable()


def test_plain_text_is_unchanged_on_a_terminal() -> None:
    run = Run.of("s", ["日本\u3000語 👩‍🚀 \\".encode(), b"plain"], source="x").numbered(1, 0)
    for form in FORMATS:
        assert chosen(form, terminal=True)(run) == FORMATS[form](run)


def test_json_messages_are_values_for_tail_and_texts_for_files() -> None:
    run = Run.of("s", [b'{"a":1}'], source="t", content_type="application/json").numbered(1, 5)
    assert b', "payload": {"a":1}}\n' in chosen("json", terminal=False)(run)
    assert b', "payload": "{\\"a\\":1}"}\n' in as_json(run)
