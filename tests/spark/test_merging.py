"""Merging with a bounded memory (what is in the merged files: jobs/test_optimize.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyarrow import parquet

from fyrehose.records import Run
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.lake import Lake
from fyrehose.spark.merging import merged, together


def test_files_whose_shared_row_groups_exceed_memory_are_merged_in_steps(
    written: Callable[..., Any], tmp_path: Path
) -> None:
    journal, lake = written(), tmp_path / "lake"
    for _ in range(4):
        for stream in "ab":
            journal.append(Run.of(stream, [bytes(1000)] * 10, source="test"))
        archive(None, str(journal.directory), lake)
    store, paths = Lake.at(lake).store, sorted(file.path for file in Lake.at(lake).files())
    assert list(together(store, paths)) == [paths]
    assert list(together(store, paths, 50_000)) == [paths[:2], paths[2:]]
    assert list(together(store, paths, 1)) == []


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
