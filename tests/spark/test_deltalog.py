"""Transactions, changes and damage are read from a Delta log without delta-rs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from fyrehose.spark.deltalog import changes, damage_of, transactions
from fyrehose.spark.stores import LakeStore


def append(lake: Path, **versions: int) -> None:
    done = CommitProperties(app_transactions=[Transaction(name, version) for name, version in versions.items()])
    write_deltalake(str(lake), pa.table({"a": [1]}), mode="append", commit_properties=done)


@pytest.mark.parametrize("checkpoint", [None, 0, 2, 3])
def test_latest_transactions_of_checkpoint_and_entries_are_returned(tmp_path: Path, checkpoint: int | None) -> None:
    store = LakeStore.at(tmp_path)
    for number in range(4):
        append(tmp_path, every=number, **{f"only{number}": 100 + number})
        if number == checkpoint:
            DeltaTable(str(tmp_path)).create_checkpoint()
    log = tmp_path / "_delta_log"
    if checkpoint:
        (log / f"{0:020}.json").unlink()
    if checkpoint is not None:  # a program was killed while it wrote the first of two parts of a later one
        part = (log / f"{checkpoint:020}.checkpoint.parquet").read_bytes()
        (log / f"{3:020}.checkpoint.{1:010}.{2:010}.parquet").write_bytes(part)
    assert transactions(store) == {"every": 3, **{f"only{number}": 100 + number for number in range(4)}}
    assert damage_of(store) is None


def test_changes_are_the_files_whose_rows_were_added_or_removed(tmp_path: Path) -> None:
    store = LakeStore.at(tmp_path)
    for _ in range(3):
        append(tmp_path)
    table = DeltaTable(str(tmp_path))
    files = {store.relative(uri) for uri in table.file_uris()}
    assert set(changes(store, -1, 2) or ()) == files
    assert len(changes(store, 1, 2) or ()) == 1
    table.optimize.compact()
    assert changes(store, 2, 3) == [], "the rows are the same"
    table.delete()
    assert len(changes(store, 3, 4) or ()) == 1
    (tmp_path / "_delta_log" / f"{1:020}.json").unlink()
    assert changes(store, 0, 4) is None
    assert changes(store, 1, 3) is not None
