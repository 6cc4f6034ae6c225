"""Patterns of names, for policies, limits, subscriptions, HTTP, Spark and the command line.

    "logs.*", "logs.web"      -> True
    "*a*a*b", "aaaa..."       -> False, after at most one search for each text between two stars

A ``*`` stands for any text; everything else stands for itself.  Matching never goes back.  Each text between two stars
is taken where it is first found, because that leaves the longest rest for the texts after it.  So matching costs at
most one search for each star, whatever the name is.

One rule protects the server's own streams, whose names begin with a dot: they are covered only by patterns that also
begin with a dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import attrs

from fyrehose.errors import InvalidPattern

#: Limits of a peer's pattern: its bytes of UTF-8, and its stars.  Operators' patterns have no such limits.
MAX_BYTES, MAX_STARS = 255, 8

T = TypeVar("T")


@attrs.frozen
class Pattern:
    """A pattern of names.

    :ivar text: the pattern as it was written
    """

    text: str
    #: The text before the first star.
    head: str = attrs.field(init=False, eq=False, repr=False)
    #: Whether the pattern has no star, so that it matches only one name.
    exact: bool = attrs.field(init=False, eq=False, repr=False)
    #: The texts between two stars, and the text behind the last star.
    _between: tuple[str, ...] = attrs.field(init=False, eq=False, repr=False)
    _tail: str = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        head, *rest = self.text.split("*")
        *between, tail = rest or [""]
        fields = {"head": head, "exact": not rest, "_between": tuple(filter(None, between)), "_tail": tail}
        for name, value in fields.items():
            object.__setattr__(self, name, value)  # because the object is frozen, as attrs itself does

    @classmethod
    def of_peer(cls, text: str) -> Pattern:
        """Return *text*, which a peer has sent, as a pattern.

        :raises InvalidPattern: *text* is empty, longer than :data:`MAX_BYTES`, or has more stars than :data:`MAX_STARS`
        """
        size, stars = len(text.encode("utf-8", "surrogatepass")), text.count("*")
        if not 1 <= size <= MAX_BYTES or stars > MAX_STARS:
            raise InvalidPattern(
                f"invalid pattern: {text[:80]!r} has {size} bytes and {stars} stars; expected 1 to {MAX_BYTES} bytes "
                f"and at most {MAX_STARS} stars, such as logs.*"
            )
        return cls(text)

    @property
    def everything(self) -> bool:
        """Return whether the pattern covers all streams except the server's own."""
        return self.text == "*"

    def matches(self, name: str) -> bool:
        """Return whether *name* matches; for streams, use :meth:`covers`."""
        if self.exact:
            return name == self.head
        at, end = len(self.head), len(name) - len(self._tail)
        if end < at or not name.startswith(self.head) or not name.endswith(self._tail):
            return False
        for text in self._between:
            at = name.find(text, at, end)
            if at < 0:
                return False
            at += len(text)
        return True

    def covers(self, stream: str) -> bool:
        """Return whether *stream* matches; one of the server's own streams needs a pattern that begins with a dot."""
        return self.matches(stream) and (not stream.startswith(".") or self.head.startswith("."))


def compiled(texts: Iterable[str | Pattern]) -> tuple[Pattern, ...]:
    """Return an operator's *texts* as patterns; items that are patterns already are left unchanged."""
    return tuple(each if isinstance(each, Pattern) else Pattern(each) for each in texts)


@attrs.define(eq=False)
class PatternIndex(Generic[T]):
    """An index of values by pattern, which finds the values whose patterns cover a stream.

    A stream is compared only with those patterns whose text before the first star is the beginning of the stream's
    name.  In a peer's pattern that text has at most 255 bytes, so the search for these patterns takes at most 255
    look-ups in a dict, however many patterns there are.
    """

    #: The values of each pattern, by the text before the pattern's first star.
    _heads: dict[str, dict[Pattern, dict[T, None]]] = attrs.field(factory=dict, init=False)
    #: The lengths of these texts, and how many of the texts have each length.
    _lengths: dict[int, int] = attrs.field(factory=dict, init=False)

    def add(self, pattern: Pattern, value: T) -> None:
        """Add *value* to the values of *pattern*."""
        length = len(pattern.head)
        if pattern.head not in self._heads:
            self._heads[pattern.head] = {}
            self._lengths[length] = self._lengths.get(length, 0) + 1
        self._heads[pattern.head].setdefault(pattern, {})[value] = None

    def remove(self, pattern: Pattern, value: T) -> None:
        """Remove *value* from the values of *pattern*, if it is one of them."""
        same = self._heads.get(pattern.head, {})
        values = same.get(pattern, {})
        values.pop(value, None)
        if values or not same:
            return
        same.pop(pattern, None)
        if not same:
            length = len(pattern.head)
            del self._heads[pattern.head]
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]

    def covering(self, stream: str) -> Iterator[T]:
        """Yield the values of all patterns that cover *stream*; the index must not be changed meanwhile."""
        for length in self._lengths:
            if length > len(stream):
                continue
            for pattern, values in self._heads.get(stream[:length], {}).items():
                if pattern.covers(stream):
                    yield from values
