"""The named subscriptions as one peer may use them: the rights of the peer, and creation at the first use.

    open -> attach -> acknowledge ... -> detach

Consuming a stream needs the rights ``subscribe`` and ``consume``; showing, rewinding and deleting need ``consume``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, execute, fail, inlineCallbacks
from zope.interface import implementer

from fyrehose.broker.policy import EVERY
from fyrehose.broker.state_stream import Steps
from fyrehose.errors import Forbidden, FyrehoseError, NoSuchSubscription, SubscriptionConflict
from fyrehose.identity import Action
from fyrehose.interfaces import FileLag, INamedSubscriptions
from fyrehose.patterns import Pattern
from fyrehose.subscriptions.named import NamedSubscriptions
from fyrehose.subscriptions.positions import Position, takes
from fyrehose.subscriptions.sharing import Sharing
from fyrehose.subscriptions.subscription import Consumer, Named

if TYPE_CHECKING:
    from fyrehose.broker.peer import Peer


@implementer(INamedSubscriptions)
class NoSubscriptions:
    """The named subscriptions of a server that keeps no messages: there are none, and none can be created."""

    def _refuse(self, *_arguments: Any, **_options: Any) -> Any:
        raise Forbidden("this server keeps no messages, so there are no named subscriptions")

    def _fail(self, *_arguments: Any, **_options: Any) -> Deferred[Any]:
        return execute(self._refuse)

    find = attach = hold = show = forget = _refuse
    open = acknowledge = rewind = delete = create = _fail

    @property
    def sharing(self) -> NoSubscriptions:
        """Return the shared subscriptions, of which there are none either."""
        return self

    def listed(self) -> list[dict[str, object]]:
        return []


@implementer(INamedSubscriptions)
@attrs.frozen(eq=False)
class Consuming:
    """The named subscriptions as one peer may use them; see :class:`fyrehose.interfaces.INamedSubscriptions`.

    :ivar peer: the rights of the peer
    :ivar network: the network of the peer, for limits; empty: the server itself
    """

    table: NamedSubscriptions
    peer: Peer
    network: str = ""

    @property
    def sharing(self) -> Sharing:
        assert self.table.shares is not None, "the broker has set it"
        return Sharing(self.table.shares, self.peer)

    def find(self, name: str, stream: str | None = None, pattern: bool = False) -> Named:
        """Return the subscription *name*, after checking the rights of the peer and the stream or pattern."""
        named = self.table.find(name)
        self.peer.check(Action.CONSUME, named.state.stream)
        is_pattern = named.members is not None
        if stream is not None and (named.state.stream, is_pattern) != (stream, pattern):
            raise SubscriptionConflict(
                f"subscription {name!r} is one of {_kind(is_pattern)} {named.state.stream!r}, not of "
                f"{_kind(pattern)} {stream[:80]!r}"
            )
        return named

    @inlineCallbacks
    def open(self, name: str, stream: str, after: int | None, pattern: bool = False) -> Steps[Named]:
        """Return the subscription *name*; create it behind number *after* if it does not exist."""
        # Checking the pattern itself suffices, because a rule that covers a pattern covers every stream that the
        # pattern matches.
        self.peer.check(Action.SUBSCRIBE, stream)
        self.peer.check(Action.CONSUME, stream)
        try:
            yield self.table.settled(self.find(name, stream, pattern))
        except NoSuchSubscription:
            begin: int | Mapping[str, int] = self._begin(stream, after)
            if pattern:
                matching, ends = Pattern.of_peer(stream), self.table.journal.ends()
                begin = {
                    each: self._begin(each, None if after is None else min(after, last))
                    for each, last in ends.items()
                    if takes(matching, each)
                }
            yield self.table.create(name, stream, begin, self.network)
        return self.find(name, stream, pattern)

    def _begin(self, stream: str, after: int | None) -> int:
        """Return the position behind which a new subscription begins in *stream*.

        A number beyond the end is of another journal, and so the subscription begins at the start.
        """
        oldest, last = self.table.journal.bounds(stream)
        return int(last if after is None else oldest - 1 if after > last else max(after, oldest - 1))

    def attach(
        self, named: Named, consumer: Consumer, owner: str = "", takeover: bool = False, holder: str = ""
    ) -> Position:
        self.peer.check(Action.CONSUME, named.state.stream)
        return self.table.attach(named, consumer, owner, takeover, holder)

    def hold(self, named: Named, holder: str, seconds: float, sent: Mapping[str, int]) -> None:
        self.table.hold(named, holder, seconds, sent)

    def acknowledge(
        self, named: Named, seq: int | Mapping[str, int], generation: int | None = None
    ) -> Deferred[Position]:
        return self._do(named, lambda: self.table.acknowledge(named, seq, generation))

    def rewind(self, named: Named, seq: int | Mapping[str, int] | None) -> Deferred[Position]:
        return self._do(named, lambda: self.table.rewind(named, seq))

    def delete(self, named: Named) -> Deferred[None]:
        return self._do(named, lambda: self.table.delete(named))

    def show(self, named: Named) -> dict[str, object]:
        shown = describe(self.table, named)
        if named.members is not None:
            lags = self.table.lags
            found = {each: (seq, *lags.of_stream(named, each, seq)) for each, seq in sorted(named.places.items())}
            keys = ("position", "lag", "lag_seconds")
            shown["positions"] = {each: dict(zip(keys, values, strict=True)) for each, values in found.items()}
        return shown

    def forget(self, name: str) -> bool:
        self.peer.check(Action.CONSUME, EVERY)
        forgotten: bool = self.table.journal.keeper.delete(name)
        return forgotten

    def listed(self) -> list[dict[str, object]]:
        """Return the subscriptions that the peer may consume, as objects for JSON, the shared ones last.

        A peer that may consume all streams also sees the subscriptions of programs that read the journal's files.
        """
        permits = self.peer.permits
        found = [
            describe(self.table, named)
            for named in self.table.entries.values()
            if named.stored is not None and permits(Action.CONSUME, named.stored.stream)
        ]
        if permits(Action.CONSUME, EVERY):
            found += [described(each) for each in self.table.journal.keeper.subscriptions()]
        return [*found, *self.sharing.listed()]

    def _do(self, named: Named, change: Callable[[], Deferred[Any]]) -> Deferred[Any]:
        try:
            self.peer.check(Action.CONSUME, named.state.stream)
        except FyrehoseError as refusal:
            return fail(refusal)
        return change()


def _kind(pattern: bool) -> str:
    return "pattern" if pattern else "stream"


def describe(table: NamedSubscriptions, named: Named) -> dict[str, object]:
    """Return the durable state of *named* as an object for JSON; times are in microseconds since 1970 UTC."""
    state = named.state
    lag, seconds = table.lags.of(named)
    place: dict[str, object] = {"position": state.seq}
    if named.members is not None:
        place = {"streams": len(named.members)}
    return {
        "name": named.name,
        "kind": _kind(named.members is not None),
        "stream": state.stream,
        **place,
        "lag": lag,
        "lag_seconds": seconds,
        "generation": state.generation,
        "consumer": named.consumer is not None,
        "active": named.active,
    }


def described(lag: FileLag) -> dict[str, object]:
    """Return a subscription to the journal's files as an object for JSON."""
    return {"name": lag.name, "kind": "files", "behind_bytes": lag.behind, "active": lag.time}
