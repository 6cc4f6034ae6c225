"""Requests about shared subscriptions, sans-I/O: their bodies.

PUT  /subscriptions/S          {"stream": "orders", "shared": true, "lease": 30, ...}   create it
POST /subscriptions/S/lease    {"consumer": "w1", "most": 10, "wait": 30}               lease records
POST /subscriptions/S/settle   {"done": [[7, "3.1"]], "failed": ..., "publish": [...]}  settle, return, extend them
POST /subscriptions/S/pause    {"paused": true}                                         lease nothing more
POST /subscriptions/S/redrive  {}                                                       publish dead letters again
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from fyrehose.broker.consumers.progress import ShareOptions
from fyrehose.broker.consumers.work import Item
from fyrehose.errors import InvalidPattern
from fyrehose.patterns import Pattern
from fyrehose.records import LAST_SEQ, MAX_NAME

#: The most records that one request leases, and that one request settles or returns.
MOST_LEASED, MOST_SETTLED = 1_000, 10_000
#: The most results of one request.
MOST_RESULTS = 1_000
#: The longest time that a request waits for a record, and that a record waits after it was returned, in seconds.
LONGEST_WAIT, LONGEST_DELAY = 300, 86_400
#: Bounds of the options that are numbers.
BOUNDS = {"lease": (1, 3_600), "limit": (0, 1_000), "window": (1, 100_000), "most": (1, 10_000)}
#: The lists of a request to settle, and the kinds of their items.
KINDS = ("done", "failed", "untried", "reject", "extend")


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


@attrs.frozen(slots=True)
class Result:
    """A message that is published together with the settling."""

    stream: str
    payload: bytes
    content_type: str | None = None


@attrs.frozen(slots=True)
class Settling:
    """Settle, return, reject and extend records, and publish results in the same commit."""

    items: list[Item]
    results: list[Result]
    consumer: str = ""


def creation(fields: dict[str, Any]) -> Creation:
    """Return the request to create that the object *fields* is.

    :raises ValueError: it is invalid; the message says what is expected
    """
    known = {"stream", "match", "shared", "dead", "key", "from", *BOUNDS}
    _only(fields, known)
    if fields.get("shared") is not True:
        raise ValueError('expected "shared": true; an exclusive subscription is created when it is first read')
    if ("stream" in fields) is ("match" in fields):
        raise ValueError('expected either "stream", a name, or "match", a pattern such as "logs.*"')
    stream = _name(fields, "match" if "match" in fields else "stream")
    if "match" in fields:
        try:
            Pattern.of_peer(stream)
        except InvalidPattern as error:
            raise ValueError(str(error)) from error
    numbers: dict[str, Any] = {name: _number(fields, name, *BOUNDS[name]) for name in BOUNDS if name in fields}
    dead, key = (None if fields.get(name) is None else _name(fields, name) for name in ("dead", "key"))
    if dead == stream:
        raise ValueError('"dead" is the stream itself: its dead letters would be leased again')
    options = ShareOptions(stream=stream, pattern="match" in fields, dead=dead, key=key, **numbers)
    return Creation(options, _number(fields, "from", 0, LAST_SEQ) if "from" in fields else 1)


def lease_request(fields: dict[str, Any]) -> LeaseRequest:
    """Return the request for records that the object *fields* is.

    :raises ValueError: it is invalid
    """
    _only(fields, {"consumer", "request", "most", "wait"})
    request = _number(fields, "request", 0, LAST_SEQ) if fields.get("request") is not None else None
    most = _number(fields, "most", 1, MOST_LEASED) if "most" in fields else 1
    wait = _seconds(fields.get("wait", 0), "wait", LONGEST_WAIT)
    return LeaseRequest(_name(fields, "consumer"), request, most, wait)


def settling(fields: dict[str, Any]) -> Settling:
    """Return the request to settle that the object *fields* is.

    :raises ValueError: it is invalid
    """
    _only(fields, {"publish", "consumer", *KINDS})
    items: list[Item] = []
    left = MOST_SETTLED
    for kind in KINDS:
        listed = fields.get(kind, [])
        if not isinstance(listed, list):
            raise ValueError(f'expected a list for "{kind}"')
        for each in listed:
            items += (found := list(_items(kind, each, left)))
            left -= sum(item.last - item.first + 1 for item in found)
    results = fields.get("publish", [])
    if not isinstance(results, list) or len(results) > MOST_RESULTS:
        raise ValueError(f'expected a list of at most {MOST_RESULTS} messages for "publish"')
    if results and not fields.get("done"):
        raise ValueError('"publish" needs "done": results are published together with the end of their records')
    consumer = _name(fields, "consumer") if "consumer" in fields else ""
    return Settling(items, [_result(each) for each in results], consumer)


def paused(fields: dict[str, Any]) -> bool:
    """Return whether to pause.

    :raises ValueError: the body is invalid
    """
    _only(fields, {"paused"})
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
    _only(fields, set())
    return Redrive()


Work = Creation | LeaseRequest | Settling | Redrive | bool
#: How the bodies of these actions are read.
BODIES: dict[str, Callable[[dict[str, Any]], Work]] = {
    "create": creation,
    "lease": lease_request,
    "settle": settling,
    "pause": paused,
    "redrive": redrive,
}


def _items(kind: str, each: Any, most: int) -> Iterator[Item]:
    """Yield the items of *each*: ``[seq, token]``, ``[[first, last], token]``, with a stream before, options behind.

    Records that are done need one item, all others one each.
    """
    expected = f'expected [7, "3.1"] or [[7, 9], "3.1"] in "{kind}", not {each!r:.80}'
    if not isinstance(each, list):
        raise ValueError(expected)
    stream = each[0] if each and isinstance(each[0], str) else ""
    rest = each[1:] if stream else each
    options = rest[2] if len(rest) == 3 else {}
    if len(rest) not in (2, 3) or not isinstance(options, dict) or options.keys() - {"delay", "why"}:
        raise ValueError(expected)
    first, last = rest[0] if isinstance(rest[0], list) and len(rest[0]) == 2 else (rest[0], rest[0])
    if not (_is_number(first) and _is_number(last) and 0 < first <= last <= LAST_SEQ):
        raise ValueError(expected)
    if last - first >= most:
        raise ValueError(f"one request settles or returns at most {MOST_SETTLED} records")
    delay = None if options.get("delay") is None else _seconds(options["delay"], "delay", LONGEST_DELAY)
    why = options.get("why", "")
    if not isinstance(why, str) or len(why) > MAX_NAME:
        raise ValueError(f'expected a text of at most {MAX_NAME} characters for "why"')
    token = _token(rest[1])
    step = last - first + 1 if kind == "done" else 1
    for seq in range(first, last + 1, step):
        yield Item(kind, seq, seq + step - 1, token, stream, delay, why)


def _token(text: object) -> tuple[int, int]:
    epoch, _, number = text.partition(".") if isinstance(text, str) else ("", "", "")
    if not all(part.isascii() and part.isdecimal() and len(part) < 16 for part in (epoch, number)):
        raise ValueError(f"invalid token {text!r:.80}: expected one as the answer to a lease has it")
    return int(epoch), int(number)


def _result(fields: Any) -> Result:
    if not isinstance(fields, dict):
        raise ValueError('expected {"stream": ..., "payload": ...} in "publish"')
    _only(fields, {"stream", "payload", "payload_base64", "content_type"})
    content_type = fields.get("content_type")
    if content_type is not None and not isinstance(content_type, str):
        raise ValueError('expected a text for "content_type"')
    stream = _name(fields, "stream")
    if isinstance(fields.get("payload"), str) and "payload_base64" not in fields:
        return Result(stream, fields["payload"].encode(errors="surrogatepass"), content_type)
    try:
        return Result(stream, base64.b64decode(fields["payload_base64"], validate=True), content_type)
    except (KeyError, TypeError, binascii.Error) as error:
        raise ValueError('expected a text for "payload", or base64 for "payload_base64"') from error


def _only(fields: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(fields.keys() - known)
    if unknown:
        expected = f"use {', '.join(sorted(known))}" if known else "expected {}"
        raise ValueError(f"unknown field {unknown[0][:80]!r}: {expected}")


def _name(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    try:
        valid = isinstance(value, str) and 1 <= len(value.encode()) <= MAX_NAME
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise ValueError(f'expected a text of 1 to {MAX_NAME} bytes for "{name}"')
    return str(value)


def _number(fields: dict[str, Any], name: str, least: int, most: int) -> int:
    value = fields[name]
    if not (_is_number(value) and least <= value <= most):
        raise ValueError(f'expected a number from {least} to {most} for "{name}"')
    return int(value)


def _seconds(value: object, name: str, most: int) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f'expected seconds from 0 to {most} for "{name}"')
    return float(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
