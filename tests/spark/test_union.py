"""The union of lake and journal in plain SQL: each query has what is durable when it begins, each record once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import duckdb
import pytest

from fyrehose.errors import JournalError
from fyrehose.patterns import Pattern
from fyrehose.records import Run
from fyrehose.spark import catalog
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import delete, optimize
from fyrehose.spark.lake import Lake, lake_of
from fyrehose.spark.union import attach, durable_records
from tests.doubles.awkward import NAMES
from tests.doubles.deltavectors import delete_rows

Opener = Callable[..., Any]


def some(count: int, stream: str = "web") -> Run:
    return Run.of(stream, [b'{"n": %d}' % number for number in range(count)], source="test", topic="t")


def asked(connection: duckdb.DuckDBPyConnection, query: str) -> list[Any]:
    return connection.execute(query).fetchall()


def test_each_query_has_what_is_durable_then(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.append(some(10), some(3, ".own"))
    with duckdb.connect() as connection:
        assert attach(connection, lake, str(journal.directory)) == ["web"]
        counted = "select count(*), count(distinct seq), max(seq) from fyrehose.web"
        assert asked(connection, counted) == [(10, 10, 10)]
        archive(None, str(journal.directory), lake)
        journal.append(some(5), some(2, "new"))
        assert asked(connection, counted) == [(15, 15, 15)]
        archive(None, str(journal.directory), lake)
        journal.append(some(1))
        optimize(lake)
        assert asked(connection, counted) == [(16, 16, 16)]
        assert asked(connection, "select stream, count(*) from fyrehose.records group by 1 order by 1") == [
            ("new", 2),
            ("web", 16),
        ]
        assert "new" in attach(connection, lake, str(journal.directory))
        assert asked(connection, "select count(*) from fyrehose.new") == [(2,)]


def test_columns_and_filters_apply_to_the_lake_and_the_journal(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.append(some(10), some(10, "other"))
    archive(None, str(journal.directory), lake)
    journal.append(some(5))
    with duckdb.connect() as connection:
        attach(connection, lake, str(journal.directory))
        assert asked(connection, "select seq from fyrehose.web where seq between 9 and 12 order by 1") == [
            (seq,) for seq in range(9, 13)
        ]
        assert asked(
            connection, "select text::json->>'n', topic from fyrehose.web where seq in (2, 12) order by seq"
        ) == [
            ("1", "t"),
            ("1", "t"),
        ]
        for day, expected in (("2023-11-14", 25), ("2023-11-15", 0)):
            found = asked(connection, f"select count(*) from fyrehose.records where date = date '{day}'")
            assert found == [(expected,)]
        servers = asked(connection, "select count(distinct server), bool_and(server != '') from fyrehose.records")
        assert servers == [(1, True)]


def test_pattern_has_the_streams_that_it_has_everywhere_else(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    streams = (*NAMES, "a_b", "axb", "a%b", "a\\b", "ab", ".a_b")
    patterns = {name[:2] + "*" for name in streams} | {"*" + name[-2:] for name in streams} | {*streams, "*", "a*b"}
    for half in (streams[::2], streams[1::2]):
        journal.append(*(some(1, stream) for stream in half))
        if half[0] == streams[0]:
            archive(None, str(journal.directory), lake)
    target = lake_of(lake, None)
    for pattern in sorted(patterns):
        batches = durable_records(target, str(journal.directory), match=pattern).batches(["stream"])
        found = [stream for batch in batches for stream in batch["stream"].to_pylist()]
        assert sorted(found) == sorted(filter(Pattern(pattern).covers, streams)), f"pattern {pattern!r}"


def test_deleted_rows_stay_deleted(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.append(some(10))
    archive(None, str(journal.directory), lake)
    delete(lake, "seq = 3")
    (file,) = Lake.at(lake).files()
    delete_rows(lake, file.path, [0, 8])
    with duckdb.connect() as connection:
        attach(connection, lake, str(journal.directory))
        assert asked(connection, "select list(seq order by seq) from fyrehose.web where seq > 1") == [
            ([2, 4, 5, 6, 7, 8, 9],)
        ]


def test_missing_file_and_another_journal_are_errors(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.append(some(10))
    archive(None, str(journal.directory), lake)
    with duckdb.connect() as connection:
        attach(connection, lake, str(journal.directory))
        (lake / Lake.at(lake).files()[0].path).unlink()
        with pytest.raises(Exception, match="is missing from the lake"):
            asked(connection, "select count(*) from fyrehose.web")
        with pytest.raises(JournalError, match="is no lake"):
            attach(connection, tmp_path / "nothing")


def test_journal_alone_and_damage(written: Opener, tmp_path: Path) -> None:
    journal = written()
    journal.append(some(10))
    with duckdb.connect() as connection:
        attach(connection, None, str(journal.directory))
        assert asked(connection, "select sum(seq) from fyrehose.web") == [(55,)]
        journal.flip(200)
        with pytest.raises(Exception, match="damaged"):
            asked(connection, "select sum(seq) from fyrehose.web")


def test_segment_that_retention_deletes_while_the_lake_is_read_is_not_missed(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.append(some(10))
    archive(None, str(journal.directory), lake)
    journal.append(some(5))
    batches = durable_records(Lake.at(lake), str(journal.directory)).batches(["seq"])
    found = next(batches)["seq"].to_pylist()
    journal.crash()  # so that its files can be deleted
    for segment in journal.segments:
        segment.path.unlink()
    assert sorted([*found, *(seq for batch in batches for seq in batch["seq"].to_pylist())]) == list(range(1, 16))


def test_journal_that_was_put_back_from_an_older_copy_is_an_error(written: Opener, tmp_path: Path) -> None:
    """It may go on with other records under numbers that the lake has."""
    journal, lake, older = written(), tmp_path / "lake", tmp_path / "older"
    journal.append(some(10))
    copytree(journal.directory, older)
    journal.append(some(5))
    archive(None, str(journal.directory), lake)
    with duckdb.connect() as connection:
        attach(connection, lake, str(older))
        with pytest.raises(Exception, match="put back from an older copy"):
            asked(connection, "select count(*) from fyrehose.records")


def test_neither_lake_nor_journal_is_refused() -> None:
    with duckdb.connect() as connection, pytest.raises(ValueError, match="neither a lake nor a journal"):
        attach(connection, None)


@pytest.mark.slow
def test_live_views_of_spark_see_what_is_durable_when_they_are_queried(
    spark: Any, written: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, lake = written(), tmp_path / "lake"
    monkeypatch.chdir(tmp_path)  # workers have another directory
    journal.append(some(10, "it's"), some(4, "a*b"), some(3, "aab"), Run.of("bytes", [b"\xff"], source="test"))
    archive(None, str(journal.directory), lake)
    made = catalog(spark, "lake", "j", live=True)
    assert made == ["a*b", "aab", "bytes", "it's"]
    counted = "select count(*), count(distinct seq), max(text) from streams.`it's`"
    assert tuple(spark.sql(counted).collect()[0]) == (10, 10, '{"n": 9}')
    journal.append(some(5, "it's"))
    assert tuple(spark.sql(counted).collect()[0]) == (15, 15, '{"n": 9}')
    archive(None, str(journal.directory), lake)
    assert tuple(spark.sql(counted).collect()[0]) == (15, 15, '{"n": 9}')
    assert spark.sql("select count(*) from streams.`a*b`").collect()[0][0] == 4
    assert spark.sql("select text from streams.bytes").collect()[0][0] is None
    function = f"fyrehose_records('{lake}', null, 'a*')"
    assert spark.sql(f"select stream, count(*) from {function} group by 1 order by 1").collect() == [
        ("a*b", 4),
        ("aab", 3),
    ]
    frozen = catalog(spark, lake, str(journal.directory), match="bytes")
    assert frozen == ["bytes"]
    assert spark.sql("select text, time from streams.bytes").collect()[0][0] is None
    with pytest.raises(Exception, match="is no lake"):
        spark.sql("select * from fyrehose_records('/nothing', null, null)").collect()
