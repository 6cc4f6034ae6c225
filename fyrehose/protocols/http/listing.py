"""Lists of streams and of subscriptions, made in steps, which take turns with all other work.

all names -> some are compared with the pattern -> ... -> the names that match
names     -> the bounds, and the two ends of a stream -> ... -> one JSON object for each stream
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from fyrehose.broker.consuming import Consuming
from fyrehose.broker.stream_statistics import Ends
from fyrehose.interfaces import IBroker
from fyrehose.jsontext import dumped
from fyrehose.patterns import Pattern

T = TypeVar("T")
#: Work that yields after each step, and returns a T.
Listing = Generator[None, None, T]
#: How many names are compared with a pattern in one step; the worst pattern of a peer needs about 1 us for each name.
MOST_COMPARED = 100


def matching(pattern: Pattern, streams: Iterator[str]) -> Listing[list[str]]:
    """Return the names among *streams* that *pattern* covers, in their order."""
    found: list[str] = []
    while names := [*islice(streams, MOST_COMPARED)]:
        found += filter(pattern.covers, names)
        yield
    return found


def described(
    broker: IBroker, ends: Ends, names: Sequence[str], now: Callable[[], float]
) -> Listing[list[dict[str, Any]]]:
    """Return a JSON object for each stream of *names*: the stream's numbers, its size and its ages.

    :param broker: the broker with the peer's permissions
    :param now: returns the time, in seconds since 1970 UTC
    """
    found: list[dict[str, Any]] = []
    for name in names:
        first, last = broker.bounds(name)
        end = ends.of(name, first, last, False)
        found.append(
            {
                "name": name,
                "first": first,
                "last": last,
                "bytes": 0 if first > last else None if end.mean is None else round(end.mean * (last - first + 1)),
                "oldest_age": None if end.oldest is None else max(0.0, round(now() - end.oldest, 6)),
                "newest_age": None if end.newest is None else max(0.0, round(now() - end.newest, 6)),
            }
        )
        yield
    return found


def subscriptions(named: Consuming, stream: str | None) -> Listing[bytes]:
    """Return the JSON of the subscriptions that the peer may consume.

    :param stream: lists only those of this stream; None: all
    """
    found: list[bytes] = []
    for each in named.listed():
        if stream in (None, each.get("stream")):
            found.append(dumped(each))
        yield
    return b'{"subscriptions":[' + b",".join(found) + b"]}\n"
