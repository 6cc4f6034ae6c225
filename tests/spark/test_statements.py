"""Statements for other engines: DuckDB runs its own with its extension, in the version that PyPI has."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import polars
import pytest
import yaml
from click.testing import CliRunner
from deltalake import DeltaTable, Field, Schema

from fyrehose.cli import spark as command
from fyrehose.errors import ConfigError
from fyrehose.records import Run
from fyrehose.spark import catalog
from fyrehose.spark import table as records
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.tables import fill_tables
from fyrehose.spark.statements import ENGINES, names, statements, statements_of_tables
from fyrehose.spark.typed.config import read_config

Opener = Callable[..., Any]
NAMES = ["web", "web.access", 'a "quoted" one', "it's", "back\\slash", "two\nlines"]


def lake_of(written: Opener, directory: Path) -> Path:
    journal, lake = written(), directory / "lake"
    for number, name in enumerate([*NAMES, ".own"]):
        journal.append(Run.of(name, [b"x"] * (number + 1), source="test"))
    archive(None, str(journal.directory), lake)
    return lake


def printed(*words: str) -> str:
    said = CliRunner().invoke(command.main, ["catalog", *words])
    assert said.exit_code == 0, said.output
    return said.output


def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    folder = Path(duckdb_extension_delta.__file__).parent / "extensions" / f"v{duckdb.__version__}"
    connection.execute(f"load '{folder / 'delta.duckdb_extension'}'")
    return connection


def test_duckdb_has_a_view_of_every_stream(written: Opener, tmp_path: Path) -> None:
    lake = lake_of(written, tmp_path)
    with database() as connection:
        connection.execute(printed(str(lake), "--for", "duckdb"))
        for number, name in enumerate(NAMES):
            quoted = '"' + name.replace('"', '""') + '"'
            found = connection.execute(f"select count(*), min(text) from fyrehose.{quoted}").fetchall()
            assert found == [(number + 1, "x")]
        names = {
            row[0]
            for row in connection.execute(
                "select view_name from duckdb_views() where schema_name = 'fyrehose'"
            ).fetchall()
        }
    assert names == {*NAMES, "records"}
    assert "web.access" in printed(str(lake), "--for", "duckdb", "--match", "web.*")
    assert "quoted" not in printed(str(lake), "--for", "duckdb", "--match", "web.*")


def test_sources_of_dbt_are_yaml_that_duckdb_reads(written: Opener, tmp_path: Path) -> None:
    lake = lake_of(written, tmp_path)
    (source,) = yaml.safe_load(printed(str(lake), "--for", "dbt"))["sources"]
    with database() as connection:
        for table in source["tables"]:
            place = table["config"]["meta"]["external_location"]
            found = connection.execute(f"select count(*) from {place}").fetchall()[0][0]
            assert found == (NAMES.index(table["name"]) + 1 if table["name"] in NAMES else 28)
    assert {table["name"] for table in source["tables"]} == {*NAMES, "records"}


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_statements_name_the_lake_and_every_stream(engine: str) -> None:
    text = "\n".join(statements(engine, "s3://bucket/some/lake", ["web", "records"]))
    assert "some/lake" in text
    assert "web" in text
    assert text.count("records") < 8


@pytest.mark.parametrize("engine", ["athena", "snowflake", "unity"])
def test_services_cannot_read_a_directory(engine: str) -> None:
    with pytest.raises(ConfigError, match="archive into an object store"):
        statements(engine, "/lake", [])


def test_names_that_an_engine_takes_for_equal_get_a_suffix(caplog: pytest.LogCaptureFixture) -> None:
    streams = ["Web", "web", "records", "RECORDS", "a.b", "a_b", "other"]
    for engine, doubtful in {
        "duckdb": {"Web", "web", "records", "RECORDS"},
        "trino": {"Web", "web", "records", "RECORDS"},
        "athena": {"Web", "web", "records", "RECORDS", "a.b", "a_b"},
        "unity": {"Web", "web", "records", "RECORDS", "a.b", "a_b"},
        "snowflake": {"records", "RECORDS"},  # the table is named without quotes, which makes it RECORDS
        "dbt": {"records"},
    }.items():
        made = names(engine, streams)
        folded = [name.lower() if engine not in ("snowflake", "dbt") else name for name in made.values()]
        assert len({*folded, "records"}) == len(streams) + 1
        assert {stream for stream, name in made.items() if re.search("_[0-9a-f]{8}$", name)} == doubtful
        assert made["other"] == names(engine, ["other"])["other"] == "other"
    assert "the view of 'Web' is" in caplog.text
    assert names("athena", ["Web.Access-1"]) == {"Web.Access-1": "web_access_1"}
    assert names("unity", ["web.access"]) == {"web.access": "web_access"}


def test_view_never_has_the_records_of_another_stream() -> None:
    with duckdb.connect() as connection:
        connection.execute(
            "create table lake as select unnest(['Web', 'web', 'records', 'other']) as stream, null::blob as payload"
        )
        connection.execute("create macro delta_scan(place) as table select * from lake")
        streams = ["Web", "web", "records", "other"]
        for statement in statements("duckdb", "lake", streams):
            connection.execute(statement)
        for stream, name in names("duckdb", streams).items():
            assert connection.execute(f'select stream from fyrehose."{name}"').fetchall() == [(stream,)]
        assert connection.execute("select count(*) from fyrehose.records").fetchall() == [(4,)]


def test_text_of_a_payload_that_is_not_utf8_is_null(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.append(Run.of("web", [b"\xff", '{"ä": 1}'.encode()], source="test"))
    archive(None, str(journal.directory), lake)
    with database() as connection:
        connection.execute(printed(str(lake), "--for", "duckdb"))
        found = connection.execute("select text, text::json->>'ä' from fyrehose.web order by seq").fetchall()
    assert found == [(None, None), ('{"ä": 1}', "1")]


CONFIG = """
journal = "j"
output = "tables"
[tables.Requests]
streams = ["web"]
columns = { status = "long" }
expectations = { known = { check = "status < 600", action = "quarantine" } }
[tables."requests.more"]
streams = ["web"]
[aggregates.by_status]
table = "Requests"
window = "1m"
by = ["status"]
columns = { requests = "count" }
"""


def test_typed_tables_are_named_by_their_configuration(written: Opener, tmp_path: Path) -> None:
    journal, config = written(), tmp_path / "tables.toml"
    journal.append(Run.of("web", [b'{"status": 200}', b'{"status": 999}'], source="test"))
    config.write_text(CONFIG)
    fill_tables(None, read_config(config))
    with database() as connection:
        connection.execute(printed(str(config), "--for", "duckdb"))
        for name, expected in {
            "Requests": 1,
            "Requests_quarantine": 1,
            "requests.more": 2,
            "by_status": 1,
        }.items():
            assert connection.execute(f'select count(*) from fyrehose_tables."{name}"').fetchall() == [(expected,)]
        for table in yaml.safe_load(printed(str(config), "--for", "dbt", "--match", "Req*"))["sources"][0]["tables"]:
            place = table["config"]["meta"]["external_location"]
            assert connection.execute(f"select count(*) from {place}").fetchall() == [(1,)]
    assert "more" not in printed(str(config), "--for", "duckdb", "--match", "by_*")


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_statements_of_typed_tables_distinguish_their_names(engine: str) -> None:
    text = "\n".join(statements_of_tables(engine, {name: f"s3://bucket/t/{name}" for name in ("Web", "web", "a.b")}))
    assert len(set(re.findall(r"[\"'`](Web|web|web_[0-9a-f]{8}|Web_[0-9a-f]{8})[\"'`]", text))) == 2
    assert all(f"t/{name}" in text for name in ("Web", "web", "a.b"))
    assert "fyrehose_tables" in text


def test_statements_of_a_table_that_is_no_archive_are_refused(tmp_path: Path) -> None:
    """Otherwise they would replace those of the lake, because both are named ``fyrehose.records``."""
    DeltaTable.create(tmp_path / "typed", Schema([Field("x", "long")]))
    said = CliRunner().invoke(command.main, ["catalog", str(tmp_path / "typed"), "--for", "duckdb"])
    assert said.exit_code != 0
    assert "is no archive of a journal" in said.output + str(said.exception)


def test_engines_read_only_files_of_the_wanted_days_and_times(written: Opener, tmp_path: Path) -> None:
    """A file that is not there shows whether an engine opens it: by the day, and by the statistics of the log."""
    journal, lake, config = written(), tmp_path / "lake", tmp_path / "tables.toml"
    config.write_text('journal = "j"\noutput = "tables"\n[tables.web]\nstreams = ["web"]\n')
    for _ in range(3):  # the journal does not follow a clock that steps by more than an hour
        journal.append(Run.of("web", [b'{"status": 200}'] * 3, source="test"))
        archive(None, str(journal.directory), lake)
        fill_tables(None, read_config(config))
        journal.now[0] += 3_500_000_000
    typed = tmp_path / "tables" / "web"
    for place, time, seq in ((lake, "time", "seq"), (typed, "_time", "_seq"), (typed, "event_time", "_seq")):
        for file in place.glob("date=2023-11-14/*.parquet"):
            file.unlink()
        for wanted in ("date = '2023-11-15'", f"{seq} > 6"):  # DuckDB does not use the statistics of times
            with database() as connection:
                found = connection.execute(f"select count(*) from delta_scan('{place}') where {wanted}").fetchall()
            assert found == [(3,)]
        days = polars.col("date") == date(2023, 11, 15)
        for chosen in (days, polars.col(time) >= datetime(2023, 11, 15, tzinfo=UTC)):
            assert polars.scan_delta(str(place)).filter(chosen).collect().height == 3


def of_two_days(written: Opener, directory: Path) -> tuple[Path, Path]:
    """Return a lake and a typed table by hours: of 22, 23 and 0 o'clock."""
    journal, lake, config = written(), directory / "lake", directory / "tables.toml"
    config.write_text('journal = "j"\noutput = "tables"\n[tables.web]\nstreams = ["web"]\nby_hour = true\n')
    for number in range(3):
        journal.append(Run.of("web", [b'{"hour": 1}'] * (number + 1), source="test"))
        journal.now[0] += 3_500_000_000
    archive(None, str(journal.directory), lake, by_hour=True)
    fill_tables(None, read_config(config))
    return lake, directory / "tables" / "web"


