"""Turn JSON events into the columns of a typed table.

    in: payloads, columns, the types of fields that are columns already
    out: Arrow columns, which rows do not fit, and the fields that are new

A field is named by its path, with dots between the names, so ``{"host": {"name": "a"}}`` and ``{"host.name": "a"}`` are
the same field.  Nothing is lost: a row has misfits if its payload is not a JSON object, or if a value is in no column;
the table keeps the payloads of these rows.  No record, whatever its content, makes later records fail.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from math import isinf
from typing import Any, NoReturn

import attrs
import numpy as np
import pyarrow as pa
from pyarrow import compute

from fyrehose.spark.selection import microseconds
from fyrehose.spark.typed.config import COLUMNS, RESCUE, SYSTEM, TYPES, TypedColumn, TypedTable

#: Limit of the undeclared fields that become columns, because some programs use ids as names of fields.
MOST = 1000
#: The longest name of a column for an undeclared field, in characters.
LONGEST = 255
#: Integers beyond this are not exact as doubles.
_EXACT = 1 << 53
_LONG = 1 << 63
#: Characters that Delta tables do not allow in names of columns.
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")
#: The type of a new column, by the type of a value; a text that looks like a time stays a text.
_INFERRED = {str: "string", bool: "boolean", int: "long", float: "double", list: "string"}

_MISFIT: Any = object()


class Widened(Exception):
    """An undeclared column needs a wider type: a value of the column *name* is no integer."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@attrs.frozen(kw_only=True)
class Extracted:
    """Columns of some events.

    :ivar columns: the declared columns, and the columns of undeclared fields
    :ivar misfits: a mask of the rows whose payload has to be kept
    :ivar times: the column of the events' times; None if the table has no such field
    :ivar fields: the types of all columns of undeclared fields, including new ones
    """

    columns: dict[str, pa.Array]
    misfits: Any
    times: pa.Array | None
    fields: dict[str, str]


def extracted(
    payloads: Sequence[bytes], table: TypedTable, known: Mapping[str, str], fixed: frozenset[str] = frozenset()
) -> Extracted:
    """Extract the columns of a table from events.

    :param known: the types of the columns of fields, which are not declared
    :param fixed: the columns of *known* that keep their type; a value that needs a wider type is a misfit in them
    :raises Widened: a value needs a wider type than its column has
    """
    count = len(payloads)
    declared = [*table.columns, *([table.time] if table.time else [])]
    # The value of a declared path is used whole, even if it is an object.  Values of an array that no step reaches are
    # misfits.
    paths = frozenset(column.path for column in declared if not column.steps)
    misfits = np.zeros(count, bool)
    documents: list[dict[str, Any]] = []
    for row, payload in enumerate(payloads):
        document: dict[str, Any] = {}
        try:
            found = _DECODER.decode(payload.decode())
            if type(found) is not dict or _leaves(found, "", paths, document) != len(document):
                misfits[row] = True
        except (ValueError, RecursionError):
            misfits[row], document = True, {}
        documents.append(document)
    columns, times = {}, None
    for column in declared:
        values = [document.get(column.path) for document in documents]
        made = _typed(column, values, misfits)
        if column is table.time:
            times = made
        else:
            columns[column.name] = made
    fields = dict(known)
    if table.new_fields == COLUMNS:
        columns |= _others(documents, table, paths, fields, fixed, misfits)
    elif table.new_fields == RESCUE:
        for row, document in enumerate(documents):
            misfits[row] |= any(document[name] is not None for name in document.keys() - paths)
    return Extracted(columns=columns, misfits=misfits, times=times, fields=fields)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _leaves(document: dict[str, Any], prefix: str, whole: frozenset[str], found: dict[str, Any]) -> int:
    """Add the values of a document by their paths, and return how many there are; two values may have the same path.

    :param whole: the paths whose objects are used whole
    """
    count = 0
    for key, value in document.items():
        if type(value) is not dict:
            found[prefix + key] = value
            count += 1
        elif (name := prefix + key) in whole:
            found[name] = value
            count += 1
        else:
            count += _leaves(value, name + ".", whole, found)
    return count


def _typed(column: TypedColumn, values: list[Any], misfits: Any) -> pa.Array:
    """Return a declared column, and mark the rows whose values do not fit."""
    if column.steps:
        values = [_inside(value, column.steps) for value in values]
    made = _array(column.type, values, misfits, column.unit)
    if column.default is None:
        return made
    # A value that does not fit becomes null, and not the default, which would hide the misfit.
    missing = pa.array([value is None for value in values])
    return compute.if_else(missing, pa.scalar(column.default, TYPES[column.type]), made)


def _inside(value: Any, steps: Sequence[int | str]) -> Any:
    for step in steps:
        if isinstance(step, int):
            value = value[step] if type(value) is list and step < len(value) else None
        else:
            value = value.get(step) if type(value) is dict else None
    return value


