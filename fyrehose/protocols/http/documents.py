"""Decide which messages are JSON, so that only messages that a reader can parse are stored as ``application/json``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from fyrehose.kernels import lumberjack as kernel
from fyrehose.records import Column, column_of
from fyrehose.web.session import JSON

#: The largest message that is parsed, in bytes: parsing a larger one would block the reactor for too long.
MOST_PARSED = 4 << 20


def by_content_type(content_type: str | None, messages: Sequence[bytes]) -> Iterator[tuple[str | None, Column]]:
    """Yield groups of consecutive *messages* with their content type; None for messages said to be JSON that are not.

    A message is JSON if it is one JSON text in UTF-8 (RFC 8259) of at most :data:`MOST_PARSED` bytes.

    :param content_type: the content type that the publisher states
    """
    if content_type is None or content_type.partition(";")[0].strip().lower() != JSON:
        yield content_type, column_of(messages)
    elif max(map(len, messages)) <= MOST_PARSED:
        column, start = column_of(messages), 0
        for count, _, parses in kernel.split(column.lengths, column.payload, (), 0):
            yield content_type if parses else None, column.part(start, start + count)
            start += count
    else:
        for large, group in groupby(messages, lambda message: len(message) > MOST_PARSED):
            if large:
                yield None, column_of(group)
            else:
                yield from by_content_type(content_type, list(group))
