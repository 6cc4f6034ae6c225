"""Rows that another program deleted by a deletion vector stay deleted; unknown features of a table are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest

from fyrehose.errors import JournalError
from fyrehose.spark import tables
from fyrehose.spark.fetching import fetch
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import delete, optimize
from fyrehose.spark.lake import Lake
from tests.doubles.deltavectors import delete_rows, entries, require

Opener = Callable[..., Any]


def lake_with_vectors(written: Opener, tmp_path: Path) -> tuple[Any, Path, list[tuple[str, int]]]:
    """Return a journal, its lake, and the archived records that are not deleted."""
    journal, lake = written(), tmp_path / "lake"
    journal.fill(100)
    archive(None, str(journal.directory), lake, server="one", round_bytes=200_000)
    for file in Lake.at(lake).files()[:2]:
        delete_rows(lake, file.path, [0, 1, 5])
    return journal, lake, by_polars(lake)


def by_polars(lake: Path) -> list[tuple[str, int]]:
    """Read a lake by a reader that is not ours, and that honours vectors."""
    return sorted(polars.scan_delta(str(lake)).select("stream", "seq").collect().iter_rows())


@pytest.mark.slow
def test_table_leaves_deleted_rows_out(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake, left = lake_with_vectors(written, tmp_path)
    assert len(left) == len(journal.records) - 6
    found = tables.table(spark, lake).select("stream", "seq").collect()
    assert sorted((row.stream, row.seq) for row in found) == left
    chosen = tables.table(spark, lake, streams=["s0"]).select("stream", "seq").collect()
    assert sorted((row.stream, row.seq) for row in chosen) == [each for each in left if each[0] == "s0"]


def test_tasks_that_fetch_files_leave_deleted_rows_out(written: Opener, tmp_path: Path) -> None:
    _, lake, left = lake_with_vectors(written, tmp_path)
    target = Lake.at(lake)
    paths = [file.path for file in target.files()]
    numbers = [pa.RecordBatch.from_pydict({"id": list(range(len(paths)))})]
    rows = pa.Table.from_batches(fetch(target.store, paths, None, numbers, target.vectors())).to_pylist()
    assert sorted((row["stream"], row["seq"]) for row in rows) == left


def test_maintenance_and_archive_keep_rows_deleted(written: Opener, tmp_path: Path) -> None:
    journal, lake, left = lake_with_vectors(written, tmp_path)
    before = len(journal.records)
    journal.fill(10)
    archive(None, str(journal.directory), lake)
    added = sorted([*left, *((r.stream, r.seq) for r in journal.records[before:])])
    assert by_polars(lake) == added
    optimize(lake)
    assert by_polars(lake) == added
    delete(lake, "stream = 's1'")
    assert by_polars(lake) == [each for each in added if each[0] != "s1"]


def test_streams_and_counts_leave_deleted_rows_out(written: Opener, tmp_path: Path) -> None:
    _, lake, left = lake_with_vectors(written, tmp_path)
    target = Lake.at(lake)
    assert sum(file.rows for file in target.files()) == len(left)
    assert target.streams() == {"s0", "s1", "s2"}


@pytest.mark.parametrize("feature", ["columnMapping", "typeWidening", "variantType"])
def test_unknown_reader_features_are_refused(written: Opener, tmp_path: Path, feature: str) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(10)
    archive(None, str(journal.directory), lake)
    require(lake, feature)
    count = len(entries(lake))
    for use in (
        lambda: archive(None, str(journal.directory), lake),
        lambda: tables.table(None, lake),  # type: ignore[arg-type]
        lambda: optimize(lake),
        lambda: delete(lake, "seq = 1"),
        lambda: Lake.existing(lake),
    ):
        with pytest.raises(JournalError, match=f"feature.*{feature}") as raised:
            use()
        assert "\n" not in str(raised.value)
    assert len(entries(lake)) == count
