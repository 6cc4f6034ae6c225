"""The configuration of typed tables: one TOML file, which is checked completely before Spark starts.

in: a TOML file      out: a TablesConfig, or one error with the line, the table and the right name

journal = "data"
output = "tables"

[tables.requests]
streams = ["web.*"]
time = "@timestamp"
columns = { host = { path = "host.name", type = "string", default = "unknown" } }
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from os.path import normpath
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pyarrow as pa

from fyrehose.errors import ConfigError
from fyrehose.options import duration, suggestion
from fyrehose.patterns import Pattern
from fyrehose.spark.typed.conditions import Condition

#: The types of columns.
TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}
#: Columns that each table has: stream and number of the row's record, when that was accepted, and when the event
#: happened.
STREAM, SEQ, ACCEPTED, EVENT_TIME = "_stream", "_seq", "_time", "event_time"
RESCUED, DATE = "rescued", "date"
SYSTEM: dict[str, pa.DataType] = {
    STREAM: pa.string(),
    SEQ: pa.int64(),
    ACCEPTED: TYPES["timestamp"],
    EVENT_TIME: TYPES["timestamp"],
    RESCUED: pa.binary(),
    DATE: TYPES["date"],
}
#: What may happen to fields for which no column is declared.
COLUMNS, RESCUE, IGNORE = "columns", "rescue", "ignore"
#: What may happen to rows that do not meet an expectation.
EXPECT, DROP, FAIL, QUARANTINE = "expect", "drop", "fail", "quarantine"
#: Units of a number that is a time, in microseconds.
UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}

#: Permitted names.  Names of tables become directories; names of columns must suit every program that reads Delta
#: tables.
_TABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_COLUMN = re.compile(r"[^ ,;{}()\n\t=]{1,255}")
_STEPS = re.compile(r"([^\[\]]+)((?:\[\d{1,9}\][^\[\]]*)*)")
_STEP = re.compile(r"\[(\d+)\]|\.?([^\[\].]+)")
_FUNCTION = re.compile(r"(count)|(sum|min|max|mean)\((.+)\)")

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class TypedColumn:
    """A column of a typed table.

    :ivar path: the field, as names joined by dots
    :ivar steps: indexes and names behind the path, into an array
    :ivar type: a name of :data:`TYPES`
    :ivar default: the value where the field is missing or null
    :ivar unit: microseconds of a number that is a time; None: numbers are no times
    """

    name: str
    path: str
    steps: tuple[int | str, ...] = ()
    type: str
    default: Any = None
    unit: int | None = None


@attrs.frozen(kw_only=True)
class Expectation:
    """A condition that the rows of a table are expected to meet, and what happens to those that do not."""

    name: str
    condition: Condition
    action: str


@attrs.frozen(kw_only=True)
class TypedTable:
    """A table, whose rows are the events of some streams.

    :ivar time: the field that has the time of an event
    :ivar key: the columns by which an event that was sent again is recognized, if none of them is null; empty:
        repetitions are not recognized
    :ivar within: how long after the first event a repetition is recognized, in microseconds
    """

    name: str
    streams: tuple[Pattern, ...]
    columns: tuple[TypedColumn, ...]
    time: TypedColumn | None = None
    new_fields: str = COLUMNS
    expectations: tuple[Expectation, ...] = ()
    key: tuple[str, ...] = ()
    within: int = 0

    @property
    def schema(self) -> pa.Schema:
        """Return the declared columns, together with the columns that every table has."""
        return schema_of({column.name: column.type for column in self.columns})

    @property
    def quarantines(self) -> bool:
        """Return whether rows of this table may go to its quarantine."""
        return any(each.action == QUARANTINE for each in self.expectations)


@attrs.frozen(kw_only=True)
class Measure:
    """A column of an aggregate: a function, and the column that it is computed from (none for ``count``)."""

    name: str
    function: str
    column: str | None


@attrs.frozen(kw_only=True)
class Aggregate:
    """A table with a row for each window of time and group of another table.

    :ivar window: length of a window, in microseconds
    :ivar by: columns whose values make a group
    """

    name: str
    table: str
    window: int
    by: tuple[str, ...]
    measures: tuple[Measure, ...]
    where: Condition | None


@attrs.frozen(kw_only=True)
class TablesConfig:
    """The configuration in the whole file.

    :ivar output: the directory or URL that has a Delta table for each table
    :ivar lake: the archive from which a backfill reads what the journal does not have any more
    """

    journal: str
    output: str
    lake: str | None
    subscription: str | None
    skip_gaps: bool
    tables: tuple[TypedTable, ...]
    aggregates: tuple[Aggregate, ...]


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a table with these columns, between the columns that every table has."""
    first = {name: kind for name, kind in SYSTEM.items() if name not in (RESCUED, DATE)}
    own = {name: TYPES[kind] for name, kind in columns.items()}
    return pa.schema([*(first | own).items(), (RESCUED, SYSTEM[RESCUED]), (DATE, SYSTEM[DATE])])


