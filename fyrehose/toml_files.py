"""Read TOML files into attrs classes, and report a mistake with its file, line, table, key and value.

A class describes a table, and each of its fields a key::

    @attrs.frozen(kw_only=True)
    class Window:
        name: str = key(text)
        length: float = key(scalar(duration), default=60.0)

    read("--config", Path("windows.toml"), Window)

The fields of a class may also be options (:func:`fyrehose.options.option`), other such classes, and lists or dicts of
them.
A class checks what concerns several keys in ``__attrs_post_init__``, where it raises :class:`Mistake`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin

import attrs

from fyrehose.errors import ConfigError
from fyrehose.options import converted, options_of, suggestion, text_of, typed

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")
Made = TypeVar("Made")
#: The way to a table: the names of tables, and the indexes in lists of them.
Path_ = tuple[str | int, ...]


class Mistake(ValueError):
    """A mistake in a table of a TOML file.

    :ivar text: what is wrong, and what is expected
    :ivar tables: the way to the table, from the table in which the error was found
    :ivar key: the key in that table whose line the error shows; None: show the line of the table
    """

    def __init__(self, text: str, *tables: str | int, key: str | None = None) -> None:
        super().__init__(text)
        self.text, self.tables, self.key = text, tables, key

    def __str__(self) -> str:
        return f"in {_shown_table(self.tables)}: {self.text}" if self.tables else self.text

    def within(self, *tables: str | int) -> Mistake:
        """Return the same mistake, as seen from a table further outside."""
        return Mistake(self.text, *tables, *self.tables, key=self.key)

    def located(self, file: str, content: str) -> ConfigError:
        """Return the error for users.

        :param file: the option that names the file, and the file's path
        :param content: the text of the file
        """
        line = line_of(content, self.tables if self.key is None else (*self.tables, self.key))
        where = "" if line is None else f", line {line}"
        return ConfigError(f"invalid {file}{where}{f', {self}' if self.tables else f': {self}'}")


@contextmanager
def inside(*tables: str | int) -> Iterator[None]:
    """Report mistakes that the block raises as those of an inner table."""
    try:
        yield
    except Mistake as mistake:
        raise mistake.within(*tables) from mistake.__cause__


def described(
    convert: Callable[[Any], Any] | None = None, name: str = "", expected: str = "", shown: str = ""
) -> dict[str, Any]:
    """Return the metadata of a field for a key of a table.

    :param convert: converts the value as TOML has it; raises ValueError with a description of a valid value, or
        :class:`Mistake`; None: the value is a table, or are tables, of other classes
    :param name: the key, if it is not the name of the field with hyphens
    :param expected: a description of a valid value, for the error about a missing key and for tables
    :param shown: the key in the list of those that are expected, such as ``[listen]``
    """
    return {"read": convert, "key": name, "expected": expected, "shown": shown}


def key(
    convert: Callable[[Any], Any] | None = None,
    *,
    default: Any = attrs.NOTHING,
    name: str = "",
    expected: str = "",
    shown: str = "",
) -> Any:
    """Return a field for a key of a table; the other parameters are those of :func:`described`.

    :param default: the value without the key, or an ``attrs.Factory`` of it; without one, the key is required
    """
    return attrs.field(default=default, metadata=described(convert, name, expected, shown))


def text(value: object) -> str:
    """Return *value* if it is text."""
    if not isinstance(value, str):
        raise ValueError("text in quotes")
    return value


def texts(value: object) -> tuple[str, ...]:
    """Return *value*, a list of texts; a single text counts as a list of one."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) and each for each in values):
        raise ValueError("text, or a list of texts, none of them empty")
    return tuple(values)


