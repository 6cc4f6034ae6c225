"""Merging with a bounded memory (what is in the merged files: jobs/test_optimize.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fyrehose.records import Run
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.lake import Lake
from fyrehose.spark.merging import together


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
