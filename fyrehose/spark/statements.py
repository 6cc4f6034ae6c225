"""Statements by which other engines name a lake as a table, and each of its streams as a view.

in: the lake's URL, the names of its streams      out: SQL, or YAML for dbt

The Delta log alone says which files count: the engines read it, and nothing is copied or registered elsewhere.
Statements for DuckDB and dbt are run by the tests; those for services that cannot be installed follow their
documentation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from fyrehose.errors import ConfigError

#: The schema of the table and its views, and the name of the table.
SCHEMA, TABLE = "fyrehose", "records"


#: The statements that name the table, by engine; DuckDB needs its extension ``delta``, Trino a current catalog with the
#: connector ``delta_lake``, Snowflake an external volume with the lake's bucket, and Databricks a current catalog.
_TABLES = {
    "duckdb": (
        "create schema if not exists {schema};",
        "create or replace view {table} as select * from delta_scan({lake});",
    ),
    "trino": (
        "create schema if not exists {schema};",
        "call system.register_table(schema_name => '{schema}', table_name => '{name}', table_location => {lake});",
    ),
    "athena": (
        "create database if not exists {schema};",
        "create external table {table} location {lake} tblproperties ('table_type' = 'DELTA');",
    ),
    "snowflake": (
        "create schema if not exists {schema};",
        (
            "create catalog integration if not exists {schema} catalog_source = object_store table_format = delta "
            "enabled = true;"
        ),
        (
            "create iceberg table if not exists {table} external_volume = 'YOUR_VOLUME' catalog = '{schema}' "
            "base_location = {path} auto_refresh = true;"
        ),
    ),
    "unity": (
        "create schema if not exists {schema};",
        "create table if not exists {table} using delta location {lake};",
    ),
}
#: All engines, and the engines that read only lakes in object stores.
ENGINES = (*_TABLES, "dbt")
REMOTE = frozenset({"athena", "snowflake", "unity"})


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _unity_literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _unity_quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _sql(engine: str, lake: str, streams: Sequence[str]) -> Iterator[str]:
    """Yield the SQL statements for an engine: those that create the table, and a view of each stream."""
    literal, quoted = (_unity_literal, _unity_quoted) if engine == "unity" else (_literal, _quoted)
    table = f"{SCHEMA}.{TABLE}"
    path = lake.partition("://")[2].partition("/")[2] or lake
    for statement in _TABLES[engine]:
        yield statement.format(schema=SCHEMA, name=TABLE, table=table, lake=literal(lake), path=literal(path))
    for stream in streams:
        records = f"select * from {table} where stream = {literal(stream)}"
        yield f"create or replace view {SCHEMA}.{quoted(stream)} as {records};"


def _dbt(lake: str, streams: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a file of sources for dbt with DuckDB; JSON strings are YAML."""
    yield from ("version: 2", "sources:", f"  - name: {SCHEMA}", "    tables:")
    scan = f"delta_scan({_literal(lake)})"
    for name, location in (
        (TABLE, scan),
        *((stream, f"(select * from {scan} where stream = {_literal(stream)})") for stream in streams),
    ):
        yield f"      - name: {json.dumps(name)}"
        yield f"        config: {{meta: {{external_location: {json.dumps(location)}}}}}"


def statements(engine: str, lake: str, streams: Sequence[str]) -> list[str]:
    """Return the statements for one of :data:`ENGINES`.

    :raises ConfigError: the engine cannot read a lake in a directory
    """
    if engine in REMOTE and "://" not in lake:
        raise ConfigError(f"{engine} cannot read the directory {lake}: archive into an object store, s3://BUCKET/PATH")
    named = [stream for stream in sorted(streams) if stream != TABLE]
    return list(_dbt(lake, named) if engine == "dbt" else _sql(engine, lake, named))
