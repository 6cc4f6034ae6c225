"""Files of typed tables: what is written, read and written again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fyrehose.spark.fetching import read
from fyrehose.spark.stores import LakeStore
from fyrehose.spark.typed.writing import DIGEST, RewriteTask, digests, rewrite, write_file

AT = datetime(2026, 1, 31, 12, 0, 0, 5, UTC)


@pytest.fixture
def store(tmp_path: Path) -> LakeStore:
    return LakeStore.at(tmp_path)


def file(store: LakeStore, **columns: Any) -> Any:
    times = pa.array([AT, AT, AT], pa.timestamp("us", "UTC"))
    made: Mapping[str, Any] = {"_stream": ["a", "b", "a"], "_seq": [1, 2, 3], "_time": times, "event_time": times}
    return write_file(store, "date=2026-01-31", "part", [pa.table({**made, **columns})])


def test_action_has_statistics_of_the_columns_that_every_table_has(store: LakeStore) -> None:
    action = file(store, x=[1, 2, 3])
    stats = json.loads(action.stats)
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {
        "_stream": "a",
        "_seq": 1,
        "_time": "2026-01-31T12:00:00.000005Z",
        "event_time": "2026-01-31T12:00:00.000005Z",
    }
    assert stats["maxValues"]["_seq"] == 3
    assert action.path.startswith("date=2026-01-31/part-")
    assert (store.directory / action.path).stat().st_size == action.size


def test_rewritten_file_has_the_kept_rows(store: LakeStore) -> None:
    path = file(store, **{"x.y": [1, None, 3]}).path
    again = rewrite(RewriteTask(store=store, paths=(path,), chosen=np.array([False, True, True])))
    assert again is not None
    assert json.loads(again.stats or "")["minValues"]["_seq"] == 2
    (batch,) = read(store, [again.path], pa.schema([("x.y", pa.int64()), ("none", pa.string())]))
    assert batch.to_pylist() == [{"x.y": None, "none": None}, {"x.y": 3, "none": None}]
    assert rewrite(RewriteTask(store=store, paths=(path,), chosen=np.zeros(3, bool))) is None


def test_file_is_written_again_with_wider_columns_unless_values_change(store: LakeStore) -> None:
    path = file(store, x=[1, None, 3], large=[1, 2, (1 << 53) + 1]).path
    wider = pa.schema([("x", pa.float64()), ("large", pa.int64()), ("new", pa.string())])
    system = [("_stream", pa.string()), ("_seq", pa.int64())]
    times = [(name, pa.timestamp("us", "UTC")) for name in ("_time", "event_time")]
    schema = pa.schema([*system, *times, *wider, ("date", pa.date32())])
    again = rewrite(RewriteTask(store=store, paths=(path,), schema=schema))
    assert again is not None
    (batch,) = read(store, [again.path], wider)
    assert batch.to_pydict() == {"x": [1.0, None, 3.0], "large": [1, 2, (1 << 53) + 1], "new": [None] * 3}
    lossy = schema.set(schema.get_field_index("large"), pa.field("large", pa.float64()))
    assert rewrite(RewriteTask(store=store, paths=(path,), schema=lossy)) is None


def test_deleted_rows_are_not_read(store: LakeStore) -> None:
    path = file(store).path
    batches = read(store, [path], pa.schema([("_seq", pa.int64())]), {path: np.array([0, 2])})
    assert [value for batch in batches for value in batch["_seq"].to_pylist()] == [2]


def test_digests_differ_between_keys_and_are_zero_without_a_key() -> None:
    rows = pa.table({"a": ["x", "x", None, "x", None], "b": [1, 2, None, 1, 1]})
    whole = digests(rows, ("a", "b"))
    found = [whole[at : at + DIGEST] for at in range(0, len(whole), DIGEST)]
    assert found[0] == found[3] != found[1]
    assert found[2] == found[4] == bytes(DIGEST)
    assert len(set(found)) == 3
    assert digests(pa.table({"a": ["1"]}), ("a",)) != digests(pa.table({"a": [1]}), ("a",))
