"""The access policy applies to the broker of each peer, and a new policy ends subscriptions."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from fyrehose.broker.broker import Broker
from fyrehose.broker.guard import MOST_VERDICTS, Guard
from fyrehose.broker.policy import LOOPBACK, OPEN, parse
from fyrehose.broker.quotas import SUBSCRIPTION, PeerLimits
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Forbidden, TooManySubscriptions
from fyrehose.identity import Action, Identity
from fyrehose.interfaces import IBroker
from fyrehose.net.turns import STEPS
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal, RecordingSink
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


@pytest.mark.parametrize("action", Action)
def test_a_new_policy_holds_for_every_action_at_once(action: Action) -> None:
    """What was allowed is cached, and that cache must not outlive the policy."""
    world = World(OPEN)
    assert world.peer.permits(action, "s")
    world.broker.guard.change(WRITERS)
    assert not world.peer.permits(action, "s")
    world.broker.guard.change(OPEN)
    assert world.peer.permits(action, "s")


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

    def test_every_end_of_a_subscription_releases_its_memory(self, logged_errors: Any) -> None:
        class Failing(RecordingSink):
            def deliver(self, delivery: Any) -> None:
                raise RuntimeError("a bug")

        world = World(OPEN)
        sinks = [RecordingSink(), RecordingSink(), Failing()]
        subscriptions = [world.peer.subscribe(stream, 0, sink) for stream, sink in zip("ab", sinks[:2], strict=True)]
        world.peer.subscribe("c", 0, sinks[2]).resumeProducing()
        assert world.broker.budget.kept == 3 * SUBSCRIPTION
        subscriptions[0].stopProducing()
        world.broker.publish([draft("c")])
        world.settle()
        assert world.broker.budget.kept == SUBSCRIPTION
        world.broker.guard.change(WRITERS)
        assert world.broker.budget.kept == 0
        logged_errors.take()
