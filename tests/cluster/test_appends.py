"""What the answers of the shared log to a leader's appends prove, and which appends are under way."""

from __future__ import annotations

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from fyrehose.cluster.appends import DRIFT, GONE, Appends
from fyrehose.cluster.entries import EntryWriter, LogEntry
from fyrehose.cluster.log_answers import LogAnswers
from fyrehose.cluster.role import Append, Role, State
from fyrehose.cluster.shared_log import Refused, Unavailable
from tests.doubles.shared_log import whole

from .test_log_answers import Gate


@attrs.define
class World:
    """A candidate that has decided to append its take-over, and a shared log that answers when the test says so."""

    clock: Clock = attrs.field(factory=Clock)
    role: Role = attrs.field(factory=lambda: Role(EntryWriter("a", 1), 0))
    asked: list[tuple[LogEntry, int]] = attrs.field(factory=list)
    waiting: list[Deferred[int]] = attrs.field(factory=list)
    appends: Appends = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.clock.advance(100)
        self.appends = Appends(self.clock.seconds, self, LogAnswers(Gate()))
        assert self.role.take_over(0)

    def append(self, entry: LogEntry, expect: int) -> Deferred[int]:
        self.asked.append((entry, expect))
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def send(self) -> Append:
        """Send the append that the role has decided."""
        (action,) = [each for each in self.role.take() if isinstance(each, Append)]
        self.appends.send(self.role, action.entry, action.expect, action.since)
        return action


def test_an_append_that_is_under_way_is_not_sent_again() -> None:
    world = World()
    sent = world.send()
    assert not world.appends.lacks(world.role)
    assert world.appends.send(world.role, sent.entry, sent.expect, sent.since) is None
    world.waiting[0].errback(Unavailable("no answer"))
    assert world.appends.lacks(world.role)
    assert world.appends.send(world.role, sent.entry, sent.expect, sent.since) is not None
    assert world.asked == [(sent.entry, sent.expect)] * 2


def test_an_accepted_take_over_proves_that_this_server_leads_since_it_was_first_sent() -> None:
    world = World()
    sent = world.send()
    world.waiting[0].errback(Unavailable("no answer"))
    world.clock.advance(0.5)
    world.appends.send(world.role, sent.entry, sent.expect, sent.since)
    world.waiting[1].callback(1)
    world.appends.settle(world.role)
    assert (world.role.state, world.appends.confirmed) == (State.LEADER, 100.0)
    alone = GONE * (1 - DRIFT)
    assert world.appends.lead_alone(world.role, 100 + alone - 0.01)
    assert not world.appends.lead_alone(world.role, 100.01 + alone)


def test_a_server_that_does_not_lead_proves_nothing() -> None:
    world = World()
    world.send()
    world.waiting[0].errback(Refused(5))
    world.appends.settle(world.role)
    assert world.role.state is not State.LEADER
    assert not world.appends.lead_alone(world.role, 100.0)
    assert world.appends.confirmed == float("-inf"), "a refusal may be late"


def test_a_checkpoint_proves_nothing_until_it_is_confirmed_itself_and_not_one_at_the_same_position() -> None:
    world = World()
    for number, second in ((1, 100.0), (2, 110.0)):
        world.clock.advance(second - world.clock.seconds())
        world.send()
        world.waiting[-1].callback(number)
        world.appends.settle(world.role)
        assert world.role.add_checkpoint()
    world.clock.advance(10)
    world.send()
    world.appends.settle(world.role)
    assert world.appends.confirmed == 110.0
    world.waiting[-1].callback(3)
    world.appends.settle(world.role)
    assert world.appends.confirmed == 120.0


def test_an_unexpected_failure_is_not_swallowed() -> None:
    world = World()
    (action,) = [each for each in world.role.take() if isinstance(each, Append)]
    ended = world.appends.send(world.role, action.entry, action.expect, action.since)
    world.waiting[0].errback(ValueError("a bug"))
    failures: list[str] = []
    assert ended is not None
    ended.addErrback(lambda failure: failures.append(str(failure.value)))
    assert failures == ["a bug"]
    assert world.appends.lacks(world.role)


def test_the_latest_answer_that_shows_no_other_leader_counts() -> None:
    world = World()
    world.appends.looked(world.role, 100.0, 0)
    assert world.appends.confirmed == float("-inf"), "this server does not lead yet"
    world.send()
    world.waiting[0].callback(1)
    world.appends.settle(world.role)
    for asked, last, confirmed in ((102.0, 1, 102.0), (101.0, 1, 102.0), (103.0, 2, 102.0), (104.0, 0, 104.0)):
        world.appends.looked(world.role, asked, last)
        assert world.appends.confirmed == confirmed, f"the log ends at {last}, and 1 is confirmed"


def test_an_append_proves_nothing_while_one_before_it_is_unknown() -> None:
    world = World()
    world.send()
    world.waiting[0].callback(1)
    world.appends.settle(world.role)
    for position, second in ((0, 110.0), (10, 111.0)):
        world.clock.advance(second - world.clock.seconds())
        world.role.append(position, whole(b"0123456789"))
        world.send()
    world.waiting[2].callback(3)
    world.appends.settle(world.role)
    assert world.appends.confirmed == 100.0
    world.waiting[1].callback(2)
    world.appends.settle(world.role)
    assert world.appends.confirmed == 111.0
