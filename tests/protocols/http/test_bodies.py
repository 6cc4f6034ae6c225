"""Bodies as one message or one message per line, in any chunking."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.kernels.pure.lumberjack import MOST_DEPTH
from fyrehose.protocols.http import bodies
from fyrehose.protocols.http.bodies import SMALL, LineBody, TooLarge, Whole, by_content_type, split_lengths


def collect(body: Whole | LineBody, chunks: list[bytes]) -> list[bytes]:
    return [message for chunk in chunks for message in body.add(chunk)] + body.end()


@given(st.text("ab\r\n\xff", max_size=24), st.lists(st.integers(1, 24), max_size=5))
def test_lines_before_one_above_the_limit_are_messages_in_any_chunking(text: str, cuts: list[int]) -> None:
    data, expected, too_large = text.encode("latin-1"), list[bytes](), False
    for line in data.split(b"\n"):
        message = line.removesuffix(b"\r")
        too_large = too_large or len(message) > 4
        expected += [message] if message and not too_large else []
    body, messages, refused = LineBody(4), list[bytes](), False
    try:
        for begin, end in pairwise([0, *sorted(set(cuts)), len(data) + 24]):
            messages += body.add(data[begin:end])
        messages += body.end()
    except TooLarge as error:
        messages += error.before
        refused = True
    assert (messages, refused) == (expected, too_large), f"{data} cut at {cuts} gives other messages"


@given(st.lists(st.binary(max_size=6), max_size=8))
def test_whole_body_is_one_message(chunks: list[bytes]) -> None:
    assert collect(Whole(100, None), chunks) == [b"".join(chunks)]


@given(st.lists(st.integers(1, 8), min_size=20, max_size=40), st.booleans())
def test_endless_message_is_refused_as_soon_as_it_exceeds_the_limit(sizes: list[int], whole: bool) -> None:
    """The last byte of a line may be a carriage return, which does not count."""
    body, came = Whole(10, None) if whole else LineBody(10), 0
    for size in sizes:
        if came + size > 10 + (not whole):
            break
        came += size
        assert (list(body.add(b"x" * size)), body.buffered) == ([], came)
    with pytest.raises(TooLarge):
        body.add(b"x" * size)


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


# Which messages count as JSON.


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
def test_valid_json_keeps_its_content_type(message: bytes) -> None:
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


def test_large_messages_are_not_parsed() -> None:
    largest = b'"' + b"1" * (bodies.MOST_PARSED - 2) + b'"'
    larger = largest[:-1] + b'1"'
    assert is_json(largest)
    assert not is_json(larger)
    kind = "application/json"
    assert split(kind, [b"1", larger, b"[]", b"x"]) == [
        (kind, [b"1"]),
        (None, [larger]),
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


def test_a_complete_body_is_not_in_memory_beside_its_message() -> None:
    """Sixty uploads of 4 MB that waited for the disk took 240 MB twice, of which one was in no budget."""
    body = Whole(1 << 20, 100_000)
    body.add(b"x" * 100_000)
    assert (body.buffered, body.end()) == (100_000, [b"x" * 100_000])
    assert body.buffered == 0
