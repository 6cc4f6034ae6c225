"""Which records are asked for: streams by pattern, numbers, times; from the options of the data source.

streams    a pattern as the shell has them (``log.*``), or a JSON list of them
start      ``earliest``, ``latest``, a number, {"stream": number, "*": number}, or a time
end        the same; numbers include themselves, times exclude themselves
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import translate
from functools import lru_cache

import attrs

from fyrehose.errors import ConfigError
from fyrehose.records import LAST_SEQ

EVERY = "*"
#: More digits no number has that anybody means.
_DIGITS = 20


@attrs.frozen(slots=True)
class Bounds:
    """From where to where: for each stream a number, for all of them a time; both ends belong to it.

    :ivar seqs: by stream; ``*`` is for those that are not named
    :ivar time: us since 1970 UTC
    """

    seqs: Mapping[str, int] = attrs.field(factory=dict)
    time: int | None = None


@attrs.frozen(slots=True, kw_only=True)
class Selection:
    """Which records are asked for; the empty one is for all of them.

    :ivar patterns: a stream has to match one of them
    :ivar streams: and be one of these, if there are any
    """

    patterns: tuple[str, ...] = (EVERY,)
    streams: frozenset[str] | None = None
    start: Bounds = attrs.field(factory=Bounds)
    end: Bounds = attrs.field(factory=Bounds)

    @property
    def everything(self) -> bool:
        """Whether it is for all streams."""
        return self.streams is None and EVERY in self.patterns

    def wants(self, stream: str) -> bool:
        """Whether records of ``stream`` are among them."""
        if self.streams is not None and stream not in self.streams:
            return False
        return EVERY in self.patterns or any(_pattern(pattern).match(stream) for pattern in self.patterns)

    def seqs(self, stream: str) -> tuple[int, int]:
        """The first and the last number of ``stream`` that are asked for."""
        start, end = self.start.seqs, self.end.seqs
        return start.get(stream, start.get(EVERY, 1)), end.get(stream, end.get(EVERY, LAST_SEQ))

    def accepts(self, time: int) -> bool:
        """Whether records that were accepted at ``time`` are among them."""
        since, until = self.start.time, self.end.time
        return (since is None or time >= since) and (until is None or time <= until)

    @property
    def timed(self) -> bool:
        """Whether it depends on the time."""
        return self.start.time is not None or self.end.time is not None


def selection(streams: str | None, start: str | None, end: str | None) -> Selection:
    """From the options of the same names.

    :raises ConfigError: one of them cannot be understood
    """
    if end == "earliest":
        raise ConfigError("end is 'earliest', and nothing is before that; leave it out for all that there is")
    after = bounds(end, "end")
    if after.time is not None:
        after = attrs.evolve(after, time=after.time - 1)
    return Selection(patterns=patterns(streams), start=bounds(start, "start"), end=after)


def patterns(text: str | None) -> tuple[str, ...]:
    """From the option ``streams``.

    :raises ConfigError: it is a list, but not of patterns
    """
    if not text:
        return (EVERY,)
    if not text.startswith("["):
        return (text,)
    try:
        found = json.loads(text)
    except ValueError:
        return (text,)  # a pattern may begin with a set of characters
    if not found or not all(isinstance(pattern, str) for pattern in found):
        raise ConfigError(f'streams is {text!r}, and should be a pattern or a list of them, such as ["log.*", "audit"]')
    return tuple(found)


def bounds(text: str | None, option: str) -> Bounds:
    """From the option ``start`` or ``end``.

    :raises ConfigError: it is neither a number nor a time
    """
    wanted = f'{option} is {text!r}, and should be a number, {{"stream": number}}, or a time such as 2026-01-31T12:00'
    if text is None or text in ("earliest", "latest"):
        return Bounds()  # "latest" is a position, which the planner knows
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
    """Since 1970 UTC; a time without a zone is UTC."""
    since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds


@lru_cache(1024)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern), re.DOTALL)
