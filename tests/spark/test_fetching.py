"""Files of a lake, as Spark's tasks fetch them from a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from fyrehose.spark.columns import TABLE
from fyrehose.spark.fetching import fetch
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.lake import Lake
from fyrehose.spark.selection import Selection

Opener = Callable[..., Any]


def test_tasks_fetch_their_files_with_every_column(written: Opener, tmp_path: Path) -> None:
    journal = written()
    for _ in range(3):
        journal.fill(40, streams=2)
        archive(None, str(journal.directory), tmp_path / "lake", server="one")
    lake = Lake.at(tmp_path / "lake")
    paths = [file.path for file in lake.files()]
    tasks = [pa.record_batch({"id": range(2, len(paths))}), pa.record_batch({"id": [1, 0]})]
    found = pa.Table.from_batches(fetch(lake.store, paths, None, tasks))
    assert found.schema == TABLE
    assert journal.brief(found.to_pylist()) == journal.rows()
    assert set(found["server"].to_pylist()) == {"one"}
    assert {str(day) for day in found["date"].to_pylist()} == {"2023-11-14"}
    chosen = attrs.evolve(Selection(), streams=frozenset(["s1"]))
    some = pa.Table.from_batches(fetch(lake.store, paths, chosen, tasks))
    assert journal.brief(some.to_pylist()) == journal.rows(lambda r: r.stream == "s1")
