"""Merging with a bounded memory (what is in the merged files: jobs/test_optimize.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from fyrehose.records import Run
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.lake import Lake
from fyrehose.spark.layout import GROUP_BYTES, SCHEMA
from fyrehose.spark.merging import merged, together
from fyrehose.spark.stores import LakeStore


def test_files_are_merged_together_as_far_as_their_memory_allows(tmp_path: Path) -> None:
    """All shared row groups are in memory at a time, and of those of one stream the largest page."""
    dice, store, happened = Random(4), LakeStore.at(tmp_path), Counter[int]()
    need = dict[str, tuple[int, int]]()
    for number in range(12):
        path, shared, page = f"{number:02}.parquet", 0, 0
        tables = [records(dice.choice(("a", "b", "ab")), dice.choice((1, 300)), dice.choice((10, 900))) for _ in "12"]
        with parquet.ParquetWriter(tmp_path / path, SCHEMA) as writer:
            for table in tables:
                writer.write_table(table)
        for group, table in enumerate(tables):
            size = parquet.read_metadata(tmp_path / path).row_group(group).total_byte_size
            shared += size * (len(set(table["stream"].to_pylist())) > 1)
            page = max(page, size * (len(set(table["stream"].to_pylist())) == 1))
        need[path] = shared, page

    def bytes_of(paths: Sequence[str]) -> int:
        return sum(need[path][0] for path in paths) + max((need[path][1] for path in paths), default=0)

    for _ in range(200):
        paths = dice.sample([*need], dice.randint(1, 12))
        room = dice.choice((1, *(bytes_of(paths[:count]) + dice.choice((-1, 0)) for count in range(1, len(paths) + 1))))
        expected = [[paths[0]]]
        for path in paths[1:]:
            if bytes_of([*expected[-1], path]) > room:
                expected.append([])
            expected[-1].append(path)
        lots = [lot for lot in expected if len(lot) > 1]
        assert list(together(store, paths, room)) == lots, f"within {room} bytes"
        happened[len(lots)] += 1
    assert len(happened) > 3, f"too few kinds of lots: {happened}"


def records(streams: str, rows: int, size: int) -> pa.Table:
    """Return so many records of each of *streams*, with payloads of *size* bytes."""
    count = rows * len(streams)
    values: dict[str, list[Any]] = {"server": ["j"] * count, "stream": sorted(streams * rows), "time": [0] * count}
    values |= {
        "seq": [*range(1, rows + 1)] * len(streams),
        "source": ["test"] * count,
        "payload": [bytes(size)] * count,
    }
    return pa.table([pa.array(values.get(each.name, [None] * count), each.type) for each in SCHEMA], schema=SCHEMA)


def test_row_groups_have_as_many_records_as_fit_in_bytes(written: Callable[..., Any], tmp_path: Path) -> None:
    """Of an archive, and of what is merged: a stream has several row groups, and none is cut too early."""
    journal, lake, dice = written(segment_size=128 << 20), tmp_path / "lake", Random(5)
    for _ in range(2):
        journal.append(
            *(Run.of("s", [bytes(dice.choice((1, 1 << 20, 3 << 20, 7 << 20)))], source="test") for _ in range(16))
        )
        archive(None, str(journal.directory), lake)
    store, paths = Lake.at(lake).store, sorted(file.path for file in Lake.at(lake).files())
    for path in (*paths, merged(store, "2023-11-14", paths, 1 << 30)[0].path):
        file = parquet.ParquetFile(lake / path)
        groups = [file.read_row_group(n, columns=["payload"])["payload"] for n in range(file.num_row_groups)]
        sizes = [[len(payload) for payload in group.to_pylist()] for group in groups]
        assert len(sizes) > 1
        for group, following in pairwise(sizes):
            assert sum(group) <= GROUP_BYTES, f"{group} bytes in one row group"
            assert sum(group) + following[0] > GROUP_BYTES - 1_000, f"{group} is followed by {following}"


def test_large_shared_row_groups_are_merged_stream_by_stream(written: Callable[..., Any], tmp_path: Path) -> None:
    journal, lake = written(segment_size=64 << 20), tmp_path / "lake"
    for number in range(2):
        for stream in "abc":
            payloads = [b"%d %d " % (number, each) + bytes(5000) for each in range(1200)]
            journal.append(Run.of(stream, payloads, source="test"))
        archive(None, str(journal.directory), lake)
    store, paths = Lake.at(lake).store, sorted(file.path for file in Lake.at(lake).files())
    groups = [parquet.read_metadata(lake / path).row_group(0) for path in paths]
    assert [group.total_byte_size > 8 << 20 for group in groups] == [True, True]
    (action,) = merged(store, "2023-11-14", paths, 1 << 30)
    found = parquet.read_table(lake / action.path, columns=["stream", "seq", "payload"], partitioning=None)
    rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    assert rows == journal.rows()


def test_merged_records_of_a_stream_are_in_the_order_of_their_numbers(written: Any, tmp_path: Path) -> None:
    """Their numbers have one, two and three digits; the files are in any order."""
    journal, lake = written(), tmp_path / "lake"
    for _ in range(13):
        journal.append(Run.of("a", [b"x"] * 9, source="test"))
        archive(None, str(journal.directory), lake)
    found = Lake.at(lake)
    (action,) = merged(found.store, "2023-11-14", sorted(file.path for file in found.files()), 1 << 30)
    numbers = parquet.read_table(lake / action.path, columns=["seq"], partitioning=None)["seq"].to_pylist()
    assert numbers == list(range(1, 13 * 9 + 1))
