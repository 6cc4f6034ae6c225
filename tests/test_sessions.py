"""Test how outgoing data is cut into pieces of a given size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fyrehose.records import Run
from fyrehose.sessions import PIECE, fitting, piece_of


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=40), st.integers(0, 300), st.integers(0, 20_000))
def test_the_records_that_fit_are_no_larger_than_the_room(sizes: list[int], extra: int, room: int) -> None:
    run = Run.of("s", [bytes(size) for size in sizes], source="test")
    count = fitting(run, extra, room)
    assert sum(sizes[:count]) + count * extra <= room
    assert count or sizes[0] + extra > room, "no record fits, although the first one does"


def test_nearly_as_many_records_fit_as_possible() -> None:
    run = Run.of("s", [b"x" * 10] * 10_000, source="test")
    assert fitting(run, 40, 100_000) == 2_000


@given(st.lists(st.binary(max_size=300).map(lambda part: part * 1_000), max_size=5))
def test_the_joined_pieces_equal_the_whole(segments: list[bytes]) -> None:
    pieces, position = [], 0
    while position is not None:
        piece, position = piece_of(segments, position)
        pieces.append(piece)
        assert position is None or piece, "the last piece is followed by empty ones, without an end"
    assert b"".join(pieces) == b"".join(segments)
    assert max(map(len, pieces)) <= PIECE
