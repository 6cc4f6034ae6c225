"""Requests about named subscriptions, sans-I/O: their paths and bodies.

    GET    /subscriptions               list those that the peer may see
    GET    /subscriptions/S             show one
    POST   /subscriptions/S/ack         {"seq": N}, and optionally "generation": move the position forward
    POST   /subscriptions/S/rewind      {"seq": N}, "start" or "latest", or {"since": "-1h"}: set the position
           of a pattern                 {"positions": {"logs.a": N, ...}}
    DELETE /subscriptions/S             delete
    PUT    /subscriptions/S             {"stream": "orders", "shared": true, "lease": 30, ...}: create a shared one
    POST   /subscriptions/S/lease       {"consumer": "w1", "most": 10, "wait": 30}: lease its records
    POST   /subscriptions/S/settle      {"done": [[7, "3.1"]], "failed": ..., "publish": [...]}: settle, return, extend
    POST   /subscriptions/S/release     {"consumer": "w1"}: return all that a worker has
    POST   /subscriptions/S/pause       {"paused": true}: lease nothing more
    POST   /subscriptions/S/redrive     {}: publish its dead letters again

Each of these paths may begin with ``/streams/NAME``; the subscription must then be a subscription to that stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from fyrehose.errors import InvalidPattern
from fyrehose.jsontext import loaded
from fyrehose.patterns import Pattern
from fyrehose.records import LAST_SEQ
from fyrehose.subscriptions.progress import SubscriptionOptions
from fyrehose.subscriptions.settling import is_number, number_of, only, seconds_of, settling, text_of
from fyrehose.web.session import RequestHead

#: The largest body of a request about named subscriptions, in bytes; and of one that settles records, from a peer that
#: may not publish results.  That is room for ten thousand records.
LARGEST, LARGEST_SETTLING = 64 << 10, 1 << 20
#: The permitted methods of each path, by the last part of the path.
METHODS = {"": ("GET", "HEAD"), "S": ("GET", "HEAD", "PUT", "DELETE")}
METHODS |= dict.fromkeys(("ack", "rewind", "lease", "settle", "release", "pause", "redrive"), ("POST",))
#: How many records one request leases at most.
MOST_LEASED = 1_000
#: The longest time that a request waits for a record, in seconds.
LONGEST_WAIT = 300
#: The least and the largest value of each numeric option of a shared subscription.
BOUNDS = {"lease": (1, 3_600), "limit": (0, 1_000), "window": (1, 100_000), "most": (1, 10_000)}


@attrs.frozen(slots=True, kw_only=True)
class Manage:
    """A request about named subscriptions: list, show, acknowledge, rewind or delete; or about a shared one.

    :ivar action: ``list``, ``show``, ``ack``, ``rewind`` or ``delete``; ``create``, ``lease``, ``settle``,
        ``release``, ``pause`` or ``redrive``
    :ivar name: the subscription; empty for a list
    :ivar stream: the stream in the path; None: there is none
    :ivar seq: the position, or for a pattern the position in each stream; None: the end of the stream
    :ivar since: a time in place of *seq*, in microseconds since 1970 UTC
    :ivar generation: the generation that the consumer knows; None: any generation is accepted
    :ivar work: the parsed body of a request about a shared subscription, see :data:`BODIES`
    """

    request: RequestHead
    action: str
    name: str = ""
    stream: str | None = None
    seq: int | Mapping[str, int] | None = None
    since: int | None = None
    generation: int | None = None
    work: Any = None


def manage(request: RequestHead) -> Manage | None:
    """Parse the path of *request*; return None if it is not about subscriptions.

    :return: the event, which lacks the fields of the body, see :func:`with_body`
    """
    path = request.path
    stream = None
    if path[0] == "streams" and len(path) > 2:
        stream, path = path[1], path[2:]
    if path[0] != "subscriptions" or len(path) > 3 or (len(path) == 3 and path[2] not in METHODS):
        return None
    name = path[1] if len(path) > 1 else ""
    plain = {"DELETE": "delete", "PUT": "create"}.get(request.method, "show") if name else "list"
    action = path[2] if len(path) == 3 else plain
    return Manage(request=request, action=action, name=name, stream=stream)


def allowed(event: Manage) -> tuple[str, ...]:
    """Return the HTTP methods that the path of *event* permits."""
    return METHODS["" if not event.name else event.action if event.action in METHODS else "S"]


def with_body(event: Manage, body: bytes, time: Callable[[str], int]) -> Manage:
    """Return a copy of *event* that includes the fields of the request's *body*.

    :param time: returns the time that a text names, in microseconds since 1970 UTC, or raises ValueError
    :raises ValueError: the body is invalid; the message says what is expected
    """
    try:
        fields = loaded(body)
    except ValueError as error:
        raise ValueError(f"invalid body: {error}") from None
    if event.action in BODIES:
        if not isinstance(fields, dict):
            raise ValueError("invalid body: expected a JSON object")
        if event.action == "create" and isinstance(fields.get("from"), str):
            event = attrs.evolve(event, since=time(fields.pop("from")))
        return attrs.evolve(event, work=BODIES[event.action](fields))
    if event.action == "rewind" and isinstance(fields, dict) and isinstance(fields.get("since"), str):
        only(fields, {"since"})
        return attrs.evolve(event, since=time(fields["since"]))
    expected = f'{{"seq": N}} with a number from 0 to {LAST_SEQ}, or {{"positions": {{"STREAM": N, ...}}}}'
    if event.action == "rewind":
        expected += ', or {"seq": "start"} or {"seq": "latest"}, or {"since": "-1h"}'
    if not isinstance(fields, dict) or fields.keys() - {"generation"} not in ({"seq"}, {"positions"}):
        raise ValueError(f"invalid body: expected {expected}")
    place, generation = fields.get("seq", fields.get("positions")), fields.get("generation")
    if event.action == "rewind" and place in ("start", "latest"):
        return attrs.evolve(event, seq=0 if place == "start" else None)
    numbers = [place] if "seq" in fields else place.values() if isinstance(place, dict) else [None]
    if not all(is_number(number) and 0 <= number <= LAST_SEQ for number in numbers):
        raise ValueError(f"invalid body: expected {expected}")
    if generation is not None and not is_number(generation):
        raise ValueError("invalid generation: expected the number in the header Fyrehose-Generation")
    return attrs.evolve(event, seq=place, generation=generation)


@attrs.frozen(slots=True)
class Creation:
    """A request to create a shared subscription, which begins with record *first* of each stream."""

    options: SubscriptionOptions
    first: int


@attrs.frozen(slots=True)
class LeaseRequest:
    """A request to lease up to *most* records to *consumer*, waiting up to *wait* seconds for the first one."""

    consumer: str
    request: int | None
    most: int
    wait: float


def creation(fields: dict[str, Any]) -> Creation:
    """Parse a request to create a shared subscription, whose body is the JSON object *fields*.

    :raises ValueError: the request is invalid; the message says what is expected
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
    if dead is not None and dead.startswith("."):
        raise ValueError('"dead" names one of the server\'s own streams: use another')
    if dead == stream:
        raise ValueError('"dead" names the shared stream, so its dead letters would be leased again: use another')
    options = SubscriptionOptions(stream=stream, pattern="match" in fields, dead=dead, key=key, **numbers)
    return Creation(options, number_of(fields, "from", 0, LAST_SEQ) if "from" in fields else 1)


def lease_request(fields: dict[str, Any]) -> LeaseRequest:
    """Parse a request for records to lease, whose body is the JSON object *fields*.

    :raises ValueError: the request is invalid
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


def _release(fields: dict[str, Any]) -> str:
    """Return the consumer whose records are to be returned.

    :raises ValueError: the body is invalid
    """
    only(fields, {"consumer"})
    return text_of(fields, "consumer")


def _redrive(fields: dict[str, Any]) -> None:
    """Check a request to publish dead letters again.

    :raises ValueError: the body is invalid
    """
    only(fields, set())


#: The function that parses the body of each action on a shared subscription.
BODIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "create": creation,
    "lease": lease_request,
    "settle": settling,
    "release": _release,
    "pause": paused,
    "redrive": _redrive,
}
