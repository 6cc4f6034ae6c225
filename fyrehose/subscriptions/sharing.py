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
from twisted.internet.defer import Deferred, fail, maybeDeferred

from fyrehose.errors import InvalidPosition, SubscriptionConflict, Unreplicated
from fyrehose.identity import Action as Right
from fyrehose.patterns import Pattern
from fyrehose.records import Run
from fyrehose.subscriptions.pool import Item
from fyrehose.subscriptions.progress import FINAL, Creator, ShareOptions
from fyrehose.subscriptions.table import LeasedRun, SharedSubscription, SharedSubscriptions

#: How many leases, and how many dead letters, of one subscription are shown at most.
MOST_LEASES, MOST_LETTERS = 1_000, 100


@attrs.frozen(eq=False)
class Sharing:
    """The shared subscriptions as one peer may use them, after each request was checked against the peer's rights.

    :ivar peer: a :class:`~fyrehose.broker.peer.Peer`
    """

    table: SharedSubscriptions
    peer: Any

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

    def create(self, name: str, options: ShareOptions, first: int) -> Deferred[SharedSubscription]:
        """Create the subscription *name*, which begins with record *first* of each stream.

        :return: a Deferred that fires when the subscription is durable; fails with a SubscriptionError, a PublishError
            or Forbidden
        """
        return maybeDeferred(self._create, name, options, first)

    def _create(self, name: str, options: ShareOptions, first: int) -> Deferred[SharedSubscription]:
        for right in (Right.SUBSCRIBE, Right.CONSUME):
            self.peer.check(right, options.stream)
        dead = options.dead
        if dead is not None:
            if dead.startswith("."):
                raise SubscriptionConflict(f"stream {dead[:80]!r} is one of the server's own: use another")
            self.peer.check(Right.PUBLISH, dead)
        streams = [options.stream]
        if options.pattern:
            pattern = Pattern.of_peer(options.stream)
            ends = self.table.journal.ends()
            streams = [each for each in ends if pattern.covers(each) and each != dead and each[0] != "."]
        elif first > self.table.journal.bounds(options.stream)[1] + 1:
            first = 1  # a number beyond the end is of another journal
        floors = {stream: self._floor(stream, first) for stream in streams}
        creator = Creator() if self.peer.rights is None else Creator.of(self.peer.rights.identity)
        return self.table.create(name, attrs.evolve(options, creator=creator), floors)

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
            if stream not in shared.pool.lanes:
                if not self.table.journal.standing.leads_alone:
                    return fail(Unreplicated("another server may lead, and know more streams; try again"))
                detail = f"stream {stream[:80]!r} is not one of subscription {shared.name!r}: name the stream of each"
                return fail(InvalidPosition(f'{detail} record, as in ["logs.a", 7, "3.1"]'))
        return self.table.act(shared, items, consumer, runs, self.peer.publish)

    def rewind(self, shared: SharedSubscription, seq: int | Mapping[str, int] | None) -> Deferred[Any]:
        """Set the position in every stream to *seq* (None: to the stream's end), or to its number in *seq*."""
        lanes, bounds = shared.pool.lanes, self.table.journal.bounds
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
        self.peer.check(Right.SUBSCRIBE, shared.options.dead or shared.options.stream)
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
    options, pool, lanes = shared.options, shared.pool, list(shared.pool.lanes.values())
    counts = {f"{how}_total": sum(lane.progress.counts[how] for lane in lanes) for how in FINAL}
    held = pool.hold_until - pool.now() if pool.holds else 0.0
    return {
        "name": shared.name,
        "kind": "shared",
        "stream": options.stream,
        "pattern": options.pattern,
        "streams": len(lanes),
        "streams_left_out": len(shared.left_out),
        "lease": options.lease,
        "limit": options.limit,
        "window": options.window,
        "most": options.most,
        "dead": options.dead,
        "key": options.key,
        "epoch": pool.epoch,
        "paused": pool.paused,
        "lag": sum(max(0, lane.bounds()[1] - lane.seen) for lane in lanes),
        "in_flight": pool.leased,
        "waiting": max(0, pool.open - pool.leased - pool.delayed),
        "delayed": pool.delayed,
        "held_until": table.now() + int(held * 1e6) if held > 0 else None,
        "window_full": not pool.room(),
        "oldest_unsettled_seconds": table.lags.of(shared)[1],
        **counts,
        "dead_without_copy_total": sum(lane.progress.lost for lane in lanes),
        "redelivered_total": pool.redelivered,
        "late_refused_total": pool.late,
        "requests_waiting": len(shared.waiting),
        "active": shared.active,
    }


def details(shared: SharedSubscription) -> dict[str, object]:
    """Return the floors, the leases and the last dead letters of *shared* as an object for JSON."""
    lanes, now = shared.pool.lanes.values(), shared.pool.now()
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
