"""``gaps``: find missing and duplicate numbers in a table.

    per stream      every number from the first to the last must occur exactly once
    per producer    the same for producer_seq, for protocols whose producers number their messages

Numbers are counted in blocks of 32,768 with a bitmap each, so that a hundred million records become three thousand
rows; only incomplete blocks are inspected number by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Columns that identify a producer that numbers its messages.
PRODUCER = ("server", "stream", "source", "producer")
#: Columns that identify a stream: several servers may have streams of the same name, and number them independently.
STREAM = ("server", "stream")


@attrs.frozen(slots=True, kw_only=True)
class NumberGap:
    """A range of numbers that are missing or duplicate.

    :ivar key: the values of the columns that identify the stream or the producer
    :ivar kind: ``missing``, ``declared`` (lost, by the journal's own statement), or ``double``
    """

    key: tuple[Any, ...]
    first: int
    last: int
    kind: str

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@attrs.frozen(slots=True)
class _Block:
    """The counts of one key's numbers in one block; a key stands for a stream or a producer."""

    key: tuple[Any, ...]
    bucket: int
    rows: int
    distinct: int
    first: int
    last: int

    @property
    def full(self) -> bool:
        return self.rows == self.distinct == self.last - self.first + 1


def gaps(
    records: DataFrame,
    declared: Iterable[tuple[Any, ...]] = (),
    *,
    keys: Sequence[str] = STREAM,
    number: str = "seq",
) -> list[NumberGap]:
    """Return the missing and duplicate numbers between the first and the last number of each key.

    :param declared: ranges that the journal declares lost, as (key, first, last); gaps in them get the kind
        ``declared``
    """
    blocks = _blocks(records, keys, number)
    inside = _inside(records, keys, number, [block for block in blocks if not block.full])
    found = sorted([*between(blocks), *inside], key=lambda gap: (tuple(map(str, gap.key)), gap.first))
    return list(explained(found, list(declared)))


def between(blocks: Sequence[_Block]) -> Iterator[NumberGap]:
    """Yield the ranges of numbers that are missing between *blocks*, which must be sorted."""
    for i in range(1, len(blocks)):
        before, block = blocks[i - 1], blocks[i]
        if before.key == block.key and block.first > before.last + 1:
            yield NumberGap(key=block.key, first=before.last + 1, last=block.first - 1, kind="missing")


def holes(key: tuple[Any, ...], numbers: Sequence[int]) -> Iterator[NumberGap]:
    """Yield the ranges that are missing or duplicate in ``numbers``, which must be sorted."""
    for i in range(1, len(numbers)):
        before, number = numbers[i - 1], numbers[i]
        if number == before and (i == 1 or numbers[i - 2] != number):
            yield NumberGap(key=key, first=number, last=number, kind="double")
        elif number > before + 1:
            yield NumberGap(key=key, first=before + 1, last=number - 1, kind="missing")


def explained(found: Iterable[NumberGap], declared: Sequence[tuple[Any, ...]]) -> Iterator[NumberGap]:
    """Yield the gaps in *found*, split where needed, so that ranges declared lost get the kind ``declared``."""
    for gap in found:
        at = gap.first
        if gap.kind == "missing":
            for *key, first, last in sorted(declared):
                first, last = max(first, at), min(last, gap.last)
                if gap.key != tuple(key) or first > last:
                    continue
                if first > at:
                    yield attrs.evolve(gap, first=at, last=first - 1)
                yield attrs.evolve(gap, first=first, last=last, kind="declared")
                at = last + 1
        if at <= gap.last:
            yield attrs.evolve(gap, first=at)


def _blocks(records: DataFrame, keys: Sequence[str], number: str) -> list[_Block]:
    from pyspark.sql import functions as f

    position = f.bitmap_bit_position(f.col(number))
    counted = (
        records.where(f.col(number) >= 0)
        .groupBy(*keys, f.bitmap_bucket_number(f.col(number)).alias("bucket"))
        .agg(
            f.count("*").alias("rows"),
            f.bitmap_count(f.bitmap_construct_agg(position)).alias("distinct"),
            f.min(number).alias("first"),
            f.max(number).alias("last"),
        )
    )
    width = len(keys)
    found = [_Block(tuple(row[:width]), *row[width:]) for row in counted.collect()]
    return sorted(found, key=lambda block: (tuple(map(str, block.key)), block.first))


def _inside(records: DataFrame, keys: Sequence[str], number: str, blocks: Sequence[_Block]) -> Iterator[NumberGap]:
    """Yield the gaps within blocks, reading one block at a time to save memory."""
    from pyspark.sql import functions as f

    for block in blocks:
        same = f.bitmap_bucket_number(f.col(number)) == block.bucket
        for name, value in zip(keys, block.key, strict=True):
            same &= f.col(name).eqNullSafe(f.lit(value))
        near = records.where(same & f.col(number).between(block.first, block.last))
        yield from holes(block.key, [row[0] for row in near.select(number).sort(number).toLocalIterator()])
