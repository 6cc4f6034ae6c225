"""Requests of workers to settle their leased records, and the answers, as JSON; each protocol carries the same objects.

The texts in the objects can be encoded in UTF-8: :func:`fyrehose.jsontext.loaded` has checked that.

{"done": [[7, "3.1"], [[8, 20], "3.1"]], "failed": [[21, "3.1", {"delay": 60}]], "publish": [...]}
    -> {"settled": [[7, 20]], "refused": [{"seq": 21, "why": "lease-lost"}], "extended": []}
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, TypeGuard

import attrs

from fyrehose.records import LAST_SEQ, MAX_NAME, Run, is_label
from fyrehose.subscriptions.pool import Item, WorkOutcome
from fyrehose.subscriptions.progress import packed_ranges

#: How many records one request may settle or return.
MOST_SETTLED = 10_000
#: How many results one request may have.
MOST_RESULTS = 1_000
#: The longest time that a record waits after it was returned, in seconds.
LONGEST_DELAY = 86_400
#: The lists of a request to settle, and the kinds of their items.
KINDS = ("done", "failed", "untried", "reject", "extend")


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
        for each in listed:
            items.append(_item(kind, each, left))
            left -= len(items[-1])
    results = fields.get("publish", [])
    if not isinstance(results, list) or len(results) > MOST_RESULTS:
        raise ValueError(f'expected a list of at most {MOST_RESULTS} messages for "publish"')
    if results and not fields.get("done"):
        raise ValueError('"publish" needs "done": results are published together with the end of their records')
    consumer = text_of(fields, "consumer") if "consumer" in fields else ""
    return Settling(items, [_result(each) for each in results], consumer)


def answer_to(work: Settling, pattern: bool, outcome: WorkOutcome) -> dict[str, object]:
    """Return the answer to a request to settle."""

    def places(item: Item) -> Iterator[dict[str, object]]:
        for seq in range(item.first, item.last + 1):
            yield {"seq": seq, **({"stream": item.stream} if pattern else {})}

    answer: dict[str, object] = {
        "refused": [{**place, "why": why} for item, why in outcome.refused for place in places(item)]
    }
    if outcome.refused and work.results:
        return {"error": "some records cannot be settled, so nothing was done or published", **answer}
    if pattern:
        answer["settled"] = [
            {"stream": stream, "seq": seq}
            for stream, ranges in outcome.settled.items()
            for first, last in ranges
            for seq in range(first, last + 1)
        ]
    else:
        answer["settled"] = packed_ranges(each for ranges in outcome.settled.values() for each in ranges)
    answer["extended"] = [
        {**place, "token": f"{epoch}.{number}"} for item, (epoch, number) in outcome.extended for place in places(item)
    ]
    return answer


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
    if not (is_number(first) and is_number(last) and 0 < first <= last <= LAST_SEQ):
        raise ValueError(expected)
    if last - first >= most:
        raise ValueError(f"one request settles or returns at most {MOST_SETTLED} records")
    delay = None if options.get("delay") is None else seconds_of(options["delay"], "delay", LONGEST_DELAY)
    why = text_of(options, "why") if options.get("why", "") != "" else ""
    return Item(kind, first, last, _token(rest[1]), stream, delay, why)


def _token(text: object) -> tuple[int, int]:
    epoch, _, number = text.partition(".") if isinstance(text, str) else ("", "", "")
    if not all(part.isascii() and part.isdecimal() and len(part) < 16 for part in (epoch, number)):
        raise ValueError(f'invalid token {text!r:.80}: expected one from the answer to a lease, such as "3.1"')
    return int(epoch), int(number)


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
    if not (is_number(value) and least <= value <= most):
        raise ValueError(f'expected a number from {least} to {most} for "{name}"')
    return int(value)


def seconds_of(value: object, name: str, most: int) -> float:
    """Return *value*, the field *name* of a JSON object, which has to be seconds from 0 to *most*.

    :raises ValueError: the value is not such a number of seconds
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f'expected seconds from 0 to {most} for "{name}"')
    return float(value)


def is_number(value: object) -> TypeGuard[int]:
    """Return whether *value*, which was parsed from JSON, is a whole number; true and false do not count."""
    return isinstance(value, int) and not isinstance(value, bool)
