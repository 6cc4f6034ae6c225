"""Statements for other engines: DuckDB runs its own, with a macro in place of its extension."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from click.testing import CliRunner
from deltalake import DeltaTable

from fyrehose.cli import spark as command
from fyrehose.errors import ConfigError
from fyrehose.records import Run
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.statements import ENGINES, statements

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


def database(lake: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.register("_all", DeltaTable(str(lake)).to_pyarrow_dataset())
    connection.execute("create macro delta_scan(place) as table select * from _all where place = " + f"'{lake}'")
    return connection


def test_duckdb_has_a_view_of_every_stream(written: Opener, tmp_path: Path) -> None:
    lake = lake_of(written, tmp_path)
    with database(lake) as connection:
        connection.execute(printed(str(lake), "--for", "duckdb"))
        for number, name in enumerate(NAMES):
            quoted = '"' + name.replace('"', '""') + '"'
            assert connection.execute(f"select count(*) from fyrehose.{quoted}").fetchall() == [(number + 1,)]
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
    with database(lake) as connection:
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