def truth(value: object) -> bool:
    """Return *value* if it is a boolean."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def scalar(convert: Callable[[str], T]) -> Callable[[object], T]:
    """Return a converter of texts and numbers, from one of texts such as :func:`fyrehose.options.size`."""

    def of_value(value: object) -> T:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError("text in quotes, or a number")
        return convert(str(value))

    return of_value


def read(option: str, path: Path, cls: type[T], make: Callable[[T, Path], Made]) -> Made:
    """Return the content of the TOML file at *path*, as ``make(content, folder)`` returns it.

    :param option: the option that names the file, for error messages; empty: none does
    :param cls: the class of the whole file
    :param make: may raise :class:`Mistake`
    :raises ConfigError: the file cannot be read, or is invalid
    """
    file = f"{option} {path}".strip()
    try:
        content = path.read_text(encoding="utf-8")
        values = tomllib.loads(content)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"invalid {file}: not TOML: {error}") from error
    try:
        return make(structured(cls, values), path.absolute().parent)
    except Mistake as mistake:
        raise mistake.located(file, content) from mistake


def structured(cls: type[T], values: object) -> T:
    """Return *values*, as :mod:`tomllib` parses them, as an instance of *cls*: a class of a table, or a list of one.

    :raises Mistake: a key is unknown or missing, or has an invalid value
    """
    origin, kinds = get_origin(cls), [kind for kind in get_args(cls) if kind is not NoneType]
    if origin in (list, dict):
        items = enumerate(values) if isinstance(values, list) else cast("dict[str, Any]", values).items()
        made = {name: _element(kinds[-1], name, each) for name, each in items}
        return cast("T", list(made.values()) if origin is list else made)
    return cast("T", _table(kinds[0] if kinds else cls, values))


def _element(cls: type[T], name: str | int, value: object) -> T:
    if not isinstance(value, dict):
        what = name if isinstance(name, str) else f"number {name + 1}"
        raise Mistake(f"{what} is {shown(value)}; expected a table", key=name if isinstance(name, str) else None)
    with inside(name):
        return structured(cls, value)


def _table(cls: type[Any], values: Any) -> Any:
    # Commands that read no file start sooner without cattrs.
    from cattrs.errors import BaseValidationError, ForbiddenExtraKeysError

    keys = _fields(cls)
    if options_of(cls):  # whose names may be typed with underscores, as in --option
        values = {typed(name): value for name, value in values.items()}
    try:
        return _converter().structure(values, cls)
    except BaseValidationError as group:
        # An unknown key comes first, because it may be misspelled, and missing ones last.
        kinds = (ForbiddenExtraKeysError, Mistake, Exception)
        error = next(each for kind in kinds for each in group.exceptions if isinstance(each, kind))
        if isinstance(error, ForbiddenExtraKeysError):
            unknown = min(error.extra_fields)
            known = ", ".join(field.metadata.get("shown") or name for name, field in keys.items())
            advice = suggestion(unknown, keys) or f"; expected {known}"
            raise Mistake(f"unknown key {unknown!r}{advice}", key=unknown) from None
        if isinstance(error, KeyError) and error.args[0] in keys:
            expected = keys[error.args[0]].metadata["expected"]
            raise Mistake(f"{error.args[0]} is missing; expected {expected}") from None
        raise (Mistake(str(error)) if type(error) is ValueError else error) from None


def _fields(cls: type[Any]) -> dict[str, attrs.Attribute[Any]]:
    """Return the fields of *cls* by their keys."""
    fields = (field for field in attrs.fields(cls) if field.metadata)
    return {field.metadata.get("key") or typed(field.name): field for field in fields}


@cache
def _converter() -> Converter:
    """Return the converter, which keeps the function that it has made for each class."""
    from cattrs import Converter
    from cattrs.gen import make_dict_structure_fn, override

    def maker(cls: type[Any]) -> Callable[[Any, Any], Any]:
        # cattrs types the other arguments of the function as if these were among them.
        fields: dict[str, Any] = {field.name: override(omit=True) for field in attrs.fields(cls)}
        for name, field in _fields(cls).items():
            fields[field.name] = override(rename=name, struct_hook=partial(_value, name, field))
        return make_dict_structure_fn(cls, made, _cattrs_use_linecache=False, **fields)

    made = Converter(forbid_extra_keys=True)
    made.register_structure_hook_factory(attrs.has)(maker)
    return made


def _value(name: str, field: attrs.Attribute[Any], value: object, kind: Any) -> Any:
    """Return the value of the key *name* as that of *field*.

    :param kind: the type of the field
    """
    convert = field.metadata.get("read")
    nested = convert is None and "convert" not in field.metadata
    try:
        if nested and not are_tables(value, kind):
            raise ValueError(field.metadata["expected"] or "a table")
        if nested:
            return structured(kind, value)
        return _in_range(field, converted(field, text_of(value))) if convert is None else convert(value)
    except Mistake as mistake:
        if nested or mistake.tables or mistake.key is not None:
            raise mistake.within(name) from mistake.__cause__
        raise Mistake(mistake.text, key=name) from mistake.__cause__
    except ValueError as expected:
        raise Mistake(f"{name} is {shown(value)}; expected {expected}", key=name) from None


def are_tables(value: object, kind: Any) -> bool:
    """Return whether *value* is a list of tables, if *kind* is a list, or else a table."""
    if get_origin(kind) is list:
        return isinstance(value, list) and all(isinstance(each, dict) for each in value)
    return isinstance(value, dict)


def _in_range(field: attrs.Attribute[Any], value: Any) -> Any:
    """Return *value*; check its range here, where the key is known, and not when the instance is made."""
    if field.validator is not None:
        try:
            field.validator(None, field, value)
        except ValueError as error:
            raise Mistake(str(error)) from None
    return value


def line_of(content: str, path: Sequence[str | int]) -> int | None:
    """Return the line of a file with a key, or else with the table or the value around it; None if there is none.

    :param path: the names of tables, the indexes of ``[[tables]]`` of the same name, and a key
    """
    wanted = tuple(map(_plain, path))
    best, found = 0, None
    inside: Path_ = ()
    lists: dict[Path_, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        header = line.strip().startswith("[")
        words = _keys(line.partition("#")[0].strip().strip("[]") if header else line.partition("=")[0])
        if words is None:
            continue
        if line.strip().startswith("[["):
            lists[words] = lists.get(words, -1) + 1
            words = (*words, lists[words])
        if header:
            inside = words
        whole = words if header else (*inside, *words)
        if len(whole) > best and wanted[: len(whole)] == whole:
            best, found = len(whole), number
    return found


def _plain(name: str | int) -> str | int:
    """Return the name of a key in one spelling, because options may have hyphens or underscores."""
    return typed(name) if isinstance(name, str) else name


def _keys(text: str) -> Path_ | None:
    """Return the names in a dotted key of TOML; None if the text is no key."""
    try:
        value: Any = tomllib.loads(f"{text} = 0")
    except ValueError:
        return None
    found = []
    while isinstance(value, dict):
        name, value = next(iter(value.items()))
        found.append(_plain(name))
    return tuple(found)


def _shown_table(tables: Sequence[str | int]) -> str:
    """Return the name of a table as it is written: ``[option.figg]``, or ``[[stream]] table 2``."""
    names = ".".join(
        each if re.fullmatch(r"[A-Za-z0-9_-]+", each) else repr(each) for each in tables if isinstance(each, str)
    )
    last = tables[-1]
    return f"[[{names}]] table {last + 1}" if isinstance(last, int) else f"[{names}]"


def shown(value: object) -> str:
    """Return a value of TOML for an error message."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return repr(value) if all(isinstance(each, str) for each in value) and len(value) < 5 else "a list"
    return repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
