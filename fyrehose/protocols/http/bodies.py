"""What the body of a POST becomes: one message, or a message a line.

bytes, as they are cut on the way -> payloads      limits apply as soon as a length is known
"""

from __future__ import annotations

from typing import Protocol

import attrs

#: What a body that is being collected counts for, in bytes, while it is small; then for all that it may become.
SMALL = 64 << 10


class TooLarge(Exception):
    """A message is larger than any that is taken.

    :ivar before: the messages before it, which count, however the bytes were cut
    """

    def __init__(self, before: list[bytes] | None = None) -> None:
        self.before = before or []


class Body(Protocol):
    """Collects a body."""

    def add(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes.

        :raises TooLarge: one would be larger than it may be
        """

    def end(self) -> list[bytes]:
        """The messages that the end completes."""

    @property
    def expected(self) -> int:
        """The size that what is being collected may come to, in bytes; 0: there is nothing."""

    @property
    def buffered(self) -> int:
        """How much of that is in memory, in bytes."""


@attrs.define(eq=False)
class Whole:
    """The body is one message.

    :ivar length: how long it will be, if that was said
    """

    largest: int
    length: int | None
    _data: bytearray = attrs.field(factory=bytearray, init=False)

    def add(self, data: bytes) -> list[bytes]:
        if len(self._data) + len(data) > self.largest:
            raise TooLarge
        self._data += data
        return []

    def end(self) -> list[bytes]:
        return [bytes(self._data)]

    @property
    def expected(self) -> int:
        if self.length is not None:
            return max(1, self.length)
        return SMALL if len(self._data) <= SMALL else self.largest

    @property
    def buffered(self) -> int:
        return len(self._data)


@attrs.define(eq=False)
class Lines:
    """Each line of the body is a message; empty ones are none, and a carriage return before a line feed is not kept."""

    largest: int
    _rest: bytearray = attrs.field(factory=bytearray, init=False)

    def add(self, data: bytes) -> list[bytes]:
        first, feed, behind = data.partition(b"\n")
        if not feed:
            self._rest += data
            self._judge(self._rest)
            return []
        self._rest += first
        lines = [bytes(self._rest), *behind.split(b"\n")]
        self._rest = bytearray(lines.pop())
        messages = self._messages(lines)
        self._judge(self._rest, messages)
        return messages

    def end(self) -> list[bytes]:
        rest, self._rest = bytes(self._rest), bytearray()
        return self._messages([rest])

    @property
    def expected(self) -> int:
        if not self._rest:
            return 0
        return SMALL if len(self._rest) <= SMALL else self.largest

    @property
    def buffered(self) -> int:
        return len(self._rest)

    def _judge(self, line: bytes | bytearray, before: list[bytes] | None = None) -> None:
        if len(line) > self.largest + 1:  # its last byte may be a carriage return
            raise TooLarge(before)

    def _messages(self, lines: list[bytes]) -> list[bytes]:
        messages = [line for line in (line.removesuffix(b"\r") for line in lines) if line]
        for number, message in enumerate(messages):
            if len(message) > self.largest:
                raise TooLarge(messages[:number])
        return messages
