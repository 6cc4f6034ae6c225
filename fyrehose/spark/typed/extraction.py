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
from codecs import BOM_UTF8
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import count
from math import isinf
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from pyarrow import compute

from fyrehose.spark.columns import spread
from fyrehose.spark.selection import microseconds
from fyrehose.spark.typed.config import COLUMNS, OTHERS, RAW, RESCUE, TypedColumn, TypedTable, type_of

#: Limit of the undeclared fields that become columns, because some programs use ids as names of fields.
MOST = 1000
#: The longest name of a column for an undeclared field, in characters.
LONGEST = 255
#: Integers beyond this are not exact as doubles.
_EXACT = 1 << 53
_LONG = 1 << 63
#: The characters that JSON allows around a document.
_SPACES = " \t\n\r"
#: Characters that Delta tables do not allow in names of columns.
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")
_MISFIT: Any = object()
#: Digits of a decimal that has room for each integer of a column and for the decimals of its new type.
_WIDE = 76
#: The most significant digits that a double may need, and the length of a text that certainly has no more than 15.
_DOUBLE, _SAFE = 17, 16


class Widened(Exception):
    """An undeclared column needs a wider type: a value of the column *name* is no integer."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@attrs.frozen(slots=True)
class Cells:
    """A column that has values in some rows, and is null in all others.

    :ivar rows: the rows, rising
    """

    rows: Any
    values: pa.Array

    def chosen(self, mask: Any) -> Cells:
        """Return the cells in the rows of a mask, which are counted anew."""
        stays = mask[self.rows]
        return Cells((np.cumsum(mask) - 1)[self.rows[stays]], self.values.filter(pa.array(stays)))

    def between(self, begin: int, end: int) -> pa.Array:
        """Return the column from row *begin* to row *end*."""
        first, last = np.searchsorted(self.rows, (begin, end)).tolist()
        values = self.values.slice(first, last - first)
        return values if len(values) == end - begin else spread(values, self.rows[first:last] - begin, end - begin)


@attrs.frozen(kw_only=True)
class Extracted:
    """Columns of some events.

    :ivar columns: the declared columns
    :ivar cells: the columns of undeclared fields
    :ivar misfits: a mask of the rows whose payload has to be kept
    :ivar times: the column of the events' times; None if the table has no such field
    :ivar fields: the types of all columns of undeclared fields, including new ones
    """

    columns: dict[str, pa.Array]
    cells: dict[str, Cells]
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
    misfits = np.zeros(len(payloads), bool)
    declared = [*table.columns, *([table.time] if table.time else [])]
    # The value of a declared path is used whole, even if it is an object.  Values of an array that no step reaches are
    # misfits.
    paths = frozenset(column.path for column in declared if not column.steps) - {RAW, OTHERS}
    texts = any(column.path == RAW for column in declared)
    documents: list[dict[str, Any]] = []
    odd: list[str] = []
    decoder = _decoder(odd)
    for row, payload in enumerate(payloads):
        document: dict[str, Any] = {}
        try:
            text = _decoded(payload).strip(_SPACES)
            event, end = decoder.raw_decode(text)
            if type(event) is not tuple or end != len(text):
                misfits[row] = not texts
            elif _leaves(event, "", paths, document, odd) != len(document) or odd:
                misfits[row] = True
        except (ValueError, RecursionError):
            misfits[row], document = not texts, {}
        odd.clear()
        documents.append(document)
    # Taking values out of the documents leaves the fields that are not declared.
    found = {path: [document.pop(path, None) for document in documents] for path in paths}
    columns, times = {}, None
    for column in declared:
        values: list[Any]
        if column.path == RAW:
            values = [_decoded(payload) for payload in payloads]
        elif column.path == OTHERS:
            values = list(_json(documents, misfits))
        else:
            values = found.get(column.path) or [document.get(column.path) for document in documents]
        made = _typed(column, values, misfits)
        if column is table.time:
            times = made
        else:
            columns[column.name] = made
    fields, cells = dict(known), dict[str, Cells]()
    if table.new_fields == COLUMNS:
        cells = _others(documents, table, fields, fixed, misfits)
    elif table.new_fields == RESCUE:
        for row, document in enumerate(documents):
            misfits[row] |= any(value is not None for value in document.values())
    return Extracted(columns=columns, cells=cells, misfits=misfits, times=times, fields=fields)


def _decoded(payload: bytes) -> str:
    """Return a payload as text; bytes that are not UTF-8 become surrogates, which make a misfit of their field only."""
    try:
        return payload.decode("utf-8-sig" if payload.startswith(BOM_UTF8) else "utf-8")
    except UnicodeDecodeError:
        return payload.decode("utf-8-sig", "surrogateescape")


@attrs.frozen(slots=True)
class Digits:
    """A number that no double stands for, because it has too many digits.

    :ivar text: as the event has it
    """

    text: str


#: The type of a new column, by the type of a value; a text that looks like a time stays a text.
_INFERRED = {str: "string", bool: "boolean", int: "long", float: "double", Digits: "double", list: "string"}


def _number(text: str) -> float | Digits:
    """Return a number with a fraction or an exponent; a double stands for it if it prints with the same digits."""
    value = float(text)
    if (len(text) <= _SAFE and "e" not in text and "E" not in text) or repr(value) == text:
        return value
    exact = Decimal(text)
    digits = len(exact.as_tuple().digits)
    return value if digits <= _DOUBLE and Decimal(f"{value:.{digits - 1}e}") == exact else Digits(text)


#: Decodes texts that are numbers; NaN is none.
_SCALARS = json.JSONDecoder(parse_float=_number, parse_constant=lambda name: None)


def _decoder(odd: list[str]) -> json.JSONDecoder:
    """Return a decoder of events, whose objects are tuples of pairs; it adds ``NaN`` or ``Infinity`` to *odd*."""
    return json.JSONDecoder(object_pairs_hook=tuple, parse_float=_number, parse_constant=odd.append)


#: The types of arrays and objects.
_NESTED = frozenset({list, tuple})


def _leaves(
    event: tuple[tuple[str, Any], ...], prefix: str, whole: frozenset[str], found: dict[str, Any], odd: list[str]
) -> int:
    """Add the values of an object by their paths, and return how many there are; two values may have the same path.

    :param whole: the paths whose objects are used whole
    :param odd: gets a text if an object has a key twice, of which the last value counts
    """
    count, plain = len(event), dict(event)
    if len(plain) != count:
        odd.append("repeated key")
    if _NESTED.isdisjoint(map(type, plain.values())):
        found.update(plain if not prefix else {prefix + key: value for key, value in event})
        return count
    for key, value in event:
        kind = type(value)
        if kind is tuple and (name := prefix + key) not in whole:
            count += _leaves(value, name + ".", whole, found, odd) - 1
            continue
        found[prefix + key] = _plain(value, odd) if kind is tuple or kind is list else value
    return count


def _plain(value: Any, odd: list[str]) -> Any:
    """Return a value in which objects are dictionaries."""
    if type(value) is list:
        return [_plain(each, odd) for each in value]
    if type(value) is not tuple:
        return value
    made = {key: _plain(each, odd) for key, each in value}
    if len(made) != len(value):
        odd.append("repeated key")
    return made


def _typed(column: TypedColumn, values: list[Any], misfits: Any) -> pa.Array:
    """Return a declared column, and mark the rows whose values do not fit."""
    if column.steps:
        values = [_inside(value, column.steps) for value in values]
    if column.cast:
        values = [_cast(value) if type(value) is str else value for value in values]
    made = _array(column.type, values, misfits, column)
    if column.default is None:
        return made
    # A value that does not fit becomes null, and not the default, which would hide the misfit.
    missing = pa.array([value is None for value in values])
    return compute.if_else(missing, pa.scalar(column.default, type_of(column.type)), made)


def _cast(text: str) -> Any:
    """Return the number or the boolean that a text is in JSON; any other text unchanged."""
    try:
        value = _SCALARS.decode(text)
    except (ValueError, RecursionError):
        return text
    return value if type(value) in (int, float, bool, Digits) else text


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
    fields: dict[str, str],
    fixed: frozenset[str],
    misfits: Any,
) -> dict[str, Cells]:
    """Return the columns of undeclared fields; add the new ones to *fields*.

    The costs are those of the fields that occur, and not those of all columns and rows.
    """
    reserved = {name.lower() for name in table.reserved}
    # Names that differ only in case are one column for Spark.
    spellings = {name.lower(): name for name in fields}
    placed: dict[str, tuple[Any, list[Any]]] = {}
    for path, rows, values in _by_path(documents):
        name = _FORBIDDEN.sub("_", path)
        if name.lower() in reserved:
            name += "_"
        room = len(fields) < MOST and 0 < len(name) <= LONGEST and name.isprintable() and name.lower() not in reserved
        taken = spellings.get(name.lower(), name if room else None)
        if taken != name or name in placed:
            misfits[rows] = True
            continue
        if name not in fields:
            fields[name] = _inferred(values)
            spellings[name.lower()] = name
        placed[name] = rows, values
    columns = {}
    for name, (rows, values) in placed.items():
        kind = fields[name]
        if kind == "long" and name not in fixed and not {float, Digits}.isdisjoint(map(type, values)):
            raise Widened(name)
        odd = np.zeros(len(rows), bool)
        columns[name] = Cells(rows, _array(kind, values, odd))
        misfits[rows[odd]] = True
    return columns


def _by_path(documents: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield each path, the rows in which it has a value, and these values; without a step of Python for each value."""
    paths: list[str] = []
    values: list[Any] = []
    sizes: list[int] = []
    for document in map(_there, documents):
        paths += document
        values += document.values()
        sizes.append(len(document))
    numbers = defaultdict[str, int](count().__next__)
    codes = np.fromiter(map(numbers.__getitem__, paths), np.int64, len(paths))
    rows, order = np.repeat(np.arange(len(sizes)), sizes), np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(numbers)))
    for path, some in zip(numbers, np.split(order, ends), strict=False):
        yield path, rows[some], [values[number] for number in some.tolist()]


