"""Row groups are cut at streams, so that a reader of one stream reads few of the bytes; before and after a merge."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fyrehose.records import Run
from fyrehose.spark.columns import ENCODED
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import optimize
from fyrehose.spark.lake import Lake
from fyrehose.spark.layout import GROUP, SMALL, TableFile, groups, spans
from fyrehose.spark.stores import LakeStore

Opener = Callable[..., Any]
LATER = datetime(2023, 11, 15, 1, tzinfo=UTC)


@given(st.lists(st.integers(1, 5 * GROUP) | st.integers(1, 2 * SMALL), max_size=30))
def test_groups_hold_all_records_and_share_only_small_streams(sizes: list[int]) -> None:
    found = list(groups(sizes))
    assert sum(found) == sum(sizes)
    assert max(found, default=0) <= GROUP
    ends = list(accumulate(sizes))
    at = 0
    for count in found:
        inside = [end for end in ends if at < end < at + count]
        assert not inside or count <= SMALL, "a group with several streams is small"
        at += count
    assert len(found) <= 2 * sum(size > SMALL for size in sizes) + sum(sizes) // (SMALL // 2) + 1


def test_spans_are_cut_where_any_key_changes() -> None:
    one = pa.array(["a", "a", "a", "b"]).dictionary_encode()
    other = pa.array(["x", "y", "y", "y"]).dictionary_encode()
    assert spans(one, other) == [(0, 1), (1, 3), (3, 4)]
    assert spans(one) == [(0, 3), (3, 4)]
    assert spans(one.slice(0, 0)) == []


TEXTS = pa.array(["a", "b", "c"])
ROW = st.tuples(st.none() | st.integers(0, 2), st.none() | st.integers(-9, 9))


@settings(max_examples=30)
@given(st.lists(st.lists(ROW, min_size=1, max_size=9), min_size=1, max_size=3))
def test_file_has_the_rows_of_its_groups_and_their_statistics(groups: list[list[Any]]) -> None:
    """The dictionary of a group has values that do not occur in it, and some rows have no value."""
    schema, written = pa.schema({"text": ENCODED, "number": pa.int64()}), []
    with TemporaryDirectory() as lake:
        with TableFile(LakeStore.at(lake), "date=2026-01-31", "part", schema, schema.names) as file:
            for rows in groups:
                codes = pa.array([code for code, _ in rows], pa.int32())
                texts, numbers = pa.DictionaryArray.from_arrays(codes, TEXTS), [number for _, number in rows]
                group = pa.table({"text": texts, "number": numbers}, schema=schema)
                file.write(group)
                written += group.to_pylist()
        assert parquet.ParquetFile(Path(lake) / file.path).read().to_pylist() == written
    columns = {name: [row[name] for row in written] for name in schema.names}
    present = {name: values for name, column in columns.items() if (values := [v for v in column if v is not None])}
    assert json.loads(file.action(data_change=True).stats) == {
        "numRecords": len(written),
        "minValues": {name: min(values) for name, values in present.items()},
        "maxValues": {name: max(values) for name, values in present.items()},
        "nullCount": {name: columns[name].count(None) for name in present},
    }


def share_of(lake: Path, stream: str) -> float:
    """Return the part of a lake's bytes that are in row groups which may have records of a stream."""
    chosen = total = 0
    for file in Lake.at(lake).files():
        found = parquet.read_metadata(lake / file.path)
        for number in range(found.num_row_groups):
            group = found.row_group(number)
            column = group.column(1)
            assert column.path_in_schema == "stream"
            size = sum(group.column(each).total_compressed_size for each in range(group.num_columns))
            total += size
            chosen += size * (column.statistics.min <= stream <= column.statistics.max)
    return chosen / total


def test_stream_of_two_percent_is_read_from_few_percent_of_the_bytes(written: Opener, tmp_path: Path) -> None:
    journal, lake, dice = written(), tmp_path / "lake", Random(3)
    for _ in range(4):
        for number in range(50):
            count = 12_000 if number < 4 else 1000
            journal.append(Run.of(f"s{number:02}", [dice.randbytes(20) for _ in range(count)], source="test"))
        archive(None, str(journal.directory), lake)
    # A stream of a hundredth, which shares groups of 4,096 records with three others.
    assert share_of(lake, "s20") < 0.08
    assert share_of(lake, "s02") < 0.16
    optimize(lake, now=LATER)
    assert share_of(lake, "s20") < 0.06
    assert len(Lake.at(lake).files()) == 1


def test_dictionaries_of_groups_have_only_their_own_values(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    for number in range(20):
        run = Run.of(f"s{number}", [b"x"] * 5000, source="test", producer=f"{'p' * 200}{number}", topic="t")
        journal.append(run)
    archive(None, str(journal.directory), lake)
    count = 0
    for file in Lake.at(lake).files():
        found = parquet.read_metadata(lake / file.path)
        for number in range(found.num_row_groups):
            count += 1
            columns = [found.row_group(number).column(at) for at in range(found.num_columns)]
            sizes = {column.path_in_schema: column.total_uncompressed_size for column in columns}
            assert sizes["producer"] < 400
    assert count == 20


def test_statistics_of_a_file_are_those_of_all_its_groups(written: Opener, tmp_path: Path) -> None:
    """Engines skip a file by its statistics, so a value beyond them would not be found."""
    journal, lake, dice = written(), tmp_path / "lake", Random(5)
    for _ in range(4):
        for stream in dice.sample("abcdef", 4):
            journal.append(Run.of(stream, [b"x"] * dice.randint(SMALL, 2 * SMALL), source="test"))
        archive(None, str(journal.directory), lake)

    def check() -> int:
        most = 0
        actions = Lake.at(lake).actions().to_pylist()
        for action in actions:
            file = lake / action["path"]
            most = max(most, parquet.read_metadata(file).num_row_groups)
            rows = parquet.read_table(file)
            assert action["num_records"] == rows.num_rows
            for name in ("stream", "seq", "time"):
                values = rows[name].to_pylist()
                assert (action[f"min.{name}"], action[f"max.{name}"]) == (min(values), max(values)), name
        return most

    assert check() > 2
    optimize(lake, now=LATER)
    assert check() > 2
