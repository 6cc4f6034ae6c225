"""Carry out one request about a subscription: the paths are in managing.py.

Manage -> broker.named -> the answer: an object, its bytes, or None for an empty answer
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from fyrehose import ndjson
from fyrehose.errors import NoSuchSubscription
from fyrehose.protocols.http.managing import Manage
from fyrehose.protocols.http.session import PROTOCOL
from fyrehose.subscriptions.settling import answer_to
from fyrehose.subscriptions.shared import LeasedRun


def carry_out(event: Manage, named: Any, producer: str, longest_wait: float) -> Any:
    """Carry out a request about one subscription.

    :param named: the broker's subscriptions, with the permissions of the peer
    :param producer: the producer of the results that the request publishes
    :param longest_wait: the longest time that a request waits for records, in seconds
    :return: the answer, or a Deferred of the answer; cancelling the Deferred of a request for records ends the request
    """
    name, stream, work = event.name, event.stream, event.work
    changed: Deferred[Any]
    match event.action:
        case "create":
            changed = named.create(name, work.options, work.first, event.since)
        case "show":
            return named.show(named.find(name, stream))
        case "delete":
            return _delete(event, named)
        case "rewind":
            changed = named.rewind(named.find(name, stream), event.seq, event.since)
        case "ack":
            changed = named.acknowledge(named.exclusive(name, stream), event.seq, event.generation)
        case "pause":
            shared = named.shared(name, stream)
            changed = shared.pause(work).addCallback(lambda _: shared)
        case _:
            return _work(event, named, named.shared(name, stream), producer, longest_wait)
    return changed.addCallback(named.show)


def _delete(event: Manage, named: Any) -> Any:
    try:
        return named.delete(named.find(event.name, event.stream))
    except NoSuchSubscription:
        if event.stream is None and named.forget(event.name):
            return None
        raise


def _work(event: Manage, named: Any, shared: Any, producer: str, longest_wait: float) -> Deferred[Any]:
    """Carry out a request of a worker of the subscription *shared*."""
    work = event.work
    done: Deferred[Any]
    if event.action == "lease":
        began = shared.pool.now()
        done = named.lease(shared, work.consumer, work.request, work.most, min(work.wait, longest_wait))
        return done.addCallback(lambda found: _leased(shared.options.lease, shared.pool.now() - began, found))
    if event.action == "settle":
        done = named.act(shared, work.items, work.consumer, work.runs(PROTOCOL, producer))
        return done.addCallback(lambda outcome: answer_to(work, bool(shared.options.pattern), outcome))
    if event.action == "release":
        done = shared.release(work)
        return done.addCallback(lambda count: {"released": count})
    done = named.redrive(shared)
    return done.addCallback(lambda counts: {"redriven": counts[0], "left": counts[1]})


def _leased(lease: int, waited: float, found: Sequence[LeasedRun]) -> bytes:
    """Return the answer to a request for records.

    :param waited: how long the request waited, in seconds: a lease begins that much later than the worker sent the
        request
    """
    records: list[bytes] = []
    for part in found:
        epoch, number = part.lease.token
        begin = f'"token": "{epoch}.{number}", "failures": {part.lease.failures}, '
        records.append(ndjson.joined(part.run, b", ", begin))
    # Round the time down, because the worker would otherwise count on the lease for longer than it lasts.
    return b'{"lease": %d, "waited": %.3f, "records": [%b]}\n' % (
        lease,
        int(waited * 1_000) / 1_000,
        b"".join(records)[:-2],
    )
