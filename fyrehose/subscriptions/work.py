"""Requests of workers to a shared subscription, without I/O: lease records; settle, return, reject and extend them.

lease(consumer, request, most) -> leased records
act(items, consumer)           -> what is appended, and what is refused
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop

import attrs

from fyrehose.subscriptions.lane import Group, Lane, LaneChange, Leased, Token
from fyrehose.subscriptions.progress import Ranges, merged

#: How many consumers' last requests are remembered at most.
MOST_CONSUMERS = 1_000


@attrs.frozen
class Item:
    """The verdict of a worker on a record or, if the verdict is ``done``, on consecutive records.

    :ivar kind: ``done``, ``failed``, ``untried``, ``reject`` or ``extend``
    :ivar stream: the stream of the records; empty: the subscription has only one
    :ivar delay: until a returned record may be leased again, in seconds; None: longer with each failure
    :ivar why: the reason of a rejection
    """

    kind: str
    first: int
    last: int
    token: Token
    stream: str = ""
    delay: float | None = None
    why: str = ""

    def __len__(self) -> int:
        return self.last - self.first + 1


@attrs.define
class WorkOutcome:
    """The outcome of a worker's request: what the request has changed, and which of its items were refused.

    :ivar batches: what is to be appended together, with the results of the request
    :ivar settled: the records that are done, by stream
    :ivar refused: the items that were refused, and why
    :ivar extended: the items that extended a lease, each with its token
    """

    batches: list[LaneChange] = attrs.field(factory=list)
    settled: dict[str, Ranges] = attrs.field(factory=dict)
    refused: list[tuple[Item, str]] = attrs.field(factory=list)
    extended: list[tuple[Item, Token]] = attrs.field(factory=list)


@attrs.define(eq=False)
class Work:
    """The handler of workers' requests to a shared subscription, which has a lane for each stream.

    :ivar lanes: by stream
    """

    group: Group
    lanes: OrderedDict[str, Lane] = attrs.field(factory=OrderedDict)
    _requests: OrderedDict[str, tuple[int, list[Leased]]] = attrs.field(factory=OrderedDict, init=False)

    def lease(self, consumer: str, request: int | None, most: int) -> list[Leased]:
        """Lease up to *most* records to *consumer*.

        :param request: a number of the request: a repetition with the same number, after a lost answer, gets the same
            leases again, extended from now on; None: each request gets new leases
        """
        repeated = self._repeated(consumer) if self.repeats(consumer, request) else []
        if repeated:
            return repeated
        left = min(most, self.group.options.most - self.group.held[consumer])
        leased: list[Leased] = []
        self.tick()
        stirred = self.group.stirred
        for lanes in range(len(stirred), 0, -1):
            if left <= 0:
                break
            stream, lane = next(iter(stirred.items()))
            stirred.move_to_end(stream)  # The streams take turns.
            found = lane.lease(consumer, -(-left // lanes))
            if not lane.has_more():
                del stirred[stream]
            left -= sum(map(len, found))
            leased += found
        if request is not None and leased:
            self._requests[consumer] = request, leased
            self._requests.move_to_end(consumer)
            if len(self._requests) > MOST_CONSUMERS:
                self._requests.popitem(last=False)
        return leased

    def available(self) -> int:
        """Return about how many records could be leased now."""
        return sum(lane.available() for lane in self.group.stirred.values())

    def tick(self) -> None:
        """End the leases and the delays whose time is over, in all lanes."""
        now, alarms, due = self.group.now(), self.group.alarms, []
        while alarms and alarms[0][0] <= now:
            due.append(heappop(alarms)[2])
        for lane in dict.fromkeys(due):  # Not in the loop above: a lane whose change cannot be written is due at once.
            if self.lanes.get(lane.stream) is lane:
                lane.tick()

    def repeats(self, consumer: str, request: int | None) -> bool:
        """Return whether the last request of *consumer* that got records has the number *request*."""
        return request is not None and consumer in self._requests and self._requests[consumer][0] == request

    def _repeated(self, consumer: str) -> list[Leased]:
        """Extend the leases that the last request of *consumer* got, and return those that have not ended."""
        leased = self._requests[consumer][1]
        return [renewed for each in leased for renewed in each.lane.renew(each, consumer)]

    def lane_of(self, item: Item) -> Lane:
        """Return the lane of the records of *item*.

        :raises KeyError: the stream of *item* is not one of the subscription
        """
        return self.lanes[item.stream or self.group.options.stream]

    def refusals(self, item: Item) -> list[tuple[Item, str]]:
        """Return the parts of *item* that must be refused, each with the reason."""
        lane, seq, token = self.lane_of(item), item.first, item.token
        if item.kind not in ("done", "extend") or (item.kind == "extend" and token[0] == self.group.epoch):
            return [] if lane.holds(seq, token) else [(item, lane.why_not(seq, token) or "lease-lost")]
        found = lane.refusals(seq, item.last, token)
        return [(attrs.evolve(item, first=first, last=last), why) for first, last, why in found]

    def act(self, items: Sequence[Item], consumer: str, whole: bool = False) -> WorkOutcome:
        """Apply the verdicts *items*, and return what to append for them; dead letters were appended already.

        :param whole: whether to do nothing if one of *items* is refused
        """
        lanes = [self.lane_of(item) for item in items]
        for lane in dict.fromkeys(lanes):
            lane.tick()
        outcome = WorkOutcome()
        done: dict[Lane, Ranges] = {}
        others: list[tuple[Lane, Item]] = []
        for lane, item in zip(lanes, items, strict=True):
            refused = self.refusals(item)
            outcome.refused += refused
            if item.kind == "done":
                done.setdefault(lane, []).extend(_without(item, refused))
            elif not refused:
                others.append((lane, item))
        if outcome.refused and whole:
            return outcome
        batches: dict[Lane, LaneChange] = {}
        for lane, ranges in done.items():
            outcome.settled[lane.stream] = merged(ranges)
            if ranges:
                batches[lane] = LaneChange(lane)
                lane.settle(outcome.settled[lane.stream], batches[lane])
        for lane, item in others:
            self._act(lane, item, consumer, batches, outcome)
        self.group.late += sum(len(item) for item, _ in outcome.refused)
        outcome.batches = [batch for batch in batches.values() if batch.settled or batch.ended]
        return outcome

    def _act(
        self, lane: Lane, item: Item, consumer: str, batches: dict[Lane, LaneChange], outcome: WorkOutcome
    ) -> None:
        seq, token = item.first, item.token
        if item.kind == "extend":
            extended = lane.extend(seq, token, consumer)
            if extended is None:
                outcome.refused.append((item, lane.why_not(seq, token) or "not-leading"))
            else:
                outcome.extended.append((item, extended))
        elif not lane.holds(seq, token):  # Another item of the same request has ended the lease.
            outcome.refused.append((item, lane.why_not(seq, token) or "lease-lost"))
        else:
            batch = batches.setdefault(lane, LaneChange(lane))
            why = item.why or ("rejected" if item.kind == "reject" else "")
            lane.give_back(seq, batch, failed=item.kind != "untried", delay=item.delay, why=why)


def _without(item: Item, refused: Sequence[tuple[Item, str]]) -> Ranges:
    """Return *item* as ranges without the parts that were *refused*, which are in ascending order."""
    found, at = [], item.first
    for part, _ in refused:
        if at < part.first:
            found.append((at, part.first - 1))
        at = part.last + 1
    if at <= item.last:
        found.append((at, item.last))
    return found
