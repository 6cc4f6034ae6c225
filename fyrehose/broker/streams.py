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

from collections.abc import Sequence

import attrs

from fyrehose.options import duration, size
from fyrehose.patterns import Pattern, compiled
from fyrehose.records import MAX_PAYLOAD
from fyrehose.toml_files import Mistake, described, key, scalar, texts, truth

#: The largest number of tables, because each is compared with the name of each new stream, and more are probably a
#: mistake.
MAX_RULES = 1_000

_PATTERN = 'a pattern such as "debug.*", or a list of patterns'


def _names(value: object) -> tuple[str, ...]:
    try:
        names = texts(value)
    except ValueError:
        names = ()
    if not names:
        raise ValueError(_PATTERN)
    if own := next((name for name in names if name.startswith(".")), None):
        raise Mistake(f"name is {own!r}, but names that begin with a dot are reserved for the server")
    return names


def _max_payload(text: str) -> int:
    found = size(text)
    if not 1 <= found <= MAX_PAYLOAD:
        raise ValueError(f"1 to {MAX_PAYLOAD} bytes")
    return found


@attrs.frozen(kw_only=True)
class StreamRule:
    """Limits of the streams whose names match one of several patterns.

    :ivar names: the patterns
    :ivar keep_age: records older than this are not served, in seconds; 0: no limit; None: not set
    :ivar max_payload: the largest payload, in bytes; None: not set
    :ivar new_streams: whether peers may create such a stream; None: not set
    """

    names: tuple[Pattern, ...] = attrs.field(
        converter=compiled, metadata=described(_names, name="name", expected=_PATTERN)
    )
    keep_age: float | None = key(scalar(duration), default=None)
    max_payload: int | None = key(scalar(_max_payload), default=None)
    new_streams: bool | None = key(truth, default=None)

    def __attrs_post_init__(self) -> None:
        if self.keep_age is None and self.max_payload is None and self.new_streams is None:
            raise Mistake("it sets no limit; expected at least one of keep-age, max-payload, new-streams")

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


def limits(tables: Sequence[StreamRule]) -> StreamRules:
    """Return the limits of the ``[[stream]]`` tables of a file.

    :raises Mistake: there are too many tables
    """
    if len(tables) > MAX_RULES:
        raise Mistake(f"{len(tables)} [[stream]] tables exceed the limit of {MAX_RULES}")
    return StreamRules(tuple(tables))


#: Without a [[stream]] table, every stream has only the limits of the server.
UNLIMITED = StreamRules()
