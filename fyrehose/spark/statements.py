"""Statements by which other engines name a lake as a table, and each of its streams as a view.

in: the lake's URL, the names of its streams      out: SQL, or YAML for dbt

The Delta log alone says which files count: the engines read it, and nothing is copied or registered elsewhere.
Statements for DuckDB and dbt are run by the tests; those for services that cannot be installed follow their
documentation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from fyrehose.errors import ConfigError
from fyrehose.journal.parts import JSON, LARGEST, LAST_PART, PART
from fyrehose.records import MAX_PAYLOAD

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
#: All engines; the engines that read only lakes in object stores; and the engines whose views can join the parts of an
#: event, which are those whose statements the tests can run.
ENGINES = (*_TABLES, "dbt")
REMOTE = frozenset({"athena", "snowflake", "unity"})
JOINING = frozenset({"duckdb", "dbt"})


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _unity_literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _unity_quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def joined(records: str) -> str:
    """Return a query for DuckDB of records with the parts of each event joined, as fyrehose/spark/joining.py does it.

    :param records: the query of the records
    """
    kinds = f"({_literal(PART)}, {_literal(LAST_PART)})"
    last = f"content_type = {_literal(LAST_PART)}"
    # The parts of an event have consecutive numbers of their producer, and the labels of the event.
    whole = (
        f"count(*) over event > 1 and count(*) filter ({last}) over event = 1 "
        f"and min(octet_length(payload)) filter (not {last}) over event = {MAX_PAYLOAD} "
        f"and max(octet_length(payload)) filter (not {last}) over event = {MAX_PAYLOAD} "
        f"and sum(octet_length(payload)) over event <= {LARGEST}"
    )
    event = "server, stream, producer, source, topic, producer_seq, _before"
    return (
        f"with _records as ({records}), "
        f"_parts as (select *, count(*) filter ({last}) over (partition by server, stream, producer order by seq rows "
        f"between unbounded preceding and 1 preceding) as _before from _records where content_type in {kinds}), "
        f"_known as (select *, {whole} as _whole from _parts window event as (partition by {event})), "
        f"_events as (select {event}, max(seq) as _last, list_reduce(list(payload order by seq), lambda a, b: a || b) "
        f"as _payload from _known where _whole group by {event}), "
        "_documents as (select *, coalesce(try(json_valid(decode(_payload))), false) as _valid from _events), "
        f"_found as (select p.*, d._payload, d._valid, d._last from _known p left join _documents d on p._whole and "
        f"{' and '.join(f'p.{name} is not distinct from d.{name}' for name in event.split(', '))}) "
        f"select * from _records where content_type is null or content_type not in {kinds} "
        "union all by name "
        "select * exclude (_before, _whole, _payload, _valid, _last) "
        "replace (if(_whole and _valid, _payload, payload) as payload, "
        f"if(_whole and _valid, {_literal(JSON)}, content_type) as content_type) "
        "from _found where not coalesce(_whole and _valid, false) or seq = _last"
    )


def _sql(engine: str, lake: str, streams: Sequence[str], made: Callable[[str], str]) -> Iterator[str]:
    """Yield the SQL statements for an engine: those that create the table, and a view of each stream."""
    literal, quoted = (_unity_literal, _unity_quoted) if engine == "unity" else (_literal, _quoted)
    table = f"{SCHEMA}.{TABLE}"
    path = lake.partition("://")[2].partition("/")[2] or lake
    for statement in _TABLES[engine]:
        yield statement.format(schema=SCHEMA, name=TABLE, table=table, lake=literal(lake), path=literal(path))
    for stream in streams:
        records = made(f"select * from {table} where stream = {literal(stream)}")
        yield f"create or replace view {SCHEMA}.{quoted(stream)} as {records};"


def _dbt(lake: str, streams: Sequence[str], made: Callable[[str], str]) -> Iterator[str]:
    """Yield the lines of a file of sources for dbt with DuckDB; JSON strings are YAML."""
    yield from ("version: 2", "sources:", f"  - name: {SCHEMA}", "    tables:")
    scan = f"delta_scan({_literal(lake)})"
    for name, location in (
        (TABLE, scan),
        *((stream, f"({made(f'select * from {scan} where stream = {_literal(stream)}')})") for stream in streams),
    ):
        yield f"      - name: {json.dumps(name)}"
        yield f"        config: {{meta: {{external_location: {json.dumps(location)}}}}}"


def statements(engine: str, lake: str, streams: Sequence[str], *, join: bool = False) -> list[str]:
    """Return the statements for one of :data:`ENGINES`.

    :param join: the views of streams have one row for an event that is stored in parts
    :raises ConfigError: the engine cannot read a lake in a directory, or cannot join parts
    """
    if join and engine not in JOINING:
        raise ConfigError(
            f"the views of {engine} cannot join the parts of events: leave --parts out, or read the records with "
            "fyrehose.spark.table(..., parts='join')"
        )
    if engine in REMOTE and "://" not in lake:
        raise ConfigError(f"{engine} cannot read the directory {lake}: archive into an object store, s3://BUCKET/PATH")
    named = [stream for stream in sorted(streams) if stream != TABLE]
    made = joined if join else str
    return list(_dbt(lake, named, made) if engine == "dbt" else _sql(engine, lake, named, made))
