"""Limits of streams by patterns of their names, from the ``[[stream]]`` tables of the configuration.

    [[stream]]
    name = "debug.*"            # or a list of patterns; * stands for anything
    keep-age = "1d"             # records older than this are not served
    max-payload = "64KiB"       # larger messages are refused
    new-streams = false         # peers cannot create streams of this name

For each setting the first table counts that matches the stream and has that setting, so an exception belongs before
the general table.  The server's own streams, whose names begin with a dot, have no such limits.

    tables, the name of a stream -> the limits of that stream
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from fyrehose.options import LONGEST, duration, size, suggestion
from fyrehose.patterns import Pattern, compiled
from fyrehose.records import MAX_PAYLOAD

#: The largest number of tables, because each is compared with the name of each new stream, and more are probably a
#: mistake.
MAX_RULES = 1_000

_SETTINGS = ("keep-age", "max-payload", "new-streams")
_KNOWN = ("name", *_SETTINGS)


@attrs.frozen(kw_only=True)
class StreamRule:
    """Limits of the streams whose names match one of several patterns.

    :ivar names: the patterns
    :ivar keep_age: records older than this are not served, in seconds; 0: no limit; None: not set
    :ivar max_payload: the largest payload, in bytes; None: not set
    :ivar new_streams: whether peers may create such a stream; None: not set
    """

    names: tuple[Pattern, ...] = attrs.field(converter=compiled)
    keep_age: float | None = None
    max_payload: int | None = None
    new_streams: bool | None = None

    def covers(self, stream: str) -> bool:
        """Return whether one of the patterns matches *stream*."""
        return any(pattern.covers(stream) for pattern in self.names)


@attrs.frozen
class StreamRules:
    """The limits of streams, from the tables ``[[stream]]`` of the configuration in the order of the file.

    For each limit the first table counts that covers the stream and sets the limit.
    """

    rules: tuple[StreamRule, ...] = ()

    def keep_age(self, stream: str) -> float:
        """Return the age up to which records of *stream* are served, in seconds; 0: no limit."""
        return next((r.keep_age for r in self.rules if r.keep_age is not None and r.covers(stream)), 0.0)

    def max_payload(self, stream: str) -> int:
        """Return the largest payload of *stream*, in bytes."""
        return next((r.max_payload for r in self.rules if r.max_payload is not None and r.covers(stream)), MAX_PAYLOAD)

    def new_streams(self, stream: str) -> bool:
        """Return whether a peer may create *stream*."""
        return next((r.new_streams for r in self.rules if r.new_streams is not None and r.covers(stream)), True)

    @property
    def expire(self) -> bool:
        """Return whether any table limits the age of records."""
        return any(rule.keep_age for rule in self.rules)


def parse(tables: object) -> StreamRules:
    """Return the limits of the ``[[stream]]`` tables of a file.

    :raises ValueError: a table is invalid; the message names it and says what is expected
    """
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError("expected limits of streams in tables named [[stream]], with two brackets")
    if len(tables) > MAX_RULES:
        raise ValueError(f"{len(tables)} [[stream]] tables exceed the limit of {MAX_RULES}")
    found = []
    for number, table in enumerate(tables, 1):
        try:
            found.append(_rule(table))
        except ValueError as error:
            raise ValueError(f"[[stream]] table {number} {error}") from error
    return StreamRules(tuple(found))


def _rule(table: Mapping[str, Any]) -> StreamRule:
    if unknown := sorted(table.keys() - set(_KNOWN)):
        advice = suggestion(unknown[0], _KNOWN)
        raise ValueError(f"has the unknown key {unknown[0]!r}; expected {', '.join(_KNOWN)}{advice}")
    if not table.keys() & set(_SETTINGS):
        raise ValueError(f"sets no limit; expected at least one of {', '.join(_SETTINGS)}")
    new_streams = table.get("new-streams")
    if not isinstance(new_streams, bool | None):
        raise ValueError(f"has new-streams = {new_streams!r}; expected true or false")
    return StreamRule(
        names=_names(table.get("name")),
        keep_age=_keep_age(table.get("keep-age")),
        max_payload=_max_payload(table.get("max-payload")),
        new_streams=new_streams,
    )


def _names(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    names = tuple(name for name in values if isinstance(name, str) and name)
    if not names or len(names) < len(values):
        raise ValueError(f'has name = {value!r}; expected a pattern such as "debug.*", or a list of patterns')
    for name in names:
        if name.startswith("."):
            raise ValueError(f"has name = {name!r}, but names that begin with a dot are reserved for the server")
    return names


def _keep_age(value: object) -> float | None:
    if value is None:
        return None
    try:
        return duration(_text(value))
    except ValueError as expected:
        raise ValueError(
            f"has keep-age = {value!r}; expected {expected}, from 0 (no limit) to {LONGEST // 86400}d"
        ) from None


def _max_payload(value: object) -> int | None:
    if value is None:
        return None
    try:
        found = size(_text(value))
    except ValueError as expected:
        raise ValueError(f"has max-payload = {value!r}; expected {expected}") from None
    if not 1 <= found <= MAX_PAYLOAD:
        raise ValueError(f"has max-payload = {value!r}; expected 1 to {MAX_PAYLOAD} bytes")
    return found


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("text in quotes, or a number")
    return str(value)


#: Without a [[stream]] table, every stream has only the limits of the server.
UNLIMITED = StreamRules()
