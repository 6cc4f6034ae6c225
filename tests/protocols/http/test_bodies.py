"""Bodies as one message or one message per line, in any chunking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.protocols.http.bodies import SMALL, Body, LineBody, TooLarge, Whole
from fyrehose.testing import every_chunking


def collect(body: Body, chunks: list[bytes]) -> list[bytes]:
    return [message for chunk in chunks for message in body.add(chunk)] + body.end()


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        (b"", []),
        (b"\n", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\r\nb\n\n\r\nc", [b"a", b"b", b"c"]),
        (b"a\rb\r\r\n\xff\x00\n", [b"a\rb\r", b"\xff\x00"]),
    ],
)
def test_lines_are_messages(data: bytes, messages: list[bytes]) -> None:
    for chunks in every_chunking(data):
        assert collect(LineBody(100), list(chunks)) == messages


@given(st.lists(st.binary(max_size=6), max_size=8))
def test_whole_body_is_one_message(chunks: list[bytes]) -> None:
    assert collect(Whole(100, None), chunks) == [b"".join(chunks)]


@pytest.mark.parametrize("line", [b"12345", b"12345\n", b"x\n12345\nx", b"12345\r\n", b"x\n12345"])
def test_line_above_the_limit_is_refused_in_every_chunking(line: bytes) -> None:
    for chunks in every_chunking(line):
        with pytest.raises(TooLarge):
            collect(LineBody(4), list(chunks))


def test_lines_before_one_above_the_limit_are_kept_in_every_chunking() -> None:
    for chunks in every_chunking(b"x\ny\n12345\nz"):
        body = LineBody(4)
        messages: list[bytes] = []
        with pytest.raises(TooLarge) as caught:
            messages.extend(message for chunk in chunks for message in body.add(chunk))
        assert messages + caught.value.before == [b"x", b"y"]


def test_longest_line_may_end_with_a_carriage_return() -> None:
    for chunks in every_chunking(b"1234\r\n1234"):
        assert collect(LineBody(4), list(chunks)) == [b"1234", b"1234"]


def test_whole_body_above_the_limit_is_refused() -> None:
    body = Whole(4, None)
    assert body.add(b"1234") == []
    with pytest.raises(TooLarge):
        body.add(b"5")


def test_expected_size_of_an_incomplete_message() -> None:
    assert Whole(1 << 20, 500).expected == 500
    assert Whole(1 << 20, 0).expected == 1
    chunked = Whole(1 << 20, None)
    assert chunked.expected == SMALL
    chunked.add(b"x" * (SMALL + 1))
    assert chunked.expected == 1 << 20
    lines = LineBody(1 << 20)
    assert lines.expected == 0
    lines.add(b"a\nb")
    assert lines.expected == SMALL
    lines.add(b"x" * SMALL)
    assert lines.expected == 1 << 20
    lines.add(b"\n")
    assert lines.expected == 0
