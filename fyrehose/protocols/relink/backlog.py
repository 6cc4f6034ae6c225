"""What came in on a link and is not finished: how much it is, what may still come, and when it is too much.

What waits for our owner holds the connection: nothing more is read.  What waits for the peer - for its commit or its
rollback - cannot, since that would not be read either: beyond a limit its messages are not kept, and a commit of them
is answered with ``uncommitted``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

import attrs

from fyrehose.protocols.relink.limits import Limits
from fyrehose.protocols.relink.receiving import OVERHEAD, ReceiveChannel

#: Of so many channels it is looked up which is the fullest; of more only those are looked at that are half full.
FEW = 8


@attrs.define(eq=False)
class Backlog:
    """The messages that the peer's channels hold.

    :ivar channels: the peer's channels
    :ivar size: what they hold, in bytes, with what each message costs besides
    """

    limits: Limits
    channels: Mapping[int, ReceiveChannel]
    size: int = attrs.field(default=0, init=False)
    #: channels of which at least half of what may wait for us does, and of which all does
    _filling: set[int] = attrs.field(factory=set, init=False)
    _crowded: set[int] = attrs.field(factory=set, init=False)

    @property
    def held(self) -> bool:
        """Whether so much waits for the owner that nothing more is to come in until some of it is settled."""
        full = self.size >= self.limits.backlog_size
        return bool(self._crowded) or (full and any(channel.waiting for channel in self.channels.values()))

    def room(self, transactional: bool) -> tuple[int, int]:
        """How many messages of one channel, and how many bytes of all, may come before they are judged; never none."""
        limits = self.limits
        if transactional:
            each = 2 * limits.backlog + 1
        else:
            if len(self.channels) <= FEW:
                fullest = max([channel.waiting for channel in self.channels.values()], default=0)
            else:
                fullest = max([self.channels[id_].waiting for id_ in self._filling], default=limits.backlog // 2)
            each = limits.backlog - fullest
        size = limits.backlog_size - self.size
        if size <= 0:  # all of it waits for the peer
            size += limits.backlog_size + limits.message_size + 1
        return max(each, 1), max(size, 1)

    def fits(self, channel: ReceiveChannel, count: int, cost: int) -> bool:
        """Return whether *count* messages more, which cost *cost*, may wait on *channel*, which is transactional."""
        limits = self.limits
        return (
            channel.dropped is None
            and channel.undecided + count <= 2 * limits.backlog
            and self.size + cost <= 2 * limits.backlog_size + limits.message_size
        )

    def fitting(self, channel: ReceiveChannel, sizes: Sequence[int]) -> int:
        """Return how many messages of the given *sizes* may wait on *channel*, which do not all fit."""
        if channel.dropped is not None:
            return 0
        count = min(len(sizes), 2 * self.limits.backlog - channel.undecided)
        left = 2 * self.limits.backlog_size + self.limits.message_size - self.size
        return bisect_right([*accumulate(size + OVERHEAD for size in sizes[:count])], left)

    def add(self, channel: ReceiveChannel, cost: int) -> None:
        """Charge messages that came in on *channel*."""
        self.size += cost
        self.measure(channel)

    def let_go(self, channel: ReceiveChannel, cost: int) -> None:
        """Messages of ``channel`` are finished, or will come again."""
        self.size -= cost
        self.measure(channel)

    def measure(self, channel: ReceiveChannel) -> None:
        """How much of ``channel`` waits for us has changed."""
        waiting, much = channel.waiting, self.limits.backlog
        (self._filling.add if waiting >= much // 2 else self._filling.discard)(channel.id)
        (self._crowded.add if waiting >= much else self._crowded.discard)(channel.id)

    def drop(self, channel: int) -> None:
        """The channel is gone."""
        self._filling.discard(channel)
        self._crowded.discard(channel)
