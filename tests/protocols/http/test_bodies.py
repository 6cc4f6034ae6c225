"""Bodies as one message or one message per line, in any chunking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.protocols.http.bodies import SMALL, Body, LineBody, TooLarge, Whole, split_lengths
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


def test_expected_is_the_size_that_an_incomplete_message_may_reach() -> None:
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


def with_lengths(messages: list[bytes]) -> bytes:
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


@given(st.lists(st.binary(max_size=6), max_size=8))
def test_messages_with_lengths_may_have_any_bytes(messages: list[bytes]) -> None:
    assert split_lengths(with_lengths(messages), 6) == messages


@pytest.mark.parametrize("whole", [[b"a"], [b"", b"\n\x00"]])
def test_body_that_ends_within_a_message_is_invalid(whole: list[bytes]) -> None:
    data = with_lengths(whole)
    complete = {0} | {len(with_lengths(whole[:count])) for count in range(len(whole) + 1)}
    for size in set(range(len(data))) - complete:
        with pytest.raises(ValueError, match="ends within the message at byte"):
            split_lengths(data[:size], 10)


def test_message_with_a_length_above_the_limit_is_refused() -> None:
    with pytest.raises(TooLarge) as caught:
        split_lengths(with_lengths([b"1234", b"12345"]), 4)
    assert caught.value.before == [b"1234"]
