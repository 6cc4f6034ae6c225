"""Rows of equal frames: made with running numbers, counted without an object for each."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from fyrehose.bench.wires.base import Job, Rows, Wire, Wrong, column, leading, payload, read_exactly


def test_a_payload_has_its_size() -> None:
    assert [len(payload(size)) for size in (0, 1, 128, 16_384)] == [0, 1, 128, 16_384]


def test_rows_have_rising_numbers() -> None:
    rows = Rows(b"ab" + bytes(8) + b"c", 2, 4)
    assert bytes(rows.take(2)) == b"ab" + (1).to_bytes(8, "big") + b"cab" + (2).to_bytes(8, "big") + b"c"
    assert bytes(rows.take(1)) == b"ab" + (3).to_bytes(8, "big") + b"c"


def test_rows_without_numbers_are_repetitions_of_the_frame() -> None:
    rows = Rows(b"abc", -1, 3)
    assert bytes(rows.take(2)) == b"abcabc"


def test_a_column_is_one_field_of_each_row() -> None:
    data = bytearray(b"x" + b"".join(b"ab" + number.to_bytes(8, "big") for number in (7, 8, 9)))
    assert column(data, 3, 10, 3).tolist() == [7, 8, 9]


def test_leading_counts_values_before_the_first_false_one() -> None:
    assert leading(np.array([True, True, False, True])) == 2
    assert leading(np.array([True, True])) == 2
    assert leading(np.array([], dtype=bool)) == 0


def test_reading_exactly_ends_with_the_connection() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"abc")
        assert read_exactly(ours, 2) == b"ab"
        theirs.close()
        with pytest.raises(Wrong, match="closed"):
            read_exactly(ours, 2)


def test_base_wire_requests_nothing() -> None:
    wire = Wire(Job(stream="s", size=1, messages=1))
    assert (wire.begin(), wire.done, wire.unit) == (b"", 0, 1)
    for call in (lambda: wire.block(1), lambda: wire.scan(bytearray(), 0)):
        with pytest.raises(NotImplementedError):
            call()