def _there(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields that are not null."""
    if None in document.values():
        return {path: value for path, value in document.items() if value is not None}
    return document


def _json(documents: Iterable[Mapping[str, Any]], misfits: Any) -> Iterator[str | None]:
    """Yield fields as JSON objects, with their paths for keys; None if there are none, or not as text."""

    def nearest(digits: Digits) -> float:
        misfits[row] = True
        return float(digits.text)

    encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=nearest).encode
    for row, fields in enumerate(map(_there, documents)):
        try:
            yield encoded(fields) if fields else None
        except ValueError:  # a number beyond any double
            misfits[row] = True
            yield None


def _inferred(values: Iterable[Any]) -> str:
    """Return the type of a new column: the type of most values; integers and other numbers count together."""
    counts = Counter[str]()
    for kind, number in Counter(map(type, values)).items():
        counts[_INFERRED.get(kind, "string")] += number
    if counts["double"]:
        counts["double"] += counts.pop("long", 0)
    return max(counts, key=lambda kind: (counts[kind], kind))


def _array(kind: str, values: list[Any], misfits: Any, column: TypedColumn | None = None) -> pa.Array:
    """Return values as a column; values that do not fit become null, and their rows are marked.

    :param column: the declared column, whose format or unit is that of times
    """
    types = set(map(type, values))
    types.discard(type(None))
    of = type_of(kind)
    if types <= _DIRECT.get(kind, frozenset()):
        try:
            return pa.array(values, of)
        except (pa.ArrowException, OverflowError, UnicodeError):
            pass  # a value does not fit
    convert = partial(_decimal, of) if pa.types.is_decimal(of) else _CONVERTERS[kind]
    if column is not None and column.format is not None:
        convert = partial(_formatted, kind, column.format)
    elif column is not None and column.unit is not None:
        convert = partial(_time, unit=column.unit)
    fitting = []
    for row, value in enumerate(values):
        if type(value) is Digits and kind == "double" and not isinf(nearest := float(value.text)):
            misfits[row], value = True, nearest
        made = None if value is None else convert(value)
        if made is _MISFIT:
            misfits[row] = True
            made = None
        fitting.append(made)
    return pa.array(fitting, pa.int64()).cast(of) if kind == "timestamp" else pa.array(fitting, of)


def converted(column: pa.ChunkedArray | pa.Array, to: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """Return a column with a wider type: a number as a text is that of JSON, as in a column that always was a string.

    :raises ArrowInvalid: a value does not fit
    """
    if column.type == to:
        return column
    if pa.types.is_string(to):
        return pa.array([None if value is None else _text(value) for value in column.to_pylist()], to)
    if pa.types.is_decimal(to) and pa.types.is_integer(column.type):
        return column.cast(pa.decimal256(_WIDE, to.scale)).cast(to)
    return column.cast(to)


def _text(value: Any) -> str:
    """Return a value that is not an array or an object as the text of JSON."""
    return str(value) if isinstance(value, Decimal) else str(_string(value))


def _string(value: Any) -> Any:
    """Return any value as a text: a text unchanged, other values as JSON."""
    if type(value) is Digits:
        return value.text
    try:
        text = value if type(value) is str else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except (UnicodeError, TypeError):  # Half of a surrogate pair; a number in an array that is no double.
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


def _decimal(of: pa.Decimal128Type, value: Any) -> Any:
    """Return a number as a decimal, if it has no more digits than its column."""
    if type(value) not in (int, float, Digits) or (type(value) is float and isinf(value)):
        return _MISFIT
    made = Decimal(value.text if type(value) is Digits else repr(value))
    try:
        pa.scalar(made, of)
    except pa.ArrowInvalid:
        return _MISFIT
    return made


def _boolean(value: Any) -> Any:
    return value if type(value) is bool else _MISFIT


def _time(value: Any, unit: int | Fraction | None = None) -> Any:
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


def _formatted(kind: str, form: str, value: Any) -> Any:
    """Return a text in the form of a column of times or dates; a time without a zone is taken as UTC."""
    try:
        found = datetime.strptime(value, form)
        return microseconds(found) if kind == "timestamp" else found.date()
    except (ValueError, TypeError, OverflowError):
        return _MISFIT


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
