"""Carry out one request about a subscription: the paths are in managing.py.

Manage -> broker.named -> the answer: an object, its bytes, or None for an empty answer
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from fyrehose import ndjson
from fyrehose.errors import NoSuchSubscription
from fyrehose.net.turns import SteppedWork
from fyrehose.protocols.http.listing import subscriptions
from fyrehose.protocols.http.managing import Manage, answer_to
from fyrehose.protocols.http.session import PROTOCOL
from fyrehose.subscriptions.shared import LeasedRun, SharedSubscription
from fyrehose.subscriptions.subscription import NamedSubscription

if TYPE_CHECKING:
    from fyrehose.protocols.http.server import HttpProtocol


def carry_out(event: Manage, named: Any, peer: HttpProtocol) -> Any:
    """Carry out a request about subscriptions.

    :param named: the broker's subscriptions, with the rights of *peer*
    :return: the answer, or a Deferred of the answer; cancelling the Deferred of a request for records ends the request
    """
    name, stream, work = event.name, event.stream, event.work
    done: Deferred[Any]

    def shown(found: NamedSubscription) -> Deferred[dict[str, object]]:
        return SteppedWork(peer.broker.turns, named.show(found), peer.network).begin()

    match event.action:
        case "list":
            return SteppedWork(peer.broker.turns, subscriptions(named, stream), peer.network).begin()
        case "show":
            return shown(named.find(name, stream))
        case "lease":
            shared, wait = named.shared(name, stream), min(work.wait, peer.session.limits.wait)
            began = shared.pool.now()
            done = named.lease(shared, work.consumer, work.request, work.most, wait)
            return done.addCallback(_leased, shared, began)
        case "settle":
            shared, runs = named.shared(name, stream), work.runs(PROTOCOL, peer.producer) if work.results else ()
            done = named.act(shared, work.items, work.consumer, runs)
            return done.addCallback(answer_to, work, shared.options.pattern)
        case "release":
            done = named.shared(name, stream).release(work)
            return done.addCallback(lambda count: {"released": count})
        case "redrive":
            done = named.redrive(named.shared(name, stream))
            return done.addCallback(lambda counts: {"redriven": counts[0], "left": counts[1]})
        case "delete":
            return _delete(event, named)
        case "create":
            done = named.create(name, work.options, work.first, event.since)
        case "rewind":
            done = named.rewind(named.find(name, stream), event.seq, event.since)
        case "ack":
            done = named.acknowledge(named.exclusive(name, stream), event.seq, event.generation)
        case "report":
            exclusive = named.exclusive(name, stream)
            exclusive.take_report(work)
            return shown(exclusive)
        case _:
            shared = named.shared(name, stream)
            done = shared.pause(work).addCallback(lambda _: shared)
    return done.addCallback(shown)


def _delete(event: Manage, named: Any) -> Any:
    try:
        return named.delete(named.find(event.name, event.stream))
    except NoSuchSubscription:
        if event.stream is None and named.forget(event.name):
            return None
        raise


def _leased(found: Sequence[LeasedRun], shared: SharedSubscription, began: float) -> bytes:
    """Return the answer to a request for records, which says how much later their leases begin than the request."""
    records: list[bytes] = []
    for part in found:
        epoch, number = part.lease.token
        begin = f'"token": "{epoch}.{number}", "failures": {part.lease.failures}, '
        records.append(ndjson.joined(part.run, b", ", begin))
    # Round the time down, because the worker would otherwise count on the lease for longer than it lasts.
    return b'{"lease": %d, "waited": %.3f, "records": [%b]}\n' % (
        shared.options.lease,
        int((shared.pool.now() - began) * 1_000) / 1_000,
        b"".join(records)[:-2],
    )
