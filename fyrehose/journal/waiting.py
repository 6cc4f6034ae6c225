"""The publishes that wait for a commit: networks take turns while more waits than one commit holds.

    arrived.append -> arrived          in its order, which is that of the commit as long as everything fits into it
           -> a queue of each network  else: the next is the first publish of the network that has paid least

A network pays for the bytes of its publishes, and for its part in a commit.  So a network that publishes little is part
of the next commit, and one that publishes much waits for itself.

Three orders stay what they are.  Publishes of one network keep theirs, so that a connection gets its answers in order.
So do those that write to the same stream, because their numbers are given out already; therefore a publish takes those
with it that it has to follow, whose networks pay for them.  And a retirement stays between what was submitted before
and after it.

The reactor's thread appends to ``arrived``, everything else happens in the thread that commits; while that takes
publishes, they count as taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

from fyrehose.fair_order import FairOrder
from fyrehose.records import Publish


@attrs.define(eq=False, repr=False)
class _Queued:
    """A publish in the queue of its network.

    :ivar number: its place among all that were submitted
    :ivar after: the publishes that it follows: the last one before it of its network, and of each of its streams
    :ivar waits: whether no commit has taken it
    """

    publish: Publish
    number: int
    after: Sequence[_Queued]
    waits: bool = True


@attrs.define(eq=False)
class WaitingPublishes:
    """The publishes and retirements of one journal that wait for a commit.

    :ivar arrived: those that were submitted since the last commit, to which new ones are appended
    :ivar left: how many of those before the last commit had no room in it
    """

    arrived: deque[Publish] = attrs.field(factory=deque, init=False)
    left: int = attrs.field(default=0, init=False)
    #: the commit that could not be written, and is the next one
    _put_back: list[Publish] = attrs.field(factory=list, init=False)
    #: by network; an empty queue goes when its turn comes, or when nothing waits in any
    _queues: dict[str, deque[_Queued]] = attrs.field(factory=dict, init=False)
    _order: FairOrder = attrs.field(factory=FairOrder, init=False)
    #: the last waiting publish of each stream
    _last: dict[str, _Queued] = attrs.field(factory=dict, init=False)
    _count: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return self.left + len(self.arrived)

    def put_back(self, items: list[Publish]) -> None:
        """Let *items*, a commit that could not be written, be the next commit."""
        self._put_back = items
        self.left += len(items)

    def take(self, most: int, part: int = 0) -> tuple[list[Publish], int]:
        """Return the publishes of the next commit, or a single retirement, and their size in bytes.

        :param most: the size of the commit in bytes; a single publish may be larger
        :param part: what a network pays for its part in a commit, in bytes
        """
        items: list[Publish] = []
        size = 0
        if self._put_back:
            items, self._put_back = self._put_back, items
            self.left -= len(items)
            return items, sum(item.size for item in items)
        arrived = self.arrived
        while arrived and not arrived[0].retires:
            items.append(arrived.popleft())
            size += items[-1].size
        if not self.left and (size <= most or len(items) == 1):
            return items or ([arrived.popleft()] if arrived else []), size
        for publish in items:
            self._add(publish)
        return self._take_fairly(most, part)

    def _add(self, publish: Publish) -> None:
        """Add *publish* to the queue of its network."""
        queue = self._queues.get(publish.network)
        if queue is None:
            queue = self._queues[publish.network] = deque()
            self._order.enter(publish.network)
        after = [self._last[run.stream] for run in publish.runs if run.stream in self._last]
        self._count += 1
        queued = _Queued(publish, self._count, [queue[-1], *after] if queue else after)
        queue.append(queued)
        self.left += 1
        for run in publish.runs:
            self._last[run.stream] = queued

    def _take_fairly(self, most: int, part: int) -> tuple[list[Publish], int]:
        """Take publishes in turns of their networks, each behind those that it follows, until the commit is full."""
        items: list[Publish] = []
        size, networks, full = 0, set[str](), False
        while not full and (network := self._order.first()) is not None:
            queue = self._queues[network]
            needed = _in_order(queue[0]) if queue else []
            if items and needed and size + needed[0].publish.size > most:
                break
            self._order.next()
            for queued in needed:
                publish = queued.publish
                full = bool(items) and size + publish.size > most
                if full:
                    break
                self._remove(queued)
                items.append(publish)
                size += publish.size
                self._order.pay(publish.network, publish.size + (0 if publish.network in networks else part))
                networks.add(publish.network)
            if queue:
                self._order.enter(network)
            else:
                del self._queues[network]
        if not self.left:
            self._queues.clear()
            self._order.forget()
        return items, size

    def _remove(self, queued: _Queued) -> None:
        """Remove *queued*, the first of its queue, because a commit takes it."""
        publish = queued.publish
        first = self._queues[publish.network].popleft()
        assert first is queued, f"publish {queued.number} overtakes {first.number} of its network"
        self.left -= 1
        queued.waits, queued.after = False, ()
        for run in publish.runs:
            if self._last.get(run.stream) is queued:
                del self._last[run.stream]


def _in_order(queued: _Queued) -> list[_Queued]:
    """Return *queued* behind all waiting publishes that it follows, however indirectly, in their order."""
    needed = {queued.number: queued}
    follow = [queued]
    for each in follow:
        for before in each.after:
            if before.waits and before.number not in needed:
                needed[before.number] = before
                follow.append(before)
    return [needed[number] for number in sorted(needed)]
