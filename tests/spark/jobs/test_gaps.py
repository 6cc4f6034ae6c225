"""Missing, declared and duplicate numbers in a table."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from fyrehose.spark.jobs.gaps import PRODUCER, NumberGap, _Block, between, explained, gaps, holes


def test_missing_numbers_between_blocks_are_gaps() -> None:
    blocks = [
        _Block(("a",), 0, 3, 3, 1, 3),
        _Block(("a",), 1, 1, 1, 4, 4),
        _Block(("a",), 2, 1, 1, 9, 9),
        _Block(("b",), 2, 1, 1, 50, 50),
    ]
    assert list(between(blocks)) == [NumberGap(key=("a",), first=5, last=8, kind="missing")]
    assert [block.full for block in blocks] == [True] * 4
    assert not _Block(("a",), 0, 3, 2, 1, 2).full
    assert not _Block(("a",), 0, 2, 2, 1, 3).full


def test_missing_and_double_numbers_are_found() -> None:
    found = list(holes(("a",), [1, 2, 2, 2, 5, 6, 6]))
    assert [(gap.kind, gap.first, gap.last, gap.count) for gap in found] == [
        ("double", 2, 2, 1),
        ("missing", 3, 4, 2),
        ("double", 6, 6, 1),
    ]
    assert list(holes(("a",), [])) == []


def test_declared_gaps_are_distinguished_from_missing_numbers() -> None:
    gap = NumberGap(key=("a",), first=10, last=30, kind="missing")
    double = NumberGap(key=("a",), first=15, last=15, kind="double")
    declared = [("a", 25, 99), ("b", 1, 99), ("a", 12, 15), ("a", 1, 5)]
    assert [(one.kind, one.first, one.last) for one in explained([gap, double], declared)] == [
        ("missing", 10, 11),
        ("declared", 12, 15),
        ("missing", 16, 24),
        ("declared", 25, 30),
        ("double", 15, 15),
    ]


@pytest.mark.slow
def test_gaps_of_a_table_of_records_are_found(spark: Any) -> None:
    random = Random(2)
    seqs = {"a": list(range(1, 120_000)), "b": [5], "c": list(range(40_000, 40_010))}
    lost = sorted(random.sample(range(2, 119_000), 5))
    rows = [
        ("one", stream, seq, "src", "p1", seq * 2 if stream == "c" else None) for stream in seqs for seq in seqs[stream]
    ]
    rows = [row for row in rows if row[1] != "a" or row[2] not in lost] + [("one", "a", 119_500, "src", "p1", None)]
    schema = "server string, stream string, seq bigint, source string, producer string, producer_seq bigint"
    frame = spark.createDataFrame(rows, schema)
    found = gaps(frame, [("one", "a", lost[0], lost[0])])
    assert {(gap.key[1], gap.first, gap.kind) for gap in found} == {
        ("a", lost[0], "declared"),
        *(("a", seq, "missing") for seq in lost[1:]),
        ("a", 119_500, "double"),
    }
    of_producers = gaps(frame, keys=PRODUCER, number="producer_seq")
    assert [gap.first for gap in of_producers] == list(range(80_001, 80_018, 2))
    assert {gap.key for gap in of_producers} == {("one", "c", "src", "p1")}
