"""The access policy applies to the broker of each peer, and a new policy ends subscriptions."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import nullcontext
from ipaddress import ip_network
from random import Random
from typing import Any

import pytest
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from fyrehose.broker.broker import Broker
from fyrehose.broker.guard import MOST_VERDICTS, Guard
from fyrehose.broker.policy import LOOPBACK, OPEN, Policy, Rule, parse
from fyrehose.broker.quotas import SUBSCRIPTION, PeerLimits
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.signed import SHORTEST_KEY, sign
from fyrehose.errors import Forbidden, JournalCorrupt, TokenEnded, TooManySubscriptions
from fyrehose.identity import Action, Identity
from fyrehose.interfaces import IBroker
from fyrehose.net.turns import STEPS
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal, RecordingSink
from fyrehose.web.shell import with_token
from tests.doubles.references import references

HERE, THERE = Identity(), Identity(host="10.0.0.9", certificates=("writer",))
WRITERS = parse({"allow": [{"certificate": "writer", "publish": "in.*", "subscribe": "out"}]})


class World:
    """A broker with a policy."""

    def __init__(self, policy: Any = WRITERS, **settings: Any) -> None:
        self.clock = Clock()
        self.broker = Broker(self.clock, MemoryJournal(), Sequencer(), guard=Guard(policy), **settings)
        self.broker.open()
        self.peer = self.broker.identified(THERE)

    def settle(self) -> None:
        for _ in range(5):
            self.clock.advance(0)


def draft(stream: str) -> Run:
    return Run.of(stream, [b"x"], source="test")


def refused(call: Any, *args: Any) -> str:
    with pytest.raises(Forbidden) as raised:
        call(*args)
    return str(raised.value)


def failure(published: Any) -> Exception | None:
    failures: list[Any] = []
    published.addErrback(failures.append)
    return failures[0].value if failures else None


def test_a_peer_provides_the_broker_interface() -> None:
    world = World()
    assert verifyObject(IBroker, world.peer)
    assert world.peer.counters is world.broker.counters
    assert world.peer.budget is world.broker.budget
    world.peer.restrict("in.s", 1)
    assert failure(world.peer.publish([Run.of("in.s", [b"xx"], source="test")])) is not None


def test_allowed_actions_reach_the_broker() -> None:
    world = World()
    assert world.peer.publish([draft("in.a"), draft("in.b")]).result == (1, 1)
    world.broker.publish([draft("out")])
    sink = RecordingSink()
    world.peer.subscribe("out", 0, sink).resumeProducing()
    world.settle()
    assert sink.payloads == [b"x"]
    assert world.peer.bounds("out") == (1, 1)
    assert len(world.peer.read("out", 1, 100)) == 1
    world.peer.check(Action.PUBLISH, "in.a")
    assert world.peer.permits(Action.SUBSCRIBE, "out")


def test_forbidden_actions_fail_with_an_error_that_names_peer_and_stream() -> None:
    world = World()
    error = failure(world.peer.publish([draft("in.a"), draft("out")]))
    assert type(error) is Forbidden
    assert str(error) == "10.0.0.9 (certificate 'writer') may not publish into stream 'out'"
    assert world.broker.bounds("in.a") == (1, 0), "all of it or none"
    said = "10.0.0.9 (certificate 'writer') may not read stream 'in.a'"
    assert refused(world.peer.subscribe, "in.a", 0, RecordingSink()) == said
    assert refused(world.peer.bounds, "in.a") == said
    assert refused(world.peer.read, "in.a", 1, 100) == said
    assert refused(world.peer.check, Action.SUBSCRIBE, "in.a") == said
    assert not world.peer.permits(Action.PUBLISH, "out")


def test_refusal_without_a_policy_advises_the_option() -> None:
    world = World(LOOPBACK)
    assert refused(world.peer.bounds, "s").endswith(
        "stream 's': without --policy FILE only clients on this machine have access"
    )
    assert world.broker.identified(HERE).publish([draft("s")]).result == (1,)


def test_the_broker_itself_allows_everything() -> None:
    world = World()
    assert world.broker.publish([], [draft(".own")]).result == (1,)
    assert world.broker.permits(Action.PUBLISH, ".own")
    world.broker.check(Action.SUBSCRIBE, ".own")
    assert world.peer.identified(HERE) is world.broker.identified(HERE)
    assert world.peer.identified(HERE).rights.identity == HERE, "nothing is handed on"


def test_peers_of_one_identity_share_a_broker_until_the_last_has_left() -> None:
    world = World()
    assert world.broker.identified(Identity(host=THERE.host, certificates=("writer",))) is world.peer
    gc.collect()
    before = references(world.broker.guard)
    for n in range(100):
        world.broker.identified(Identity(host=f"10.0.1.{n}"))
    gc.collect()
    assert references(world.broker.guard) == before


def test_retiring_is_a_right_of_its_own() -> None:
    rules = [{"certificate": "writer", "publish": "*", "subscribe": "*", "administer": "in.*"}]
    world = World(parse({"allow": rules}))
    world.peer.publish([draft("in.a"), draft("out")])
    error = failure(world.peer.retire(["in.a", "out"]))
    assert isinstance(error, Forbidden)
    assert "may not administer stream 'out'" in str(error)
    assert set(world.broker.journal.ends()) == {"in.a", "out"}, "none of them"
    assert world.peer.retire(["in.a"]).called
    assert set(world.broker.journal.ends()) == {"out"}
    assert isinstance(failure(World(WRITERS).peer.retire(["in.a"])), Forbidden)


def test_verdicts_are_cached_and_bounded() -> None:
    world = World()
    asked: list[str] = []

    class Asked:
        grant = None
        advice = ""

        def rules_for(self, identity: Identity, now: float) -> Any:
            return (self,)

        def covers_every(self, action: Action) -> bool:
            return False

        def covers(self, action: Action, stream: str) -> bool:
            asked.append(stream)
            return True

    world.broker.guard.policy = Asked()  # type: ignore[assignment]
    for _ in range(3):
        world.peer.publish([draft("in.a")])
    assert asked == ["in.a"]
    for n in range(2 * MOST_VERDICTS):
        world.peer.permits(Action.PUBLISH, f"in.{n}")
    assert all(len(verdicts) <= MOST_VERDICTS for verdicts in world.peer.rights.verdicts.values())


def test_a_rule_for_every_stream_allows_any_number_and_not_those_of_the_server() -> None:
    world = World(LOOPBACK)
    peer = world.broker.identified(HERE)
    for _ in range(2):
        assert all(peer.permits(Action.PUBLISH, f"in.{n}") for n in range(2 * MOST_VERDICTS))
        assert not peer.permits(Action.PUBLISH, ".own")
    assert len(peer.rights.verdicts[Action.PUBLISH]) <= MOST_VERDICTS
    world.broker.guard.change(WRITERS)
    assert not peer.permits(Action.PUBLISH, "in.0")


def test_a_new_policy_holds_at_once_and_ends_forbidden_subscriptions() -> None:
    world = World(OPEN)
    kept, waiting, paused, left = (RecordingSink() for _ in range(4))
    world.peer.subscribe("out", 0, kept).resumeProducing()
    world.peer.subscribe("in.a", 0, waiting).resumeProducing()
    world.peer.subscribe("in.a", 0, paused)
    world.peer.subscribe("in.a", 0, left).stopProducing()
    others = RecordingSink()
    world.broker.subscribe("in.a", 0, others).resumeProducing()
    world.settle()
    assert world.broker.guard.change(WRITERS).result == 2
    for sink in (waiting, paused):
        assert isinstance(sink.reason, Forbidden)
    assert (kept.reason, left.reason) == (None, None)
    assert type(failure(world.peer.publish([draft("out")]))) is Forbidden
    world.broker.publish([draft("out"), draft("in.a")])
    world.settle()
    assert (kept.payloads, waiting.payloads, paused.payloads) == ([b"x"], [], [])
    assert others.payloads == [b"x"], "the server's own goes on"
    assert world.broker.guard.change(OPEN).result == 0
    assert world.peer.publish([draft("out")]).result == (2,)


def test_a_new_policy_ends_many_subscriptions_in_steps() -> None:
    world = World(OPEN)
    for number in range(3 * STEPS):
        world.peer.subscribe(f"in.{number}", 0, RecordingSink()).resumeProducing()
    changed = world.broker.guard.change(WRITERS)
    assert len(world.broker.fanout.cursors) >= 2 * STEPS, "the change itself takes one turn"
    world.settle()
    assert changed.result == 3 * STEPS
    assert not world.broker.fanout.cursors


def test_an_error_of_one_sink_when_it_ends_lets_other_subscriptions_end(logged_errors: Any) -> None:
    world = World(OPEN)

    class Failing(RecordingSink):
        def ended(self, reason: Exception) -> None:
            raise RuntimeError("a bug")

    sink = RecordingSink()
    for each in (Failing(), sink):
        world.peer.subscribe("in.a", 0, each).resumeProducing()
    assert world.broker.guard.change(WRITERS).result == 2
    assert isinstance(sink.reason, Forbidden)
    assert len(logged_errors.take()) == 1


def test_an_error_of_what_waits_lets_the_rest_end(logged_errors: Any) -> None:
    world = World(OPEN)
    reasons: list[Exception] = []

    def fail(reason: Exception) -> None:
        raise RuntimeError("a bug")

    for end in (fail, reasons.append):
        world.peer.wait([(Action.CONSUME, "in.a")], end)
    assert world.broker.guard.change(WRITERS).result == 1
    assert [type(each) for each in reasons] == [Forbidden]
    assert len(logged_errors.take()) == 1


KEYS = (b"k" * SHORTEST_KEY, b"o" * SHORTEST_KEY)
STREAMS = ("a", "b.1", "b.2", ".own")
#: Rules of which a policy has some: those of a network, of a certificate, and of the keys that sign tokens.
RULES = (
    Rule(networks=(ip_network("10.0.0.0/8"),), rights={Action.SUBSCRIBE: ("*",)}),
    Rule(networks=(ip_network("10.0.0.0/8"),), rights={Action.CONSUME: ("b.*",), Action.PUBLISH: ("a",)}),
    Rule(certificates=("writer",), rights={Action.SUBSCRIBE: ("b.*", ".*"), Action.PUBLISH: ("*",)}),
    *(Rule(signers=(key,), rights=dict.fromkeys((Action.SUBSCRIBE, Action.CONSUME), ("*",))) for key in KEYS),
    Rule(signers=KEYS, rights={Action.PUBLISH: ("*",), Action.ADMINISTER: ("b.*",)}),
)


class DamagedJournal(MemoryJournal):
    """A journal in which some streams cannot be read.

    :ivar damaged: these streams
    """

    damaged: frozenset[str] = frozenset()

    def bounds(self, stream: str) -> tuple[int, int]:
        if stream in self.damaged:
            raise JournalCorrupt(f"stream {stream} is damaged")
        return super().bounds(stream)


class TellingSink(RecordingSink):
    """A sink of *rights*, which it tells that it has ended."""

    def __init__(self, rights: Rights) -> None:
        super().__init__()
        self.rights = rights

    def ended(self, reason: Exception) -> None:
        self.rights.ended(self, reason)


class Rights:
    """Peers whose policy, tokens and clock change at random; what they may do is asked of the policy alone."""

    def __init__(self, seed: int) -> None:
        self.dice, self.clock, self.set_back, self.did = Random(seed), Clock(), 0, Counter[str]()
        self.journal = DamagedJournal()
        self.broker = Broker(self.clock, self.journal, Sequencer(), guard=Guard(self.policy(), now=self.now))
        self.broker.open()
        self.broker.publish([draft(stream) for stream in STREAMS[:3]], [draft(STREAMS[3])])
        rights = dict.fromkeys(Action, ("a", "b.*")), {Action.SUBSCRIBE: ("*",), Action.PUBLISH: ("b.1",)}
        self.ends = [1_000 + self.dice.randint(5, 150) for _ in range(4)]
        tokens = [sign(rights[n % 2], end, KEYS[n // 2 % 2]) for n, end in enumerate(self.ends)]
        hosts = Identity(host="10.0.0.1"), Identity(host="192.0.2.1", certificates=("writer",))
        self.identities = [*hosts, *(with_token(hosts[n % 3 % 2], token) for n, token in enumerate(tokens))]
        self.peers = [self.broker.identified(each) for each in self.identities]
        self.publishers = [peer.publisher(None, lambda items: None) for peer in self.peers]
        #: the last questions: the method that asks, the number of the peer, and its action
        self.asked: list[tuple[Any, int, Action, str]] = []
        #: what goes on: the end of it by its peer, and the identity and the rights that it needs
        self.live: dict[Any, tuple[Any, Identity, list[tuple[Action, str]]]] = {}

    def now(self) -> float:
        return 1_000 + self.clock.seconds() - self.set_back

    def policy(self) -> Policy:
        return Policy(tuple(self.dice.sample(RULES, self.dice.randint(1, 4))))

    def allows(self, identity: Identity, action: Action, stream: str) -> bool:
        return self.broker.guard.policy.allows(identity, action, stream, self.now())

    def ended(self, sink: object, reason: Exception) -> None:
        """Note that a subscription or a request has ended by itself."""
        _, identity, needs = self.live.pop(sink)
        lost = [each for each in needs if not self.allows(identity, *each)]
        assert lost, f"{identity} has all of {needs}, and {sink} ended: {reason}"
        assert isinstance(reason, Forbidden), f"a reason of another kind: {reason!r}"
        self.did["ended"] += 1

    def step(self) -> None:
        dice, number = self.dice, self.dice.randrange(len(self.peers))
        what = dice.choice((*["ask", "pass"] * 3, *["subscribe", "wait", "leave", "policy"] * 2, "back"))
        self.did[what] += 1
        if what == "policy":
            self.broker.guard.change(self.policy())
        elif what == "pass":
            self.clock.advance(dice.choice((0.5, 7, 40)))
        elif what == "back":
            # No token begins again that has ended.
            self.set_back += min(20, self.now() - max([0, *(end for end in self.ends if end <= self.now())]))
        elif what == "ask":
            question = dice.choice((self.permits, self.check_right, self.has, self.streams, self.publish))
            self.asked = [*self.asked[-9:], (question, number, dice.choice([*Action]), dice.choice(STREAMS))]
        elif what == "leave" and self.live:
            sink = dice.choice([*self.live])
            self.live.pop(sink)[0]()
        elif what != "leave":
            request = self.subscribe if what == "subscribe" else self.wait
            request(self.peers[number], self.identities[number], dice.choice([*Action]), dice.choice(STREAMS))
        for _ in range(5):
            self.clock.advance(0)
        if what in ("policy", "pass", "ask"):
            # All questions are asked again, so that no answer is remembered too long.
            for question, number, action, stream in dice.sample(self.asked, len(self.asked)):
                allowed = self.allows(self.identities[number], action, stream)
                question(self.peers[number], self.identities[number], action, stream, allowed)
                self.did["refused"] += not allowed

    def permits(self, peer: Any, identity: Identity, action: Action, stream: str, allowed: bool) -> None:
        assert peer.permits(action, stream) == allowed, f"{identity} may {action} {stream!r}: {not allowed}"

    def check_right(self, peer: Any, identity: Identity, action: Action, stream: str, allowed: bool) -> None:
        flaw = self.broker.guard.policy.flaw(identity, self.now())
        refusal = pytest.raises(TokenEnded if flaw else Forbidden, match=flaw or "may not")
        with nullcontext() if allowed else refusal:
            peer.check(action, stream)

    def has(self, peer: Any, identity: Identity, action: Action, stream: str, allowed: bool) -> None:
        rules = self.broker.guard.policy.rules_for(identity, self.now())
        assert peer.has(action) == any(rule.has(action) for rule in rules), f"{identity} may {action} anything"

    def streams(self, peer: Any, identity: Identity, action: Action, stream: str, allowed: bool) -> None:
        seen = [each for each in STREAMS[:3] if self.allows(identity, Action.SUBSCRIBE, each)]
        assert [*peer.streams()] == seen, f"{identity} sees other streams"

    def publish(self, peer: Any, identity: Identity, action: Action, stream: str, allowed: bool) -> None:
        """Publish by a publisher as old as the connection."""
        allowed, last = self.allows(identity, Action.PUBLISH, stream), self.broker.bounds(stream)[1]
        with nullcontext() if allowed else pytest.raises(Forbidden):
            self.publishers[self.peers.index(peer)].publish([draft(stream)])
        assert self.broker.bounds(stream)[1] == last + allowed, f"{identity} may publish into {stream!r}: {allowed}"

    def subscribe(self, peer: Any, identity: Identity, _: Action, stream: str) -> None:
        allowed, sink = self.allows(identity, Action.SUBSCRIBE, stream), TellingSink(self)
        self.journal.damaged = frozenset(self.dice.choice(([], [], [stream])))
        with nullcontext() if allowed and not self.journal.damaged else pytest.raises((Forbidden, JournalCorrupt)):
            subscription = peer.subscribe(stream, 0, sink)
            self.live[sink] = subscription.stopProducing, identity, [(Action.SUBSCRIBE, stream)]
            if self.dice.random() < 0.5:
                subscription.resumeProducing()
        self.did["damaged"] += bool(allowed and self.journal.damaged)
        self.journal.damaged = frozenset()

    def wait(self, peer: Any, identity: Identity, action: Action, stream: str) -> None:
        """Let a request wait with two rights, which several rules may give."""
        needs, request = [(action, stream), (Action.SUBSCRIBE, "a")], object()
        if all(self.allows(identity, *each) for each in needs):

            def end(reason: Exception) -> None:
                over = self.live[request][0]
                self.ended(request, reason)
                over()

            self.live[request] = peer.wait(needs, end), identity, needs

    def check(self) -> None:
        for _, identity, needs in self.live.values():
            lost = [each for each in needs if not self.allows(identity, *each)]
            assert not lost, f"at {self.now()} {identity} has no longer the right to {lost}, and goes on"
        cursors = [sink for sink in self.live if isinstance(sink, RecordingSink)]
        assert self.broker.budget.kept == SUBSCRIPTION * len(cursors), "the charge of other subscriptions"
        assert len(self.broker.waiting) == len(self.live) - len(cursors), "other requests wait"
        timed = [call for call in self.clock.getDelayedCalls() if call.getTime() > self.clock.seconds()]
        assert len(timed) <= len(self.live), "a timer runs for a peer that waits for nothing"


def test_random_rights_are_those_of_the_policy_and_of_the_token_at_each_time() -> None:
    did = Counter[str]()
    for seed in range(100):
        world = Rights(seed)
        for _ in range(60):
            world.step()
            world.check()
        for stop, *_ in world.live.values():
            stop()
        world.live.clear()
        world.check()
        did.update(world.did)
    assert min(did.values()) > 50, f"each happens often: {did}"


class TestLimits:
    """Limits of the state of one peer, at their defaults."""

    def test_one_address_cannot_create_all_streams_and_others_still_can(self) -> None:
        assert World(OPEN).broker._new_streams.most == 10_000
        world = World(OPEN, limits=PeerLimits(streams=100))
        made, errors = 0, set()
        for start in range(0, 500, 50):
            error = failure(world.peer.publish([draft(f"s{start + n}") for n in range(50)]))
            made += 50 if error is None else 0
            errors.add(type(error).__name__)
        assert (made, errors) == (100, {"NoneType", "TooManyStreamsFromPeer"})
        assert world.peer.publish([draft("s1")]).result == (2,), "streams that exist are not its limit"
        assert world.broker.identified(HERE).publish([draft("new")]).result == (1,)
        assert world.broker.publish([draft("the server's own")]).result == (1,)

    def test_a_refused_publish_creates_none_of_its_streams(self) -> None:
        world = World(OPEN, max_streams=6)
        error = failure(world.peer.publish([draft(f"s{n}") for n in range(4)]))
        assert type(error).__name__ == "TooManyStreamsFromPeer"
        assert world.peer.publish([draft(f"s{n}") for n in range(3)]).result == (1, 1, 1)

    def test_own_records_of_a_protocol_are_neither_judged_nor_counted(self) -> None:
        world = World(max_streams=4)
        assert world.peer.publish([draft("in.a")], [draft(".own"), draft(".own 2")]).result == (1, 1, 1)
        assert world.peer.publish([draft("in.b")]).result == (1,)
        assert type(failure(world.peer.publish([draft("out")], [draft(".own")]))) is Forbidden

    def test_subscriptions_of_one_address_are_limited_and_released(self) -> None:
        world = World(OPEN, limits=PeerLimits(subscriptions=2))
        same = world.broker.identified(Identity(host=THERE.host, token="t"))
        first = world.peer.subscribe("s", 0, RecordingSink())
        same.subscribe("s", 0, RecordingSink())
        for peer in (world.peer, same):
            with pytest.raises(
                TooManySubscriptions, match=r"address 10\.0\.0\.9 has reached its limit of 2 subscriptions"
            ):
                peer.subscribe("s", 0, RecordingSink())
        assert len(world.broker.fanout.cursors) == 2
        world.broker.identified(HERE).subscribe("s", 0, RecordingSink())
        world.broker.subscribe("s", 0, RecordingSink())
        first.stopProducing()
        first.stopProducing()
        world.peer.subscribe("s", 0, RecordingSink())
        with pytest.raises(TooManySubscriptions):
            world.peer.subscribe("s", 0, RecordingSink())
