"""Selection of records by streams, numbers and times, parsed from the options of the data source.

streams    a pattern (``log.*``), or a JSON list of patterns; without it, all streams, also the server's own
start      ``earliest``, ``latest``, a number, {"stream": number, "*": number}, or a time
end        the same; a number is included, a time is excluded
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import attrs

from fyrehose.errors import ConfigError
from fyrehose.patterns import Pattern, compiled
from fyrehose.records import LAST_SEQ

#: The name that stands for all streams that are not named.
EVERY = "*"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The largest number of digits of a number; longer texts are not parsed as numbers.
_DIGITS = 20


@attrs.frozen(slots=True)
class Bounds:
    """One inclusive bound of a selection: a number for each stream, or a time for all streams.

    :ivar seqs: numbers by stream; ``*`` is for streams that are not named
    :ivar time: us since 1970 UTC
    """

    seqs: Mapping[str, int] = attrs.field(factory=dict)
    time: int | None = None


@attrs.frozen(slots=True, kw_only=True)
class Selection:
    """A selection of records; by default, of all records.

    :ivar patterns: one of them must cover a stream; None: all streams are selected, also the server's own
    :ivar streams: if set, a stream must also be one of these
    """

    patterns: tuple[Pattern, ...] | None = attrs.field(default=None, converter=attrs.converters.optional(compiled))
    streams: frozenset[str] | None = None
    start: Bounds = attrs.field(factory=Bounds)
    end: Bounds = attrs.field(factory=Bounds)

    def wants(self, stream: str) -> bool:
        """Return whether ``stream`` is selected."""
        if self.streams is not None and stream not in self.streams:
            return False
        return self.patterns is None or any(pattern.covers(stream) for pattern in self.patterns)

    def seqs(self, stream: str) -> tuple[int, int]:
        """Return the first and the last selected number of ``stream``."""
        start, end = self.start.seqs, self.end.seqs
        return start.get(stream, start.get(EVERY, 1)), end.get(stream, end.get(EVERY, LAST_SEQ))

    def accepts(self, time: int) -> bool:
        """Return whether records that were accepted at ``time`` are selected."""
        since, until = self.start.time, self.end.time
        return (since is None or time >= since) and (until is None or time <= until)

    @property
    def timed(self) -> bool:
        """Return whether the selection depends on the time."""
        return self.start.time is not None or self.end.time is not None


def selection(streams: str | None, start: str | None, end: str | None) -> Selection:
    """Parse the options ``streams``, ``start`` and ``end``.

    :raises ConfigError: an option is invalid
    """
    if end == "earliest":
        raise ConfigError("invalid option end 'earliest': no record is before that; leave it out for all records")
    after = bounds(end, "end")
    if after.time is not None:
        after = attrs.evolve(after, time=after.time - 1)
    return Selection(patterns=patterns(streams), start=bounds(start, "start"), end=after)


def patterns(text: str | None) -> tuple[str, ...] | None:
    """Parse the option ``streams``; None stands for all streams.

    :raises ConfigError: the option is a list, but not a list of patterns
    """
    if not text:
        return None
    if not text.startswith("["):
        return (text,)
    try:
        found = json.loads(text)
    except ValueError:
        return (text,)  # A pattern may begin with "[", too.
    if not found or not all(isinstance(pattern, str) for pattern in found):
        raise ConfigError(f'invalid option streams {text!r}: expected a pattern, or a list such as ["log.*", "audit"]')
    return tuple(found)


def bounds(text: str | None, option: str) -> Bounds:
    """Parse the option ``start`` or ``end``, or one of the same syntax.

    :raises ConfigError: the option is neither a number nor a time
    """
    wanted = f'invalid {option} {text!r}: expected a number, {{"stream": number}}, or a time such as 2026-01-31T12:00'
    if text is None or text in ("earliest", "latest"):
        return Bounds()  # The planner turns "latest" into a position.
    if text.isdecimal() and len(text) <= _DIGITS:
        return Bounds({EVERY: int(text)})
    if text.startswith("{"):
        try:
            seqs = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(wanted) from error
        if not all(type(seq) is int for seq in seqs.values()):
            raise ConfigError(wanted)
        return Bounds(seqs)
    try:
        return Bounds(time=microseconds(datetime.fromisoformat(text)))
    except ValueError as error:
        raise ConfigError(wanted) from error


def microseconds(when: datetime) -> int:
    """Return a time in microseconds since 1970 UTC; a time without a zone is UTC."""
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def time_of(microseconds: int) -> datetime:
    """Return the time that is *microseconds* after the beginning of 1970 UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)
