"""Statements by which other engines name a lake as a table, each of its streams as a view, and typed tables.

in: the lake's URL, the names of its streams, or a configuration      out: SQL, or YAML for dbt

The Delta log alone says which files count: the engines read it, and nothing is copied or registered elsewhere.
Statements for DuckDB and dbt are run by the tests; those for services that cannot be installed follow their
documentation.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

from fyrehose.errors import ConfigError

log = logging.getLogger(__name__)

#: The schema of a lake's table and its views, the name of the table, and the schema of typed tables.
SCHEMA, TABLE, TYPED = "fyrehose", "records", "fyrehose_tables"


#: The statements that make a schema, and name a table in it, by engine; DuckDB needs its extension ``delta``, Trino a
#: current catalog with the connector ``delta_lake``, Snowflake an external volume with the lake's bucket, and
#: Databricks a current catalog.
_SCHEMAS = {
    "athena": "create database if not exists {schema};",
    "snowflake": (
        "create schema if not exists {schema};\n"
        "create catalog integration if not exists {schema} catalog_source = object_store table_format = delta "
        "enabled = true;"
    ),
}
_TABLES = {
    "duckdb": "create or replace view {table} as select *{text} from delta_scan({lake});",
    "trino": ("call system.register_table(schema_name => '{schema}', table_name => {name}, table_location => {lake});"),
    "athena": "create external table {table} location {lake} tblproperties ('table_type' = 'DELTA');",
    "snowflake": (
        "create iceberg table if not exists {table} external_volume = 'YOUR_VOLUME' catalog = '{schema}' "
        "base_location = {path} auto_refresh = true;"
    ),
    "unity": "create table if not exists {table} using delta location {lake};",
}
#: The payload as text, by engine; null if it is not UTF-8, or with replacement characters in Trino and Athena.
TEXTS = {
    "duckdb": "try(decode(payload))",
    "dbt": "try(decode(payload))",
    "trino": "from_utf8(payload)",
    "athena": "from_utf8(payload)",
    "snowflake": "try_hex_decode_string(to_varchar(payload, 'HEX'))",
    "unity": "try_validate_utf8(cast(payload as string))",
}
#: All engines, and the engines that read only lakes in object stores.
ENGINES = (*_TABLES, "dbt")
REMOTE = frozenset({"athena", "snowflake", "unity"})


#: The engines that compare names without regard to case, also quoted ones.
_FOLDING = frozenset({"duckdb", "trino", "athena", "unity"})
#: Characters that names of views may not have, by engine; they become ``_``.
_FORBIDDEN = {"athena": re.compile(r"[^a-z0-9_]"), "unity": re.compile(r"[./ \x00-\x1f\x7f]")}


def names(engine: str, streams: Sequence[str], taken: Sequence[str] = (TABLE,)) -> dict[str, str]:
    """Return the name of the view of each stream in an engine; names that the engine takes for equal get a suffix.

    The suffix depends on the stream only, so a name never is that of another stream later.

    :param taken: other names in the same schema
    """
    made = {}
    for stream in sorted(streams):
        name = stream.lower() if engine in ("athena", "unity") else stream
        made[stream] = _FORBIDDEN[engine].sub("_", name) if engine in _FORBIDDEN else name
    equal = {stream: name.lower() if engine in _FOLDING else name for stream, name in made.items()}
    count = Counter([*equal.values(), *taken, *(map(str.upper, taken) if engine == "snowflake" else ())])
    doubtful = [stream for stream in made if count[equal[stream]] > 1]
    for stream in doubtful:
        made[stream] += f"_{blake2b(stream.encode(), digest_size=4).hexdigest()}"
        log.warning("the view of %r is %r: %s takes its name for another one", stream, made[stream], engine)
    return made


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def unity_literal(text: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def unity_quoted(name: str) -> str:
    """Return a name in the quotation marks of Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def _named(engine: str, schema: str, tables: Mapping[str, str], text: str = "") -> Iterator[str]:
    """Yield the statements that name tables, whose locations are given, in a schema.

    :param text: a further column of views
    """
    literal = unity_literal if engine == "unity" else _literal
    yield _SCHEMAS.get(engine, "create schema if not exists {schema};").format(schema=schema)
    for name, location in tables.items():
        quoted = name if name == TABLE else (unity_quoted if engine in ("athena", "unity") else _quoted)(name)
        yield _TABLES[engine].format(
            schema=schema,
            name=literal(name),
            table=f"{schema}.{quoted}",
            lake=literal(location),
            path=literal(location.partition("://")[2].partition("/")[2] or location),
            text=text,
        )


def _sql(engine: str, lake: str, streams: Sequence[str]) -> Iterator[str]:
    """Yield the SQL statements for an engine: those that create the table, and a view of each stream."""
    yield from _named(engine, SCHEMA, {TABLE: lake}, f", {TEXTS[engine]} as text")
    yield from views(engine, streams)


def views(engine: str, streams: Sequence[str]) -> Iterator[str]:
    """Yield the statements that make a view of each stream, with the payload as text."""
    literal, quoted = (unity_literal, unity_quoted) if engine == "unity" else (_literal, _quoted)
    text = "" if engine == "duckdb" else f", {TEXTS[engine]} as text"  # DuckDB's table is a view, which has the column
    for stream, name in names(engine, streams).items():
        records = f"select *{text} from {SCHEMA}.{TABLE} where stream = {literal(stream)}"
        yield f"create or replace view {SCHEMA}.{quoted(name)} as {records};"


def _dbt(schema: str, locations: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a file of sources for dbt with DuckDB; JSON strings are YAML."""
    yield from ("version: 2", "sources:", f"  - name: {schema}", "    tables:")
    for name, location in locations.items():
        yield f"      - name: {json.dumps(name)}"
        yield f"        config: {{meta: {{external_location: {json.dumps(location)}}}}}"


def statements(engine: str, lake: str, streams: Sequence[str]) -> list[str]:
    """Return the statements for one of :data:`ENGINES` that name a lake and its streams.

    :raises ConfigError: the engine cannot read a lake in a directory
    """
    _check_place(engine, lake)
    if engine != "dbt":
        return list(_sql(engine, lake, streams))
    scan = f"(select *, {TEXTS[engine]} as text from delta_scan({_literal(lake)})"
    every = {name: f"{scan} where stream = {_literal(stream)})" for stream, name in names("dbt", streams).items()}
    return list(_dbt(SCHEMA, {TABLE: f"{scan})"} | every))


def statements_of_tables(engine: str, tables: Mapping[str, str]) -> list[str]:
    """Return the statements for one of :data:`ENGINES` that name typed tables, whose locations are given.

    :raises ConfigError: the engine cannot read tables in a directory
    """
    for location in tables.values():
        _check_place(engine, location)
    made = {name: tables[table] for table, name in names(engine, [*tables], ()).items()}
    if engine == "dbt":
        return list(_dbt(TYPED, {name: f"delta_scan({_literal(location)})" for name, location in made.items()}))
    return list(_named(engine, TYPED, made))


def _check_place(engine: str, lake: str) -> None:
    if engine in REMOTE and "://" not in lake:
        raise ConfigError(f"{engine} cannot read the directory {lake}: archive into an object store, s3://BUCKET/PATH")
