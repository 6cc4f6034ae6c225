"""Requests about named subscriptions, sans-I/O: their paths and bodies.

    GET    /subscriptions               list those that the peer may see
    GET    /subscriptions/S             show one
    POST   /subscriptions/S/ack         {"seq": N}, and optionally "generation": move the position forward
    POST   /subscriptions/S/rewind      {"seq": N}, "start" or "latest", or {"since": "-1h"}: set the position
           of a pattern                 {"positions": {"logs.a": N, ...}}
    POST   /subscriptions/S/report      {"to": "search", "delivered": 7}: say how its consumer is doing
    DELETE /subscriptions/S             delete
    PUT    /subscriptions/S             {"stream": "orders", "shared": true, "lease": 30, ...}: create a shared one
    POST   /subscriptions/S/lease       {"consumer": "w1", "most": 10, "wait": 30}: lease its records
    POST   /subscriptions/S/settle      {"done": [[7, "3.1"]], "failed": ..., "publish": [...]}: settle, return, extend
    POST   /subscriptions/S/release     {"consumer": "w1"}: return all that a worker has
    POST   /subscriptions/S/pause       {"paused": true}: lease nothing more
    POST   /subscriptions/S/redrive     {}: publish its dead letters again

Each of these paths may begin with ``/streams/NAME``; the subscription must then be a subscription to that stream.
The texts in a body can be encoded in UTF-8: :func:`fyrehose.jsontext.loaded` has checked that.  Settling:

    {"done": [[7, "3.1"], [[8, 20], "3.1"]], "failed": [[21, "3.1", {"delay": 60}]], "publish": [...]}
        -> {"settled": [[7, 20]], "refused": [{"seq": 21, "why": "lease-lost"}], "extended": []}
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from fyrehose.jsontext import dumped, loaded
from fyrehose.protocols.http.bodies import Whole
from fyrehose.records import LAST_SEQ, MAX_NAME, Run, is_label
from fyrehose.spans import Ranges
from fyrehose.subscriptions.pool import Item, WorkOutcome
from fyrehose.subscriptions.progress import SubscriptionOptions, packed_ranges
from fyrehose.web.origins import READING
from fyrehose.web.session import RequestHead, RequestRefused, WebSession

#: The largest body of a request about named subscriptions, in bytes; and of one that settles records, from a peer that
#: may not publish results.  That is room for ten thousand records.
LARGEST, LARGEST_SETTLING = 64 << 10, 1 << 20
#: What a POST to the path of a subscription may ask for, by the last part of the path.
POSTED = frozenset(("ack", "rewind", "report", "lease", "settle", "release", "pause", "redrive"))
#: The largest report of a consumer, as JSON, in bytes: the server keeps one for each subscription.
LARGEST_REPORT = 2 << 10
#: How many records one request leases at most.
MOST_LEASED = 1_000
#: The longest time that a request waits for a record, in seconds.
LONGEST_WAIT = 300
#: The least and the largest value of each numeric option of a shared subscription.
BOUNDS = {"lease": (1, 3_600), "limit": (0, 1_000), "window": (1, 100_000), "most": (1, 10_000)}
#: How many records one request may settle or return, and in how many items: each of them takes some microseconds.
MOST_SETTLED, MOST_ITEMS = 10_000, 1_000
#: How many results one request may have.
MOST_RESULTS = 1_000
#: The longest time that a record waits after it was returned, in seconds.
LONGEST_DELAY = 86_400
_TOKEN = re.compile(r"([0-9]{1,15})\.([0-9]{1,15})")
#: The lists of a request to settle, and the kinds of their items.
KINDS = ("done", "failed", "untried", "reject", "extend")


@attrs.frozen(slots=True, kw_only=True)
class Manage:
    """A request about named subscriptions: list, show, acknowledge, rewind or delete; or about a shared one.

    :ivar methods: the HTTP methods that its path permits
    :ivar action: ``list``, ``show``, ``ack``, ``rewind``, ``report`` or ``delete``; ``create``, ``lease``, ``settle``,
        ``release``, ``pause`` or ``redrive``
    :ivar name: the subscription; empty for a list
    :ivar stream: the stream in the path; None: there is none
    :ivar seq: the position, or for a pattern the position in each stream; None: the end of the stream
    :ivar since: a time in place of *seq*, in microseconds since 1970 UTC
    :ivar generation: the generation that the consumer knows; None: any generation is accepted
    :ivar work: the parsed body of a report, or of a request about a shared subscription, see :data:`BODIES`
    """

    request: RequestHead
    methods: tuple[str, ...] = ()
    action: str
    name: str = ""
    stream: str | None = None
    seq: int | Mapping[str, int] | None = None
    since: int | None = None
    generation: int | None = None
    work: Any = None


def manage(request: RequestHead) -> Manage | None:
    """Parse the path of *request*; return None if it is not about subscriptions.

    :return: the event, which lacks the fields of the body, see :class:`Managing`
    """
    path = request.path
    stream = None
    if path[0] == "streams" and len(path) > 2:
        stream, path = path[1], path[2:]
    if path[0] != "subscriptions" or len(path) > 3 or (len(path) == 3 and path[2] not in POSTED):
        return None
    name = path[1] if len(path) > 1 else ""
    methods: tuple[str, ...] = READING
    action = "list"
    if len(path) == 3:
        methods, action = ("POST",), path[2]
    elif name:
        methods = (*READING, "PUT", "DELETE")
        action = {"DELETE": "delete", "PUT": "create"}.get(request.method, "show")
    return Manage(request=request, methods=methods, action=action, name=name, stream=stream)


@attrs.define(eq=False)
class Managing(Whole):
    """The body of a request about named subscriptions, whose head is *event*: a JSON object.

    :ivar time: returns the time that a text names, in microseconds since 1970 UTC, or raises ValueError
    """

    session: WebSession = attrs.field(kw_only=True)
    event: Manage = attrs.field(kw_only=True)
    time: Callable[[str], int] = attrs.field(kw_only=True)

    def too_large(self) -> list[RequestRefused]:
        return self.session.refuse(413, "too-large", f"body exceeds the limit of {self.largest} bytes")

    def end(self) -> Sequence[object]:
        try:
            return (_with_body(self.event, bytes(self._data), self.time),)
        except ValueError as error:
            return self.session.refuse(400, "bad-body", str(error))


def _with_body(event: Manage, body: bytes, time: Callable[[str], int]) -> Manage:
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
    if not all(type(number) is int and 0 <= number <= LAST_SEQ for number in numbers):
        raise ValueError(f"invalid body: expected {expected}")
    if generation is not None and type(generation) is not int:
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
    wait = seconds_of(fields["wait"], "wait", LONGEST_WAIT) if "wait" in fields else 0.0
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


def report(fields: dict[str, Any]) -> bytes:
    """Return what a consumer says about itself as JSON: an object of texts and numbers.

    :raises ValueError: the body is invalid
    """
    if not all(isinstance(value, str | int | float) for value in fields.values()):
        raise ValueError("expected a text or a number for each field")
    text = dumped(fields)
    if len(text) > LARGEST_REPORT:
        raise ValueError(f"expected a report of at most {LARGEST_REPORT} bytes")
    return text


@attrs.frozen(slots=True)
class Result:
    """A message that is published together with the settling."""

    stream: str
    payload: bytes
    content_type: str | None = None


@attrs.frozen(slots=True)
class Settling:
    """A request to settle, return, reject and extend records, and to publish results in the same commit."""

    items: list[Item]
    results: list[Result]
    consumer: str = ""

    def runs(self, source: str, producer: str) -> list[Run]:
        """Return the messages that the request publishes, as runs."""
        fields = {"source": source, "producer": producer}
        return [Run.of(each.stream, [each.payload], content_type=each.content_type, **fields) for each in self.results]


def settling(fields: dict[str, Any]) -> Settling:
    """Return the request to settle that a peer sent as the JSON object *fields*.

    :raises ValueError: the request is invalid
    """
    only(fields, {"publish", "consumer", *KINDS})
    items: list[Item] = []
    left = MOST_SETTLED
    for kind in KINDS:
        listed = fields.get(kind, [])
        if not isinstance(listed, list):
            raise ValueError(f'expected a list for "{kind}"')
        if len(items) + len(listed) > MOST_ITEMS:
            raise ValueError(f"one request has at most {MOST_ITEMS} items, each a record or a range of records")
        for each in listed:
            item = _item(kind, each, left)
            items.append(item)
            left -= item.last - item.first + 1
    results = fields.get("publish", [])
    if not isinstance(results, list) or len(results) > MOST_RESULTS:
        raise ValueError(f'expected a list of at most {MOST_RESULTS} messages for "publish"')
    if results and not fields.get("done"):
        raise ValueError('"publish" needs "done": results are published together with the end of their records')
    consumer = text_of(fields, "consumer") if "consumer" in fields else ""
    return Settling(items, list(map(_result, results)), consumer)


def answer_to(outcome: WorkOutcome, work: Settling, pattern: bool) -> dict[str, object]:
    """Return the answer to the request *work* to settle, whose subscription may be one of a *pattern*."""
    refused: list[dict[str, object]] = []
    for item, why in outcome.refused:
        refused += [{**place, "why": why} for place in _places(item, pattern)]
    if refused and work.results:
        return {"error": "some records cannot be settled, so nothing was done or published", "refused": refused}
    settled: list[object] = []
    for stream, ranges in outcome.settled.items():
        settled += packed_ranges(ranges) if not pattern else _places_of(stream, ranges)
    extended: list[dict[str, object]] = []
    for item, (epoch, number) in outcome.extended:
        extended += [{**place, "token": f"{epoch}.{number}"} for place in _places(item, pattern)]
    return {"refused": refused, "settled": settled, "extended": extended}


def _places(item: Item, pattern: bool) -> Iterable[dict[str, object]]:
    if pattern:
        return _places_of(item.stream, [(item.first, item.last)])
    return ({"seq": seq} for seq in range(item.first, item.last + 1))


def _places_of(stream: str, ranges: Ranges) -> Iterator[dict[str, object]]:
    return ({"stream": stream, "seq": seq} for first, last in ranges for seq in range(first, last + 1))


def _item(kind: str, each: Any, most: int) -> Item:
    """Parse ``[seq, token]`` or ``[[first, last], token]``, perhaps with a stream before and options behind."""
    expected = f'expected [7, "3.1"] or [[7, 9], "3.1"] in "{kind}", not {each!r:.80}'
    if not isinstance(each, list):
        raise ValueError(expected)
    stream = each[0] if each and isinstance(each[0], str) else ""
    rest = each[1:] if stream else each
    options = rest[2] if len(rest) == 3 else {}
    if len(rest) not in (2, 3) or not isinstance(options, dict) or options.keys() - {"delay", "why"}:
        raise ValueError(expected)
    first, last = rest[0] if isinstance(rest[0], list) and len(rest[0]) == 2 else (rest[0], rest[0])
    if not (type(first) is int and type(last) is int and 0 < first <= last <= LAST_SEQ):
        raise ValueError(expected)
    if last - first >= most:
        raise ValueError(f"one request settles or returns at most {MOST_SETTLED} records")
    delay = None if options.get("delay") is None else seconds_of(options["delay"], "delay", LONGEST_DELAY)
    why = text_of(options, "why") if options.get("why", "") != "" else ""
    return Item(kind, first, last, _token(rest[1]), stream, delay, why)


def _token(text: object) -> tuple[int, int]:
    parts = _TOKEN.fullmatch(text) if isinstance(text, str) else None
    if parts is None:
        raise ValueError(f'invalid token {text!r:.80}: expected one from the answer to a lease, such as "3.1"')
    return int(parts[1]), int(parts[2])


def _result(fields: Any) -> Result:
    if not isinstance(fields, dict):
        raise ValueError('expected {"stream": ..., "payload": ...} in "publish"')
    only(fields, {"stream", "payload", "payload_base64", "content_type"})
    content_type = fields.get("content_type")
    if content_type is not None and not is_label(text_of(fields, "content_type")):
        raise ValueError('expected a text without control characters for "content_type"')
    stream = text_of(fields, "stream")
    if isinstance(fields.get("payload"), str) and "payload_base64" not in fields:
        return Result(stream, fields["payload"].encode(), content_type)
    try:
        return Result(stream, base64.b64decode(fields["payload_base64"], validate=True), content_type)
    except (KeyError, TypeError, binascii.Error) as error:
        raise ValueError('expected a text for "payload", or base64 for "payload_base64"') from error


def only(fields: dict[str, Any], known: set[str]) -> None:
    """Check that a JSON object has no fields but the *known* ones.

    :raises ValueError: the object has an unknown field
    """
    unknown = sorted(fields.keys() - known)
    if unknown:
        expected = f"use {', '.join(sorted(known))}" if known else "expected {}"
        raise ValueError(f"unknown field {unknown[0][:80]!r}: {expected}")


def text_of(fields: dict[str, Any], name: str) -> str:
    """Return the field *name* of a JSON object that a peer sent, which has to be a text.

    :raises ValueError: the field is missing, is no text, or is not 1 to MAX_NAME bytes of UTF-8
    """
    value = fields.get(name)
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= MAX_NAME:
        raise ValueError(f'expected a text of 1 to {MAX_NAME} bytes for "{name}"')
    return value


def number_of(fields: dict[str, Any], name: str, least: int, most: int) -> int:
    """Return the field *name* of a JSON object, which has to be a number from *least* to *most*.

    :raises ValueError: the field is not such a number
    """
    value = fields[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f'expected a number from {least} to {most} for "{name}"')
    return value


def seconds_of(value: object, name: str, most: int) -> float:
    """Return *value*, the field *name* of a JSON object, which has to be seconds from 0 to *most*.

    :raises ValueError: the value is not such a number of seconds
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f'expected seconds from 0 to {most} for "{name}"')
    return float(value)


#: The function that parses the body of each action that has one, except for positions.
BODIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "report": report,
    "create": creation,
    "lease": lease_request,
    "settle": settling,
    "release": _release,
    "pause": paused,
    "redrive": _redrive,
}
