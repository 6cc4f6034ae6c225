"""Carry out one request about a shared subscription: create, lease, settle, pause, redrive, show, rewind, delete.

Manage -> broker.named.sharing -> the answer: an object, its bytes, or None for an empty answer
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred

from fyrehose import ndjson
from fyrehose.broker.consumers.settling import Settling, answer_to
from fyrehose.broker.consumers.table import LeasedRun
from fyrehose.errors import NoSuchSubscription, SubscriptionConflict
from fyrehose.protocols.http.managing import Manage
from fyrehose.protocols.http.session import PROTOCOL
from fyrehose.protocols.http.working import Creation, LeaseRequest, Redrive


class LeasingConnection(Protocol):
    """The connection that a request came from, which is an HttpProtocol."""

    @property
    def producer(self) -> str: ...


@attrs.define(eq=False)
class Leasing:
    """One request about a shared subscription.

    :ivar sharing: the broker's shared subscriptions, with the permissions of the peer
    """

    connection: LeasingConnection
    event: Manage
    sharing: Any
    _waiting: Deferred[Any] | None = attrs.field(default=None, init=False)

    def start(self, shared: Any | None) -> Any:
        """Carry out the request.

        :param shared: the subscription; None: no shared subscription has this name
        :return: the answer, or a Deferred of it
        """
        event, sharing = self.event, self.sharing
        if isinstance(event.work, Creation):
            created: Deferred[Any] = sharing.create(event.name, event.work.options, event.work.first)
            return created.addCallback(sharing.show)
        if shared is None:
            raise NoSuchSubscription(f"there is no shared subscription {event.name[:80]!r}")
        if event.stream not in (None, shared.options.stream):
            raise SubscriptionConflict(f"subscription {event.name!r} is one of {shared.options.stream!r}")
        if isinstance(event.work, LeaseRequest):
            work, began = event.work, shared.group.now()
            self._waiting = sharing.lease(shared, work.consumer, work.request, work.most, work.wait)
            return self._waiting.addCallback(
                lambda found: _leased(shared.options.lease, shared.group.now() - began, found)
            )
        if isinstance(event.work, Settling):
            return self._settle(shared, event.work)
        if isinstance(event.work, Redrive):
            redriven: Deferred[tuple[int, int]] = sharing.redrive(shared)
            return redriven.addCallback(lambda counts: {"redriven": counts[0], "left": counts[1]})
        if event.action == "delete":
            return sharing.delete(shared)
        if event.action == "show":
            return sharing.show(shared)
        if event.action == "ack":
            raise SubscriptionConflict(f"subscription {event.name!r} is shared: settle its records one by one")
        if event.action == "rewind":
            changed: Deferred[Any] = sharing.rewind(shared, event.seq)
        else:
            changed = sharing.pause(shared, event.work)
        return changed.addCallback(lambda _: sharing.show(shared))

    def cancel(self) -> None:
        """Cancel a request that waits for records, because the peer has disconnected."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()

    def _settle(self, shared: Any, work: Settling) -> Any:
        runs = work.runs(PROTOCOL, self.connection.producer)
        done: Deferred[Any] = self.sharing.act(shared, work.items, work.consumer, runs)
        return done.addCallback(lambda outcome: answer_to(work, bool(shared.options.pattern), outcome))


def _leased(lease: int, waited: float, found: Sequence[LeasedRun]) -> bytes:
    """Return the answer to a request for records.

    :param waited: how long the request waited, in seconds: a lease begins that much later than the worker sent the
        request
    """
    records: list[bytes] = []
    for part in found:
        at = 0
        for leased in part.leases:
            epoch, number = leased.token
            begin = f'"token": "{epoch}.{number}", "failures": {leased.failures}, '
            records.append(ndjson.joined(part.run.slice(at, at + len(leased)), b", ", begin))
            at += len(leased)
    # Rounded down, or the worker would count on the lease for longer than it lasts.
    return b'{"lease": %d, "waited": %.3f, "records": [%b]}\n' % (
        lease,
        int(waited * 1_000) / 1_000,
        b"".join(records)[:-2],
    )
