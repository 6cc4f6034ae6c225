"""Tables over empty lakes, and over lake and journal; jobs/test_archive.py has more of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fyrehose.errors import JournalCorrupt, JournalError
from fyrehose.records import Run
from fyrehose.spark.columns import TABLE
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.gaps import gaps
from fyrehose.spark.lake import Lake
from fyrehose.spark.tables import table

Opener = Callable[..., Any]


@pytest.mark.slow
def test_stream_whose_name_has_a_star_is_selected_alone(spark: Any, written: Opener) -> None:
    journal = written()
    journal.append(*(Run.of(name, [b"x"], source="test") for name in ("a*", "ab", "[x]", "?", "*")))
    for names in (["a*"], ["[x]", "?"], ["*"]):
        found = table(spark, None, str(journal.directory), streams=names).collect()
        assert sorted(row["stream"] for row in found) == sorted(names)


@pytest.mark.slow
def test_lake_without_rounds_is_empty_and_a_missing_lake_is_an_error(spark: Any, tmp_path: Any) -> None:
    with pytest.raises(JournalError, match="is no lake: nothing was archived there"):
        table(spark, tmp_path / "lake")
    Lake.at(tmp_path / "lake").create()
    for streams in (None, ["s"]):
        frame = table(spark, tmp_path / "lake", streams=streams)
        assert frame.columns == list(TABLE.names)
        assert frame.count() == 0


@pytest.mark.slow
def test_records_are_those_of_the_files_that_the_log_names(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(100)
    archive(None, str(journal.directory), lake, server="one", round_bytes=200_000)
    paths = sorted(lake.rglob("*.parquet"))
    assert len(paths) > 1
    paths[0].with_name("part-copy.parquet").write_bytes(paths[0].read_bytes())
    frame = table(spark, lake)
    assert frame.count() == len(journal.records)
    assert {row.server for row in frame.select("server").distinct().collect()} == {"one"}
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[:-1])
    with pytest.raises(JournalCorrupt, match=f"{paths[0]} has {len(whole) - 1} bytes"):
        table(spark, lake)
    paths[0].unlink()
    with pytest.raises(JournalCorrupt, match=f"{paths[0]} is missing from the lake"):
        table(spark, lake)


@pytest.mark.slow
def test_bounds_open_only_files_that_may_have_records(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    for _ in range(4):
        journal.fill(12, size=20)
        archive(None, str(journal.directory), lake)
    journal.fill(12, size=20)  # not archived yet
    times = sorted({record.time for record in journal.records})
    middle = str(datetime.fromtimestamp(times[30] / 1e6, UTC))

    def ask(**options: Any) -> tuple[list[tuple[str, int, bytes]], int]:
        found = table(spark, lake, str(journal.directory), **options)
        rows = sorted((row.stream, row.seq, bytes(row.payload)) for row in found.collect())
        return rows, len(table(spark, lake, **options).inputFiles())

    assert ask(start=middle) == (journal.rows(lambda r: r.time >= times[30]), 2)
    assert ask(end=middle) == (journal.rows(lambda r: r.time < times[30]), 3)
    assert ask(end="3") == (journal.rows(lambda r: r.seq <= 3), 1)
    assert ask(streams=["s1"], start="30") == (journal.rows(lambda r: r.stream == "s1" and r.seq >= 30), 2)
    bounds = {"s1": 20, "s2": 5}
    rows = journal.rows(lambda r: r.seq >= bounds.get(r.stream, 1))
    assert ask(start='{"s1": 20, "s2": 5}') == (rows, 4)


def opened(frame: Any) -> int:
    """Return the number of files that Spark opens for a query without a shuffle, by its own count."""
    frame.collect()
    scans = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return sum(int(scans.apply(i).metrics().apply("numFiles").value()) for i in range(scans.size()))


@pytest.mark.slow
def test_filters_and_bounds_open_only_files_that_may_have_records(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    for hour, streams in enumerate((("a0", "b0"), ("c",), ("a1", "b1"))):  # from 22:13 on
        journal.now[0] = 1_700_000_000_000_000 + hour * 3_500_000_000
        for stream in streams:
            journal.append(Run.of(stream, [b"x"] * 5, source="test"))
            archive(None, str(journal.directory), lake)
    first, second = "2023-11-14", "2023-11-15"
    everything = table(spark, lake)
    assert opened(everything) == 5
    assert opened(everything.where(f"date = '{second}'")) == 2
    assert opened(everything.where(f"date < '{second}' and seq > 3")) == 3
    assert opened(everything.where("date = '2000-01-01'")) == 0
    assert opened(table(spark, lake, streams=["a1", "b0"])) == 2
    assert opened(table(spark, lake, start=f"{second}T00:00")) == 2
    assert opened(table(spark, lake, end=f"{second}T00:00", streams=["a0"])) == 1
    assert opened(table(spark, lake, start='{"*": 6, "a1": 2}')) == 1
    assert opened(table(spark, lake, streams=["a0", "a1"]).where(f"date = '{first}'")) == 1
    # The statistics of the other columns are in the files, so Spark opens them, and reads no more than their footers.
    assert opened(everything.where("stream = 'a1'")) == 5


@pytest.mark.slow
def test_records_deleted_between_lake_and_journal_are_skipped_by_option(
    spark: Any, written: Opener, tmp_path: Path
) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(20)
    archive(None, str(journal.directory), lake)
    journal.fill(300)
    for segment in journal.segments[:2]:
        segment.path.unlink()
    with pytest.raises(Exception, match="retention deleted what was before"):
        table(spark, lake, str(journal.directory)).count()
    before = table(spark, lake, str(journal.directory), gaps="skip").count()
    assert table(spark, lake).count() < before < len(journal.records)
    lost = archive(None, str(journal.directory), lake, accept_loss=True).gaps
    assert table(spark, lake, str(journal.directory)).count() == before == len(journal.records) - lost
    found = gaps(table(spark, lake), Lake.at(lake).lost())
    assert {gap.kind for gap in found} == {"declared"}
    assert sum(gap.count for gap in found) == lost


def test_table_without_a_lake_or_journal_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="neither a lake nor a journal is given"):
        table(None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="streams is empty"):
        table(None, None, "j", streams=[])  # type: ignore[arg-type]


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_acknowledged_record_is_in_the_table(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "verification" / "torture"))
    spark_tour = importlib.import_module("spark_tour")
    args = spark_tour.arguments(["--events", "6000", "--rate", "3000"])
    assert spark_tour.tour(tmp_path / "t", args, spark) == []
    said = capfd.readouterr().out
    assert "lumberjack 3,003  web 3,003" in said
    assert "doubles: lumberjack 3, web 3; 6 messages were sent twice" in said
