"""Merge the files of a lake while archives write, and delete records."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from struct import pack
from typing import Any

import polars
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from fyrehose.errors import ConfigError, JournalError
from fyrehose.records import Run
from fyrehose.spark import layout
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import MANY, delete, optimize
from fyrehose.spark.lake import Lake
from tests.doubles.deltavectors import delete_rows

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


def test_small_files_of_a_finished_day_are_merged(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    rounds(journal, lake, 5)
    assert optimize(lake, now=TODAY).files == 5
    done = optimize(lake, now=LATER)
    assert (done.days, done.files) == (1, 1)
    assert stored(lake) == journal.rows()
    rounds(journal, lake, 1)
    assert stored(lake) == journal.rows()


def test_many_small_files_of_the_current_day_are_merged(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    rounds(journal, lake, MANY)
    assert optimize(lake, now=TODAY).files == 1
    assert stored(lake) == journal.rows()


@pytest.mark.parametrize(
    ("interval", "hours"),
    [
        (None, 24),
        ("interval 7 days", 168),
        ("interval 1 week", 168),
        ("interval 2 days 3 hours", 51),
        ("interval 12 hours", 12),
        ("INTERVAL 90 MINUTES", 2),
        ("interval 0 seconds", 1),
        ("forever", 168),
    ],
)
def test_files_stay_as_long_as_the_property_of_the_table_says(
    written: Opener, tmp_path: Path, interval: str | None, hours: int
) -> None:
    """Delta's default of 7 days stands for what is not an interval; an hour at least, for a round that runs."""
    journal, lake = written(), tmp_path / "lake"
    rounds(journal, lake, 1)
    if interval is not None:
        Lake.at(lake).set_properties({"delta.deletedFileRetentionDuration": interval})
    left = {}
    for name, age in (("younger", hours * 3600 - 60), ("older", hours * 3600 + 60)):
        left[name] = lake / "date=2023-11-14" / f"part-{name}.parquet"
        left[name].write_bytes(b"x")
        at = datetime.now().timestamp() - age
        os.utime(left[name], (at, at))
    assert optimize(lake, now=TODAY).removed == 1
    assert [path.exists() for path in left.values()] == [True, False]
    assert stored(lake) == journal.rows()


def test_archive_commits_while_files_are_merged(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    rounds(journal, lake, 3)
    original = Lake.replace

    def meanwhile(*args: Any) -> None:
        rounds(journal, lake, 1)
        original(*args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Lake, "replace", meanwhile)
        optimize(lake, now=LATER)
    assert stored(lake) == journal.rows()


@pytest.mark.parametrize("change", ["delete", "optimize", "vector"])
def test_files_that_another_program_changes_meanwhile_are_not_merged(
    written: Opener, tmp_path: Path, change: str
) -> None:
    journal, lake = written(), tmp_path / "lake"
    rounds(journal, lake, 3)
    original = Lake.replace

    def meanwhile(*args: Any) -> None:
        patched.undo()
        if change == "delete":
            assert delete(lake, "stream = 's1'")
        elif change == "optimize":
            optimize(lake, now=LATER)
        else:
            delete_rows(lake, Lake.at(lake).files()[0].path, [0])
        left.extend(polars.scan_delta(str(lake)).select("stream", "seq").collect().iter_rows())
        original(*args)

    left: list[tuple[str, int]] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Lake, "replace", meanwhile)
        with pytest.raises(JournalError, match="could not be changed"):
            optimize(lake, now=LATER)
    assert sorted(polars.scan_delta(str(lake)).select("stream", "seq").collect().iter_rows()) == sorted(left)
    gone = {"delete": len(journal.rows(lambda r: r.stream == "s1")), "vector": 1, "optimize": 0}
    assert len(left) == len(journal.records) - gone[change]


def test_files_of_several_servers_and_other_programs_are_merged_stream_by_stream(
    written: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "GROUP", 16)
    monkeypatch.setattr(layout, "SMALL", 8)
    one, other, lake = written("one"), written("other"), tmp_path / "lake"
    for _ in range(3):
        for journal in (one, other):
            for stream, count in (("large", 50), ("tiny", 1), ("b", 3), ("a", 7)):
                journal.append(Run.of(stream, [b"%d" % n for n in range(count)], source="test", topic=stream))
            archive(None, str(journal.directory), lake, server=journal.directory.name)
    delete(lake, "stream = 'a' and seq = 3")  # delta-rs rewrites files in its own way
    before = sorted(polars.scan_delta(str(lake)).collect().iter_rows())
    optimize(lake, now=LATER)
    assert sorted(polars.scan_delta(str(lake)).collect().iter_rows()) == before
    found = [(row["server"], row["stream"], row["seq"]) for row in DeltaTable(str(lake)).to_pyarrow_table().to_pylist()]
    assert found == sorted(found)
    (file,) = Lake.at(lake).files()
    groups = parquet.read_metadata(lake / file.path)
    sizes = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
    assert max(sizes) <= 16
    assert len(sizes) < 30
    for number in range(groups.num_row_groups):
        streams = {groups.row_group(number).column(1).statistics.min, groups.row_group(number).column(1).statistics.max}
        assert groups.row_group(number).num_rows <= 8 or len(streams) == 1


def test_extreme_values_are_unchanged_after_a_merge(written: Opener, tmp_path: Path) -> None:
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


def test_expired_days_and_deleted_records_are_removed(written: Opener, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("size", [300 << 10, 9 << 20])
def test_row_groups_are_bounded_in_bytes(written: Opener, tmp_path: Path, size: int) -> None:
    """At most 128 MiB, which readers have to read in one piece: a row group is full at 32 MiB of payloads."""
    journal, lake = written(segment_size=1 << 30), tmp_path / "lake"
    for part in range(2):
        for number in range((48 << 20) // size):
            journal.append(Run.of(f"s{number % 2}", [bytes([part, number]) * (size // 2)], source="test"))
        archive(None, str(journal.directory), lake)
    for files in (2, 1):
        found = Lake.at(lake).files()
        assert len(found) == files
        for file in found:
            groups = parquet.read_metadata(lake / file.path)
            sizes = [groups.row_group(number).total_byte_size for number in range(groups.num_row_groups)]
            assert sum(sizes) > (80 << 20) // files
            assert max(sizes) <= layout.GROUP_BYTES + (64 << 10)
        optimize(lake, now=LATER)
    assert stored(lake) == journal.rows()


def test_files_of_each_hour_are_merged_if_the_lake_is_by_hours(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    for _ in range(3):
        for _ in range(2):
            journal.fill(3, size=20)
            archive(None, str(journal.directory), lake, by_hour=True)
        journal.now[0] += 3_500_000_000
    done = optimize(lake, now=LATER)  # 0 o'clock is not over
    assert (done.days, done.files) == (1, 4)
    folders = {path.partition("/part-")[0] for path in (file.path for file in Lake.at(lake).files())}
    assert folders == {"date=2023-11-14/hour=22", "date=2023-11-14/hour=23", "date=2023-11-15/hour=0"}
    assert stored(lake) == journal.rows()
    delete(lake, "seq = 1")
    hours = polars.scan_delta(str(lake)).filter(polars.col("hour") == polars.col("time").dt.hour())
    assert hours.collect().height == len(journal.rows(lambda record: record.seq != 1))
    archive(None, str(journal.directory), lake)  # goes on by hours


def test_lake_by_days_does_not_become_one_by_hours(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    rounds(journal, lake, 1)
    with pytest.raises(ConfigError, match="for each day, and none for each hour, as it was created: begin with a new"):
        archive(None, str(journal.directory), lake, by_hour=True)
