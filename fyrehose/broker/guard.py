"""Apply the access policy: a broker for one peer that refuses what the policy does not allow.

    broker.identified(identity) -> Guarded -> publish, subscribe, read ... or Forbidden

Peers of the same identity share one :class:`Guarded`, which caches its verdicts, so checking a batch costs one look
into a dict.  When the policy changes, the verdicts are cleared and subscriptions that are no longer allowed end; a
publisher that is no longer allowed is refused at its next publish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol
from weakref import WeakValueDictionary

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall
from zope.interface import implementer

from fyrehose.broker.budget import Account, Budget
from fyrehose.broker.consuming import Consuming
from fyrehose.broker.fanout import Cursor, Owner
from fyrehose.broker.policy import OPEN, Policy, Rule, holder_of
from fyrehose.broker.publisher import Publisher, PublishingBroker, Settled, fire, publish_deferred
from fyrehose.broker.quotas import Subscriptions
from fyrehose.broker.rounds import Intake, Producer
from fyrehose.errors import Forbidden, TokenEnded
from fyrehose.identity import Action, Identity, network_of
from fyrehose.interfaces import IBroker, ISink, ISubscription
from fyrehose.observe.counters import Counters
from fyrehose.records import Run
from fyrehose.standing import Standing
from fyrehose.subscriptions.named import NamedSubscriptions

#: The number of verdicts that are cached for one identity and action; beyond that the cache is cleared.
MOST_VERDICTS = 1_024

_VERBS = {
    Action.PUBLISH: "publish into",
    Action.SUBSCRIBE: "read",
    Action.CONSUME: "consume",
    Action.ADMINISTER: "administer",
}


class Unguarded(PublishingBroker, Protocol):
    """The methods of the broker without an access policy that :class:`Guarded` calls."""

    @property
    def counters(self) -> Counters: ...

    @property
    def budget(self) -> Budget: ...

    @property
    def intake(self) -> Intake: ...

    @property
    def standing(self) -> Standing: ...

    @property
    def subscriptions(self) -> Subscriptions: ...

    @property
    def table(self) -> NamedSubscriptions: ...

    def when_leading(self) -> Deferred[None]: ...

    def identified(self, identity: Identity) -> IBroker: ...

    def subscribe_as(self, owner: Owner | None, stream: str, after: int | None, sink: ISink) -> Cursor: ...

    def cursors(self) -> Collection[Cursor]: ...

    def exists(self, stream: str) -> bool: ...

    def streams(self) -> Collection[str]: ...

    def watch_streams(self, created: Callable[[str], None]) -> Callable[[], None]: ...

    def bounds(self, stream: str) -> tuple[int, int]: ...

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]: ...

    def latest(self, size: int) -> Iterator[Run]: ...

    def ready(self, producer: Producer) -> None: ...

    def restrict(self, stream: str, max_payload: int) -> None: ...

    def retire(self, streams: Sequence[str], by: str = "the server") -> Deferred[None]: ...


@attrs.define(eq=False)
class Guard:
    """The access policy in force, and the brokers of all peers that are connected.

    :ivar now: returns the time at which signed tokens are judged, in seconds since 1970 UTC
    """

    policy: Policy = OPEN
    now: Callable[[], float] = attrs.field(default=time.time, kw_only=True)
    _brokers: WeakValueDictionary[Identity, Guarded] = attrs.field(factory=WeakValueDictionary, init=False)

    def identified(self, broker: Unguarded, identity: Identity) -> Guarded:
        """Return *broker* restricted to the actions that *identity* may do."""
        guarded = self._brokers.get(identity)
        if guarded is None:
            guarded = self._brokers[identity] = Guarded(identity, broker, self)
        return guarded

    def change(self, policy: Policy) -> int:
        """Replace the policy, and end the subscriptions that it does not allow.

        :return: the number of subscriptions that ended
        """
        self.policy = policy
        brokers = list(self._brokers.values())
        for guarded in brokers:
            guarded.clear_verdicts()
        return sum(_end_forbidden(broker) for broker in {guarded.broker for guarded in brokers})


def _end_forbidden(broker: Unguarded) -> int:
    """End the subscriptions that the policy does not allow now; return how many."""
    ended = 0
    for cursor in list(broker.cursors()):
        peer = cursor.owner
        if isinstance(peer, Guarded) and not peer.permits(Action.SUBSCRIBE, cursor.stream):
            cursor.end(peer.refusal(Action.SUBSCRIBE, cursor.stream))
            ended += 1
    return ended


@implementer(IBroker)
@attrs.define(eq=False)
class Guarded:
    """The broker for the peers of one identity, which refuses the actions that the access policy does not allow."""

    identity: Identity
    broker: Unguarded
    _guard: Guard
    #: the rules of the policy that apply to this identity, once they were looked up
    _rules: tuple[Rule, ...] | None = attrs.field(default=None, init=False)
    #: the actions that these rules allow on every stream but the server's own
    _everywhere: frozenset[Action] = attrs.field(default=frozenset(), init=False)
    _verdicts: dict[Action, dict[str, bool]] = attrs.field(init=False)
    #: the network of the peers, for which their subscriptions count
    _network: str = attrs.field(init=False)
    #: when the signed token of the peers expires, in seconds since 1970 UTC; None: they have none
    ends: float | None = attrs.field(default=None, init=False)
    #: the timer that ends the subscriptions when the token expires
    _end: IDelayedCall | None = attrs.field(default=None, init=False)
    _subscribed: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._verdicts = {action: {} for action in Action}
        self._network = network_of(self.identity.host)

    @property
    def counters(self) -> Counters:
        return self.broker.counters

    @property
    def budget(self) -> Budget:
        return self.broker.budget

    @property
    def intake(self) -> Intake:
        return self.broker.intake

    @property
    def named(self) -> Consuming:
        return Consuming(self.broker.table, self, self._network)

    def when_leading(self) -> Deferred[None]:
        return self.broker.when_leading()

    def identified(self, identity: Identity) -> IBroker:
        """Return a broker with the rights of another peer, and with none of the rights of this one."""
        return self.broker.identified(identity)

    def admit(self, proofs: Collection[str]) -> None:
        policy = self._guard.policy
        if not policy.admits(self.identity, proofs):
            advice = f": {policy.advice}" if policy.advice else ""
            raise Forbidden(f"no rule of the policy lets {self.identity} publish or read anything{advice}")

    def permits(self, action: Action, stream: str) -> bool:
        if self.ends is not None:
            self.check_end()
        verdict = self._verdicts[action].get(stream)
        return self._judge(action, stream) if verdict is None else verdict

    def check(self, action: Action, stream: str) -> None:
        if not self.permits(action, stream):
            raise self.refusal(action, stream)

    @property
    def publishes(self) -> Mapping[str, bool]:
        """Return a mapping from each checked stream to whether the peer may publish to it; a new policy changes it."""
        return self._verdicts[Action.PUBLISH]

    @property
    def holder(self) -> str:
        """Return the name under which the keys of the peer's publishes count; see :func:`.policy.holder_of`."""
        return holder_of(self.identity, self._applying())

    def publisher(self, account: Account | None, settled: Settled) -> Publisher:
        return Publisher(self.broker, account, settled, self)

    def publish(self, runs: Sequence[Run], own: Sequence[Run] = ()) -> Deferred[tuple[int, ...]]:
        return publish_deferred(self.publisher(None, fire), runs, own)

    def publish_once(self, runs: Sequence[Run], key: str) -> Deferred[int]:
        return publish_deferred(self.publisher(None, fire), runs, (), key).addCallback(lambda firsts: firsts[0])

    def subscribe(self, stream: str, after: int | None, sink: ISink) -> ISubscription:
        """Subscribe if the access policy and the limits of the peer's network allow it; see :class:`IBroker`."""
        self.check(Action.SUBSCRIBE, stream)
        self.broker.subscriptions.take(self._network)
        self._subscribed += 1
        self._end_later()
        try:
            return self.broker.subscribe_as(self, stream, after, sink)
        except BaseException:
            self.unsubscribed()
            raise

    def unsubscribed(self) -> None:
        """Stop counting one subscription of the peer, because it has ended."""
        self.broker.subscriptions.release(self._network)
        self._subscribed -= 1
        if not self._subscribed and self._end is not None:
            self._end.cancel()
            self._end = None

    def streams(self) -> Collection[str]:
        rules, every = self._applying(), self.broker.streams()
        if Action.SUBSCRIBE in self._everywhere:
            return every
        return [stream for stream in every if any(rule.covers(Action.SUBSCRIBE, stream) for rule in rules)]

    def watch_streams(self, created: Callable[[str], None]) -> Callable[[], None]:
        def permitted(stream: str) -> None:
            if not stream.startswith(".") and self.permits(Action.SUBSCRIBE, stream):
                created(stream)

        stop: Callable[[], None] = self.broker.watch_streams(permitted)
        return stop

    def exists(self, stream: str) -> bool:
        self.check(Action.SUBSCRIBE, stream)
        return self.broker.exists(stream)

    @property
    def standing(self) -> Standing:
        return self.broker.standing

    def bounds(self, stream: str) -> tuple[int, int]:
        self.check(Action.SUBSCRIBE, stream)
        return self.broker.bounds(stream)

    def ready(self, producer: Producer) -> None:
        self.broker.ready(producer)

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        self.check(Action.SUBSCRIBE, stream)
        return self.broker.read(stream, start, max_bytes)

    def latest(self, size: int) -> Iterator[Run]:
        return (run for run in self.broker.latest(size) if self.permits(Action.SUBSCRIBE, run.stream))

    def restrict(self, stream: str, max_payload: int) -> None:
        self.broker.restrict(stream, max_payload)

    def retire(self, streams: Sequence[str]) -> Deferred[None]:
        for stream in streams:
            if not self.permits(Action.ADMINISTER, stream):
                return fail(self.refusal(Action.ADMINISTER, stream))
        return self.broker.retire(streams, str(self.identity))

    def clear_verdicts(self) -> None:
        """Clear the cached verdicts, because the policy has changed."""
        self._rules, self.ends = None, None
        for verdicts in self._verdicts.values():
            verdicts.clear()

    def _judge(self, action: Action, stream: str) -> bool:
        verdicts, rules = self._verdicts[action], self._applying()
        if action in self._everywhere and not stream.startswith("."):
            # Once the cache is full, the verdicts on other streams are computed here each time, which is nearly as
            # quick.
            if len(verdicts) < MOST_VERDICTS:
                verdicts[stream] = True
            return True
        if len(verdicts) >= MOST_VERDICTS:
            verdicts.clear()
        verdict = verdicts[stream] = any(rule.covers(action, stream) for rule in rules)
        return verdict

    def _applying(self) -> tuple[Rule, ...]:
        """Return the rules of the policy that apply to this identity."""
        if self._rules is None:
            self._rules = self._guard.policy.rules_for(self.identity, self._guard.now())
            allowed = [action for action in Action if any(rule.covers_every(action) for rule in self._rules)]
            self._everywhere = frozenset(allowed)
            self.ends = min((rule.grant.expires for rule in self._rules if rule.grant is not None), default=None)
        return self._rules

    def check_end(self) -> None:
        """Check the rights of the peer again if its signed token has expired."""
        if self.ends is not None and self.ends <= self._guard.now():
            self.clear_verdicts()

    def _end_later(self) -> None:
        """Schedule the end of the subscriptions for when the signed token expires."""
        self._applying()
        if self.ends is not None and self._end is None:
            seconds = max(0.0, self.ends - self._guard.now())
            self._end = self.broker.clock.callLater(seconds, self._end_subscriptions)

    def _end_subscriptions(self) -> None:
        self._end = None
        self.check_end()
        _end_forbidden(self.broker)
        if self._subscribed:  # some are still allowed: the clock was set back, or another rule applies
            self._end_later()

    def refusal(self, action: Action, stream: str) -> Forbidden:
        """Return the error for a peer that may not do *action* on *stream*; the error says why."""
        verb = _VERBS[action]
        flaw = self._guard.policy.flaw(self.identity, self._guard.now())
        if flaw:
            what = f"{self.identity} may not {verb} stream {stream[:80]!r} with its token"
            return TokenEnded(f"{what}: {flaw}; `fyrehose token create` makes another")
        advice = f": {self._guard.policy.advice}" if self._guard.policy.advice else ""
        if stream.startswith("."):
            advice = ": names that begin with a dot are reserved for the server, unless a rule names them with the dot"
        return Forbidden(f"{self.identity} may not {verb} stream {stream[:80]!r}{advice}")
