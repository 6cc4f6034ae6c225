"""Carry out one request about named subscriptions or shared ones: the paths are in managing.py.

Manage -> broker.named, or broker.named.sharing -> the answer: an object, its bytes, or None for an empty answer
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from fyrehose import ndjson
from fyrehose.errors import NoSuchSubscription, SubscriptionConflict
from fyrehose.protocols.http.managing import BODIES, Manage
from fyrehose.protocols.http.session import PROTOCOL
from fyrehose.subscriptions.settling import answer_to
from fyrehose.subscriptions.table import LeasedRun


def carry_out(event: Manage, named: Any, producer: str, longest_wait: float) -> Any:
    """Carry out a request about one subscription.

    :param named: the broker's named subscriptions, with the permissions of the peer
    :param producer: the producer of the results that the request publishes
    :param longest_wait: the longest time that a request waits for records, in seconds
    :return: the answer, or a Deferred of the answer; cancelling the Deferred of a request for records ends the request
    """
    try:
        shared = named.sharing.find(event.name)
    except NoSuchSubscription:
        shared = None
    if shared is not None or event.action in BODIES:
        return _shared(event, named.sharing, shared, producer, longest_wait)
    try:
        found = named.find(event.name, event.stream)
    except NoSuchSubscription:
        if event.action == "delete" and event.stream is None and named.forget(event.name):
            return None
        raise
    if event.action == "show":
        return named.show(found)
    if event.action == "delete":
        return named.delete(found)
    if event.action == "rewind":
        changed = named.rewind(found, event.seq)
    else:
        changed = named.acknowledge(found, event.seq, event.generation)
    return changed.addCallback(lambda _: named.show(found))


def _shared(event: Manage, sharing: Any, shared: Any | None, producer: str, longest_wait: float) -> Any:
    """Carry out a request about the subscription *shared*; None: no shared subscription has the requested name."""
    work = event.work
    done: Deferred[Any]
    if event.action == "create":
        return sharing.create(event.name, work.options, work.first).addCallback(sharing.show)
    if shared is None:
        raise NoSuchSubscription(f"there is no shared subscription {event.name[:80]!r}")
    if event.stream not in (None, shared.options.stream):
        raise SubscriptionConflict(f"subscription {event.name!r} is one of {shared.options.stream!r}")
    match event.action:
        case "lease":
            began = shared.pool.now()
            done = sharing.lease(shared, work.consumer, work.request, work.most, min(work.wait, longest_wait))
            return done.addCallback(lambda found: _leased(shared.options.lease, shared.pool.now() - began, found))
        case "settle":
            done = sharing.act(shared, work.items, work.consumer, work.runs(PROTOCOL, producer))
            return done.addCallback(lambda outcome: answer_to(work, bool(shared.options.pattern), outcome))
        case "release":
            return sharing.table.release(shared, work).addCallback(lambda count: {"released": count})
        case "redrive":
            done = sharing.redrive(shared)
            return done.addCallback(lambda counts: {"redriven": counts[0], "left": counts[1]})
        case "delete":
            return sharing.table.delete(shared)
        case "show":
            return sharing.show(shared)
        case "rewind":
            done = sharing.rewind(shared, event.seq)
        case "pause":
            done = sharing.table.pause(shared, work)
        case _:
            raise SubscriptionConflict(f"subscription {event.name!r} is shared: settle its records one by one")
    return done.addCallback(lambda _: sharing.show(shared))


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
