"""The files of a round; other programs read them while a lake is written and merged, and its archive is killed."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from fyrehose.records import Run
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import optimize
from fyrehose.spark.plan import Planner
from fyrehose.spark.rounds import Task, write
from fyrehose.spark.stores import LakeStore

Opener = Callable[..., Any]
Rows = list[tuple[str, int, bytes]]
COLUMNS = ["stream", "seq", "payload"]


def by_duckdb(lake: Path) -> Rows:
    records = DeltaTable(str(lake)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("records", records)
        return connection.execute("select stream, seq, payload from records").fetchall()


def by_polars(lake: Path) -> Rows:
    return list(polars.scan_delta(str(lake)).select(COLUMNS).collect().iter_rows())


def by_pandas(lake: Path) -> Rows:
    return list(DeltaTable(str(lake)).to_pandas(columns=COLUMNS).itertuples(index=False, name=None))


def by_arrow(lake: Path) -> Rows:
    table = DeltaTable(str(lake)).to_pyarrow_dataset().to_table(columns=COLUMNS)
    return list(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))


READERS = [by_duckdb, by_polars, by_pandas, by_arrow]


def task(journal: Any, lake: Path) -> Task:
    part = Planner(journal.place, skip_gaps=True).parts()[0]
    return Task(place=journal.place, part=part, server="one", lake=LakeStore.at(lake), name="part")


def test_task_that_runs_again_writes_another_file(written: Opener, tmp_path: Path) -> None:
    journal = written()
    journal.fill(20)
    found = [file.action for _ in range(2) for file in write(pickle.loads(pickle.dumps(task(journal, tmp_path))))]
    assert len({action.path for action in found}) == 2
    assert all((tmp_path / action.path).stat().st_size == action.size for action in found)


def test_statistics_of_a_file_match_its_records(written: Opener, tmp_path: Path) -> None:
    journal = written()
    for name in ("b", "ü", "a"):
        journal.append(Run.of(name, [b"x", b"y"], source="test"))
    (file,) = write(task(journal, tmp_path))
    assert (file.rows, file.ends) == (6, {"a": 2, "b": 2, "ü": 2})
    assert json.loads(file.action.stats) == {
        "numRecords": 6,
        "minValues": {"server": "one", "stream": "a", "seq": 1, "time": "2023-11-14T22:13:21.000000Z"},
        "maxValues": {"server": "one", "stream": "ü", "seq": 2, "time": "2023-11-14T22:13:23.000000Z"},
        "nullCount": {"server": 0, "stream": 0, "seq": 0, "time": 0},
    }


@pytest.mark.parametrize("read", READERS)
def test_every_reader_has_every_record(read: Callable[[Path], Rows], written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    for _ in range(3):
        journal.fill(20)
        archive(None, str(journal.directory), lake)
    assert sorted(read(lake)) == journal.rows()
    optimize(lake)
    assert sorted(read(lake)) == journal.rows()


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(600)
def test_readers_see_whole_rounds_while_an_archive_runs_and_is_killed(
    written: Opener, tmp_path: Path, ladder: Callable[[int, int], int]
) -> None:
    """Two kills in ``make test``, 20 in ``make torture``."""
    journal, lake, dice = written(), tmp_path / "lake", Random(3)
    options = ["--engine", "local", "--follow", "--every", "20ms", "--round", "50K", "--optimize", "1s"]
    program = "from fyrehose.cli.spark import main; main()"
    command = [sys.executable, "-c", program, "archive", str(journal.directory), str(lake), *options]
    archive(None, str(journal.directory), lake)
    asked, seen = 0, 0
    for _ in range(ladder(2, 20)):
        process, version = subprocess.Popen(command, stdout=subprocess.DEVNULL), DeltaTable(lake).version()
        until = None
        try:
            while until is None or time.monotonic() < until:
                assert process.poll() is None
                if until is None and DeltaTable(lake).version() > version:
                    until = time.monotonic() + dice.uniform(0.5, 2)
                journal.fill(3)
                at_least = {stream: seq for stream, seq, _ in sorted(dice.choice(READERS)(lake))}
                # As it was committed before the question, and at most as it is written after it.
                rows = sorted(dice.choice(READERS)(lake))
                assert len(rows) == len(set(rows)), "a record is there twice"
                ends: dict[str, int] = {}
                for stream, seq, _ in rows:
                    assert seq == ends.get(stream, 0) + 1, "a record is missing"
                    ends[stream] = seq
                assert all(ends[stream] >= seq for stream, seq in at_least.items())
                assert set(rows) <= set(journal.rows())
                asked, seen = asked + 1, max(seen, len(rows))
        finally:
            process.kill()
            process.wait()
    assert asked > 2
    assert seen > 0
    archive(None, str(journal.directory), lake)
    for read in READERS:
        assert sorted(read(lake)) == journal.rows()


def test_local_archive_and_tasks_of_spark_do_not_import_pandas(written: Opener, tmp_path: Path) -> None:
    journal = written()
    journal.append(Run.of("web", [b"x"] * 10, source="test", topic="t"), Run.of("other", [b"y"], source="test"))
    words = ["archive", str(journal.directory), str(tmp_path / "lake"), "--engine", "local"]
    code = f"""
import sys
from fyrehose.cli.spark import main
main({words!r}, standalone_mode=False)
from fyrehose.offline.places import place
from fyrehose.spark.columns import COLUMNS, arrow_schema
from fyrehose.spark.plan import Planner
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Selection
journal, chosen = place({str(journal.directory)!r}), Selection()
for part in Planner(journal, chosen, 1 << 16, False).parts():
    for batch in PartReader(journal, part, chosen, arrow_schema(tuple(COLUMNS)), False).read():
        print(batch.num_rows, "rows")
print(sorted({{"pandas", "pyspark"}}.intersection(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["11 rows", "[]"]
