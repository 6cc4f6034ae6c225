"""The progress of a POST: which of its messages are durable, and what it is answered with."""

from __future__ import annotations

from typing import Any

import attrs

from fyrehose.web.session import RequestRefused

#: The most ranges of numbers in an answer to a POST; with more it contains only the first and the last number.
MOST_RANGES = 1_000


@attrs.define(eq=False)
class Upload:
    """The progress of a POST.

    :ivar complete: whether the whole body was received
    :ivar refusal: why the rest of the body is refused; None if it is not
    :ivar pending: publishes that are not durable yet
    :ivar count: durable messages
    :ivar ranges: first and last number of each contiguous range of durable messages
    """

    stream: str
    complete: bool = False
    refusal: RequestRefused | None = None
    pending: int = 0
    count: int = 0
    ranges: list[tuple[int, int]] = attrs.field(factory=list)

    def add_durable(self, first: int, count: int) -> None:
        """Record that one publish of *count* messages became durable, starting at number *first*."""
        self.pending -= 1
        self.count += count
        if self.ranges and self.ranges[-1][1] + 1 == first:
            self.ranges[-1] = (self.ranges[-1][0], first + count - 1)
        elif len(self.ranges) <= MOST_RANGES:
            self.ranges.append((first, first + count - 1))
        else:
            self.ranges[-1] = (self.ranges[-1][0], first + count - 1)

    def answer(self) -> dict[str, Any]:
        """Return the JSON object that answers the POST."""
        answer: dict[str, Any] = {"stream": self.stream, "count": self.count}
        if self.ranges:
            answer |= {"first": self.ranges[0][0], "last": self.ranges[-1][1]}
        if 1 < len(self.ranges) <= MOST_RANGES:  # Other publishers used the numbers in between.
            answer["ranges"] = self.ranges
        return answer
