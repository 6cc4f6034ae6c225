"""Statements by which other engines name a lake as a table, and each of its streams as a view.

in: the lake's URL, the names of its streams      out: SQL, or YAML for dbt

The Delta log stays the only truth: the engines read it, and nothing is copied or registered elsewhere.  Statements for
DuckDB and dbt are run by the tests; those for services that cannot be installed follow their documentation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from fyrehose.errors import ConfigError

#: The schema of the table and its views, and the name of the table.
SCHEMA, TABLE = "fyrehose", "records"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _views(streams: Sequence[str], create: str = "create or replace view") -> Iterator[str]:
    for stream in streams:
        yield (
            f"{create} {SCHEMA}.{_quoted(stream)} as select * from {SCHEMA}.{TABLE} where stream = {_literal(stream)};"
        )


def duckdb(lake: str, streams: Sequence[str]) -> Iterator[str]:
    """Yield statements for DuckDB with its extension ``delta``."""
    yield f"create schema if not exists {SCHEMA};"
    yield f"create or replace view {SCHEMA}.{TABLE} as select * from delta_scan({_literal(lake)});"
    yield from _views(streams)


def trino(lake: str, streams: Sequence[str]) -> Iterator[str]:
    """Yield statements for Trino, whose catalog with the connector ``delta_lake`` is the current one."""
    yield f"create schema if not exists {SCHEMA};"
    arguments = f"schema_name => '{SCHEMA}', table_name => '{TABLE}', table_location => {_literal(lake)}"
    yield f"call system.register_table({arguments});"
    yield from _views(streams)


def athena(lake: str, streams: Sequence[str]) -> Iterator[str]:
    """Yield statements for Athena."""
    yield f"create database if not exists {SCHEMA};"
    yield f"create external table {SCHEMA}.{TABLE} location {_literal(lake)} tblproperties ('table_type' = 'DELTA');"
    yield from _views(streams)


def snowflake(lake: str, streams: Sequence[str]) -> Iterator[str]:
    """Yield statements for Snowflake; the external volume must have the lake's bucket."""
    yield f"create schema if not exists {SCHEMA};"
    about = "catalog_source = object_store table_format = delta enabled = true"
    yield f"create catalog integration if not exists {SCHEMA} {about};"
    path = lake.partition("://")[2].partition("/")[2] or lake
    yield (
        f"create iceberg table if not exists {SCHEMA}.{TABLE} external_volume = 'YOUR_VOLUME' catalog = '{SCHEMA}' "
        f"base_location = {_literal(path)} auto_refresh = true;"
    )
    yield from _views(streams)


def unity(lake: str, streams: Sequence[str]) -> Iterator[str]:
    """Yield statements for Databricks' Unity Catalog, in the current catalog."""

    def text(value: str) -> str:
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

    yield f"create schema if not exists {SCHEMA};"
    yield f"create table if not exists {SCHEMA}.{TABLE} using delta location {text(lake)};"
    for stream in streams:
        name = "`" + stream.replace("`", "``") + "`"
        yield f"create or replace view {SCHEMA}.{name} as select * from {SCHEMA}.{TABLE} where stream = {text(stream)};"


def dbt(lake: str, streams: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a file of sources for dbt with DuckDB; JSON strings are YAML."""
    yield from ("version: 2", "sources:", f"  - name: {SCHEMA}", "    tables:")
    scan = f"delta_scan({_literal(lake)})"
    for name, location in (
        (TABLE, scan),
        *((stream, f"(select * from {scan} where stream = {_literal(stream)})") for stream in streams),
    ):
        yield f"      - name: {json.dumps(name)}"
        yield f"        config: {{meta: {{external_location: {json.dumps(location)}}}}}"


#: The statements by the name of the engine, and whether it reads only lakes in object stores.
ENGINES: dict[str, tuple[Callable[[str, Sequence[str]], Iterator[str]], bool]] = {
    "duckdb": (duckdb, False),
    "trino": (trino, False),
    "athena": (athena, True),
    "snowflake": (snowflake, True),
    "unity": (unity, True),
    "dbt": (dbt, False),
}


def statements(engine: str, lake: str, streams: Sequence[str]) -> list[str]:
    """Return the statements for one of :data:`ENGINES`.

    :raises ConfigError: the engine cannot read a lake in a directory
    """
    made, remote = ENGINES[engine]
    if remote and "://" not in lake:
        raise ConfigError(f"{engine} cannot read the directory {lake}: archive into an object store, s3://BUCKET/PATH")
    return list(made(lake, [stream for stream in sorted(streams) if stream != TABLE]))
