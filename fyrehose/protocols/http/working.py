"""Requests about shared subscriptions, sans-I/O: their bodies.

PUT  /subscriptions/S          {"stream": "orders", "shared": true, "lease": 30, ...}   create it
POST /subscriptions/S/lease    {"consumer": "w1", "most": 10, "wait": 30}               lease records
POST /subscriptions/S/settle   {"done": [[7, "3.1"]], "failed": ..., "publish": [...]}  settle, return, extend them
POST /subscriptions/S/pause    {"paused": true}                                         lease nothing more
POST /subscriptions/S/redrive  {}                                                       publish dead letters again
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from fyrehose.broker.consumers.progress import ShareOptions
from fyrehose.broker.consumers.settling import Settling, number_of, only, seconds_of, settling, text_of
from fyrehose.errors import InvalidPattern
from fyrehose.patterns import Pattern
from fyrehose.records import LAST_SEQ

#: The most records that one request leases.
MOST_LEASED = 1_000
#: The longest time that a request waits for a record, in seconds.
LONGEST_WAIT = 300
#: Bounds of the options that are numbers.
BOUNDS = {"lease": (1, 3_600), "limit": (0, 1_000), "window": (1, 100_000), "most": (1, 10_000)}


@attrs.frozen(slots=True)
class Creation:
    """Create a shared subscription, which begins with record *first* of each stream."""

    options: ShareOptions
    first: int


@attrs.frozen(slots=True)
class LeaseRequest:
    """Lease up to *most* records to *consumer*, and wait up to *wait* seconds for the first one."""

    consumer: str
    request: int | None
    most: int
    wait: float


def creation(fields: dict[str, Any]) -> Creation:
    """Return the request to create a subscription, which the JSON object *fields* describes.

    :raises ValueError: it is invalid; the message says what is expected
    """
    known = {"stream", "match", "shared", "dead", "key", "from", *BOUNDS}
    only(fields, known)
    if fields.get("shared") is not True:
        raise ValueError('expected "shared": true; an exclusive subscription is created when it is first read')
    if ("stream" in fields) is ("match" in fields):
        raise ValueError('expected either "stream", a name, or "match", a pattern such as "logs.*"')
    stream = text_of(fields, "match" if "match" in fields else "stream")
    if "match" in fields:
        try:
            Pattern.of_peer(stream)
        except InvalidPattern as error:
            raise ValueError(str(error)) from error
    numbers: dict[str, Any] = {name: number_of(fields, name, *BOUNDS[name]) for name in BOUNDS if name in fields}
    dead, key = (None if fields.get(name) is None else text_of(fields, name) for name in ("dead", "key"))
    if dead == stream:
        raise ValueError('"dead" is the stream itself: its dead letters would be leased again')
    options = ShareOptions(stream=stream, pattern="match" in fields, dead=dead, key=key, **numbers)
    return Creation(options, number_of(fields, "from", 0, LAST_SEQ) if "from" in fields else 1)


def lease_request(fields: dict[str, Any]) -> LeaseRequest:
    """Return the request for records that the JSON object *fields* describes.

    :raises ValueError: it is invalid
    """
    only(fields, {"consumer", "request", "most", "wait"})
    request = number_of(fields, "request", 0, LAST_SEQ) if fields.get("request") is not None else None
    most = number_of(fields, "most", 1, MOST_LEASED) if "most" in fields else 1
    wait = seconds_of(fields.get("wait", 0), "wait", LONGEST_WAIT)
    return LeaseRequest(text_of(fields, "consumer"), request, most, wait)


def paused(fields: dict[str, Any]) -> bool:
    """Return True if the request asks to pause the subscription, False if it asks to resume it.

    :raises ValueError: the body is invalid
    """
    only(fields, {"paused"})
    if not isinstance(fields.get("paused"), bool):
        raise ValueError('expected {"paused": true} or {"paused": false}')
    return bool(fields["paused"])


@attrs.frozen(slots=True)
class Redrive:
    """Publish dead letters to the streams that they come from."""


def redrive(fields: dict[str, Any]) -> Redrive:
    """Return the request to publish dead letters again.

    :raises ValueError: the body is invalid
    """
    only(fields, set())
    return Redrive()


Work = Creation | LeaseRequest | Settling | Redrive | bool
#: The function that parses the body of each action.
BODIES: dict[str, Callable[[dict[str, Any]], Work]] = {
    "create": creation,
    "lease": lease_request,
    "settle": settling,
    "pause": paused,
    "redrive": redrive,
}