def read_config(path: str | Path) -> TablesConfig:
    """Read the configuration of typed tables; relative paths in it are relative to its directory.

    :raises ConfigError: the file cannot be read, or something in it is wrong
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"invalid {file}: not TOML: {error}") from error
    return _config(_Section(file, text, (), values))


@attrs.frozen
class _Section:
    """A table of the TOML file; its methods return the values, and raise errors with the line of a wrong value."""

    file: Path
    text: str
    path: tuple[str, ...]
    values: dict[str, Any]

    def wrong(self, key: str | None, what: str) -> ConfigError:
        whole = self.path if key is None else (*self.path, key)
        where = f", line {line}" if (line := line_of(self.text, whole)) else ""
        inside = f", in [{'.'.join(map(_quoted, self.path))}]" if self.path else ""
        return ConfigError(f"invalid {self.file}{where}{inside}: {what}")

    def allow(self, *known: str) -> None:
        for key in self.values:
            if key not in known:
                advice = suggestion(key, known) or f"; expected {', '.join(known)}"
                raise self.wrong(key, f"unknown key {key!r}{advice}")

    def get(self, key: str, kind: type[T], what: str, default: T | None = None) -> T:
        """Return the value of *key*; without a default, the value is required."""
        if key not in self.values:
            if default is None:
                raise self.wrong(None, f"{key} is missing: {what}")
            return default
        value = self.values[key]
        if type(value) is not kind:
            raise self.wrong(key, f"{key} is {_shown(value)}; expected {what}")
        return value

    def text_of(self, key: str, what: str, default: str | None = None) -> str:
        value = self.get(key, str, what, default)
        if not value:
            raise self.wrong(key, f"{key} is empty; expected {what}")
        return value

    def texts(self, key: str, what: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return a list of texts; a single text counts as a list of one."""
        if key not in self.values and default is not None:
            return tuple(default)
        value = self.values.get(key)
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not listed or not all(isinstance(each, str) and each for each in listed):
            said = "missing" if key not in self.values else _shown(value)
            raise self.wrong(key if key in self.values else None, f"{key} is {said}; expected {what}")
        return tuple(listed)

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        value = self.text_of(key, f"one of {', '.join(choices)}", default)
        if value not in choices:
            advice = suggestion(value, choices) or f"; expected one of {', '.join(choices)}"
            raise self.wrong(key, f"{key} is {value!r}{advice}")
        return value

    def column(self, key: str, name: str, known: Collection[str]) -> None:
        """Check that *name*, which is in the value of *key*, is a column."""
        if name not in known:
            raise self.wrong(key, f"there is no column {name!r}{suggestion(name, known) or '; declare it'}")

    def microseconds(self, key: str) -> int:
        """Return the duration *key* in microseconds.

        :raises ConfigError: the value is missing, is no duration, or is not longer than 0
        """
        value = self.text_of(key, "a duration such as '1m'")
        try:
            found = round(duration(value) * 1_000_000)
        except ValueError as error:
            raise self.wrong(key, f"{key} is {value!r}; expected {error}") from error
        if found <= 0:
            raise self.wrong(key, f"{key} is {value!r}; expected a duration longer than 0")
        return found

    def below(self, key: str, value: Any = None) -> _Section:
        found = self.values.get(key, {}) if value is None else value
        if not isinstance(found, dict):
            raise self.wrong(key, f"{key} is {_shown(found)}; expected a table")
        return _Section(self.file, self.text, (*self.path, key), found)

    def each(self) -> Iterator[tuple[str, _Section]]:
        for key in self.values:
            yield key, self.below(key)

    def checked(self, key: str, make: Callable[[], T]) -> T:
        """Return the result of *make*; report its ValueError as an error of the value of a key."""
        try:
            return make()
        except ValueError as error:
            raise self.wrong(key, f"{key}: {error}") from error


