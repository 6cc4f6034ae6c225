"""Split the body of a POST into messages: the whole body, each line, or each part after a length.

Bodies arrive in pieces of any size.  A message is refused as soon as it is known to exceed the limit.  A message that
is said to be JSON is stored as ``application/json`` only if a reader can parse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from struct import Struct
from typing import Any

import attrs

from fyrehose.kernels import lumberjack as kernel
from fyrehose.ndjson import MOST_PARSED
from fyrehose.records import Column, column_of
from fyrehose.web.session import JSON, RequestBody

#: The expected size of a message of unknown length, in bytes; a message that grows larger is expected to reach the
#: limit.
SMALL = 64 << 10
#: The length field before each message of a body with lengths.
_LENGTH = Struct(">I")


class TooLarge(Exception):
    """A message exceeds the limit.

    :ivar before: the messages before the large one, which are published nevertheless, so that the result does not
        depend on how the body was split into pieces
    """

    def __init__(self, before: list[bytes] | None = None) -> None:
        self.before = before or []


@attrs.define(eq=False)
class Whole(RequestBody):
    """A body that is one message; a subclass may turn it into events.

    :ivar largest: limit of the message, in bytes
    :ivar length: the length of the body, in bytes; None if it is unknown
    """

    largest: int
    length: int | None
    _data: bytearray = attrs.field(factory=bytearray, init=False)

    def add(self, data: bytes) -> Sequence[Any]:
        """Take the next piece of the body; the message is complete only at its end."""
        if len(self._data) + len(data) > self.largest:
            return self.too_large()
        self._data += data
        return []

    def too_large(self) -> Sequence[Any]:
        """Raise TooLarge, because the message exceeds the limit; or return events, in a subclass."""
        raise TooLarge

    def end(self) -> Sequence[Any]:
        """Return the message, because the body is complete, or events, in a subclass; keep no copy of it."""
        data, self._data = self._data, bytearray()
        return [bytes(data)]

    @property
    def expected(self) -> int:
        """Return the size that the message may reach, in bytes, as far as it is known."""
        if self.length is not None:
            return max(1, self.length)
        return SMALL if len(self._data) <= SMALL else self.largest

    @property
    def buffered(self) -> int:
        """Return how many bytes of the message are in memory."""
        return len(self._data)


@attrs.define(eq=False)
class LineBody:
    """A body whose lines are messages; empty lines and a carriage return before a line feed are dropped.

    :ivar largest: limit of a message, in bytes
    """

    largest: int
    #: the incomplete last line
    _rest: bytearray = attrs.field(factory=bytearray, init=False)

    def add(self, data: bytes) -> list[bytes]:
        """Take the next piece of the body, and return the messages that it completes.

        :raises TooLarge: a line is longer than the limit; ``before`` has the messages before it
        """
        first, feed, others = data.partition(b"\n")
        if not feed:
            self._rest += data
            self._check_size(self._rest)
            return []
        self._rest += first
        lines = [bytes(self._rest), *others.split(b"\n")]
        self._rest = bytearray(lines.pop())
        messages = self._messages(lines)
        self._check_size(self._rest, messages)
        return messages

    def end(self) -> list[bytes]:
        """Return the last line, if it is not empty, because the body is complete."""
        rest, self._rest = bytes(self._rest), bytearray()
        return self._messages([rest])

    @property
    def expected(self) -> int:
        """Return the size that the incomplete line may reach, in bytes; 0 if none has begun."""
        if not self._rest:
            return 0
        return SMALL if len(self._rest) <= SMALL else self.largest

    @property
    def buffered(self) -> int:
        """Return how many bytes of the incomplete line are in memory."""
        return len(self._rest)

    def _check_size(self, line: bytes | bytearray, before: list[bytes] | None = None) -> None:
        if len(line) > self.largest + 1:  # The last byte may be a carriage return, which will be dropped.
            raise TooLarge(before)

    def _messages(self, lines: list[bytes]) -> list[bytes]:
        messages = [line for line in (line.removesuffix(b"\r") for line in lines) if line]
        for number, message in enumerate(messages):
            if len(message) > self.largest:
                raise TooLarge(messages[:number])
        return messages


def split_lines(data: bytes, largest: int) -> list[bytes]:
    """Return the messages of a whole body of lines.

    :param largest: limit of a message, in bytes
    :raises TooLarge: a line is longer than the limit
    """
    lines = LineBody(largest)
    return [*lines.add(data), *lines.end()]


def split_lengths(data: bytes, largest: int) -> list[bytes]:
    """Return the messages of a whole body in which a length precedes each message.

    :param largest: limit of a message, in bytes
    :raises TooLarge: a message is longer than the limit
    :raises ValueError: the body ends within a length or a message
    """
    messages: list[bytes] = []
    at = 0
    while at < len(data):
        begin = at + _LENGTH.size
        end = begin + (_LENGTH.unpack_from(data, at)[0] if begin <= len(data) else 0)
        if end > len(data):
            raise ValueError(
                f"the body of {len(data)} bytes ends within the message at byte {at}: expected before each message "
                "its length, as 32 bits in network byte order"
            )
        if end - begin > largest:
            raise TooLarge(messages)
        messages.append(data[begin:end])
        at = end
    return messages


def by_content_type(content_type: str | None, messages: Sequence[bytes]) -> list[tuple[str | None, Column]]:
    """Return groups of consecutive *messages* with their content type; None: said to be JSON, but not valid JSON.

    A message is JSON if it is one JSON text in UTF-8 (RFC 8259) of at most :data:`MOST_PARSED` bytes.

    :param content_type: the content type that the publisher states
    """
    if content_type is None or content_type.partition(";")[0].strip().lower() != JSON:
        return [(content_type, column_of(messages))]
    found: list[tuple[str | None, Column]] = []
    if max(map(len, messages)) <= MOST_PARSED:
        column, start = column_of(messages), 0
        for count, _, parses in kernel.split(column.lengths, column.payload, ()):
            found.append((content_type if parses else None, column.part(start, start + count)))
            start += count
    else:
        for large, group in groupby(messages, lambda message: len(message) > MOST_PARSED):
            part = list(group)
            found += [(None, column_of(part))] if large else by_content_type(content_type, part)
    return found
