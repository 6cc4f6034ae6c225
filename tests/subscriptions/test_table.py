"""The table of shared subscriptions: waiting requests, appends, memory, starts and followers."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.python.failure import Failure

from fyrehose.broker.broker import Broker
from fyrehose.broker.policy import parse
from fyrehose.broker.quotas import ENTRY, PLACE
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import (
    Forbidden,
    InvalidPosition,
    InvalidRun,
    NoRoomForSubscription,
    ReadOnly,
    SubscriptionConflict,
    SubscriptionGone,
    SubscriptionInUse,
)
from fyrehose.identity import Identity
from fyrehose.interfaces import JournalState
from fyrehose.net.inflight import InFlight
from fyrehose.net.turns import SteppedWork
from fyrehose.records import Run
from fyrehose.standing import ServerRole, Standing
from fyrehose.subscriptions.description import MOST_LETTERS as MOST_SHOWN
from fyrehose.subscriptions.description import describe, show
from fyrehose.subscriptions.pool import Item
from fyrehose.subscriptions.progress import KEPT_LETTERS, SOURCE, STREAM, Creator, SubscriptionOptions
from fyrehose.subscriptions.shared import (
    ANSWER_BYTES,
    LETTER_BYTES,
    MOST_LETTERS,
    REDRIVE_BYTES,
    LeasedRun,
    SharedSubscription,
)
from fyrehose.subscriptions.table import CHECK, ENTRY_BYTES, RunReader
from fyrehose.testing import MemoryJournal

#: What a server is that leads a cluster unless another one has taken over meanwhile.
DOUBTED = Standing(ServerRole.LEADER, leads_alone=False)


class World:
    """A broker whose stream "s" has ten records."""

    def __init__(self, journal: MemoryJournal | None = None, clock: Clock | None = None, **settings: Any) -> None:
        self.journal, self.clock = journal or MemoryJournal(), clock or Clock()
        self.broker = Broker(self.clock, self.journal, Sequencer(), **settings)
        self.broker.open()
        self.table = self.broker.table
        if journal is None:
            self.publish(*[b"x"] * 10)

    def publish(self, *payloads: bytes) -> None:
        self.broker.publish([Run.of("s", payloads, source="test")])

    def create(self, name: str = "work", first: int = 0, **options: Any) -> SharedSubscription:
        created: SharedSubscription = self.table.create(
            name, SubscriptionOptions(stream="s", **options), lambda stream: first
        ).result
        return created

    def lease(self, shared: SharedSubscription, most: int = 1, consumer: str = "w", wait: float = 0) -> Any:
        return shared.lease(consumer, None, most, wait)

    def settle(self, shared: SharedSubscription, found: list[LeasedRun], **how: Any) -> Any:
        leases = [part.lease for part in found]
        items = [Item("done", each.first, each.last, each.token) for each in leases]
        return shared.act(items, "w", **how)


def seqs(answer: Any) -> list[int]:
    return [seq for part in answer.result for seq in range(part.lease.first, part.lease.last + 1)]


def failure(deferred: Any) -> Any:
    """Return the error with which *deferred* has failed, or None."""
    found: list[Any] = []
    deferred.addErrback(found.append)
    return found[0].value if found and isinstance(found[0], Failure) else None


def test_waiting_requests_share_the_records_that_arrive() -> None:
    world = World()
    shared = world.create(first=10)
    waiting = [world.lease(shared, 100, f"w{number}", 30) for number in range(4)]
    world.publish(*[b"x"] * 8)
    assert [seqs(each) for each in waiting] == [[11, 12], [13, 14], [15, 16], [17, 18]]


class PoisonedJournal(MemoryJournal):
    """A journal that fails by a bug for some streams."""

    poisoned = ""

    def bounds(self, stream: str) -> tuple[int, int]:
        if stream == self.poisoned:
            raise RuntimeError("bug")
        return super().bounds(stream)


def test_subscription_whose_check_fails_is_named_and_does_not_stop_the_others(logged_errors: Any) -> None:
    journal = PoisonedJournal()
    world = World(journal)
    for stream in ("bad", "s"):
        world.broker.publish([Run.of(stream, [b"x"], source="test")])
    world.table.create("poisoned", SubscriptionOptions(stream="bad"))
    shared = world.create(lease=1)
    world.lease(shared)
    waiting = world.lease(shared, consumer="v", wait=30)
    journal.poisoned = "bad"
    world.clock.pump([1.0] * 5)
    assert seqs(waiting) == [1]
    assert [formatEvent(event) for event in logged_errors.take()] == [
        "checking subscription 'poisoned' failed, and is tried again; please report this bug"
    ]


def test_a_cancelled_request_gets_nothing() -> None:
    world = World()
    shared = world.create(first=10)
    waiting = world.lease(shared, wait=30)
    waiting.cancel()
    assert waiting.result == []
    assert shared.waiting == []
    assert world.clock.getDelayedCalls() == [call for call in world.clock.getDelayedCalls() if call.time < 30]


@pytest.mark.parametrize("alone", [0, 1, 9], ids=["one run", "two runs", "a run of each"])
@pytest.mark.parametrize(
    ("quarters", "answers"),
    [
        ([2, 2, 2, 2], [2, 2]),
        ([5, 1], [1, 1]),
        ([1, 5, 1], [1, 1, 1]),
        ([3, 2, 2], [1, 2]),
        ([4, 1, 3], [1, 2]),
        ([1, 3, 1], [2, 1]),
    ],
)
def test_a_large_answer_is_cut_and_the_rest_is_leased_again(
    quarters: list[int], answers: list[int], alone: int
) -> None:
    """An answer has at least one record, of any size."""
    world = World()
    payloads = [bytes(ANSWER_BYTES // 4 * each) for each in quarters]
    for run in filter(None, [*([each] for each in payloads[:alone]), payloads[alone:]]):
        world.publish(*run)
    shared = world.create(first=10)
    assert [len(seqs(world.lease(shared, 9))) for _ in answers] == answers
    assert sum(answers) == len(quarters) == shared.pool.leased


def test_a_record_that_the_journal_has_lost_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    shared = world.create()
    real = RunReader.holding
    monkeypatch.setattr(
        RunReader,
        "holding",
        lambda self, *at: None if at[1] == 2 else real(self, *at).slice(at[1] - 1, at[1]),  # type: ignore[union-attr]
    )
    assert seqs(world.lease(shared, 3)) == [1, 3]
    assert shared.pool.lanes["s"].progress.counts["expired"] == 1


@pytest.mark.parametrize("key", [None, "topic"])
def test_a_gap_of_any_size_expires_at_once(key: str | None) -> None:
    """A standby that was promoted has such gaps in all streams."""
    world, end = World(), 1 << 36
    shared = world.create(key=key)
    world.settle(shared, world.lease(shared, 10).result)
    world.journal._ends["s"] = end
    world.broker.sequencer.restore(world.journal.ends())
    world.publish(b"x", b"x")
    found = world.lease(shared, 10, wait=30)
    assert seqs(found) == [end + 1, end + 2]
    assert shared.pool.lanes["s"].progress.counts["expired"] == end - 10


def test_a_deleted_record_whose_key_is_unknown_is_not_leased_from_memory() -> None:
    """Another subscription has just read it, so the server still has it in memory."""
    world = World()
    shared, other = world.create(key="topic", first=10), world.create("other", first=11)
    world.publish(b"x")
    assert seqs(world.lease(shared)) == [11]
    world.publish(b"x")
    assert seqs(world.lease(other)) == [12]
    world.journal.forget("s", 13)
    assert seqs(world.lease(shared)) == []
    assert shared.pool.lanes["s"].progress.counts["expired"] == 1


def test_memory_of_a_subscription_is_charged_and_released() -> None:
    world = World(budget=InFlight(limit=1 << 22))
    shared = world.create(window=1_000)
    assert world.broker.budget.kept == 1_000 * ENTRY_BYTES + ENTRY
    assert isinstance(
        failure(world.table.create("b", SubscriptionOptions(stream="s", window=4_000))), NoRoomForSubscription
    )
    world.table.delete(shared)
    assert world.broker.budget.kept == 0


def test_a_server_that_leads_again_refuses_the_requests_that_wait_and_reads_all_subscriptions_anew() -> None:
    world = World(budget=InFlight(limit=1 << 22))
    waiting = [world.lease(world.create(name, first=10), wait=30) for name in ("a", "b")]
    kept = world.broker.budget.kept
    world.table.open()
    assert [type(failure(each)) for each in waiting] == [SubscriptionInUse] * 2
    assert (sorted(world.table.entries), world.broker.budget.kept) == (["a", "b"], kept)


def test_one_creator_leaves_memory_and_places_to_others() -> None:
    world = World(budget=InFlight(limit=1 << 24), named_subscriptions=8)
    greedy, honest = (Creator(host=f"10.0.0.{number}") for number in (1, 2))
    made = 0
    for number in range(20):
        options = SubscriptionOptions(stream="s", window=2_000, creator=greedy)
        made += failure(world.table.create(f"greedy-{number}", options)) is None
    assert 0 < made <= 4
    assert failure(world.table.create("honest", SubscriptionOptions(stream="s", creator=honest))) is None


def test_a_pattern_says_which_streams_had_no_room_and_gets_them_later() -> None:
    world = World(named_subscriptions=5)
    others = [world.create(name) for name in ("a", "b")]
    for stream in ("logs.a", "logs.b", "logs.c"):
        world.broker.publish([Run.of(stream, [b"x", b"y"], source="test")])
    shared = world.table.create("logs", SubscriptionOptions(stream="logs.*", pattern=True), lambda stream: 1).result
    assert (len(shared.pool.lanes), shared.left_out) == (2, 1)
    for other in others:
        world.table.delete(other)
    world.clock.advance(CHECK)
    assert (len(shared.pool.lanes), shared.left_out) == (3, 0)
    assert sum(len(part.lease) for part in world.lease(shared, 9).result) == 3, "those behind the first of each"
    again: Any = World(world.journal, named_subscriptions=2).table.entries["logs"]
    assert again.pool.lanes.keys() == shared.pool.lanes.keys(), "a start with less room leaves out no leased record"


@pytest.mark.parametrize("seed", range(20))
def test_subscriptions_and_the_streams_of_their_patterns_have_the_places_that_there_are(seed: int) -> None:
    dice, most = Random(seed), 12
    world = World(named_subscriptions=most)
    table, patterns = world.table, ("logs.*", "logs.a*", "*", "other")
    creators = [Creator(host=host) for host in ("10.0.0.1", "10.0.0.2", "")]
    for number in range(40):
        if dice.random() < 0.4:
            creator, pattern, ack = dice.choice(creators), dice.choice(patterns), dice.choice(("each", "all"))
            options = SubscriptionOptions(stream=pattern, pattern=True, ack=ack, creator=creator)
            failure(table.create(f"n{number}", options))
        elif dice.random() < 0.7:
            world.broker.publish([Run.of(f"logs.{dice.choice('abcdefgh')}", [b"x"], source="test")])
        elif table.entries:
            table.delete(dice.choice(list(table.entries.values())))
        taken = {creator.network: 0 for creator in creators}
        for each in table.entries.values():
            taken[each.network] += 1 + len(each.tracks)
        assert {network: table.room.counts.used_by(network) for network in taken} == taken
        assert all(taken[network] <= most // 2 for network in taken if network), "one network leaves half to others"
        assert table.room.counts.used == sum(taken.values()) <= most


def test_a_retired_stream_of_a_pattern_is_forgotten_when_nobody_has_a_record_of_it() -> None:
    world = World()
    shared = world.table.create("logs", SubscriptionOptions(stream="logs.*", pattern=True, lease=9)).result
    empty = world.broker.budget.kept
    world.broker.publish([Run.of("logs.a", [b"x"] * 5, source="test")])
    (part,) = world.lease(shared, 3).result
    done, late = (Item("done", first, last, part.lease.token, "logs.a") for first, last in ((1, 2), (3, 3)))
    shared.act([done], "w")
    world.broker.retire_as("test", ["logs.a", "s"])
    other = world.broker.named.act(shared, [attrs.evolve(late, stream="s")], "w")
    assert isinstance(failure(other), InvalidPosition), "the pattern does not cover it"
    world.clock.pump([CHECK] * 4)
    assert (shared.places, world.lease(shared, consumer="v").result) == ({"logs.a": 2}, [])
    world.clock.pump([CHECK] * 40)
    assert (shared.places, world.broker.budget.kept) == ({}, empty)
    assert (describe(shared)["settled_total"], describe(shared)["expired_total"]) == (2, 3), "totals never fall"
    assert [why for _, why in world.broker.named.act(shared, [late], "w").result.refused] == ["lease-lost"]
    world.broker.publish([Run.of("logs.a", [b"x"], source="test")])
    assert shared.places == {"logs.a": 5}, "the numbers before are not missing"
    (part,) = world.lease(shared, 9).result
    shared.act([Item("done", 6, 6, part.lease.token, "logs.a")], "w")
    assert describe(shared)["expired_total"] == 3
    again: Any = World(world.journal).table.entries["logs"]
    assert again.places == {"logs.a": 6}
    assert (describe(again)["settled_total"], describe(again)["expired_total"]) == (3, 3)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_retired_stream_is_kept_for_its_dead_letters_until_retention_deletes_them(deleted: bool) -> None:
    world = World()
    options = SubscriptionOptions(stream="logs.*", pattern=True, limit=1, dead="dead")
    shared = world.table.create("logs", options).result
    world.broker.publish([Run.of("logs.a", [b"x"], source="test")])
    (part,) = world.lease(shared).result
    shared.act([Item("reject", 1, 1, part.lease.token, "logs.a")], "w")
    world.broker.retire_as("test", ["logs.a"])
    world.clock.pump([CHECK] * 4)
    assert shared.places == {"logs.a": 1}
    if deleted:
        world.journal.empty("dead")
        world.clock.pump([CHECK] * 4)
        assert shared.places == {}
        return
    assert world.broker.named.redrive(shared).result == (1, 0)
    (part,) = world.lease(shared).result
    assert part.lease.first == 2
    shared.act([Item("done", 2, 2, part.lease.token, "logs.a")], "w")
    world.broker.retire_as("test", ["logs.a"])
    world.clock.pump([CHECK] * 4)
    assert shared.places == {}, "no dead letter is left that may be published to it"
    assert (describe(shared)["settled_total"], describe(shared)["dead_total"]) == (1, 1)


def test_a_second_subscription_of_the_same_name_is_refused() -> None:
    world = World()
    world.create()
    world.broker.named.open("exclusive", "s", 0)
    for name, options in (
        ("exclusive", SubscriptionOptions(stream="s")),
        ("work", SubscriptionOptions(stream="s", lease=7)),
    ):
        assert isinstance(failure(world.table.create(name, options)), SubscriptionConflict)
    assert isinstance(failure(world.broker.named.open("work", "s", 0)), SubscriptionConflict)


def test_workers_that_create_a_subscription_at_the_same_time_share_it() -> None:
    world = World()
    world.journal.auto = False
    first, same, other = (
        world.table.create("work", SubscriptionOptions(stream="s", lease=lease)) for lease in (30, 30, 7)
    )
    world.journal.commit()
    assert same.result is first.result
    assert isinstance(failure(other), SubscriptionConflict)


def test_a_server_that_may_be_deposed_refuses_no_token_before_it_knows_that_it_leads() -> None:
    """The token may be one of the leader after it."""
    world = World()
    shared = world.create()
    world.lease(shared)
    item = Item("done", 1, 1, (2, 1))
    assert shared.act([item], "w").result.refused == [(item, "lease-lost")]
    world.journal.auto, world.journal.cluster = False, DOUBTED
    told = [shared.act([item], "w") for _ in range(2)]
    assert not any(each.called for each in told)
    world.journal.commit()
    assert [each.result.refused for each in told] == [[(item, "lease-lost")]] * 2
    deposed = shared.act([item], "w")
    world.journal.enter(JournalState.READ_ONLY, "another server leads")
    assert not deposed.called


def test_a_server_that_may_be_deposed_appends_one_proof_for_a_waiting_request() -> None:
    world = World()
    shared = world.create()
    world.journal.cluster = DOUBTED
    before = world.journal.bounds(STREAM)[1]
    leased = world.lease(shared, wait=30)
    assert not leased.called
    assert world.journal.bounds(STREAM)[1] <= before + 2, "the epoch, and one proof"
    world.clock.advance(CHECK)
    world.journal.cluster = Standing()
    world.clock.advance(CHECK)
    assert seqs(leased) == [1]


def test_requests_that_end_while_an_append_waits_are_refused_once_after_it() -> None:
    world = World()
    shared = world.create()
    world.journal.auto, world.journal.cluster = False, DOUBTED
    waiting = [world.lease(shared, consumer=f"w{number}", wait=1) for number in range(2)]
    world.journal.enter(JournalState.READ_ONLY, "the shared log does not answer")
    world.clock.advance(1)
    assert not any(each.called for each in waiting), "their connections are let go meanwhile"
    world.journal.commit()
    assert [type(failure(each)) for each in waiting] == [ReadOnly, ReadOnly]


def test_an_idle_subscription_writes_nothing() -> None:
    world = World()
    shared = world.create(first=10)
    world.journal.cluster = DOUBTED
    world.lease(shared, wait=300)
    before = world.journal.bounds(STREAM)[1]
    for _ in range(20):
        world.clock.advance(CHECK)
    assert world.journal.bounds(STREAM)[1] == before


def test_a_checkpoint_has_what_is_being_created() -> None:
    world = World()
    world.create()
    world.journal.auto = False
    world.table.create("other", SubscriptionOptions(stream="s"))
    world.journal.keeper.sealed = True
    world.clock.advance(2)
    world.journal.commit()
    world.journal.auto = True
    world.journal.forget(STREAM, world.table.stream.checkpoint)
    assert sorted(World(world.journal).table.entries) == ["other", "work"]


def test_an_answer_waits_for_what_it_says_is_final() -> None:
    world = World()
    shared = world.create()
    found = world.lease(shared).result
    world.journal.auto = False
    first, repeated = (world.settle(shared, found) for _ in range(2))
    assert (first.called, repeated.called) == (False, False)
    world.journal.commit()
    assert [why for _, why in repeated.result.refused] == ["final"]


def test_nothing_happens_of_a_request_that_is_refused() -> None:
    world = World()
    peer = world.broker.identified(Identity(host="10.0.0.1"))
    world.broker.guard.change(parse({"allow": [{"network": "10.0.0.1", "publish": "out"}]}))
    shared = world.create(dead="dead")
    done, rejected = (world.lease(shared).result[0].lease for _ in range(2))
    items = [Item("done", 1, 1, done.token), Item("reject", 2, 2, rejected.token, why="no")]
    before = world.journal.bounds(STREAM)[1]
    results = [Run.of("secret", [b"x"], source="test")]
    refused = shared.act(items, "w", results, peer.publish)
    assert isinstance(failure(refused), Forbidden)
    why = [Item("reject", 2, 2, rejected.token, why="\ud800")]
    assert isinstance(failure(shared.act(why, "w")), InvalidRun)
    assert (shared.pool.leased, world.journal.bounds("dead")[1], world.journal.bounds(STREAM)[1]) == (2, 0, before)
    results = [Run.of("out", [b"x"], source="test")]
    assert shared.act(items, "w", results, peer.publish).result.refused == []
    assert (world.journal.bounds("out")[1], world.journal.bounds("dead")[1]) == (1, 1)


def test_records_whose_dead_letters_are_refused_for_good_are_dead_without_a_copy() -> None:
    world = World()
    world.broker.guard.change(parse({"allow": [{"network": "10.0.0.1", "publish": "small"}]}))
    creator = Creator(host="10.0.0.1")
    for name, dead in (("a", "small"), ("b", "secret")):
        world.broker.restrict("small", 0)
        shared = world.create(name, limit=1, dead=dead, creator=creator, most=10)
        world.lease(shared, 10)
    world.clock.advance(31)
    assert [world.table.find(name).pool.lanes["s"].progress.counts["dead"] for name in "ab"] == [10, 10]
    assert [world.table.find(name).pool.lanes["s"].progress.counts["lost"] for name in "ab"] == [10, 10]
    assert "secret" not in world.journal.ends()


def test_leases_that_end_together_end_in_several_turns() -> None:
    world = World()
    world.publish(*[b"x"] * 3_000)
    shared = world.create(limit=1, dead="dead", window=3_000, most=3_000)
    world.lease(shared, 3_000)
    world.journal.auto = False
    world.clock.advance(31)
    dead = shared.pool.lanes["s"].progress.counts
    for turn in range(1, 7):
        assert dead["dead"] == turn * MOST_LETTERS, "the next turn begins when all is durable"
        world.journal.commit()
        world.clock.advance(0)
    assert (dead["dead"], world.journal.bounds("dead")[1]) == (3_000, 3_000)


def test_dead_letters_of_one_turn_are_stored_together() -> None:
    """A start reads the labels of each run of the journal."""
    world = World()
    for _ in range(20):
        world.publish(b"y")
    shared = world.create(limit=1, dead="dead", first=10, most=20)
    world.lease(shared, 20)
    world.clock.advance(31)
    (letters,) = world.journal.read("dead", 1, 1 << 20)
    assert [(each.producer, each.producer_seq) for each in letters.records()] == [("s", seq) for seq in range(11, 31)]


def test_a_request_rejects_what_one_turn_can_copy_and_refuses_the_rest_for_later() -> None:
    world = World()
    world.publish(*[bytes(LETTER_BYTES // 2)] * 4)
    shared = world.create(dead="dead", first=10)
    found = world.lease(shared, 4).result[0]
    outcome = shared.act([Item("reject", 11, 14, found.lease.token, why="no")], "w").result
    assert [(item.first, item.last, why) for item, why in outcome.refused] == [(13, 14, "later")]
    outcome = shared.act([Item("reject", 13, 14, found.lease.token, why="no")], "w").result
    assert (outcome.refused, world.journal.bounds("dead")[1]) == ([], 4)


def test_what_waits_for_its_workers_after_a_start_is_shown_with_the_time_until_then() -> None:
    world = World()
    shared = world.create(lease=30)
    world.settle(shared, world.lease(shared).result)
    assert describe(shared)["held_until"] is None
    world.lease(shared, most=2)
    again = World(world.journal)
    again.table.now = lambda: 5_000_000
    (found,) = again.table.entries.values()
    again.clock.advance(10)
    assert describe(found)["held_until"] == 25_000_000
    again.clock.advance(20)
    assert describe(found)["held_until"] is None


def test_a_stream_created_during_the_creation_of_a_pattern_subscription_joins_it() -> None:
    world = World()
    world.journal.auto = False
    world.table.create("work", SubscriptionOptions(stream="logs.*", pattern=True))
    world.broker.publish([Run.of("logs.a", [b"x"], source="test")])
    first, rest = world.journal.pending[:1], world.journal.pending[1:]
    world.journal.pending = first
    world.journal.commit()
    world.journal.pending = rest
    world.journal.auto = True
    world.journal.commit()
    assert seqs(world.lease(world.table.find("work"))) == [1]


def test_records_settled_in_the_commit_of_a_rewind_are_counted() -> None:
    world = World()
    shared = world.create()
    found = world.lease(shared, 2).result
    world.journal.auto = False
    results = [Run.of("results", [b"done"], source="test")]
    peer = world.broker.identified(Identity())
    # A commit settles the appends of an owner together: those of the server, the rewind among them, before the peer's.
    world.table.create("other", SubscriptionOptions(stream="s"))
    settled = world.settle(shared, found, runs=results, publish=peer.publish)
    rewound = shared.rewind({"s": 0})
    world.journal.commit()
    assert settled.called
    assert rewound.called
    lane = shared.pool.lanes["s"]
    assert lane.progress.counts["settled"] == 2
    assert lane.durable_floor == 0, "retention keeps the records, although they were settled before"
    again = world.lease(shared, 2)
    assert not again.called, "no durable reach includes them (rule 11)"
    world.journal.commit()
    assert seqs(again) == [1, 2]


def test_a_second_rewind_follows_the_first() -> None:
    world = World()
    shared = world.create()
    world.journal.auto = False
    shared.rewind({"s": 3})
    shared.rewind({"s": 5})
    world.journal.auto = True
    world.journal.commit()
    assert seqs(world.lease(shared)) == [6]


def test_a_subscription_that_is_being_deleted_settles_nothing() -> None:
    world = World()
    shared = world.create()
    leased = world.lease(shared, 2).result
    world.journal.auto = False
    world.table.delete(shared)
    assert isinstance(failure(world.settle(shared, leased)), SubscriptionGone)


@pytest.mark.parametrize("seed", range(10))
def test_a_subscription_is_logged_once_until_something_else_happens_and_a_network_once_in_a_second(
    seed: int, log_lines: list[str]
) -> None:
    """A tenant cannot fill the log, neither with many subscriptions nor with one that it creates again and again."""
    world, dice = World(), Random(seed)
    said, second_of, wanted, left_out = dict[str, str](), dict[str, int](), list[str](), 0
    for _ in range(200):
        host = dice.choice(("10.0.0.1", "10.0.0.2", ""))
        name = f"of-{host}-{dice.randrange(3)}"
        shared = world.table.entries.get(name) or world.create(name, creator=Creator(host=host))
        match dice.choice(("say", "say", "say", "delete", "time", "time")):
            case "delete":
                world.table.delete(shared)
                said.pop(name, None)
            case "time":
                world.clock.advance(dice.choice((0.25, 0.5, 1)))
            case _:
                what, second = dice.choice(("has {it}", "lacks {it}")), int(world.clock.seconds())
                log_lines.clear()
                world.table.say(shared, what, it="room")
                late = bool(host) and second_of.get(host) == second
                left_out += late and said.get(name) != what
                if said.get(name) == what or late:
                    wanted = []
                else:
                    said[name], second_of[host] = what, second
                    wanted = [f"subscription {name!r} {what.format(it='room')}"]
                assert log_lines == wanted, f"of {name} at {world.clock.seconds()} s, after {said} in {second_of}"
    assert left_out > 5, "some lines are left out"


@pytest.mark.parametrize("seed", range(20))
def test_each_dead_letter_of_a_subscription_is_published_again_once_and_others_are_passed(seed: int) -> None:
    """The stream of the dead letters also has records of others, and letters of streams that were retired."""
    world, dice = World(), Random(seed)
    shared = world.table.create("logs", SubscriptionOptions(stream="logs.*", pattern=True, dead="dead")).result
    world.broker.publish([Run.of(f"logs.{name}", [b"first"], source="test") for name in "ab"])
    world.table.most_redriven = dice.choice((1, 3, 1_000))
    wanted, there, done = list[tuple[str, bytes]](), 0, 0
    for _ in range(8):
        for _ in range(dice.randint(0, 6)):
            source, stream = dice.choice(
                ((SOURCE, "logs.a"), (SOURCE, "logs.b"), (SOURCE, "logs.gone"), ("http", "logs.a"))
            )
            size, count = dice.choice((1, 1, REDRIVE_BYTES // 2)), dice.randint(1, 3)
            payloads = [b"%d %d" % (there, each) + bytes(size) for each in range(count)]
            world.broker.publish([Run.of("dead", payloads, source=source, producer=stream)])
            there += count
            wanted += [
                (stream, payload) for payload in payloads if (source, stream[-1]) in ((SOURCE, "a"), (SOURCE, "b"))
            ]
        left, calls = 1, 0
        while left:
            found: list[Any] = []
            world.broker.named.redrive(shared).addBoth(found.append)
            done, left, calls = done + found[0][0], found[0][1], calls + 1
            assert found[0][0] <= world.table.most_redriven
            assert calls <= there + 1, f"{left} letters are left for ever"
        assert done == len(wanted), f"{done} of {len(wanted)} letters were published again"
    again = [
        (stream, bytes(record.payload))
        for stream in ("logs.a", "logs.b")
        for start in range(2, world.journal.bounds(stream)[1] + 1)
        for record in list(world.journal.read(stream, start, 1)[0].records())[:1]
    ]
    assert again == sorted(wanted, key=lambda each: each[0]), "other letters, or in another order"


def test_the_last_dead_letters_of_all_streams_are_shown() -> None:
    world, dice = World(), Random(7)
    options = SubscriptionOptions(stream="logs.*", pattern=True, limit=1, window=10_000, most=10_000)
    shared = world.table.create("logs", options).result
    died: dict[str, list[tuple[int, str, int]]] = {f"logs.{number}": [] for number in range(9)}
    for stream in died:
        world.broker.publish([Run.of(stream, [b"x"] * 40, source="test")])
    leases = {part.run.stream: part.lease for part in world.lease(shared, 1_000).result}
    for time in range(1, 250):
        world.table.now = lambda time=time: time
        stream = dice.choice([each for each in died if len(died[each]) < 40])
        seq = len(died[stream]) + 1
        shared.act([Item("reject", seq, seq, leases[stream].token, stream, why=f"no {time}")], "w")
        died[stream].append((time, stream, seq))
    kept = [each for letters in died.values() for each in letters[-KEPT_LETTERS:]]
    shown = SteppedWork(world.table.turns, show(shared)).begin().result["dead_letters"]
    assert [(each["time"], each["stream"], each["seq"]) for each in shown] == sorted(kept)[-MOST_SHOWN:]
    assert {each["why"] == f"no {each['time']}" and each["failures"] for each in shown} == {1}


def test_positions_of_a_pattern_in_streams_without_room_are_charged_to_its_creator() -> None:
    world = World(budget=InFlight(8 << 20), named_subscriptions=50)
    creator = Creator(host="10.0.0.1")
    for number in range(1_500):
        world.broker.publish([Run.of(f"evil.{number % 5}.{number}", [b"x"], source="test")])
    refused, made = (
        world.table.create(str(number), SubscriptionOptions(stream=stream, pattern=True, window=1, creator=creator))
        for number, stream in enumerate(("evil.*", "evil.0.*"))
    )
    world.clock.pump([0] * 100)
    assert isinstance(failure(refused), NoRoomForSubscription)
    assert made.result.left_out == 276
    assert world.table.room.memory.used == ENTRY + ENTRY_BYTES + 300 * PLACE
    world.table.delete(made.result)
    assert world.table.room.memory.used == 0
