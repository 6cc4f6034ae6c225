"""Subscriptions as objects for JSON: their state, and what is shown of one of them only.

Times are in microseconds since 1970 UTC.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from itertools import islice

from fyrehose.subscriptions.exclusive import ExclusiveSubscription
from fyrehose.subscriptions.lags import StreamLag, total
from fyrehose.subscriptions.lane import Lane
from fyrehose.subscriptions.progress import FINAL
from fyrehose.subscriptions.shared import SharedSubscription
from fyrehose.subscriptions.subscription import NamedSubscription

#: How many leases, and how many dead letters, of one subscription are shown at most.
MOST_LEASES, MOST_LETTERS = 1_000, 100


def describe(subscription: NamedSubscription) -> dict[str, object]:
    """Return the durable state of *subscription*, at a cost that does not grow with the number of records."""
    return _described(subscription, subscription.table.lags.of(subscription))


def show(subscription: NamedSubscription) -> Generator[None, None, dict[str, object]]:
    """Return the state of *subscription*, and of each of its streams, leases and last dead letters.

    Each stream is a step, because there may be thousands.
    """
    floors, lags = dict[str, int](), dict[str, StreamLag]()
    leased, letters = list[tuple[str, int, str, float, int]](), list[tuple[int, str, int, int, str]]()
    for stream, track in list(subscription.tracks.items()):
        floors[stream] = track.durable_floor
        lags[stream] = subscription.table.lags.of_stream(subscription, stream, track.durable_floor)
        if isinstance(track, Lane):
            leased += islice(track.leases(), MOST_LEASES - len(leased))
        if track.progress.letters:
            letters += [(time, stream, seq, failures, why) for seq, failures, why, time in track.progress.letters]
            letters = sorted(letters)[-MOST_LETTERS:]
        yield
    shown = _described(subscription, total(lags.values()))
    if isinstance(subscription, SharedSubscription):
        now = subscription.pool.now()
        shown["floor"] = floors
        shown["leases"] = [
            {"stream": stream, "seq": seq, "consumer": consumer, "ends_in": round(end - now, 3), "failures": failures}
            for stream, seq, consumer, end, failures in leased
        ]
        shown["dead_letters"] = [
            {"stream": stream, "seq": seq, "failures": failures, "why": why, "time": time}
            for time, stream, seq, failures, why in letters
        ]
    elif subscription.pattern is not None:
        shown["positions"] = {
            stream: {"position": floors[stream], "lag": lag, "lag_seconds": seconds}
            for stream, (lag, seconds) in sorted(lags.items())
        }
    return shown


def _described(subscription: NamedSubscription, lag: StreamLag) -> dict[str, object]:
    own: dict[str, object] = {}
    if isinstance(subscription, SharedSubscription):
        own = _describe_shared(subscription, lag)
    elif isinstance(subscription, ExclusiveSubscription):
        own = _describe_exclusive(subscription, lag)
    return {
        "name": subscription.name,
        "kind": subscription.options.kind,
        "stream": subscription.options.stream,
        **own,
        "streams_left_out": subscription.left_out,
        "active": subscription.active,
    }


def _describe_exclusive(exclusive: ExclusiveSubscription, lag: StreamLag) -> dict[str, object]:
    place = {"position": exclusive.seq} if exclusive.pattern is None else {"streams": len(exclusive.tracks)}
    generation, consumer = exclusive.epoch, exclusive.consumer is not None
    found: dict[str, object] = {
        **place,
        "lag": lag[0],
        "lag_seconds": lag[1],
        "generation": generation,
        "consumer": consumer,
    }
    report = exclusive.report
    if report is not None:
        found["report"] = {**json.loads(report.text), "ago": round(exclusive.table.clock.seconds() - report.at, 3)}
    return found


def _describe_shared(shared: SharedSubscription, lag: StreamLag) -> dict[str, object]:
    table, options, pool, lanes = shared.table, shared.options, shared.pool, list(shared.pool.lanes.values())
    counts = {f"{how}_total": shared.saved.total(how) for how in FINAL}
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
        "lag": sum(max(0, lane.last - lane.seen) for lane in lanes),
        "in_flight": pool.leased,
        "waiting": max(0, pool.open - pool.leased - pool.delayed),
        "delayed": pool.delayed,
        "held_until": table.now() + int(held * 1e6) if held > 0 else None,
        "window_full": not pool.room(),
        "oldest_unsettled_seconds": lag[1],
        **counts,
        "dead_without_copy_total": shared.saved.total("lost"),
        "redelivered_total": pool.redelivered,
        "late_refused_total": pool.late,
        "requests_waiting": len(shared.waiting),
    }
