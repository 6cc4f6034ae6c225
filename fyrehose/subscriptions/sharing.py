"""The shared subscriptions as one peer may use them.

    create -> lease -> settle ...

Leasing needs the rights ``subscribe`` and ``consume`` of the stream, everything else ``consume``.  Dead letters and
results need ``publish`` in their streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, inlineCallbacks

from fyrehose.broker.state_stream import Steps
from fyrehose.errors import FyrehoseError, InvalidPosition, SubscriptionConflict
from fyrehose.identity import Action as Right
from fyrehose.patterns import Pattern
from fyrehose.records import Run
from fyrehose.subscriptions.progress import FINAL, ShareOptions
from fyrehose.subscriptions.table import LeasedRun, SharedSubscription, SharedSubscriptions
from fyrehose.subscriptions.work import Item

#: How many leases, and how many dead letters, of one subscription are shown at most.
MOST_LEASES, MOST_LETTERS = 1_000, 100


@attrs.frozen(eq=False)
class Sharing:
    """The shared subscriptions as one peer may use them, after each request was checked against the peer's rights.

    :ivar peer: a :class:`~fyrehose.broker.peer.Peer`
    :ivar network: the network of the peer; empty: the server itself
    """

    table: SharedSubscriptions
    peer: Any
    network: str = ""

    def find(self, name: str) -> SharedSubscription:
        """Return the subscription *name*.

        :raises NoSuchSubscription: there is none
        :raises Following: another server leads, and only that one knows which records are leased or settled
        :raises Unreplicated: another server may lead
        :raises Forbidden: the peer may not consume its stream
        """
        shared = self.table.find(name)
        self.peer.check(Right.CONSUME, shared.options.stream)
        return shared

    @inlineCallbacks
    def create(self, name: str, options: ShareOptions, first: int) -> Steps[SharedSubscription]:
        """Create the subscription *name*, which begins with record *first* of each stream.

        :return: a Deferred that fires when the subscription is durable; fails with a SubscriptionError, a PublishError
            or Forbidden
        """
        for right in (Right.SUBSCRIBE, Right.CONSUME):
            self.peer.check(right, options.stream)
        if options.dead is not None:
            if options.dead.startswith("."):
                raise SubscriptionConflict(f"stream {options.dead[:80]!r} is one of the server's own: use another")
            self.peer.check(Right.PUBLISH, options.dead)
        streams = [options.stream]
        if options.pattern:
            pattern = Pattern.of_peer(options.stream)
            ends = self.table.journal.ends()
            streams = [each for each in ends if pattern.covers(each) and each != options.dead and each[0] != "."]
        elif first > self.table.journal.bounds(options.stream)[1] + 1:
            first = 1  # a number beyond the end is of another journal
        floors = {stream: self._floor(stream, first) for stream in streams}
        shared: SharedSubscription = yield self.table.create(name, attrs.evolve(options, creator=self.network), floors)
        return shared

    def _floor(self, stream: str, first: int) -> int:
        oldest, last = self.table.journal.bounds(stream)
        return min(max(first - 1, oldest - 1), last)

    def lease(
        self, shared: SharedSubscription, consumer: str, request: int | None, most: int, wait: float
    ) -> Deferred[list[LeasedRun]]:
        """Lease records; see :meth:`SharedSubscriptions.lease`.  A request that waits ends with the peer's rights."""
        rights = ((Right.SUBSCRIBE, shared.options.stream), (Right.CONSUME, shared.options.stream))
        for right, stream in rights:
            self.peer.check(right, stream)
        found = self.table.lease(shared, consumer, request, most, wait)
        if not found.called:
            waiting = next(each for each in shared.waiting if each.answer is found)
            over = self.peer.wait(rights, lambda reason: self.table.fail(shared, waiting, reason))
            found.addBoth(lambda result: (over(), result)[1])
        return found

    def act(
        self, shared: SharedSubscription, items: Sequence[Item], consumer: str, runs: Sequence[Run] = ()
    ) -> Deferred[Any]:
        """Settle, extend or return *items*, and publish *runs* in the same commit."""
        for item in items:
            stream = item.stream or shared.options.stream
            if stream not in shared.work.lanes:
                detail = f"stream {stream[:80]!r} is not one of subscription {shared.name!r}: name the stream of each"
                return fail(InvalidPosition(f'{detail} record, as in ["logs.a", 7, "3.1"]'))
        return self.table.act(shared, items, consumer, runs, self.peer.publish)

    def rewind(self, shared: SharedSubscription, seq: int | Mapping[str, int] | None) -> Deferred[Any]:
        """Set the position in every stream to *seq* (None: to the stream's end), or to its number in *seq*."""
        lanes, bounds = shared.work.lanes, self.table.journal.bounds
        numbers = seq if isinstance(seq, Mapping) else {each: bounds(each)[1] if seq is None else seq for each in lanes}
        for stream, number in numbers.items():
            if stream not in lanes or number > bounds(stream)[1]:
                return fail(
                    InvalidPosition(
                        f"invalid position {number} in stream {stream[:80]!r}: expected a stream of the subscription, "
                        "and not more than its last number"
                    )
                )
        return self.table.rewind(shared, numbers)

    def redrive(self, shared: SharedSubscription) -> Deferred[tuple[int, int]]:
        """Publish dead letters to their streams again; see :meth:`SharedSubscriptions.redrive`."""
        try:
            self.peer.check(Right.SUBSCRIBE, shared.options.dead or shared.options.stream)
        except FyrehoseError as refusal:
            return fail(refusal)
        return self.table.redrive(shared, self.peer.publish)

    def show(self, shared: SharedSubscription) -> dict[str, object]:
        """Return the state of *shared*, its leases and its last dead letters as an object for JSON."""
        return {**describe(self.table, shared), **details(shared)}

    def listed(self) -> list[dict[str, object]]:
        """Return the subscriptions that the peer may consume, for JSON; no subscriptions if another server may lead."""
        if self.table.journal.standing.elsewhere:
            return []
        permits: Callable[[Right, str], bool] = self.peer.permits
        every = self.table.entries.values()
        return [describe(self.table, each) for each in every if permits(Right.CONSUME, each.options.stream)]


