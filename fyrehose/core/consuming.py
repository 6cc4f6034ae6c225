"""The named subscriptions as one peer may use them: the rights of the peer, and creation at the first use.

    open -> attach -> acknowledge ... -> detach

Consuming a stream needs the rights ``subscribe`` and ``consume``; showing, rewinding and deleting need ``consume``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, fail
from zope.interface import implementer

from fyrehose.core.named import Consumer, Named, NamedSubscriptions, describe, described
from fyrehose.core.policy import EVERY
from fyrehose.core.positions import Position
from fyrehose.errors import Forbidden, FyrehoseError, NoSuchSubscription, SubscriptionConflict
from fyrehose.identity import Action
from fyrehose.interfaces import INamedSubscriptions


class PeerBroker(Protocol):
    """A broker that knows the rights of a peer."""

    def check(self, action: Action, stream: str) -> None: ...

    def permits(self, action: Action, stream: str) -> bool: ...


@implementer(INamedSubscriptions)
class NoSubscriptions:
    """The named subscriptions of a server that keeps no messages: there are none, and none can be created."""

    def find(self, name: str, stream: str | None = None) -> Any:
        raise self._refusal()

    def open(self, name: str, stream: str, after: int | None) -> Deferred[Any]:
        return fail(self._refusal())

    def attach(self, named: Any, consumer: Any, owner: str = "", takeover: bool = False) -> Any:
        raise self._refusal()

    def owner(self, named: Any) -> str:
        raise self._refusal()

    def detach(self, named: Any, consumer: Any) -> None:
        raise self._refusal()

    def acknowledge(self, named: Any, seq: int, generation: int | None = None) -> Deferred[Any]:
        return fail(self._refusal())

    def rewind(self, named: Any, seq: int | None) -> Deferred[Any]:
        return fail(self._refusal())

    def delete(self, named: Any) -> Deferred[None]:
        return fail(self._refusal())

    def show(self, named: Any) -> dict[str, object]:
        raise self._refusal()

    def release(self, name: str) -> bool:
        raise self._refusal()

    def listed(self) -> list[dict[str, object]]:
        return []

    def _refusal(self) -> Forbidden:
        return Forbidden("this server keeps no messages, so there are no named subscriptions")


@implementer(INamedSubscriptions)
@attrs.frozen(eq=False)
class Consuming:
    """The named subscriptions for one peer; see :class:`fyrehose.interfaces.INamedSubscriptions`.

    :ivar peer: the rights of the peer
    :ivar network: the network of the peer, for limits; empty: the server itself
    """

    table: NamedSubscriptions
    peer: PeerBroker
    network: str = ""

    def find(self, name: str, stream: str | None = None) -> Named:
        named = self.table.find(name)
        self.peer.check(Action.CONSUME, named.state.stream)
        if stream is not None and named.state.stream != stream:
            raise SubscriptionConflict(
                f"subscription {name!r} is one of stream {named.state.stream!r}, not of {stream[:80]!r}"
            )
        return named

    def open(self, name: str, stream: str, after: int | None) -> Deferred[Named]:
        """Return the subscription *name*, created if it does not exist, when everything about it is durable."""
        try:
            self.peer.check(Action.SUBSCRIBE, stream)
            self.peer.check(Action.CONSUME, stream)
            try:
                named = self.find(name, stream)
            except NoSuchSubscription:
                oldest, last = self.table.journal.bounds(stream)
                begin = last if after is None else min(max(after, oldest - 1), last)
                created = self.table.create(name, stream, begin, self.network)
                return created.addCallback(lambda _: self.find(name, stream))
        except FyrehoseError as refusal:
            return fail(refusal)
        return self.table.settled(named).addCallback(lambda _: self.find(name, stream))

    def attach(self, named: Named, consumer: Consumer, owner: str = "", takeover: bool = False) -> Position:
        self.peer.check(Action.CONSUME, named.state.stream)
        return self.table.attach(named, consumer, owner, takeover)

    def owner(self, named: Named) -> str:
        return self.table.owner(named)

    def detach(self, named: Named, consumer: Consumer) -> None:
        self.table.detach(named, consumer)

    def acknowledge(self, named: Named, seq: int, generation: int | None = None) -> Deferred[Position]:
        return self._do(named, lambda: self.table.acknowledge(named, seq, generation))

    def rewind(self, named: Named, seq: int | None) -> Deferred[Position]:
        last = self.table.journal.bounds(named.state.stream)[1]
        return self._do(named, lambda: self.table.rewind(named, last if seq is None else seq))

    def delete(self, named: Named) -> Deferred[None]:
        return self._do(named, lambda: self.table.delete(named))

    def show(self, named: Named) -> dict[str, object]:
        return describe(self.table, named)

    def release(self, name: str) -> bool:
        self.peer.check(Action.CONSUME, EVERY)
        released: bool = self.table.journal.keeper.release(name)
        return released

    def listed(self) -> list[dict[str, object]]:
        """Describe the subscriptions that the peer may consume, and, if it may consume all, the retention holds."""
        permits = self.peer.permits
        found = [
            describe(self.table, named)
            for named in self.table.entries.values()
            if named.stored is not None and permits(Action.CONSUME, named.stored.stream)
        ]
        if permits(Action.CONSUME, EVERY):
            found += [described(hold) for hold in self.table.journal.keeper.holds()]
        return found

    def _do(self, named: Named, change: Callable[[], Deferred[Any]]) -> Deferred[Any]:
        try:
            self.peer.check(Action.CONSUME, named.state.stream)
        except FyrehoseError as refusal:
            return fail(refusal)
        return change()
