"""Missing, declared and duplicate numbers in a table."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from fyrehose.spark.jobs.gaps import PRODUCER, NumberGap, _Block, between, explained, gaps, holes


def test_random_numbers_have_the_gaps_and_doubles_that_counting_finds() -> None:
    """Numbers are counted one by one here, and in blocks there; ranges that are declared lost may overlap."""
    dice, happened = Random(3), Counter[str]()
    for _ in range(500):
        blocks, expected, found = list[_Block](), list[tuple[str, str, int]](), list[NumberGap]()
        declared = [
            (dice.choice("ab"), (first := dice.randint(1, 250)), first + dice.choice((0, 1, 5, 40))) for _ in range(9)
        ]
        for key in ("a", "b"):
            numbers = sorted(dice.choices(range(low := dice.randint(1, 150), low + 100), k=dice.randint(1, 120)))
            for number in range(numbers[0], numbers[-1] + 1):
                lost = any(key == name and first <= number <= last for name, first, last in declared)
                if number not in numbers:
                    expected.append((key, "declared" if lost else "missing", number))
                elif numbers.count(number) > 1:
                    expected.append((key, "double", number))
            for bucket in sorted({number // 10 for number in numbers}):
                inside = [number for number in numbers if number // 10 == bucket]
                block = _Block((key,), bucket, len(inside), len(set(inside)), inside[0], inside[-1])
                assert block.full == (inside == [*range(inside[0], inside[-1] + 1)]), inside
                blocks.append(block)
                found += [] if block.full else holes((key,), inside)
        found = list(explained(sorted([*between(blocks), *found], key=lambda gap: (gap.key, gap.first)), declared))
        listed = [(str(gap.key[0]), gap.kind, gap.first + n) for gap in found for n in range(gap.count)]
        assert listed == expected, f"with {declared} declared lost"
        happened.update(kind for _, kind, _ in expected)
    assert happened.keys() == {"declared", "double", "missing"}


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
