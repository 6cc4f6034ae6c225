"""Which messages count as JSON."""

from __future__ import annotations

import pytest

from fyrehose.kernels.pure.lumberjack import MOST_DEPTH
from fyrehose.protocols.http import documents
from fyrehose.protocols.http.documents import by_content_type


def split(content_type: str | None, messages: list[bytes]) -> list[tuple[str | None, list[bytes]]]:
    return [
        (kind, [bytes(each) for each in column.payloads()]) for kind, column in by_content_type(content_type, messages)
    ]


def is_json(message: bytes) -> bool:
    return split("application/json", [message]) == [("application/json", [message])]


@pytest.mark.parametrize(
    "message",
    [b"{}", b' {"a": [1, -2.5e9, null, "\xc3\xa4", "\\ud800"]} \n', b'"text"', b"7", b"1" * 5_000, b"true"],
)
def test_json_is_recognised(message: bytes) -> None:
    assert is_json(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"no json",
        b'{"a": 1',
        b'{"a": 1} x',
        b"NaN",
        b"[Infinity]",
        b'"\xff"',
        b"{'a': 1}",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
    ],
)
def test_messages_that_are_not_valid_json_are_not_called_json(message: bytes) -> None:
    assert not is_json(message)


def test_large_messages_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_PARSED", 10)
    assert is_json(b'"12345678"')
    assert not is_json(b'"123456789"')
    kind = "application/json"
    assert split(kind, [b"1", b'"123456789"', b"[]", b"x"]) == [
        (kind, [b"1"]),
        (None, [b'"123456789"']),
        (kind, [b"[]"]),
        (None, [b"x"]),
    ]


def test_messages_nested_deeper_than_readers_parse_are_not_json() -> None:
    assert is_json(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH)
    assert not is_json(b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1))


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
def test_only_messages_that_parse_keep_the_content_type_json(kind: str) -> None:
    found = split(kind, [b"1", b"2", b"x", b"3"])
    assert found == [(kind, [b"1", b"2"]), (None, [b"x"]), (kind, [b"3"])]


def test_other_content_types_are_kept_as_they_are() -> None:
    assert split("text/plain", [b"{}", b"x"]) == [("text/plain", [b"{}", b"x"])]
    assert split(None, [b"{}"]) == [(None, [b"{}"])]