def _config(whole: _Section) -> TablesConfig:
    whole.allow("journal", "output", "lake", "subscription", "gaps", "tables", "aggregates")
    tables = tuple(_table(name, section) for name, section in whole.below("tables").each())
    if not tables:
        raise whole.wrong(None, "there is no table: add one, such as [tables.events] with streams = ['*']")
    taken = {table.name for table in tables} | {f"{table.name}_quarantine" for table in tables if table.quarantines}
    aggregates = []
    for name, section in whole.below("aggregates").each():
        if name in taken:
            raise whole.below("aggregates").wrong(name, f"there is a table {name!r} already; choose another name")
        aggregates.append(_aggregate(name, section, tables))
    folder = whole.file.absolute().parent
    return TablesConfig(
        journal=_placed(folder, whole.text_of("journal", "a directory, or http://HOST:PORT")),
        output=_placed(folder, whole.text_of("output", "a directory, or s3://BUCKET/PATH")),
        lake=_placed(folder, whole.text_of("lake", "a directory or URL")) if "lake" in whole.values else None,
        subscription=whole.text_of("subscription", "a name") if "subscription" in whole.values else None,
        skip_gaps=whole.choice("gaps", ("error", "skip"), "error") == "skip",
        tables=tables,
        aggregates=tuple(aggregates),
    )


def _placed(folder: Path, location: str) -> str:
    return location if "://" in location else normpath(folder / location)


def _table(name: str, section: _Section) -> TypedTable:
    if not _TABLE.fullmatch(name):
        raise section.wrong(None, f"{name!r} is no name of a table: use letters, digits, '_', '-' and '.'")
    section.allow("streams", "time", "new_fields", "columns", "expectations", "deduplicate")
    columns = tuple(_column(each, of) for each, of in section.below("columns", _columns_of(section)).each())
    folded: dict[str, str] = {each.lower(): each for each in SYSTEM}
    for column in columns:
        if column.name.lower() in folded:
            other = folded[column.name.lower()]
            raise section.below("columns").wrong(
                column.name, f"the column {column.name!r} has the name of the column {other!r}; choose another name"
            )
        folded[column.name.lower()] = column.name
    time = None
    if "time" in section.values:
        field = section.text_of("time", "the path of the field with an event's time")
        path, steps = section.checked("time", lambda: parsed_path(field))
        time = TypedColumn(name=EVENT_TIME, path=path, steps=steps, type="timestamp", unit=_unit_of(columns, field))
    table = TypedTable(
        name=name,
        streams=tuple(map(Pattern, section.texts("streams", "a pattern such as 'web.*', or a list of them"))),
        columns=columns,
        time=time,
        new_fields=section.choice("new_fields", (COLUMNS, RESCUE, IGNORE), COLUMNS),
    )
    types = {field.name: field.type for field in table.schema}
    expectations = tuple(_expectation(each, of, types) for each, of in section.below("expectations").each())
    key, within = _deduplicated(section.below("deduplicate"), columns) if "deduplicate" in section.values else ((), 0)
    return attrs.evolve(table, expectations=expectations, key=key, within=within)


def _columns_of(section: _Section) -> dict[str, Any]:
    """Return the columns of a table; ``name = "type"`` is short for ``name = { type = "type" }``."""
    found = section.below("columns").values
    return {name: {"type": value} if isinstance(value, str) else value for name, value in found.items()}


def _unit_of(columns: Sequence[TypedColumn], field: str) -> int | None:
    """Return the unit of the declared column for the field *field*; None if there is no such column."""
    path, steps = parsed_path(field)
    return next((each.unit for each in columns if (each.path, each.steps) == (path, steps)), None)


def _column(name: str, section: _Section) -> TypedColumn:
    if not _COLUMN.fullmatch(name):
        raise section.wrong(None, f"{name!r} is no name of a column: Delta tables allow no space and none of ,;{{}}()=")
    section.allow("path", "type", "default", "unit")
    kind = section.choice("type", tuple(TYPES))
    path, steps = section.checked(
        "path", lambda: parsed_path(section.text_of("path", "a path such as 'host.name'", name))
    )
    unit = None
    if "unit" in section.values:
        unit = UNITS[section.choice("unit", tuple(UNITS))]
        if kind != "timestamp":
            raise section.wrong("unit", f"unit is for columns of the type timestamp, and this is {kind!r}")
    default = None
    if "default" in section.values:
        default = section.checked("default", lambda: _default(kind, section.values["default"]))
    return TypedColumn(name=name, path=path, steps=steps, type=kind, default=default, unit=unit)


def parsed_path(text: str) -> tuple[str, tuple[int | str, ...]]:
    """Return a path, and the steps behind it: ``$.items[0].id`` -> ``("items", (0, "id"))``.

    :raises ValueError: the text is not a path
    """
    whole = _STEPS.fullmatch(text.removeprefix("$."))
    if whole is None:
        raise ValueError(f"{text!r} is not a path such as 'host.name' or 'items[0].id'")
    steps = [int(index) if index else name for index, name in _STEP.findall(whole[2])]
    return whole[1], tuple(steps)


