"""The unfinished messages that a link has received: how many they are, how many more fit, when reading has to stop.

Messages that wait for the owner block the connection: nothing more is read until some are settled.  Messages that
wait for the peer's commit or rollback cannot block it, because the decision would not be read either: beyond a limit
their payloads are dropped, and a commit of them is answered with ``uncommitted``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

import attrs

from fyrehose.protocols.relink.limits import Limits
from fyrehose.protocols.relink.receiving import OVERHEAD, ReceiveChannel

#: Up to this many channels the fullest one is found by a scan; with more, only channels that are half full are scanned.
SCAN_LIMIT = 8


@attrs.define(eq=False)
class Backlog:
    """Count the messages that the peer's channels hold, and compare them with the limits.

    :ivar channels: the peer's channels, by id
    :ivar size: size of the messages held, in bytes, including ``OVERHEAD`` for each
    """

    limits: Limits
    channels: Mapping[int, ReceiveChannel]
    size: int = attrs.field(default=0, init=False)
    #: Ids of the channels on which at least half of ``limits.backlog`` messages wait for the owner.
    _filling: set[int] = attrs.field(factory=set, init=False)
    #: Ids of the channels on which ``limits.backlog`` messages or more wait for the owner.
    _full: set[int] = attrs.field(factory=set, init=False)

    @property
    def blocked(self) -> bool:
        """Whether reading has to stop until the owner has settled some messages."""
        full = self.size >= self.limits.backlog_size
        return bool(self._full) or (full and any(channel.waiting for channel in self.channels.values()))

    def room(self, transactional: bool) -> tuple[int, int]:
        """Return how many messages of one channel, and how many bytes of all channels, may be decoded in one step.

        Both are at least 1, so that a message which does not fit is decoded alone and judged by itself.
        """
        limits = self.limits
        if transactional:
            each = 2 * limits.backlog + 1
        else:
            if len(self.channels) <= SCAN_LIMIT:
                fullest = max([channel.waiting for channel in self.channels.values()], default=0)
            else:
                fullest = max([self.channels[id_].waiting for id_ in self._filling], default=limits.backlog // 2)
            each = limits.backlog - fullest
        size = limits.backlog_size - self.size
        if (
            size <= 0
        ):  # Not blocked, so everything waits for the peer's decisions, for which the limit is twice as high.
            size += limits.backlog_size + limits.message_size + 1
        return max(each, 1), max(size, 1)

    def fits(self, channel: ReceiveChannel, count: int, cost: int) -> bool:
        """Return whether *count* more undecided messages fit on the transactional *channel*.

        :param cost: their size in bytes, including ``OVERHEAD`` for each
        """
        limits = self.limits
        return (
            channel.dropped is None
            and channel.undecided + count <= 2 * limits.backlog
            and self.size + cost <= 2 * limits.backlog_size + limits.message_size
        )

    def count_fitting(self, channel: ReceiveChannel, sizes: Sequence[int]) -> int:
        """Return how many of the messages with the given *sizes*, from the first on, still fit on *channel*."""
        if channel.dropped is not None:
            return 0
        count = min(len(sizes), 2 * self.limits.backlog - channel.undecided)
        available = 2 * self.limits.backlog_size + self.limits.message_size - self.size
        return bisect_right([*accumulate(size + OVERHEAD for size in sizes[:count])], available)

    def add(self, channel: ReceiveChannel, cost: int) -> None:
        """Charge messages that *channel* has received; *cost* is in bytes."""
        self.size += cost
        self.measure(channel)

    def release(self, channel: ReceiveChannel, cost: int) -> None:
        """Give back *cost* bytes of messages of *channel* that are finished, or that the peer will send again."""
        self.size -= cost
        self.measure(channel)

    def measure(self, channel: ReceiveChannel) -> None:
        """Update the sets of half-full and full channels after a change of *channel*."""
        waiting, limit = channel.waiting, self.limits.backlog
        (self._filling.add if waiting >= limit // 2 else self._filling.discard)(channel.id)
        (self._full.add if waiting >= limit else self._full.discard)(channel.id)

    def drop(self, channel: int) -> None:
        """Remove a forgotten channel from the sets; its messages must have been released before."""
        self._filling.discard(channel)
        self._full.discard(channel)
