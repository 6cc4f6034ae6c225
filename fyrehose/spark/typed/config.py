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
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from os.path import normpath
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from fyrehose.options import duration, suggestion
from fyrehose.patterns import Pattern
from fyrehose.spark.typed.conditions import Condition
from fyrehose.toml_files import Mistake, inside, key, read, shown, structured, text, texts

#: The types of columns.
TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}
_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")
#: The largest number of digits of a decimal.
DIGITS = 38
#: Columns that each table has: stream and number of the row's record, when that was accepted, and when the event
#: happened.
STREAM, SEQ, ACCEPTED, EVENT_TIME = "_stream", "_seq", "_time", "event_time"
RESCUED, DATE, HOUR = "rescued", "date", "hour"
SYSTEM: dict[str, pa.DataType] = {
    STREAM: pa.string(),
    SEQ: pa.int64(),
    ACCEPTED: TYPES["timestamp"],
    EVENT_TIME: TYPES["timestamp"],
    RESCUED: pa.binary(),
    DATE: TYPES["date"],
}
#: What may happen to fields for which no column is declared.
COLUMNS, RESCUE, IGNORE, JSON = "columns", "rescue", "ignore", "json"
#: The column of these fields with ``new_fields = "json"``.
OTHER_FIELDS = "other_fields"
#: The path of a column with the text of the whole event, and a path that no field has, for the column OTHER_FIELDS.
RAW, OTHERS = "$", "$["
#: What the Delta tables of a typed table have: its rows, and how each round met its expectations; and QUARANTINE.
ROWS, CHECKS = "rows", "checks"
#: What may happen to rows that do not meet an expectation.
EXPECT, DROP, FAIL, QUARANTINE = "expect", "drop", "fail", "quarantine"
#: Units of a number that is a time, in microseconds.
UNITS: dict[str, int | Fraction] = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": Fraction(1, 1000)}

#: Permitted names.  Names of tables become directories; names of columns must suit every program that reads Delta
#: tables.
_TABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_COLUMN = re.compile(r"[^ ,;{}()\n\t=]{1,255}")
_STEPS = re.compile(r"([^\[\]]+)((?:\[\d{1,9}\][^\[\]]*)*)")
_STEP = re.compile(r"\[(\d+)\]|\.?([^\[\].]+)")
_FUNCTION = re.compile(r"(count)|(sum|min|max|mean)\((.+)\)")

#: Descriptions of valid values, for errors.
_JOURNAL, _OUTPUT = "a directory, or http://HOST:PORT", "a directory, or s3://BUCKET/PATH"
_STREAMS, _KEY = "a pattern such as 'web.*', or a list of them", "a column, or a list of columns"
_CONDITION = "a condition such as 'status >= 100'"


@attrs.frozen(kw_only=True)
class TypedColumn:
    """A column of a typed table.

    :ivar path: the field, as names joined by dots
    :ivar steps: indexes and names behind the path, into an array
    :ivar type: the name of a type (:func:`type_of`)
    :ivar default: the value where the field is missing or null
    :ivar unit: microseconds of a number that is a time; None: numbers are no times
    :ivar cast: whether a text that is a number or a boolean in JSON is taken as such
    :ivar format: the form of texts that are times or dates (:func:`datetime.strptime`); None: that of ISO 8601
    """

    name: str
    path: str
    steps: tuple[int | str, ...] = ()
    type: str
    default: Any = None
    unit: int | Fraction | None = None
    cast: bool = False
    format: str | None = None


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
    :ivar change_feed: whether the Delta table has a change data feed
    :ivar by_hour: whether the Delta table has a partition for each hour, and the column ``hour``
    """

    name: str
    streams: tuple[Pattern, ...]
    columns: tuple[TypedColumn, ...]
    time: TypedColumn | None = None
    new_fields: str = COLUMNS
    expectations: tuple[Expectation, ...] = ()
    key: tuple[str, ...] = ()
    within: int = 0
    change_feed: bool = False
    by_hour: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Return the declared columns, together with the columns that every table has."""
        return schema_of({column.name: column.type for column in self.columns})

    @property
    def reserved(self) -> tuple[str, ...]:
        """Return the names that columns of undeclared fields cannot have."""
        return (*SYSTEM, *([HOUR] if self.by_hour else ()), *(column.name for column in self.columns))

    @property
    def quarantines(self) -> bool:
        """Return whether rows of this table may go to its quarantine."""
        return any(each.action == QUARANTINE for each in self.expectations)

    @property
    def names(self) -> dict[str, str]:
        """Return the names of the Delta tables that a run fills for this table, by what they have."""
        found = {ROWS: self.name}
        if self.quarantines:
            found[QUARANTINE] = f"{self.name}_quarantine"
        if self.expectations:
            found[CHECKS] = f"{self.name}_expectations"
        return found


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

    def places(self) -> dict[str, str]:
        """Return where each Delta table is, by its name: tables, their quarantines, and aggregates."""
        names = [name for table in self.tables for name in table.names.values()]
        names += [aggregate.name for aggregate in self.aggregates]
        return {name: f"{self.output.rstrip('/')}/{name}" for name in names}


