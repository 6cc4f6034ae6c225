"""The shared subscriptions as one peer may use them.

    create -> lease -> settle ...

Leasing needs the rights ``subscribe`` and ``consume`` of the stream, everything else ``consume``.  Dead letters and
results need ``publish`` in their streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, fail

from fyrehose.broker.consumers.progress import ShareOptions
from fyrehose.broker.consumers.table import SharedSubscription, SharedSubscriptions
from fyrehose.broker.consumers.work import Item, Leased, WorkerAction
from fyrehose.errors import Forbidden, FyrehoseError, InvalidPosition, NoSuchSubscription
from fyrehose.identity import Action as Right
from fyrehose.patterns import Pattern
from fyrehose.records import Run


class PeerBroker(Protocol):
    """A broker that knows the rights of a peer."""

    def check(self, action: Right, stream: str) -> None: ...

    def permits(self, action: Right, stream: str) -> bool: ...

    def publish(self, runs: Sequence[Run], own: Sequence[Run] = ()) -> Deferred[tuple[int, ...]]: ...


class NoSharing:
    """The shared subscriptions of a server that keeps no messages: there are none, and none can be created."""

    def find(self, name: str) -> Any:
        raise NoSuchSubscription(f"there is no shared subscription {name[:80]!r}")

    def create(self, name: str, options: ShareOptions, first: int) -> Deferred[Any]:
        return fail(Forbidden("this server keeps no messages, so there are no shared subscriptions"))

    def listed(self) -> list[dict[str, object]]:
        return []


@attrs.frozen(eq=False)
class Sharing:
    """The shared subscriptions for one peer.

    :ivar network: the network of the peer; empty: the server itself
    """

    table: SharedSubscriptions
    peer: PeerBroker
    network: str = ""

    def find(self, name: str) -> SharedSubscription:
        """Return the subscription *name*.

        :raises NoSuchSubscription: there is none
        :raises Forbidden: the peer may not consume its stream
        """
        shared = self.table.find(name)
        self.peer.check(Right.CONSUME, shared.options.stream)
        return shared

    def create(self, name: str, options: ShareOptions, first: int) -> Deferred[SharedSubscription]:
        """Create the subscription *name*, which begins with record *first* of each stream.

        :return: fires when it is durable; fails with a SubscriptionError, a PublishError or Forbidden
        """
        try:
            for right in (Right.SUBSCRIBE, Right.CONSUME):
                self.peer.check(right, options.stream)
            if options.dead is not None:
                self.peer.check(Right.PUBLISH, options.dead)
            streams = [options.stream]
            if options.pattern:
                pattern = Pattern.of_peer(options.stream)
                ends = self.table.journal.ends()
                streams = [each for each in ends if pattern.covers(each) and each != options.dead and each[0] != "."]
        except FyrehoseError as refusal:
            return fail(refusal)
        floors = {stream: self._floor(stream, first) for stream in streams}
        return self.table.create(name, attrs.evolve(options, creator=self.network), floors)

    def _floor(self, stream: str, first: int) -> int:
        oldest, last = self.table.journal.bounds(stream)
        return min(max(first - 1, oldest - 1), last)

    def lease(
        self, shared: SharedSubscription, consumer: str, request: int | None, most: int, wait: float
    ) -> Deferred[list[tuple[Leased, Run]]]:
        """Lease records; see :meth:`SharedSubscriptions.lease`."""
        for right in (Right.SUBSCRIBE, Right.CONSUME):
            self.peer.check(right, shared.options.stream)
        return self.table.lease(shared, consumer, request, most, wait)

    def act(
        self, shared: SharedSubscription, items: Sequence[Item], consumer: str, runs: Sequence[Run] = ()
    ) -> Deferred[Any]:
        """Do what *items* say, and publish *runs* in the same commit; see :meth:`SharedSubscriptions.act`."""
        only = shared.options.stream
        actions, unknown = [], []
        for item in items:
            lane = shared.work.lanes.get(item.stream or only)
            if lane is None:
                unknown.append(item.stream or only)
            else:
                actions.append(WorkerAction(item.kind, lane, item.seq, item.token, item.delay, item.why))
        if unknown:
            detail = f"stream {unknown[0][:80]!r} is not one of subscription {shared.name!r}: name the stream of each"
            return fail(InvalidPosition(f'{detail} record, as in ["logs.a", 7, "3.1"]'))
        return self.table.act(shared, actions, consumer, runs, self.peer.publish)

    def rewind(self, shared: SharedSubscription, seq: int | Mapping[str, int] | None) -> Deferred[Any]:
        """Continue behind *seq* (None: the end) in every stream, or behind the numbers by stream."""
        lanes, bounds = shared.work.lanes, self.table.journal.bounds
        numbers = seq if isinstance(seq, Mapping) else {each: bounds(each)[1] if seq is None else seq for each in lanes}
        for stream, number in numbers.items():
            if stream not in lanes or number > bounds(stream)[1]:
                return fail(InvalidPosition(f"a position in stream {stream[:80]!r} cannot be {number}"))
        return self.table.rewind(shared, numbers)

    def pause(self, shared: SharedSubscription, paused: bool) -> Deferred[Any]:
        return self.table.pause(shared, paused)

    def delete(self, shared: SharedSubscription) -> Deferred[None]:
        return self.table.delete(shared)

    def show(self, shared: SharedSubscription) -> dict[str, object]:
        """Describe *shared*, with its leases."""
        return describe(self.table, shared, leases=True)

    def listed(self) -> list[dict[str, object]]:
        """Describe the subscriptions that the peer may consume."""
        permits: Callable[[Right, str], bool] = self.peer.permits
        every = self.table.entries.values()
        return [describe(self.table, each) for each in every if permits(Right.CONSUME, each.options.stream)]


def describe(table: SharedSubscriptions, shared: SharedSubscription, leases: bool = False) -> dict[str, object]:
    """Return the state of *shared* as an object for JSON."""
    options, group, lanes = shared.options, shared.group, shared.work.lanes
    entries = [(lane, entry) for lane in lanes.values() for entry in lane.entries.values()]
    ages = group.now()
    found: dict[str, object] = {
        "name": shared.name,
        "kind": "shared",
        "stream": options.stream,
        "pattern": options.pattern,
        "lease": options.lease,
        "limit": options.limit,
        "window": options.window,
        "most": options.most,
        "dead": options.dead,
        "key": options.key,
        "epoch": group.epoch,
        "paused": group.paused,
        "lag": sum(max(0, lane.bounds()[1] - lane.seen) for lane in lanes.values()),
        "in_flight": sum(entry.lease is not None for _, entry in entries),
        "waiting": sum(lane.is_waiting(entry) for lane, entry in entries),
        "delayed": sum(entry.not_before > ages for _, entry in entries),
        "window_full": not group.has_room(),
        "settled_total": sum(lane.progress.settled for lane in lanes.values()),
        "dead_total": sum(lane.progress.dead for lane in lanes.values()),
        "expired_total": sum(lane.progress.expired for lane in lanes.values()),
        "redelivered_total": group.redelivered,
        "late_refused_total": group.late,
        "floor": {stream: lane.progress.final.floor for stream, lane in lanes.items()},
        "active": shared.active,
    }
    if leases:
        found["leases"] = [
            {
                "stream": lane.stream,
                "seq": entry.seq,
                "consumer": entry.lease.consumer,
                "ends_in": round(entry.lease.end - ages, 3),
                "failures": entry.ended[1],
            }
            for lane, entry in entries[:1_000]
            if entry.lease is not None
        ]
    return found
