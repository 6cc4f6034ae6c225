"""Views of streams in SQL, and the source in SQL's own statements."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fyrehose.errors import ConfigError, JournalCorrupt
from fyrehose.offline.places import place
from fyrehose.records import Run
from fyrehose.spark import catalog
from fyrehose.spark.gaps import streams_of
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import optimize
from fyrehose.spark.lake import Lake

Opener = Callable[..., Any]


def count(spark: Any, view: str) -> int:
    return int(spark.sql(f"select count(*) from {view}").collect()[0][0])


def test_names_of_streams_are_found_in_lake_and_journal(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.append(Run.of("early", [b"1"], source="test"))
    journal.fill(300)
    assert len(journal.segments) > 2
    archive(None, str(journal.directory), lake)
    journal.append(Run.of("late", [b"1"], source="test"))
    assert streams_of(place(str(journal.directory))) == {"early", "s0", "s1", "s2", "late"}
    assert Lake.at(lake).streams() == {"early", "s0", "s1", "s2"}
    assert Lake.at(tmp_path / "none").streams() == set()
    path = journal.flip(journal.place.view().mark - 20)
    with pytest.raises(JournalCorrupt, match=f"{path} is damaged"):
        streams_of(place(str(journal.directory)))


@pytest.mark.slow
def test_every_stream_is_a_view_of_lake_and_journal(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    for name in ("orders", "web.access", "od`d/ ü", "Case", "case", ".own"):
        journal.append(Run.of(name, [b"1", b"2"], source="test"))
    archive(None, str(journal.directory), lake)
    journal.append(Run.of("orders", [b"3"], source="test"), Run.of("late", [b"1"], source="test"))
    with pytest.warns(UserWarning, match="no views of 'Case', 'case': Spark does not distinguish"):
        made = catalog(spark, lake, str(journal.directory))
    assert made == ["late", "od`d/ ü", "orders", "web.access"]
    assert [count(spark, f"streams.{name}") for name in ("orders", "late", "`web.access`", "`od``d/ ü`")] == [
        3,
        1,
        2,
        2,
    ]
    row = spark.sql("select max(seq), max(cast(payload as string)) from streams.orders").collect()[0]
    assert tuple(row) == (3, "3")
    journal.append(Run.of("orders", [b"4"], source="test"))
    assert catalog(spark, lake, str(journal.directory), match="ord*") == ["orders"]
    assert count(spark, "streams.orders") == 4
    assert catalog(spark, lake, match=".*") == [".own"]
    assert count(spark, "streams.`.own`") == 2


@pytest.mark.slow
def test_view_keeps_its_records_until_it_is_made_again(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    place = str(journal.directory)
    journal.append(Run.of("orders", [b"1", b"2"], source="test"))
    archive(None, place, lake)
    catalog(spark, lake, place)
    journal.append(Run.of("orders", [b"3"], source="test"))
    archive(None, place, lake)
    assert count(spark, "streams.orders") == 3, "what was durable when it was first queried"
    journal.append(Run.of("orders", [b"4"], source="test"))
    archive(None, place, lake)
    optimize(lake)
    journal.append(Run.of("orders", [b"5"], source="test"))
    rows = spark.sql("select seq from streams.orders order by seq").collect()
    assert [row.seq for row in rows] == [1, 2, 3]
    catalog(spark, lake, place)
    rows = spark.sql("select seq from streams.orders order by seq").collect()
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_sql_statements_work_or_fail_with_a_fyrehose_error(spark: Any, written: Opener) -> None:
    journal = written()
    journal.fill(10)
    spark.sql(f"create or replace temporary view v using fyrehose options (path '{journal.directory}')")
    assert count(spark, "v") == len(journal.records)
    spark.sql(f"create table t using fyrehose options (path '{journal.directory}')")
    with pytest.raises(
        Exception, match=r"Spark does not pass the options of CREATE TABLE .* use CREATE TEMPORARY VIEW"
    ):
        count(spark, "t")
    assert count(spark, f"t with (path = '{journal.directory}')") == len(journal.records)
    spark.sql("drop table t")


def test_session_without_the_database_of_views_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"start it with fyrehose.spark.session\(\), or with .config\("):
        catalog(SimpleNamespace(conf={"spark.sql.globalTempDatabase": "global_temp"}), None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_failed_write_is_reported_once(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    rows = (
        spark.sql("select cast('x' as binary) payload").write.format("fyrehose").options(to="127.0.0.1:1", stream="s")
    )
    with pytest.raises(Exception, match=r"publishing to 127\.0\.0\.1:1 failed"):
        rows.mode("append").save()
    with pytest.raises(Exception, match=r'^\[UNSUPPORTED_DATA_SOURCE_SAVE_MODE\].*"Append"') as caught:
        rows.mode("error").save()
    assert len(str(caught.value).splitlines()) == 1
    assert "\tat " not in capfd.readouterr().err


def test_missing_extras_are_reported_in_one_line(written: Opener, tmp_path: Path) -> None:
    journal = written()
    journal.fill(1)
    for missing, words in (
        ("pyspark", ["table", "--journal", journal.directory]),
        ("deltalake", ["archive", "--engine", "local", journal.directory, tmp_path / "lake"]),
        ("pyarrow", ["archive", "--engine", "local", journal.directory, tmp_path / "lake"]),
        (
            "prometheus_client",
            ["archive", "--engine", "local", "--metrics", "x.prom", journal.directory, tmp_path / "l"],
        ),
    ):
        program = (
            f"import sys, importlib.util as u; sys.modules[{missing!r}] = None; find = u.find_spec;"
            f"u.find_spec = lambda name, *rest: None if name == {missing!r} else find(name, *rest);"
            "from fyrehose.cli.spark import main; main()"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program, *map(str, words)], capture_output=True, text=True, timeout=280, check=False
        )
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended.stderr
        assert "pip install 'fyrehose[spark]'" in ended.stderr
