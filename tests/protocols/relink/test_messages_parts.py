"""Conversion of messages of several parts to records and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fyrehose.protocols.relink.messages import join, message_parts, split


def test_payload_matches_its_golden_bytes() -> None:
    assert join((b"ab", b"", b"c")).hex() == "03000000 02000000 00000000 01000000 616263".replace(" ", "")
    assert join(()) == bytes(4)


@given(st.lists(st.binary(max_size=30), max_size=8).filter(lambda parts: len(parts) != 1))
def test_join_and_split_round_trip(parts: list[bytes]) -> None:
    assert split(join(tuple(parts)), 1_024) == tuple(parts)


@given(st.lists(st.binary(max_size=5), max_size=6), st.binary(max_size=9), st.integers(0, 9))
def test_split_of_any_payload_loses_nothing(parts: list[bytes], more: bytes, missing: int) -> None:
    whole = join(tuple(parts)) + more
    payload = whole[: len(whole) - missing]
    found = split(payload, 4)
    assert found == (payload,) or join(found) == payload


def test_split_beyond_the_limit_returns_one_part() -> None:
    whole = join((b"",) * 5)
    assert split(whole, 4) == (whole,)


def test_message_parts_accepts_bytes_and_sequences() -> None:
    assert message_parts(b"x") == message_parts(bytearray(b"x")) == message_parts([b"x"]) == (b"x",)
    assert message_parts([]) == ()
