"""Subscriptions as objects for JSON: their state, and what is shown of one of them only.

Times are in microseconds since 1970 UTC.
"""

from __future__ import annotations

import json
from itertools import islice

from fyrehose.subscriptions.exclusive import ExclusiveSubscription
from fyrehose.subscriptions.progress import FINAL
from fyrehose.subscriptions.shared import SharedSubscription
from fyrehose.subscriptions.subscription import NamedSubscription

#: How many leases, and how many dead letters, of one subscription are shown at most.
MOST_LEASES, MOST_LETTERS = 1_000, 100


def describe(subscription: NamedSubscription) -> dict[str, object]:
    """Return the durable state of *subscription*, at a cost that does not grow with the number of records."""
    own: dict[str, object] = {}
    if isinstance(subscription, SharedSubscription):
        own = _describe_shared(subscription)
    elif isinstance(subscription, ExclusiveSubscription):
        own = _describe_exclusive(subscription)
    return {
        "name": subscription.name,
        "kind": subscription.options.kind,
        "stream": subscription.options.stream,
        **own,
        "streams_left_out": subscription.left_out,
        "active": subscription.active,
    }


def show(subscription: NamedSubscription) -> dict[str, object]:
    """Return the state of *subscription*, and of each of its streams, leases and last dead letters."""
    shown = _details(subscription) if isinstance(subscription, SharedSubscription) else _positions(subscription)
    return describe(subscription) | shown


def _describe_exclusive(exclusive: ExclusiveSubscription) -> dict[str, object]:
    lag, seconds = exclusive.table.lags.of(exclusive)
    place = {"position": exclusive.seq} if exclusive.pattern is None else {"streams": len(exclusive.tracks)}
    generation, consumer = exclusive.epoch, exclusive.consumer is not None
    found: dict[str, object] = {
        **place,
        "lag": lag,
        "lag_seconds": seconds,
        "generation": generation,
        "consumer": consumer,
    }
    report = exclusive.report
    if report is not None:
        found["report"] = {**json.loads(report.text), "ago": round(exclusive.table.clock.seconds() - report.at, 3)}
    return found


def _positions(subscription: NamedSubscription) -> dict[str, object]:
    if subscription.pattern is None:
        return {}
    lags, keys = subscription.table.lags, ("position", "lag", "lag_seconds")
    found = {each: (seq, *lags.of_stream(subscription, each, seq)) for each, seq in sorted(subscription.places.items())}
    return {"positions": {each: dict(zip(keys, values, strict=True)) for each, values in found.items()}}


def _describe_shared(shared: SharedSubscription) -> dict[str, object]:
    table, options, pool, lanes = shared.table, shared.options, shared.pool, list(shared.pool.lanes.values())
    counts = {f"{how}_total": sum(lane.progress.counts[how] for lane in lanes) for how in FINAL}
    held = pool.hold_until - pool.now() if pool.holds else 0.0
    return {
        "pattern": options.pattern,
        "streams": len(lanes),
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
    }


def _details(shared: SharedSubscription) -> dict[str, object]:
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
