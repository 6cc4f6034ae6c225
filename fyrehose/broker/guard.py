"""The access policy in force: what each identity may do, remembered until the policy changes or a token expires.

    broker.identified(identity) -> Guard.peer -> Peer -> PeerRights.permits(action, stream): a look into a dict

When the policy changes, the verdicts are cleared and subscriptions that are no longer allowed end; a publisher that is
no longer allowed is refused at its next publish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import attrs
from twisted.internet.defer import inlineCallbacks

from fyrehose.broker.peer import Peer
from fyrehose.broker.policy import OPEN, Policy, Rule, holder_of
from fyrehose.broker.state_stream import Steps
from fyrehose.errors import Forbidden, TokenEnded
from fyrehose.identity import Action, Identity

if TYPE_CHECKING:
    from fyrehose.broker.broker import Broker

#: The number of verdicts that are cached for one identity and action; beyond that the cache is cleared.
MOST_VERDICTS = 1_024

_VERBS = {
    Action.PUBLISH: "publish into",
    Action.SUBSCRIBE: "read",
    Action.CONSUME: "consume",
    Action.ADMINISTER: "administer",
}


@attrs.define(eq=False)
class Guard:
    """The access policy in force, and all peers that are connected; peers of one identity share one :class:`.Peer`.

    :ivar now: returns the time at which signed tokens are judged, in seconds since 1970 UTC
    """

    policy: Policy = OPEN
    now: Callable[[], float] = attrs.field(default=time.time, kw_only=True)
    _peers: WeakValueDictionary[Identity, Peer] = attrs.field(factory=WeakValueDictionary, init=False)

    def peer(self, broker: Broker, identity: Identity) -> Peer:
        """Return *broker* restricted to the actions that *identity* may do."""
        peer = self._peers.get(identity)
        if peer is None:
            peer = self._peers[identity] = Peer(broker, PeerRights(identity, self))
        return peer

    @inlineCallbacks
    def change(self, policy: Policy) -> Steps[int]:
        """Replace the policy, and end, in steps, the subscriptions that it does not allow.

        :return: fires with the number of subscriptions that ended
        """
        self.policy = policy
        peers = list(self._peers.values())
        for peer in peers:
            if peer.rights is not None:
                peer.rights.clear()
                peer.rights_changed()
        ended = 0
        for broker in {peer.broker for peer in peers}:
            ended += yield broker.end_forbidden()
        return ended


@attrs.define(eq=False)
class PeerRights:
    """The actions that the policy of *guard* allows *identity*; verdicts are cached.

    :ivar ends: when the signed token of the identity expires, in seconds since 1970 UTC; None: it has none, or the
        rules were not looked up yet
    :ivar verdicts: by action, the streams that were checked, and whether the policy allows the action on them; the
        mappings stay the same when the policy changes
    """

    identity: Identity
    guard: Guard
    ends: float | None = attrs.field(default=None, init=False)
    verdicts: dict[Action, dict[str, bool]] = attrs.field(init=False)
    #: the rules of the policy that apply to this identity, once they were looked up
    _rules: tuple[Rule, ...] | None = attrs.field(default=None, init=False)
    #: the actions that these rules allow on every stream but the server's own
    _everywhere: frozenset[Action] = attrs.field(default=frozenset(), init=False)

    def __attrs_post_init__(self) -> None:
        self.verdicts = {action: {} for action in Action}

    @property
    def holder(self) -> str:
        """Return the name under which the keys of the peer's publishes count; see :func:`.policy.holder_of`."""
        return holder_of(self.identity, self._applying())

    def admit(self, proofs: Collection[str]) -> None:
        """Check that some rule allows the identity any action; see :meth:`.IBroker.admit`."""
        policy = self.guard.policy
        if not policy.admits(self.identity, proofs):
            advice = f": {policy.advice}" if policy.advice else ""
            raise Forbidden(f"no rule of the policy lets {self.identity} publish or read anything{advice}")

    def permits(self, action: Action, stream: str) -> bool:
        """Return whether the identity may do *action* on *stream* now."""
        if self.ends is not None:
            self.check_end()
        verdict = self.verdicts[action].get(stream)
        return self._judge(action, stream) if verdict is None else verdict

    def check(self, action: Action, stream: str) -> None:
        """Raise Forbidden unless the identity may do *action* on *stream* now; see :meth:`.IBroker.check`."""
        known = self.ends is None and self.verdicts[action].get(stream)
        if not known and not self.permits(action, stream):
            raise self.refusal(action, stream)

    def has(self, action: Action) -> bool:
        """Return whether the identity may do *action* on some stream now."""
        self.check_end()
        return any(rule.has(action) for rule in self._applying())

    def refusal(self, action: Action, stream: str, target: str = "") -> Forbidden:
        """Return the error for a peer that may not do *action* on *stream*; the error says why.

        :param target: what the error names in place of *stream*, which the peer must not learn
        """
        target = target or f"stream {stream[:80]!r}"
        verb, policy = _VERBS[action], self.guard.policy
        flaw = policy.flaw(self.identity, self.guard.now())
        if flaw:
            what = f"{self.identity} may not {verb} {target} with its token"
            return TokenEnded(f"{what}: {flaw}; `fyrehose token create` makes another")
        advice = f": {policy.advice}" if policy.advice else ""
        if stream.startswith("."):
            advice = ": names that begin with a dot are reserved for the server, unless a rule names them with the dot"
        return Forbidden(f"{self.identity} may not {verb} {target}{advice}")

    def readable(self, streams: Iterator[str]) -> Iterator[str]:
        """Return those of *streams* that the identity may subscribe to; none of them is the server's own."""
        self.check_end()
        rules = self._applying()
        if Action.SUBSCRIBE in self._everywhere:
            return streams
        return (stream for stream in streams if any(rule.covers(Action.SUBSCRIBE, stream) for rule in rules))

    def seconds_left(self) -> float | None:
        """Return how long the signed token is still valid, in seconds; None if the identity has none."""
        self._applying()
        return None if self.ends is None else max(0.0, self.ends - self.guard.now())

    def check_end(self) -> None:
        """Look the rights up again if the signed token has expired."""
        if self.ends is not None and self.ends <= self.guard.now():
            self.clear()

    def clear(self) -> None:
        """Clear the cached verdicts, because the policy has changed."""
        self._rules, self.ends = None, None
        for verdicts in self.verdicts.values():
            verdicts.clear()

    def _judge(self, action: Action, stream: str) -> bool:
        verdicts, rules = self.verdicts[action], self._applying()
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
            self._rules = self.guard.policy.rules_for(self.identity, self.guard.now())
            allowed = [action for action in Action if any(rule.covers_every(action) for rule in self._rules)]
            self._everywhere = frozenset(allowed)
            self.ends = min((rule.grant.expires for rule in self._rules if rule.grant is not None), default=None)
        return self._rules
