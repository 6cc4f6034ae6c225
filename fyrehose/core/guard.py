"""The broker as one peer may use it: what the policy does not allow is refused before the broker hears of it.

    broker.identified(identity) -> Guarded -> publish, subscribe, read ... or Forbidden

Peers of the same identity share one :class:`Guarded` with the verdicts that were asked of it, so what a batch costs is
one look into a dict.  When the policy changes the verdicts are forgotten, and subscriptions that are not allowed any
more end; a peer that publishes hears of it with its next publish.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import attrs
from twisted.internet.defer import Deferred, fail
from zope.interface import implementer

from fyrehose.core.budget import Budget
from fyrehose.core.policy import OPEN, Policy, Rule
from fyrehose.errors import Forbidden
from fyrehose.identity import Action, Identity, network_of
from fyrehose.interfaces import IBroker, ISink, ISubscription
from fyrehose.observe.counters import Counters
from fyrehose.records import Run

if TYPE_CHECKING:
    from fyrehose.core.broker import Broker

#: Verdicts that are kept for one identity and action; whoever tries more streams has them asked for again.
MOST_VERDICTS = 1_024

_VERBS = {Action.PUBLISH: "publish into", Action.SUBSCRIBE: "read", Action.ADMINISTER: "administer"}


@attrs.define(eq=False)
class Guard:
    """The policy in force, and those who are held to it."""

    policy: Policy = OPEN
    _known: WeakValueDictionary[Identity, Guarded] = attrs.field(factory=WeakValueDictionary, init=False)

    def identified(self, broker: Broker, identity: Identity) -> Guarded:
        """``broker`` as ``identity`` may use it."""
        known = self._known.get(identity)
        if known is None:
            known = self._known[identity] = Guarded(identity, broker, self)
        return known

    def change(self, policy: Policy) -> int:
        """From now on it is ``policy``; how many subscriptions that has ended."""
        self.policy = policy
        known = list(self._known.values())
        for guarded in known:
            guarded.forget_verdicts()
        return sum(_end_forbidden(broker) for broker in {guarded._broker for guarded in known})


def _end_forbidden(broker: Broker) -> int:
    """End the subscriptions that the policy does not allow any more; return how many."""
    ended = 0
    for cursor in list(broker.cursors()):
        peer = cursor.owner
        if isinstance(peer, Guarded) and not peer.permits(Action.SUBSCRIBE, cursor.stream):
            cursor.end(peer._refusal(Action.SUBSCRIBE, cursor.stream))
            ended += 1
    return ended


@implementer(IBroker)
@attrs.define(eq=False)
class Guarded:
    """A broker for one identity."""

    identity: Identity
    _broker: Broker
    _guard: Guard
    #: what the policy says of this identity, when it was asked
    _rules: tuple[Rule, ...] | None = attrs.field(default=None, init=False)
    _verdicts: dict[Action, dict[str, bool]] = attrs.field(init=False)
    #: the address that its subscriptions count for
    _network: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._verdicts = {action: {} for action in Action}
        self._network = network_of(self.identity.host)

    @property
    def counters(self) -> Counters:
        return self._broker.counters

    @property
    def budget(self) -> Budget:
        return self._broker.budget

    def identified(self, identity: Identity) -> IBroker:
        """Another peer's; nothing is handed on."""
        found: IBroker = self._broker.identified(identity)
        return found

    def admit(self, proofs: Collection[str]) -> None:
        policy = self._guard.policy
        if not policy.admits(self.identity, proofs):
            advice = f": {policy.advice}" if policy.advice else ""
            raise Forbidden(f"no rule of the policy lets {self.identity} publish or read anything{advice}")

    def permits(self, action: Action, stream: str) -> bool:
        verdict = self._verdicts[action].get(stream)
        return self._judge(action, stream) if verdict is None else verdict

    def check(self, action: Action, stream: str) -> None:
        if not self.permits(action, stream):
            raise self._refusal(action, stream)

    def publish(self, runs: Sequence[Run], own: Sequence[Run] = ()) -> Deferred[tuple[int, ...]]:
        verdicts = self._verdicts[Action.PUBLISH]
        for run in runs:
            if not verdicts.get(run.stream) and not self.permits(Action.PUBLISH, run.stream):
                return fail(self._refusal(Action.PUBLISH, run.stream))
        published: Deferred[tuple[int, ...]] = self._broker.publish(runs, own, self.identity)
        return published

    def subscribe(self, stream: str, after: int | None, sink: ISink) -> ISubscription:
        self.check(Action.SUBSCRIBE, stream)
        self._broker.subscriptions.take(self._network)
        try:
            return self._broker.subscribe_as(self, stream, after, sink)
        except BaseException:
            self.unsubscribed()
            raise

    def unsubscribed(self) -> None:
        """Forget one subscription, which has ended."""
        self._broker.subscriptions.release(self._network)

    def exists(self, stream: str) -> bool:
        self.check(Action.SUBSCRIBE, stream)
        return self._broker.exists(stream)

    def bounds(self, stream: str) -> tuple[int, int]:
        self.check(Action.SUBSCRIBE, stream)
        bounds: tuple[int, int] = self._broker.bounds(stream)
        return bounds

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        self.check(Action.SUBSCRIBE, stream)
        runs: tuple[Run, ...] = self._broker.read(stream, start, max_bytes)
        return runs

    def restrict(self, stream: str, max_payload: int) -> None:
        self._broker.restrict(stream, max_payload)

    def retire(self, streams: Sequence[str]) -> Deferred[None]:
        for stream in streams:
            if not self.permits(Action.ADMINISTER, stream):
                return fail(self._refusal(Action.ADMINISTER, stream))
        retired: Deferred[None] = self._broker.retire(streams, str(self.identity))
        return retired

    def forget_verdicts(self) -> None:
        """Ask the policy again from now on, because it has changed."""
        self._rules = None
        for verdicts in self._verdicts.values():
            verdicts.clear()

    def _judge(self, action: Action, stream: str) -> bool:
        verdicts = self._verdicts[action]
        if len(verdicts) >= MOST_VERDICTS:
            verdicts.clear()
        if self._rules is None:
            self._rules = self._guard.policy.of(self.identity)
        verdict = verdicts[stream] = any(rule.covers(action, stream) for rule in self._rules)
        return verdict

    def _refusal(self, action: Action, stream: str) -> Forbidden:
        verb = _VERBS[action]
        advice = f": {self._guard.policy.advice}" if self._guard.policy.advice else ""
        if stream.startswith("."):
            advice = ": names that begin with a dot are reserved for the server, unless a rule names them with the dot"
        return Forbidden(f"{self.identity} may not {verb} stream {stream[:80]!r}{advice}")
