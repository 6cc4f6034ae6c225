"""Messages as records and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fyrehose.protocols.relink.parts import CONTENT_TYPE, join, parts_of, runs_of, split


def test_golden_payload() -> None:
    assert join((b"ab", b"", b"c")).hex() == "03000000 02000000 00000000 01000000 616263".replace(" ", "")
    assert join(()) == bytes(4)


@given(st.lists(st.binary(max_size=30), max_size=8).filter(lambda parts: len(parts) != 1))
def test_there_and_back(parts: list[bytes]) -> None:
    assert split(CONTENT_TYPE, join(tuple(parts)), 1_024) == tuple(parts)


@given(st.binary(max_size=40))
def test_whatever_it_is_it_is_some_parts(payload: bytes) -> None:
    found = split(CONTENT_TYPE, payload, 4)
    assert found == (payload,) or join(found) == payload
    assert split(None, payload, 4) == (payload,)


def test_more_parts_than_the_peer_takes_are_one() -> None:
    whole = join((b"",) * 5)
    assert split(CONTENT_TYPE, whole, 4) == (whole,)


def test_runs_keep_order_and_numbers() -> None:
    runs = runs_of([(b"a",), (b"b",), (), (b"c", b"d"), (b"e",)], 10, "s", source="relink")
    assert [(len(run), run.producer_seq, run.content_type) for run in runs] == [
        (2, 10, None),
        (2, 12, CONTENT_TYPE),
        (1, 14, None),
    ]


def test_parts_of() -> None:
    assert parts_of(b"x") == parts_of(bytearray(b"x")) == parts_of([b"x"]) == (b"x",)
    assert parts_of([]) == ()