def _others(
    documents: Sequence[Mapping[str, Any]],
    table: TypedTable,
    paths: frozenset[str],
    fields: dict[str, str],
    fixed: frozenset[str],
    misfits: Any,
) -> dict[str, pa.Array]:
    """Return the columns of undeclared fields; add the new ones to *fields*."""
    cells: dict[str, dict[int, Any]] = {}
    for row, document in enumerate(documents):
        for path, value in document.items():
            if path not in paths and value is not None:
                cells.setdefault(path, {})[row] = value
    reserved = {name.lower() for name in SYSTEM} | {column.name.lower() for column in table.columns}
    # Names that differ only in case are one column for Spark.
    spellings = {name.lower(): name for name in fields}
    placed: dict[str, dict[int, Any]] = {}
    for path, of_path in cells.items():
        name = _FORBIDDEN.sub("_", path)
        if name.lower() in reserved:
            name += "_"
        room = len(fields) < MOST and 0 < len(name) <= LONGEST and name.isprintable() and name.lower() not in reserved
        taken = spellings.get(name.lower(), name if room else None)
        if taken != name or name in placed:
            misfits[list(of_path)] = True
            continue
        if name not in fields:
            fields[name] = _inferred(of_path.values())
            spellings[name.lower()] = name
        placed[name] = of_path
    columns = {}
    for name, of_path in placed.items():
        kind = fields[name]
        if kind == "long" and name not in fixed and float in map(type, of_path.values()):
            raise Widened(name)
        columns[name] = _array(kind, [of_path.get(row) for row in range(len(documents))], misfits, None)
    return columns


def _inferred(values: Iterable[Any]) -> str:
    """Return the type of a new column: the type of most values; integers and other numbers count together."""
    counts = Counter(_INFERRED.get(type(value), "string") for value in values)
    if counts["double"]:
        counts["double"] += counts.pop("long", 0)
    return max(counts, key=lambda kind: (counts[kind], kind))


def _array(kind: str, values: list[Any], misfits: Any, unit: int | None) -> pa.Array:
    """Return values as a column; values that do not fit become null, and their rows are marked."""
    types = set(map(type, values))
    types.discard(type(None))
    if types <= _DIRECT.get(kind, frozenset()):
        try:
            return pa.array(values, TYPES[kind])
        except (pa.ArrowException, OverflowError, UnicodeError):
            pass  # a value does not fit
    convert = _CONVERTERS[kind]
    fitting = []
    for row, value in enumerate(values):
        made = None if value is None else convert(value) if unit is None else _time(value, unit)
        if made is _MISFIT:
            misfits[row] = True
            made = None
        fitting.append(made)
    return pa.array(fitting, pa.int64()).cast(TYPES[kind]) if kind == "timestamp" else pa.array(fitting, TYPES[kind])


def _string(value: Any) -> Any:
    """Return any value as a text: a text unchanged, other values as JSON."""
    text = value if type(value) is str else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeError:  # Half of a surrogate pair.
        return _MISFIT
    return text


def _long(value: Any) -> Any:
    if type(value) is float and value.is_integer() and abs(value) <= _EXACT:
        value = int(value)
    return value if type(value) is int and -_LONG <= value < _LONG else _MISFIT


def _double(value: Any) -> Any:
    if type(value) is int and abs(value) <= _EXACT:
        return float(value)
    return value if type(value) is float and not isinf(value) else _MISFIT


def _boolean(value: Any) -> Any:
    return value if type(value) is bool else _MISFIT


def _time(value: Any, unit: int | None = None) -> Any:
    """Return a time in microseconds since 1970 UTC; a time without a zone is taken as UTC."""
    if type(value) is str:
        try:
            return microseconds(datetime.fromisoformat(value))
        except (ValueError, OverflowError):
            return _MISFIT
    if unit is None or type(value) not in (int, float) or isinf(value):
        return _MISFIT
    found = round(value * unit)
    return found if abs(found) < _CENTURIES else _MISFIT


def _date(value: Any) -> Any:
    try:
        return date.fromisoformat(value) if type(value) is str and len(value) == len("2026-01-31") else _MISFIT
    except ValueError:
        return _MISFIT


#: Bounds of times that are given as numbers: about the years 1 to 9999, which are also the bounds of texts.
_CENTURIES = 62_135_596_800_000_000
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "string": _string,
    "long": _long,
    "double": _double,
    "boolean": _boolean,
    "timestamp": _time,
    "date": _date,
}
#: Types of values that PyArrow either converts in the same way as this module, or refuses.
_DIRECT = {
    "string": frozenset({str}),
    "long": frozenset({int}),
    "boolean": frozenset({bool}),
}
