"""The file of ``fyrehose forward``: a table ``[[forward]]`` for each subscription, of the class of its destination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from fyrehose import plugins
from fyrehose.cli.client.values import addresses, since
from fyrehose.errors import ConfigError
from fyrehose.forward.destination import ForwardTable, PemFiles, Secret, places
from fyrehose.options import typed
from fyrehose.toml_files import Mistake, inside, key, read, structured, text


def _tables(value: object) -> list[ForwardTable]:
    if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
        raise ValueError("a table [[forward]] for each subscription")
    made = []
    for at, table in enumerate(value):
        with inside(at):
            made.append(_table(table))
    if len({each.name for each in made}) < len(made):
        raise ValueError("another name in each table, because it is that of the subscription")
    return made


def _table(table: dict[str, Any]) -> ForwardTable:
    """Return a table as an instance of the class that the scheme of its URL names."""
    if "to" not in table:
        raise Mistake("to is missing; expected a URL, such as lumberjack://logs.example.com:5044")
    try:
        scheme = places(table["to"])[0].scheme
        cls: type[ForwardTable] = plugins.destination(scheme).table
    except ValueError as expected:
        raise Mistake(f"to is {table['to']!r}; expected {expected}", key="to") from None
    except ConfigError as error:
        raise Mistake(str(error), key="to") from None
    made = structured(cls, table)
    for name, convert, value in (("since", since, made.since), ("from", addresses, ",".join(made.source))):
        try:
            convert(value)
        except ValueError as expected:
            raise Mistake(f"{name} is {value!r}; expected {expected}", key=name) from None
    return made


@attrs.frozen(kw_only=True)
class ForwardConfig:
    """The content of the file.

    :ivar metrics: HOST:PORT on which Prometheus finds the metrics, or a file FILE.prom; "": none
    """

    forward: list[ForwardTable] = key(
        _tables, expected="a table [[forward]] for each subscription", shown="[[forward]]"
    )
    metrics: str = key(text, default="")


def read_config(path: Path) -> ForwardConfig:
    """Return the content of the file at *path*, with its secrets.

    :raises ConfigError: the file, or one that it names, cannot be read or is invalid
    """
    return read("", path, ForwardConfig, _with_secrets)


def _with_secrets(config: ForwardConfig, folder: Path) -> ForwardConfig:
    tables = []
    for at, table in enumerate(config.forward):
        with inside("forward", at):
            values = attrs.asdict(table, recurse=False)
            tables.append(attrs.evolve(table, **{name: _read(name, values[name], folder) for name in values}))
    return attrs.evolve(config, forward=tables)


def _read(name: str, value: Any, folder: Path) -> Any:
    """Return *value*, that of the key *name*, with the content of the files in *folder* that it names."""
    if isinstance(value, dict):
        return {each: _read(name, part, folder) for each, part in value.items()}
    try:
        return value.read(folder) if isinstance(value, Secret | PemFiles) else value
    except ValueError as expected:
        raise Mistake(f"{typed(name)} cannot be read; expected {expected}", key=name) from None
