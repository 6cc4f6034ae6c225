"""A lake of an older version becomes a Delta table, without a change to its Parquet files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from fyrehose.errors import JournalCorrupt, JournalError
from fyrehose.records import Run
from fyrehose.spark import tables
from fyrehose.spark.columns import COLUMNS, arrow_schema
from fyrehose.spark.counting import account_of
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.lake import Lake
from fyrehose.spark.plan import Planner
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Selection
from fyrehose.spark.upgrade import upgrade

Opener = Callable[..., Any]


def old_lake(journal: Any, lake: Path, rounds: int = 2) -> None:
    """A lake as an older version left it: of all records, in rounds of as many appends."""
    (lake / "_fyrehose").mkdir(parents=True)
    (lake / "_fyrehose" / "LOCK").touch()
    view = journal.place.view()
    ends = [view.start, view.segments[0].end, view.mark][: rounds + 1]
    for number, (start, end) in enumerate(itertools.pairwise(ends), 1):
        directory, files = f"round={start:016x}-{end:016x}-abc", []
        tables = [
            batch
            for part in Planner(journal.place).parts(start, end)
            for batch in PartReader(journal.place, part, Selection(), arrow_schema(tuple(COLUMNS))).read()
        ]
        table = pa.Table.from_batches(tables)
        for stream in table["stream"].unique().to_pylist():
            rows = table.filter(pa.compute.equal(table["stream"], stream))
            path = Path(f"stream_key={stream}/date=2023-11-14/part-0.c000.zstd.parquet")
            target = lake / "data" / directory / path
            target.parent.mkdir(parents=True)
            parquet.write_table(rows, target, store_schema=False)
            seqs = rows["seq"].to_pylist()
            files.append(
                {
                    "path": str(path),
                    "rows": len(rows),
                    "size": target.stat().st_size,
                    "stream": stream,
                    "first": min(seqs),
                    "last": max(seqs),
                }
            )
        account = account_of(journal.place, view, start, end)
        fields = {
            "start": start,
            "end": end,
            "chain": account.chain,
            "directory": directory,
            "rows": account.rows,
            "files": files,
        }
        commit = {"version": 1, **fields, "gaps": [["s0", 900, 901]], "time": 1_700_000_000_000_000}
        (lake / "_fyrehose" / f"{number:012}.json").write_text(json.dumps(commit))


def stored(lake: Path) -> list[tuple[str, int, bytes]]:
    rows = DeltaTable(str(lake)).to_pyarrow_table(columns=["stream", "seq", "payload"]).to_pylist()
    return sorted((row["stream"], row["seq"], row["payload"]) for row in rows)


def test_old_lake_is_converted_in_place_and_continues(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(150)
    old_lake(journal, lake)
    place = str(journal.directory)
    with pytest.raises(JournalError, match="made by an older version"):
        archive(None, place, lake)
    before = {path: path.stat().st_mtime_ns for path in lake.rglob("*.parquet")}
    assert upgrade(lake, place, "one") == len(before) == 6
    assert {path: path.stat().st_mtime_ns for path in lake.glob("data/**/*.parquet")} == before
    assert stored(lake) == journal.rows()
    assert not (lake / "_fyrehose").exists()
    journal.fill(20)
    assert archive(None, place, lake).rows == len(journal.records) - sum(f.rows for f in Lake.at(lake).files() if f.old)
    assert stored(lake) == journal.rows()
    assert Lake.at(lake).lost() == [("one", "s0", 900, 901)]
    with pytest.raises(JournalError, match="is not a lake of an older version"):
        upgrade(lake, place)


def test_conversion_that_was_killed_is_repeated(
    written: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(150)
    old_lake(journal, lake)
    for name in ("fyrehose.spark.lake.DeltaTable.create_write_transaction", "shutil.rmtree"):
        with monkeypatch.context() as patched:
            patched.setattr(name, lambda *args, **options: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                upgrade(lake, str(journal.directory))
        with pytest.raises(JournalError, match="made by an older version"):
            Lake.at(lake)
    upgrade(lake, str(journal.directory))
    assert stored(lake) == journal.rows()


def test_old_lake_of_another_journal_or_with_damage_is_refused(written: Opener, tmp_path: Path) -> None:
    journal, other, lake = written("one"), written("other"), tmp_path / "lake"
    journal.fill(150)
    old_lake(journal, lake, rounds=1)
    other.append(Run.of("s", [b"x"], source="test"))
    with pytest.raises(JournalCorrupt, match="it is another journal"):
        upgrade(lake, str(other.directory))
    path = next(lake.rglob("*.parquet"))
    path.rename(tmp_path / "moved")
    with pytest.raises(JournalCorrupt, match=f"{path} is missing from the lake"):
        upgrade(lake, str(journal.directory))
    log = lake / "_fyrehose" / "000000000001.json"
    log.write_bytes(log.read_bytes()[:50])
    with pytest.raises(JournalError, match=f"{log} is damaged"):
        upgrade(lake, str(journal.directory))


@pytest.mark.slow
def test_spark_reads_old_files_beside_new_ones(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(150)
    old_lake(journal, lake)
    upgrade(lake, str(journal.directory), "one")
    journal.fill(20)
    archive(None, str(journal.directory), lake)
    journal.fill(5)
    found = tables.table(spark, lake, str(journal.directory)).select("server", "stream", "seq", "payload").collect()
    assert sorted((row.stream, row.seq, bytes(row.payload)) for row in found) == journal.rows()
    assert {row.server for row in found} == {"one"}
    found = tables.table(spark, lake, streams=["s1"]).collect()
    assert {row.stream for row in found} == {"s1"}