def describe(table: SharedSubscriptions, shared: SharedSubscription) -> dict[str, object]:
    """Return the state of *shared* as an object for JSON, at a cost that does not grow with the number of records."""
    options, group, lanes = shared.options, shared.group, list(shared.work.lanes.values())
    delayed = sum(lane.delayed() for lane in lanes)
    age = table.lags.of(shared)[1]
    held = group.in_grace() and any(lane.hold > lane.progress.final.floor for lane in lanes)
    return {
        "name": shared.name,
        "kind": "shared",
        "stream": options.stream,
        "pattern": options.pattern,
        "streams": len(lanes),
        "lease": options.lease,
        "limit": options.limit,
        "window": options.window,
        "most": options.most,
        "dead": options.dead,
        "key": options.key,
        "epoch": group.epoch,
        "paused": group.paused,
        "lag": sum(max(0, lane.bounds()[1] - lane.seen) for lane in lanes),
        "in_flight": group.leased,
        "waiting": max(0, group.open - group.leased - delayed),
        "delayed": delayed,
        # Until then, records that may have been leased before the start wait for their workers.
        "held_until": table.now() + round(1e6 * (group.hold_until - group.now())) if held else None,
        "window_full": not group.room(),
        "oldest_unsettled_seconds": age,
        **{f"{how}_total": sum(lane.progress.counts[how] for lane in lanes) for how in FINAL},
        "redelivered_total": group.redelivered,
        "late_refused_total": group.late,
        "requests_waiting": len(shared.waiting),
        "active": shared.active,
    }


def details(shared: SharedSubscription) -> dict[str, object]:
    """Return the floors, the leases and the last dead letters of *shared* as an object for JSON."""
    lanes, now = shared.work.lanes.values(), shared.group.now()
    leased = (each for lane in lanes for each in lane.leases())
    letters = sorted((time, lane.stream, *rest) for lane in lanes for *rest, time in lane.progress.letters)
    return {
        "floor": shared.places,
        "leases": [
            {"stream": stream, "seq": seq, "consumer": consumer, "ends_in": round(end - now, 3), "failures": failures}
            for stream, seq, consumer, end, failures in islice(leased, MOST_LEASES)
        ],
        "dead_letters": [
            {"stream": stream, "seq": seq, "failures": failures, "why": why, "time": time}
            for time, stream, seq, failures, why in letters[-MOST_LETTERS:]
        ],
    }