def spoil(table: Path, but: str) -> None:
    """Replace the bytes of all files but those of a partition, so that a program that opens one of them fails."""
    kept = set(table.glob(f"{but}/*.parquet"))
    assert kept
    for file in set(table.glob("date=*/**/*.parquet")) - kept:
        file.write_bytes(bytes(file.stat().st_size))


def test_duckdb_and_polars_read_only_files_of_the_wanted_hour(written: Opener, tmp_path: Path) -> None:
    for table in of_two_days(written, tmp_path):
        spoil(table, "date=2023-11-14/hour=23")
        for wanted in ("hour = 23", "hour > 22", "hour between 23 and 24 and date = '2023-11-14'"):
            with database() as connection:
                query = f"select count(*) from delta_scan('{table}') where {wanted}"
                assert connection.execute(query).fetchall() == [(2,)]
                plan = connection.execute(f"explain analyze {query}").fetchall()[0][1]
            assert re.findall(r"Total Files Read: (\d+)", plan) == ["1"]
        assert polars.scan_delta(str(table)).filter(polars.col("hour") == 23).collect().height == 2
    assert "hour_" in DeltaTable(table).schema().to_arrow().names  # the field of the events


@pytest.mark.slow
def test_spark_reads_only_files_of_the_wanted_hour(spark: Any, written: Opener, tmp_path: Path) -> None:
    lake, _ = of_two_days(written, tmp_path)
    journal = str(tmp_path / "j")
    whole = records(spark, lake, journal)
    assert sorted((row.seq, row.hour) for row in whole.collect()) == [
        (1, 22),
        (2, 23),
        (3, 23),
        *((n, 0) for n in (4, 5, 6)),
    ]
    spoil(lake, "date=2023-11-14/hour=23")
    assert {row.seq for row in records(spark, lake, journal).where("hour = 23").collect()} == {2, 3}
    catalog(spark, lake, journal)
    assert spark.sql("select count(*) from streams.web where hour = 23").collect()[0][0] == 2