def _default(kind: str, value: Any) -> Any:
    fitting: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "long": (int,),
        "double": (float, int),
        "boolean": (bool,),
        "timestamp": (datetime,),
        "date": (date,),
    }
    if type(value) not in fitting[kind]:
        raise ValueError(f"{_shown(value)} is no {kind}")
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    try:
        pa.scalar(value, TYPES[kind])
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(f"{value!r} is no {kind}") from error
    return value


def _expectation(name: str, section: _Section, types: Mapping[str, pa.DataType]) -> Expectation:
    section.allow("check", "action")
    action = section.choice("action", (EXPECT, DROP, FAIL, QUARANTINE), EXPECT)
    condition = Condition(section.text_of("check", "a condition such as 'status >= 100'"))
    section.checked("check", lambda: condition.check(types))
    return Expectation(name=name, condition=condition, action=action)


def _deduplicated(section: _Section, columns: Sequence[TypedColumn]) -> tuple[tuple[str, ...], int]:
    section.allow("key", "within")
    key = section.texts("key", "a column, or a list of columns")
    known = [*(column.name for column in columns), EVENT_TIME]
    for name in key:
        section.column("key", name, known)
    return key, section.microseconds("within")


def _aggregate(name: str, section: _Section, tables: Sequence[TypedTable]) -> Aggregate:
    if not _TABLE.fullmatch(name):
        raise section.wrong(None, f"{name!r} is no name of a table: use letters, digits, '_', '-' and '.'")
    section.allow("table", "window", "by", "columns", "where")
    named = section.choice("table", [table.name for table in tables])
    types = {field.name: field.type for field in next(table for table in tables if table.name == named).schema}
    by = section.texts("by", "a column, or a list of columns", ())
    for column in by:
        section.column("by", column, types)
    where = None
    if "where" in section.values:
        where = Condition(section.text_of("where", "a condition such as 'status >= 500'"))
        section.checked("where", lambda: where.check(types))
    columns = section.below("columns")
    measures = tuple(_measure(each, columns, types) for each in columns.values)
    if not measures:
        raise section.wrong(None, "there are no columns: add some, such as columns = { requests = 'count' }")
    for each in (*by, *(measure.name for measure in measures)):
        if each in ("window", DATE) or [*by, *(measure.name for measure in measures)].count(each) > 1:
            raise section.wrong("columns", f"there are two columns {each!r}; choose another name")
    return Aggregate(
        name=name, table=named, window=section.microseconds("window"), by=by, measures=measures, where=where
    )


def _measure(name: str, section: _Section, types: Mapping[str, pa.DataType]) -> Measure:
    if not _COLUMN.fullmatch(name):
        raise section.wrong(name, f"{name!r} is no name of a column")
    text = section.text_of(name, "'count', or a function such as 'sum(bytes)'")
    match = _FUNCTION.fullmatch(text)
    if match is None:
        raise section.wrong(name, f"{name} is {text!r}; expected count, or sum, min, max or mean of a column")
    if match[1]:
        return Measure(name=name, function="count", column=None)
    function, column = match[2], match[3].strip()
    section.column(name, column, types)
    if function in ("sum", "mean") and types[column] not in (TYPES["long"], TYPES["double"]):
        raise section.wrong(name, f"{function} needs a column of numbers, and {column!r} is {types[column]}")
    return Measure(name=name, function=function, column=column)


def line_of(text: str, path: Sequence[str]) -> int | None:
    """Return the line of the file with a key, or else with the table or the value around it; None if there is none.

    :param path: names of tables, and a key
    """
    best, found = 0, None
    inside: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = line.strip().startswith("[")
        words = _keys(line.strip().strip("[]") if header else line.partition("=")[0])
        if words is None:
            continue
        if header:
            inside = words
        whole = words if header else (*inside, *words)
        if len(whole) > best and tuple(path[: len(whole)]) == whole:
            best, found = len(whole), number
    return found


def _keys(text: str) -> tuple[str, ...] | None:
    """Return the names in a dotted key of TOML; None if the text is no key."""
    try:
        value: Any = tomllib.loads(f"{text} = 0")
    except ValueError:
        return None
    found = []
    while isinstance(value, dict):
        name, value = next(iter(value.items()))
        found.append(name)
    return tuple(found)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else repr(name)


def _shown(value: Any) -> str:
    names = {str: "text", bool: "boolean", int: "number", float: "number"}
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a table"
    return f"the {names.get(type(value), 'time')} {value!r}"
