"""Decode the answers of a ``fyrehose journal serve``, which any program may have sent.

view(b'{"mark": 4096, "segments": [[0, 4096]], ...}') -> View      another program's answer: InvalidAnswer
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from fyrehose.errors import ConfigError, JournalError
from fyrehose.journal.format import UNKNOWN
from fyrehose.journal.subscriptions import MAX_POSITION, MAX_SUBSCRIPTIONS, MAX_TIME, FileSubscription, checked_name
from fyrehose.jsontext import json_object
from fyrehose.offline.view import Extent, View


class InvalidAnswer(JournalError):
    """The error for an answer that no ``fyrehose journal serve`` sends; it says which part of the answer is wrong."""


def view(data: bytes) -> View:
    """Return the durable part of the journal from the answer to ``GET /journal``.

    :raises InvalidAnswer: the segments are not in order, or reach beyond the mark, or the answer is something else
    """
    fields = _object(data)
    with _decoding("mark"):
        mark = _number(fields["mark"], MAX_POSITION)
    with _decoding("segments"):
        segments = tuple(Extent(_number(base, mark), _number(end, mark)) for base, end in fields["segments"])
        if any(each.end < each.base for each in segments) or any(b.base < a.end for a, b in pairwise(segments)):
            raise ValueError
    with _decoding("identity"):
        identity = bytes.fromhex(fields.get("identity", UNKNOWN.hex()))
        if len(identity) != len(UNKNOWN):
            raise ValueError
    with _decoding("vouched"):
        vouched = fields.get("vouched", False)
        if type(vouched) is not bool:
            raise ValueError
    return View(mark, segments, identity, vouched)


def snapshots(data: bytes) -> list[int]:
    """Return the positions of the snapshots of all streams from the answer to ``GET /journal``.

    :raises InvalidAnswer: it is something else
    """
    with _decoding("snapshots"):
        return [_number(position, MAX_POSITION) for position in _object(data).get("snapshots", [])]


def subscriptions(data: bytes) -> list[FileSubscription]:
    """Return the named subscriptions to the files from the answer to ``GET /subscriptions``.

    :raises InvalidAnswer: a name, a position or a time is invalid, or there are more than a journal may have
    """
    fields = _object(data)
    with _decoding("subscriptions"):
        if len(fields) > MAX_SUBSCRIPTIONS:
            raise ValueError
        return [
            FileSubscription(
                checked_name(name), _number(each["position"], MAX_POSITION), _number(each["time"], MAX_TIME)
            )
            for name, each in fields.items()
        ]


def _object(data: bytes) -> dict[str, Any]:
    with _decoding("JSON"):
        return json_object(data)


def _number(value: object, most: int) -> int:
    """Return *value* if it is an integer from 0 to *most*."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError
    return value


@contextmanager
def _decoding(part: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise InvalidAnswer(f"its answer has no valid {part}") from error