def type_of(name: str) -> pa.DataType:
    """Return the type of a column by its name: one of :data:`TYPES`, or such as ``decimal(18,2)``.

    :raises ValueError: there is no such type
    """
    match = _DECIMAL.fullmatch(name)
    if match is None:
        if name not in TYPES:
            raise ValueError(f"one of {', '.join(TYPES)}, or decimal(DIGITS,DECIMALS){suggestion(name, TYPES)}")
        return TYPES[name]
    digits, decimals = int(match[1]), int(match[2])
    if not 1 <= digits <= DIGITS or decimals > digits:
        raise ValueError(f"a decimal of 1 to {DIGITS} digits, such as decimal(18,2)")
    return pa.decimal128(digits, decimals)


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a table with these columns, between the columns that every table has."""
    first = {name: kind for name, kind in SYSTEM.items() if name not in (RESCUED, DATE)}
    own = {name: type_of(kind) for name, kind in columns.items()}
    return pa.schema([*(first | own).items(), (RESCUED, SYSTEM[RESCUED]), (DATE, SYSTEM[DATE])])


def read_config(path: str | Path) -> TablesConfig:
    """Read the configuration of typed tables; relative paths in it are relative to its directory.

    :raises ConfigError: the file cannot be read, or something in it is wrong
    """
    return read("", Path(path), _File, _File.config)


def _texts(expected: str) -> Callable[[object], tuple[str, ...]]:
    """Return the converter of a list of texts, which is not empty; a single text counts as a list of one."""

    def convert(value: object) -> tuple[str, ...]:
        try:
            found = texts(value)
        except ValueError:
            found = ()
        if not found:
            raise ValueError(expected)
        return found

    return convert


def _some(expected: str) -> Callable[[object], str]:
    """Return the converter of a text that is not empty."""

    def convert(value: object) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError(expected)
        return value

    return convert


def _choice(*words: str) -> Callable[[object], str]:
    def convert(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"one of {', '.join(words)}{suggestion(str(value), words)}")
        return value

    return convert


def _microseconds(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError("a duration such as '1m'")
    if (found := round(duration(value) * 1_000_000)) <= 0:
        raise ValueError("a duration longer than 0")
    return found


def _path(value: object) -> str:
    try:
        parsed_path(str(value))
    except ValueError:
        raise ValueError("a path such as 'host.name' or 'items[0].id'") from None
    return text(value)


def _type(value: object) -> str:
    """Return the name of a type as Delta has it."""
    name = str(value)
    type_of(name)
    return name.replace(" ", "")


def _format(value: object) -> str:
    """Return a format of times that says on which day a time is."""
    form, sample = text(value), datetime(2001, 12, 31, 13, 14, 15, tzinfo=UTC)
    try:
        if datetime.strptime(sample.strftime(form), form).date() == sample.date():
            return form
    except ValueError:
        pass
    raise ValueError("a format with a day, such as '%d/%b/%Y:%H:%M:%S %z'")


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _columns(value: object) -> dict[str, _Column]:
    """Return the columns of a table; ``name = "type"`` is short for ``name = { type = "type" }``."""
    if not isinstance(value, dict):
        raise ValueError("a table")
    whole = {name: {"type": each} if isinstance(each, str) else each for name, each in value.items()}
    return structured(dict[str, _Column], whole)


def _functions(value: object) -> dict[str, str]:
    """Return the columns of an aggregate, each of which is a text."""
    if not isinstance(value, dict):
        raise ValueError("a table")
    for name, each in value.items():
        if not isinstance(each, str) or not each:
            expected = "'count', or a function such as 'sum(bytes)'"
            raise Mistake(f"{name} is {shown(each)}; expected {expected}", key=name)
    return value


def _check_column(key: str, name: str, known: Collection[str]) -> None:
    """Check that *name*, which is in the value of *key*, is a column."""
    if name not in known:
        raise Mistake(f"there is no column {name!r}{suggestion(name, known) or '; declare it'}", key=key)


def _check_condition(key: str, condition: Condition, types: Mapping[str, pa.DataType]) -> None:
    try:
        condition.check(types)
    except ValueError as error:
        raise Mistake(f"{key}: {error}", key=key) from error


def _check_table_name(name: str) -> None:
    if not _TABLE.fullmatch(name):
        raise Mistake(f"{name!r} is no name of a table: use letters, digits, '_', '-' and '.'")


@attrs.frozen(kw_only=True)
class _Column:
    """A column of a typed table, as the file has it."""

    type: str = key(_type, expected=f"one of {', '.join(TYPES)}, or such as decimal(18,2)")
    path: str | None = key(_path, default=None)
    value: Any = key(lambda value: value, default=None, name="default")
    unit: str | None = key(_choice(*UNITS), default=None)
    cast: bool = key(_flag, default=False)
    format: str | None = key(_format, default=None)

    def column(self, name: str) -> TypedColumn:
        """Return the column *name*.

        :raises Mistake: the name, the unit, the path or the default is invalid
        """
        if not _COLUMN.fullmatch(name):
            raise Mistake(f"{name!r} is no name of a column: Delta tables allow no space and none of ,;{{}}()=")
        if self.unit is not None and self.type != "timestamp":
            raise Mistake(f"unit is for columns of the type timestamp, and this is {self.type!r}", key="unit")
        if self.cast and self.type in ("string", "date"):
            raise Mistake(f"cast is for columns of numbers, booleans and times, and this is {self.type!r}", key="cast")
        if self.format is not None and (self.type not in ("timestamp", "date") or self.unit is not None):
            raise Mistake("format is for columns of times and dates without a unit", key="format")
        path, steps = parsed_path(name if self.path is None else self.path)
        if path == RAW and (self.type != "string" or steps):
            raise Mistake("the path '$' is that of the whole event, which is a string", key="path")
        try:
            default = None if self.value is None else _default(self.type, self.value)
        except ValueError as error:
            raise Mistake(f"default: {error}", key="default") from error
        unit = None if self.unit is None else UNITS[self.unit]
        return TypedColumn(
            name=name,
            path=path,
            steps=steps,
            type=self.type,
            default=default,
            unit=unit,
            cast=self.cast,
            format=self.format,
        )


@attrs.frozen(kw_only=True)
class _Expectation:
    """An expectation of a typed table, as the file has it."""

    check: str = key(_some(_CONDITION), expected=_CONDITION)
    action: str = key(_choice(EXPECT, DROP, FAIL, QUARANTINE), default=EXPECT)

    def expectation(self, name: str, types: Mapping[str, pa.DataType]) -> Expectation:
        condition = Condition(self.check)
        _check_condition("check", condition, types)
        return Expectation(name=name, condition=condition, action=self.action)


@attrs.frozen(kw_only=True)
class _Deduplicate:
    """By which columns, and how long, the rows of a table are recognized as repetitions."""

    columns: tuple[str, ...] = key(_texts(_KEY), name="key", expected=_KEY)
    within: int = key(_microseconds, expected="a duration such as '1m'")


@attrs.frozen(kw_only=True)
class _Table:
    """A typed table, as the file has it."""

    streams: tuple[str, ...] = key(_texts(_STREAMS), expected=_STREAMS)
    time: str | None = key(_path, default=None)
    new_fields: str = key(_choice(COLUMNS, RESCUE, IGNORE, JSON), default=COLUMNS, name="new_fields")
    columns: dict[str, _Column] = key(_columns, default=attrs.Factory(dict))
    expectations: dict[str, _Expectation] = key(default=attrs.Factory(dict))
    deduplicate: _Deduplicate | None = key(default=None)
    change_feed: bool = key(_flag, default=False, name="change_feed")
    by_hour: bool = key(_flag, default=False, name="by_hour")

    def table(self, name: str) -> TypedTable:
        """Return the table *name* with its columns and expectations.

        :raises Mistake: a name is invalid, or a condition or a key names a column that the table lacks
        """
        _check_table_name(name)
        columns = self._made_columns()
        table = TypedTable(
            name=name,
            streams=tuple(map(Pattern, self.streams)),
            columns=columns,
            time=None if self.time is None else _time(self.time, columns),
            new_fields=self.new_fields,
            key=() if self.deduplicate is None else self.deduplicate.columns,
            within=0 if self.deduplicate is None else self.deduplicate.within,
            change_feed=self.change_feed,
            by_hour=self.by_hour,
        )
        types = {field.name: field.type for field in table.schema}
        expectations = []
        for each, of in self.expectations.items():
            with inside("expectations", each):
                expectations.append(of.expectation(each, types))
        for column in table.key:
            with inside("deduplicate"):
                _check_column("key", column, [*(column.name for column in columns), EVENT_TIME])
        return attrs.evolve(table, expectations=tuple(expectations))

    def _made_columns(self) -> tuple[TypedColumn, ...]:
        made: list[TypedColumn] = []
        if self.new_fields == JSON:
            made.append(TypedColumn(name=OTHER_FIELDS, path=OTHERS, type="string"))
        taken = (*SYSTEM, *([HOUR] if self.by_hour else ()), *(column.name for column in made))
        folded: dict[str, str] = {each.lower(): each for each in taken}
        for name, column in self.columns.items():
            with inside("columns"):
                if other := folded.get(name.lower()):
                    said = f"the column {name!r} has the name of the column {other!r}; choose another name"
                    raise Mistake(said, key=name)
                with inside(name):
                    made.append(column.column(name))
            folded[name.lower()] = name
        return tuple(made)


def _time(field: str, columns: Sequence[TypedColumn]) -> TypedColumn:
    """Return the column for the time of an event, as the declared column for *field* has it, if there is one."""
    path, steps = parsed_path(field)
    same = next((each for each in columns if (each.path, each.steps, each.type) == (path, steps, "timestamp")), None)
    made = same or TypedColumn(name=EVENT_TIME, path=path, steps=steps, type="timestamp")
    return attrs.evolve(made, name=EVENT_TIME, default=None)


@attrs.frozen(kw_only=True)
class _Aggregate:
    """An aggregate, as the file has it."""

    table: str = key(text, expected="the name of a table")
    window: int = key(_microseconds, expected="a duration such as '1m'")
    by: tuple[str, ...] = key(_texts(_KEY), default=())
    columns: dict[str, str] = key(_functions, default=attrs.Factory(dict))
    where: str | None = key(_some(_CONDITION), default=None)

    def aggregate(self, name: str, tables: Mapping[str, TypedTable]) -> Aggregate:
        """Return the aggregate *name*.

        :param tables: the typed tables, by name
        :raises Mistake: its table or a column is unknown, or its columns are none, invalid or named twice
        """
        _check_table_name(name)
        if self.table not in tables:
            advice = suggestion(self.table, tables) or f"; expected one of {', '.join(tables)}"
            raise Mistake(f"table is {self.table!r}{advice}", key="table")
        types = {field.name: field.type for field in tables[self.table].schema}
        for column in self.by:
            _check_column("by", column, types)
        where = None if self.where is None else Condition(self.where)
        if where is not None:
            _check_condition("where", where, types)
        with inside("columns"):
            measures = tuple(_measure(each, function, types) for each, function in self.columns.items())
        if not measures:
            raise Mistake("there are no columns: add some, such as columns = { requests = 'count' }")
        names = [*self.by, *(measure.name for measure in measures)]
        for each in names:
            if each in ("window", DATE) or names.count(each) > 1:
                raise Mistake(f"there are two columns {each!r}; choose another name", key="columns")
        return Aggregate(name=name, table=self.table, window=self.window, by=self.by, measures=measures, where=where)


def _measure(name: str, function: str, types: Mapping[str, pa.DataType]) -> Measure:
    if not _COLUMN.fullmatch(name):
        raise Mistake(f"{name!r} is no name of a column", key=name)
    match = _FUNCTION.fullmatch(function)
    if match is None:
        raise Mistake(f"{name} is {function!r}; expected count, or sum, min, max or mean of a column", key=name)
    if match[1]:
        return Measure(name=name, function="count", column=None)
    called, column = match[2], match[3].strip()
    _check_column(name, column, types)
    if called in ("sum", "mean") and not (
        pa.types.is_decimal(types[column]) or types[column] in (TYPES["long"], TYPES["double"])
    ):
        raise Mistake(f"{called} needs a column of numbers, and {column!r} is {types[column]}", key=name)
    return Measure(name=name, function=called, column=column)


@attrs.frozen(kw_only=True)
class _File:
    """The whole file."""

    journal: str = key(_some(_JOURNAL), expected=_JOURNAL)
    output: str = key(_some(_OUTPUT), expected=_OUTPUT)
    lake: str | None = key(_some("a directory or URL"), default=None)
    subscription: str | None = key(_some("a name"), default=None)
    gaps: str = key(_choice("error", "skip"), default="error")
    tables: dict[str, _Table] = key(default=attrs.Factory(dict), shown="[tables.NAME]")
    aggregates: dict[str, _Aggregate] = key(default=attrs.Factory(dict), shown="[aggregates.NAME]")

    def config(self, folder: Path) -> TablesConfig:
        """Return the configuration, with relative paths resolved in *folder*."""
        tables = {}
        for name, table in self.tables.items():
            with inside("tables", name):
                tables[name] = table.table(name)
        if not tables:
            raise Mistake("there is no table: add one, such as [tables.events] with streams = ['*']")
        taken = {name for table in tables.values() for name in table.names.values()}
        aggregates = []
        for name, aggregate in self.aggregates.items():
            with inside("aggregates", name):
                if name in taken:
                    raise Mistake(f"there is a table {name!r} already; choose another name")
                aggregates.append(aggregate.aggregate(name, tables))
        return TablesConfig(
            journal=_placed(folder, self.journal),
            output=_placed(folder, self.output),
            lake=None if self.lake is None else _placed(folder, self.lake),
            subscription=self.subscription,
            skip_gaps=self.gaps == "skip",
            tables=tuple(tables.values()),
            aggregates=tuple(aggregates),
        )


def _placed(folder: Path, location: str) -> str:
    return location if "://" in location else normpath(folder / location)


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
        "decimal": (float, int),
        "double": (float, int),
        "boolean": (bool,),
        "timestamp": (datetime,),
        "date": (date,),
    }
    if type(value) not in fitting[kind.partition("(")[0]]:
        raise ValueError(f"{shown(value)} is no {kind}")
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if kind.startswith("decimal"):
        value = Decimal(repr(value))
    try:
        pa.scalar(value, type_of(kind))
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(f"{value!r} is no {kind}") from error
    return value
