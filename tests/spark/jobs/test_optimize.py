"""Maintenance: fewer files with the same records, while archives write; and records that are deleted."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from deltalake import DeltaTable

from fyrehose.errors import ConfigError
from fyrehose.records import Run
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import MANY, delete, optimize
from fyrehose.spark.lake import Lake

Opener = Callable[..., Any]
#: The day of the records, and the one after it.
TODAY, LATER = datetime(2023, 11, 14, 23, tzinfo=UTC), datetime(2023, 11, 15, 1, tzinfo=UTC)


def stored(lake: Path) -> list[tuple[str, int, bytes]]:
    rows = DeltaTable(str(lake)).to_pyarrow_table(columns=["stream", "seq", "payload"]).to_pylist()
    return sorted((row["stream"], row["seq"], row["payload"]) for row in rows)


def rounds(journal: Any, lake: Path, count: int) -> None:
    """As many rounds, each with a file."""
    for _ in range(count):
        journal.fill(3, size=20)
        archive(None, str(journal.directory), lake)


@pytest.mark.parametrize("sort", [False, True])
def test_small_files_of_a_finished_day_are_merged(written: Opener, tmp_path: Path, sort: bool) -> None:
    journal, lake = written(), tmp_path / "lake"
    rounds(journal, lake, 5)
    assert optimize(lake, now=TODAY).files == 5
    done = optimize(lake, sort=sort, now=LATER)
    assert (done.days, done.files) == (1, 1)
    assert stored(lake) == journal.rows()
    rounds(journal, lake, 1)
    assert stored(lake) == journal.rows()


def test_many_small_files_of_the_current_day_are_merged(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    rounds(journal, lake, MANY)
    assert optimize(lake, now=TODAY).files == 1
    assert stored(lake) == journal.rows()


def test_archive_commits_while_files_are_merged(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    rounds(journal, lake, 3)
    original = DeltaTable.optimize.fget

    def meanwhile(table: DeltaTable) -> Any:
        rounds(journal, lake, 1)
        return original(table)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DeltaTable, "optimize", property(meanwhile))
        optimize(lake, now=LATER)
    assert stored(lake) == journal.rows()


def test_extreme_values_survive(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    times = pack("<2q", -(1 << 63), (1 << 63) - 1)
    for name in ("ü" * 127, "a=b%2F*", ".."):
        run = Run.of(
            name, [b"", b"\xff"], source="t", event_times=times, event_ids=bytes(32), producer_seq=(1 << 64) - 3
        )
        journal.append(run)
        archive(None, str(journal.directory), lake)
    optimize(lake, now=LATER)
    assert stored(lake) == journal.rows()
    rows = DeltaTable(str(lake)).to_pyarrow_table().select(["event_time", "producer_seq"])
    assert set(rows["event_time"].cast("int64").to_pylist()) == {-(1 << 63), (1 << 63) - 1}
    assert set(rows["producer_seq"].to_pylist()) == {-3, -2}


def test_files_that_are_not_used_are_removed_after_a_day(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(150)
    archive(None, str(journal.directory), lake)
    for segment in journal.segments[:1]:
        segment.path.unlink()
    journal.fill(10)
    lost = tmp_path / "lake" / "_lost"
    archive(None, str(journal.directory), lake)
    one = next(lake.rglob("*.parquet"))
    left, fresh = one.with_name("part-left.parquet"), one.with_name("part-fresh.parquet")
    for path in (left, fresh):
        path.write_bytes(b"of a round that was killed")
    os.utime(left, (0, 0))
    lost.mkdir()
    kept = lost / "x.parquet"
    kept.write_bytes(b"")
    os.utime(kept, (0, 0))
    assert optimize(lake, now=TODAY).removed == 1
    assert (left.exists(), fresh.exists(), kept.exists()) == (False, True, True)
    assert len(Lake.at(lake).files()) == len(list(lake.glob("date=*/*.parquet"))) - 1


def test_days_are_kept_and_records_deleted(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    rounds(journal, lake, 2)
    assert delete(lake, "stream = 's1' and seq > 1") == len(journal.rows(lambda r: r.stream == "s1" and r.seq > 1))
    assert stored(lake) == journal.rows(lambda r: r.stream != "s1" or r.seq <= 1)
    with pytest.raises(ConfigError, match="invalid condition 'nonsense = 1'"):
        delete(lake, "nonsense = 1")
    optimize(lake, keep=86_400.0, now=LATER)
    assert stored(lake)
    optimize(lake, keep=86_400.0, now=datetime(2023, 11, 16, tzinfo=UTC))
    assert stored(lake) == []
    rounds(journal, lake, 1)
    assert len(stored(lake)) == len(journal.rows()) - len(journal.rows()) * 2 // 3


def test_archive_that_follows_merges_files_on_a_schedule(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    rounds(journal, lake, 3)
    archive(
        None,
        str(journal.directory),
        lake,
        follow=True,
        every=0.01,
        optimize_every=0.001,
        stop=lambda: len(Lake.at(lake).files()) == 1,
    )
    assert stored(lake) == journal.rows()
