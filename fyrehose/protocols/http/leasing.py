"""Carry out one request about a shared subscription: create, lease, settle, pause, redrive, show, rewind, delete.

Manage -> broker.named.sharing -> what to answer with: an object, the bytes of one, or None for nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred

from fyrehose import ndjson
from fyrehose.broker.consumers.progress import ranges_of
from fyrehose.broker.consumers.work import Leased, WorkerAction
from fyrehose.errors import NoSuchSubscription, SubscriptionConflict
from fyrehose.interfaces import IBroker
from fyrehose.protocols.http.managing import Manage
from fyrehose.protocols.http.session import PROTOCOL
from fyrehose.protocols.http.working import Creation, LeaseRequest, Redrive, Settling
from fyrehose.records import Run


class LeasingConnection(Protocol):
    """The connection that a request came from, which is an HttpProtocol."""

    broker: IBroker

    @property
    def producer(self) -> str: ...


@attrs.define(eq=False)
class Leasing:
    """One request about a shared subscription."""

    connection: LeasingConnection
    event: Manage
    _waiting: Deferred[Any] | None = attrs.field(default=None, init=False)

    def start(self, shared: Any | None) -> Any:
        """Carry out the request.

        :param shared: the subscription; None: there is none of this name
        :return: what to answer with, or a Deferred of it
        """
        event, sharing = self.event, self.connection.broker.named.sharing
        if isinstance(event.work, Creation):
            created: Deferred[Any] = sharing.create(event.name, event.work.options, event.work.first)
            return created.addCallback(sharing.show)
        if shared is None:
            raise NoSuchSubscription(f"there is no shared subscription {event.name[:80]!r}")
        if event.stream not in (None, shared.options.stream):
            raise SubscriptionConflict(f"subscription {event.name!r} is one of {shared.options.stream!r}")
        if isinstance(event.work, LeaseRequest):
            work = event.work
            self._waiting = sharing.lease(shared, work.consumer, work.request, work.most, work.wait)
            return self._waiting.addCallback(lambda found: _leased(shared.options.lease, found))
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
        """Take a request back that waits for records, because the peer has gone."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()

    def _settle(self, shared: Any, work: Settling) -> Any:
        runs = [
            Run.of(
                result.stream,
                [result.payload],
                source=PROTOCOL,
                producer=self.connection.producer,
                content_type=result.content_type,
            )
            for result in work.results
        ]
        done: Deferred[Any] = self.connection.broker.named.sharing.act(shared, work.items, work.consumer, runs)
        return done.addCallback(lambda answer: _settled(work, bool(shared.options.pattern), bool(runs), *answer))


def _leased(lease: int, found: Sequence[tuple[Leased, Run]]) -> bytes:
    """Return the answer to a request for records."""
    records = []
    for leased, run in found:
        epoch, number = leased.token
        text = next(iter(ndjson.objects(run)))
        records.append(b'{"token": "%d.%d", "failures": %d, %b' % (epoch, number, leased.failures, bytes(text)[1:]))
    return b'{"lease": %d, "records": [%b]}\n' % (lease, b", ".join(records))


def _settled(
    work: Settling,
    pattern: bool,
    whole: bool,
    refused: list[tuple[WorkerAction, str]],
    extended: list[tuple[WorkerAction, tuple[int, int]]],
) -> dict[str, object]:
    """Return the answer to a request to settle."""

    def place(action: WorkerAction) -> dict[str, object]:
        return {"seq": action.seq, **({"stream": action.lane.stream} if pattern else {})}

    answer: dict[str, object] = {"refused": [{**place(action), "why": why} for action, why in refused]}
    if refused and whole:
        return {"error": "some records cannot be settled, so nothing was done or published", **answer}
    gone = {(action.kind, action.lane.stream if pattern else "", action.seq) for action, _ in refused}
    done = [item for item in work.items if item.kind == "done"]
    left = sorted({item.seq for item in done if ("done", item.stream if pattern else "", item.seq) not in gone})
    answer["settled"] = (
        ranges_of(left)
        if not pattern
        else [{"stream": item.stream, "seq": item.seq} for item in done if ("done", item.stream, item.seq) not in gone]
    )
    answer["extended"] = [{**place(action), "token": f"{token[0]}.{token[1]}"} for action, token in extended]
    return answer
