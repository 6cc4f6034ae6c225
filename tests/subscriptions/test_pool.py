"""The rules of shared subscriptions, one by one; tests/verification/consumers runs them in random schedules."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from random import Random

import attrs
import pytest

from fyrehose.errors import PublishError
from fyrehose.records import LAST_SEQ
from fyrehose.subscriptions.lane import MOST_ENDS, UNTRIED, Draft, Lane, LeasedRange
from fyrehose.subscriptions.pool import MOST_CONSUMERS, TURN, Item, LeasePool, backoff, no_copy
from fyrehose.subscriptions.progress import FINAL, KEPT_LETTERS, StreamProgress, SubscriptionOptions


class World:
    """A pool whose drafts become durable when the test says so; its streams have ten records each."""

    def __init__(
        self,
        *streams: str,
        progress: StreamProgress | None = None,
        before: int = 0,
        keyed: bool = False,
        **options: int,
    ) -> None:
        self.now, self.oldest, self.last, self.trusted, self.full = 0.0, 1, 10, True, False
        self.lost: set[int] = set()
        self.waiting: list[Draft] = []
        chosen = SubscriptionOptions(stream="s", **{"lease": 10, "limit": 3, "window": 4, **options})
        self.pool = LeasePool(chosen, self.append, lambda: self.now, lambda: self.trusted, before=before)
        for stream in streams or ("s",):
            done, keys = progress or StreamProgress(), self.keys if keyed else None
            self.pool.lanes[stream] = Lane(stream, done, self.pool, self.bounds, keys)

    @property
    def lane(self) -> Lane:
        return next(iter(self.pool.lanes.values()))

    def bounds(self) -> tuple[int, int]:
        return self.oldest, self.last

    def keys(self, first: int, last: int) -> tuple[dict[int, str], int]:
        lacks = [seq < self.oldest or seq in self.lost for seq in range(first, self.last + 1)]
        same = next((number for number, each in enumerate(lacks) if each != lacks[0]), len(lacks))
        end = first + same - 1 if lacks[0] else min(last, first + same - 1)
        return {} if lacks[0] else {seq: ("even", "odd")[seq % 2] for seq in range(first, end + 1)}, end

    def append(self, draft: Draft) -> bool:
        if self.full:
            return False
        self.pool.accept(draft)
        self.waiting.append(draft)
        return True

    def commit(self) -> None:
        while self.waiting:
            self.pool.durable(self.waiting.pop(0))

    def lease(self, most: int = 1, consumer: str = "w", request: int | None = None) -> list[int]:
        """Lease as a request does that waits: again when what it needs is durable."""
        for _ in range(3):
            found = self.pool.lease(consumer, request, most)
            if found:
                return numbers(found)
            self.commit()
        return []

    def act(self, kind: str, first: int, last: int = 0, number: int = 1, epoch: int = 0, **how: object) -> list[str]:
        """Let a worker act on records, and return why each range was refused; the rest is appended."""
        token = (epoch or self.pool.epoch, number)
        outcome = self.pool.act([Item(kind, first, last or first, token, self.lane.stream, **how)], "w")  # type: ignore[arg-type]
        self.append(outcome.draft)
        return [why for _, why in outcome.refused]

    def ended(self, seq: int) -> tuple[int, int]:
        span = self.lane.spans.find(seq)
        assert span is not None
        return span.state.ended

    def count(self, how: str) -> int:
        return self.lane.progress.counts[how]

    def tick(self) -> None:
        self.pool.tick(look=True)


def numbers(leased: Sequence[LeasedRange]) -> list[int]:
    return [seq for each in leased for seq in range(each.first, each.last + 1)]


def test_epoch_and_highest_leasable_number_are_durable_before_the_first_lease() -> None:
    world = World()
    assert world.pool.lease("w", None, 1) == []
    assert [draft.epoch for draft in world.waiting] == [1]
    world.commit()
    assert world.pool.lease("w", None, 1) == []
    assert [draft.of(world.lane).reach for draft in world.waiting] == [1], "as many as are wanted"
    world.commit()
    assert numbers(world.pool.lease("w", None, 1)) == [1]


def test_settling_raises_the_highest_leasable_number_in_the_same_append() -> None:
    world = World()
    world.lease(4)
    world.act("done", 1, 2)
    change = world.waiting[-1].of(world.lane)
    assert (change.settled, change.reach) == ([(1, 2)], 5)
    world.commit()
    assert (world.lane.durable_floor, world.lease(9)) == (2, [5])


def test_a_change_that_is_refused_changes_nothing() -> None:
    world = World()
    world.lease(4)
    world.full = True
    assert world.act("done", 1) == []
    assert (world.pool.open, world.lane.progress.final.floor, world.lease(9)) == (4, 0, [])
    world.now = 20.0
    world.tick()
    assert (world.pool.leased, world.ended(1)) == (4, (0, 0))
    world.full = False
    world.tick()
    world.commit()
    assert (world.pool.leased, world.ended(1)) == (0, (1, 1))


def test_the_end_of_a_lease_is_durable_before_the_record_is_leased_again() -> None:
    world = World()
    world.lease(2)
    world.act("failed", 1, delay=0.0)
    assert world.pool.lease("x", None, 1) == []
    world.commit()
    assert numbers(world.pool.lease("x", None, 1)) == [1]


def test_a_record_returned_untried_counts_as_failed_only_after_many_times() -> None:
    world = World(limit=2)
    for number in range(1, 22):
        world.lease()
        world.act("untried", 1, number=number, delay=0.0)
        world.commit()
    assert world.ended(1) == (21, 1)


def started(**options: int) -> World:
    """Return a server after a start: records up to 4 were within reach, record 1 is settled, 2 has failed once."""
    before = StreamProgress()
    before.apply({"final": [1], "reach": 4, "ends": [[2, 2, 1, 1]]})
    return World(progress=before, before=1, window=8, **options)


def test_after_a_start_records_that_may_be_leased_wait_for_a_lease_time() -> None:
    world = started()
    assert world.lease(9) == [5, 6, 7, 8, 9], "nobody has had them"
    assert world.pool.holds
    world.now = 10.0
    assert world.lease(9)[:3] == [2, 3, 4]
    assert not world.pool.holds


def test_records_that_were_published_after_a_start_do_not_wait() -> None:
    before = StreamProgress()
    before.apply({"reach": 1_000})
    world = World(progress=before, before=1, window=2_000)
    world.lane.arrived(20)
    assert world.lease(99) == list(range(11, 21))


def test_an_orderly_stop_notes_what_is_leased() -> None:
    world = World(window=8)
    world.lease(4)
    world.act("done", 4)
    world.act("untried", 2, delay=0.0)
    world.lane.progress.reach = 9
    stop = world.pool.stop().of(world.lane)
    assert (stop.reach, stop.hold) == (4, [(1, 1), (3, 3)])
    assert world.lease() == [], "a server that stops leases nothing"


@pytest.mark.parametrize(("stops", "hold"), [(9.9, [(2, 6)]), (10.0, [(2, 2), (5, 6)])])
def test_after_an_orderly_stop_only_what_was_leased_waits_also_over_another_stop(
    stops: float, hold: list[tuple[int, int]]
) -> None:
    before = StreamProgress()
    before.apply({"final": [1], "reach": 6, "ends": [[2, 2, 1, 1]], "hold": [[3, 4]]})
    world, again = (World(progress=copy.deepcopy(before), before=1, window=8) for _ in range(2))
    for each in (world, again):
        assert each.lease(3) == [2, 5, 6]
    world.now = 10.0
    assert world.lease(2) == [3, 4]
    again.now = stops
    assert again.pool.stop().of(again.lane).hold == hold


def test_a_start_with_many_separate_failures_looks_at_each_record_few_times() -> None:
    before = StreamProgress()
    before.apply({"reach": 1_000, "ends": [[seq, seq, 1, 1] for seq in range(1, 1_000, 2)]})
    world = World(window=1_000)
    world.last = 1_000
    assert len(Lane("t", before, world.pool, world.bounds).spans) == 1_000
    assert next(world.pool.order) < 3_000, "each alarm and each place in a queue takes a number"


def test_a_worker_of_the_previous_epoch_settles_or_extends_its_records() -> None:
    world = started()
    assert world.act("done", 2, epoch=1) == ["lease-lost"], "the delivery 1 had ended"
    assert world.act("done", 3, epoch=9) == ["lease-lost"]
    world.lease()
    assert world.act("extend", 3, epoch=1) == []
    assert world.act("done", 2, number=2, epoch=1) == []
    world.commit()
    world.now = 10.0
    assert world.lease(1, consumer="x") == [4]
    assert world.act("done", 3) == [], "with the token of this epoch"


def test_a_worker_whose_extension_was_not_answered_still_has_the_lease() -> None:
    """The lost answer had the new token, so the worker repeats its request with the one of the epoch before."""
    world = started()
    world.lease()
    for kind in ("extend", "extend", "failed"):
        assert world.act(kind, 3, epoch=1) == []
    assert world.act("extend", 4, epoch=1) == []
    world.now = 20.0
    world.tick()
    world.commit()
    assert world.act("done", 4, epoch=1) == ["lease-lost"], "the lease has ended"
    assert world.act("done", 2, number=2, epoch=1) == [], "the hold has ended, but nobody else has had it"


def test_a_server_that_may_be_deposed_leases_and_extends_nothing() -> None:
    world = World()
    world.lease()
    world.trusted = False
    assert world.pool.lease("w", None, 1) == []
    assert world.act("extend", 1) == ["not-leading"]
    assert world.act("done", 1) == [], "an append is fenced by the shared log"


def test_a_deleted_record_of_the_previous_epoch_expires_after_a_lease_time() -> None:
    world = started()
    world.oldest = 4
    world.tick()
    assert world.waiting == []
    world.now = 10.0
    world.tick()
    world.commit()
    assert world.count("expired") == 2


def test_nothing_is_leased_while_a_deleted_record_may_have_any_key() -> None:
    """While a worker may be at it, nothing is leased: its key is not known any more."""
    before = StreamProgress()
    before.apply({"reach": 3})
    world = World(progress=before, before=1, keyed=True)
    world.oldest = 2
    assert world.lease(9) == []
    world.oldest, world.now = 3, 10.0
    world.tick()
    assert (world.count("expired"), world.pool.lease("w", None, 9)) == (2, []), "the end of 1 and 2 is not durable"
    assert world.lease(9) == [3]


def test_nothing_is_leased_behind_a_deleted_record_until_its_end_is_durable() -> None:
    """Its key could be that of any other."""
    world = World(keyed=True)
    world.lost = {2, 3}
    assert world.lease(1) == [1]
    assert world.pool.lease("w", None, 9) == []
    world.commit()
    assert world.pool.lease("w", None, 9) == []
    assert (world.count("expired"), world.pool.lease("w", None, 9)) == (2, [])
    world.commit()
    assert world.lease(9) == [4]


def test_a_deleted_record_that_was_never_leased_is_waited_for_by_its_key() -> None:
    world = World(keyed=True)
    assert world.lease(1) == [1]
    world.oldest, world.lane.durable_reach = 3, 8
    world.tick()
    assert (world.count("expired"), world.pool.lease("w", None, 9)) == (1, [])
    world.commit()
    assert world.lease(9) == [4]


def test_a_record_without_a_known_key_expires_although_the_journal_has_it_again() -> None:
    """A clock that steps back makes records young again; the keys of other records were read without it."""
    before = StreamProgress()
    before.apply({"reach": 2})
    world = World(progress=before, before=1, keyed=True)
    world.oldest = 3
    assert world.lease(9) == []
    world.oldest, world.now = 1, 10.0
    assert world.lease(9) == []
    world.tick()
    world.commit()
    assert (world.count("expired"), world.lease(9)) == (2, [3, 4])


def test_a_refused_expiry_is_tried_again() -> None:
    world = World()
    world.oldest, world.full = 3, True
    world.tick()
    assert world.count("expired") == 0
    world.full = False
    world.tick()
    assert world.count("expired") == 2


def test_a_leased_record_that_the_journal_lacks_expires() -> None:
    world, draft = World(), Draft()
    world.lease(2)
    world.lane.missing(draft, 1, 1)
    world.append(draft)
    assert (world.count("expired"), world.pool.held["w"]) == (1, 1)


@pytest.mark.parametrize(("failures", "delay"), [(1, 1), (2, 2), (5, 16), (99, 300)])
def test_the_delay_doubles_with_each_failure(failures: int, delay: float) -> None:
    assert backoff(failures) == delay


def test_streams_take_turns() -> None:
    world = World("a", "b", "c", window=99)
    for _ in range(3):
        world.lease(3)
    found: dict[str, int] = {}
    for _ in range(3):
        for each in world.pool.lease("w", None, 6):
            found[each.lane.stream] = found.get(each.lane.stream, 0) + len(each)
        world.commit()
    assert set(found) == {"a", "b", "c"}


def test_a_repeated_request_gets_the_same_leases_as_long_as_they_last() -> None:
    world = World()
    assert world.lease(3, request=1) == [1, 2, 3]
    world.now = 6.0
    assert world.lease(3, request=1) == [1, 2, 3]
    world.now = 12.0
    world.act("done", 2)
    assert world.lease(3, request=1) == [1, 3], "the repetition has renewed them"
    assert world.lease(1, request=2) == [4]


def test_only_the_last_requests_of_the_latest_consumers_are_remembered() -> None:
    world = World(window=MOST_CONSUMERS + 9)
    world.lane.arrived(MOST_CONSUMERS + 9)
    for number in range(MOST_CONSUMERS):
        world.lease(1, request=1, consumer=f"w{number}")
    world.lease(1, request=2, consumer="w0")
    assert (world.pool.repeats("w0", 1), world.pool.repeats("w0", 2)) == (False, True)
    world.lease(1, request=1, consumer="last")
    kept = [number for number in range(MOST_CONSUMERS) if world.pool.repeats(f"w{number}", 1 + (not number))]
    assert kept == [0, *range(2, MOST_CONSUMERS)], "the consumer goes that asked longest ago"


def test_a_full_disk_leaves_no_work_for_another_turn_which_would_be_refused_too() -> None:
    world = World(window=TURN + 10, most=TURN + 10)
    world.lane.arrived(TURN + 10)
    for number in range(TURN + 1):
        world.lease(consumer=f"w{number % 2}")
    world.commit()
    world.now, world.full = 11.0, True
    world.tick()
    assert not world.pool.more
    world.full = False
    world.tick()
    assert world.pool.more, "one lease is left"


def test_a_request_with_results_does_nothing_if_one_record_is_refused() -> None:
    world = World()
    world.lease(2)
    items = [Item("done", 1, 1, (1, 1)), Item("done", 2, 2, (7, 7))]
    outcome = world.pool.act(items, "w", whole=True)
    assert (outcome.draft.changes, outcome.refused) == ({}, [(items[1], "lease-lost")])


@pytest.mark.parametrize("deleted", [False, True], ids=["written later", "stream deleted"])
def test_dead_letters_block_the_pool_only_while_they_cannot_be_written(deleted: bool) -> None:
    def refuse(draft: Draft, lane: Lane, first: int, last: int) -> int:
        raise PublishError("the disk is full")

    world = World("s", "t", window=3 * TURN, most=3 * TURN, limit=1)
    world.lane.arrived(2 * TURN)
    while len(world.lease()) == 1:
        pass
    world.now, world.pool.copy = 11.0, refuse
    world.tick()
    assert (str(world.pool.blocked), world.pool.more) == ("the disk is full", False)
    world.pool.copy = no_copy
    if deleted:
        del world.pool.lanes["s"]
    world.tick()
    assert (world.pool.blocked, world.pool.more) == (None, True)


def test_a_request_changes_a_bounded_number_of_ranges() -> None:
    """The rest is refused for now, so that the worker asks again in another turn."""
    world = World(window=3 * TURN, most=3 * TURN)
    world.lane.arrived(3 * TURN)
    world.lease(3 * TURN)
    apart = [Item("failed", seq, seq, (1, 1), delay=0.0) for seq in range(1, 2 * MOST_ENDS + 4, 2)]
    outcome = world.pool.act(apart, "w")
    world.append(outcome.draft)
    assert outcome.refused == [(apart[-2], "later"), (apart[-1], "later")]
    apart = [Item("done", seq, seq, (1, 1)) for seq in range(2 * MOST_ENDS + 4, 2 * MOST_ENDS + 2 * TURN + 8, 2)]
    done = world.pool.act(apart, "w")
    assert sum(map(len, (Item("done", *each, (1, 1)) for each in done.settled["s"]))) == TURN
    assert done.refused == [(apart[-2], "later"), (apart[-1], "later")]


@attrs.define
class Known:
    """The state of a record: how many leases have ended and how many failed, and who has it now.

    :ivar consumer: who has it; empty: nobody
    :ivar until: when its lease, or its delay, ends; -1: it was never leased
    """

    deliveries: int = 0
    failures: int = 0
    consumer: str = ""
    until: float = -1.0
    final: str = ""

    def refusal(self, kind: str, number: int) -> str:
        """Return why *kind* with the token *number* is refused; empty: it is not."""
        if self.final:
            return "final"
        late = kind == "done" and number == self.deliveries > 0
        return "" if (number == self.deliveries + 1 if self.consumer else late) else "lease-lost"


class Table:
    """A pool of one stream, and a plain table of its records; what is appended is durable at once."""

    def __init__(self, seed: int) -> None:
        self.dice, self.did = Random(seed), Counter[str]()
        self.limit = self.dice.choice((0, 1, 3))
        self.world = World(window=8, most=6, limit=self.limit)
        self.world.lane.durable_reach, self.world.last = LAST_SEQ, 60
        self.world.lane.arrived(60)
        self.records = {seq: Known() for seq in range(1, 61)}
        self.letters: list[tuple[int, int, str, int]] = []
        self.late = self.redelivered = 0

    def open(self) -> list[int]:
        return [seq for seq, known in self.records.items() if known.until >= 0 and not known.final]

    def give_back(self, seq: int, failed: bool, delay: float | None, why: str) -> None:
        """End the lease of record *seq*."""
        known = self.records[seq]
        known.deliveries, known.consumer = known.deliveries + 1, ""
        known.failures += failed or bool(self.limit and known.deliveries - known.failures > UNTRIED * self.limit)
        known.until = self.world.now + (backoff(known.failures) if delay is None else delay)
        if seq < self.world.oldest:
            known.final = "expired"
        elif why or 0 < self.limit <= known.failures:
            known.final = "dead"
            self.letters.append((seq, known.failures, why or "limit", 0))

    def lease(self) -> None:
        world, consumer, asked = self.world, self.dice.choice("wx"), self.dice.randint(1, 8)
        held = sum(each.consumer == consumer and not each.final for each in self.records.values())
        most = max(0, min(asked, 6 - held))
        ready = [seq for seq in self.open() if not self.records[seq].consumer and self.records[seq].until <= world.now]
        new = [seq for seq, each in self.records.items() if each.until < 0 and not each.final][: 8 - len(self.open())]
        first = ready[: (most + 1) // 2]
        first += new[: most - len(first)]
        wanted = first + ready[(most + 1) // 2 :][: most - len(first)]
        assert sorted(world.lease(asked, consumer)) == sorted(wanted), f"{consumer} has {held} and asks for {asked}"
        for seq in wanted:
            self.redelivered += self.records[seq].deliveries > 0
            self.records[seq].consumer, self.records[seq].until = consumer, world.now + 10

    def act(self) -> None:
        """Let worker "w" say several things about records, with tokens of which some are wrong."""
        dice, world, items = self.dice, self.world, list[Item]()
        for _ in range(dice.randint(1, 3)):
            first = dice.choice([*self.open(), dice.randint(1, 60)])
            number = self.records[first].deliveries + dice.choice((0, 1, 1, 1, 1, 2))
            kind, why = dice.choice(("done", "done", "failed", "untried", "reject", "extend")), dice.choice(("", "bad"))
            delay = dice.choice((None, 0.0, 4.0))
            token = world.pool.epoch, number
            items.append(Item(kind, first, first + dice.randint(0, 3), token, "s", delay, why * (kind == "reject")))
        before = {seq: attrs.evolve(known) for seq, known in self.records.items()}
        refused, taken, extended = Counter[tuple[str, int, str]](), set[int](), set[int]()
        for item in sorted(items, key=lambda item: (item.kind != "done", item.kind == "extend")):
            for seq in range(item.first, item.last + 1):
                why = before.get(seq, Known()).refusal(item.kind, item.token[1])
                if not why and seq in taken:
                    why = "" if item.kind == "done" else "lease-lost"
                elif not why:
                    self.said(item, seq)
                    taken.add(seq)
                    extended |= {seq} if item.kind == "extend" else set()
                refused[item.kind, seq, why] += bool(why)
                self.did[f"{item.kind} {why}"] += 1
        outcome = world.pool.act(items, "w")
        world.append(outcome.draft)
        found = Counter(
            (item.kind, seq, why) for item, why in outcome.refused for seq in range(item.first, item.last + 1)
        )
        assert found == +refused, f"of {items}"
        again = {(seq, token[1]) for item, token in outcome.extended for seq in range(item.first, item.last + 1)}
        assert again == {(seq, self.records[seq].deliveries + 1) for seq in extended}, f"extended by {items}"
        self.late += refused.total()

    def said(self, item: Item, seq: int) -> None:
        known = self.records[seq]
        if item.kind == "done":
            known.final = "settled"
        elif item.kind == "extend":
            known.consumer, known.until = "w", self.world.now + 10
        else:
            why = item.why or ("rejected" if item.kind == "reject" else "")
            self.give_back(seq, item.kind != "untried", item.delay, why)

    def time(self) -> None:
        self.world.now += self.dice.choice((1.0, 3.0, 11.0))
        self.look()

    def retention(self) -> None:
        self.world.oldest += self.dice.randint(0, 2)
        self.look()

    def look(self) -> None:
        """Let what is over end, and what is deleted expire."""
        self.world.tick()
        for seq, known in self.records.items():
            if known.consumer and known.until <= self.world.now and not known.final:
                self.give_back(seq, True, None, "")
            elif seq < self.world.oldest and not known.consumer and not known.final:
                known.final = "expired"

    def withdraw(self) -> None:
        """Take back a lease that was not sent."""
        seq = self.dice.choice([seq for seq in self.open() if self.records[seq].consumer] or [0])
        if seq:
            self.world.lane.withdraw(seq, seq)
            self.records[seq].consumer, self.records[seq].until = "", 0.0

    def release(self) -> None:
        for draft in self.world.pool.release("x"):
            self.world.append(draft)
        for seq in self.open():
            if self.records[seq].consumer == "x":
                self.give_back(seq, False, 0, "")

    def check(self) -> None:
        world, pool, records = self.world, self.world.pool, self.records.values()
        states = {span.first + n: span.state for span in world.lane.spans for n in range(len(span))}
        assert {seq: state.ended for seq, state in states.items()} == {
            seq: (self.records[seq].deliveries, self.records[seq].failures) for seq in self.open()
        }, "how often each record was delivered, and failed"
        holders = Counter(each.consumer for each in records if each.consumer and not each.final)
        assert (pool.held, pool.leased, pool.open) == (holders, holders.total(), len(self.open())), "leases are counted"
        delayed = sum(
            known.until > world.now and not known.consumer for known in map(self.records.get, self.open()) if known
        )
        assert pool.delayed == delayed, "records wait for their delay"
        ends = {kind: sum(known.final == kind for known in records) for kind in FINAL}
        assert {kind: world.count(kind) for kind in FINAL} == ends, "other records have ended"
        letters = world.lane.progress.letters
        assert (set(letters) - set(self.letters), len(letters)) == (set(), min(len(self.letters), KEPT_LETTERS))
        assert (pool.late, pool.redelivered) == (self.late, self.redelivered), "refused and repeated leases are counted"


@pytest.mark.parametrize("seed", range(0, 40, 10))
def test_random_leases_agree_with_a_plain_table_of_the_records(seed: int) -> None:
    did = Counter[str]()
    for number in range(seed, seed + 10):
        table = Table(number)
        for _ in range(60):
            step = table.dice.choice((*["lease", "act"] * 3, "time", "time", "withdraw", "release", "retention"))
            getattr(table, step)()
            table.world.commit()
            table.check()
        did.update(table.did)
    assert min(did[f"{kind} {why}"] for kind in ("done", "failed", "extend") for why in ("", "final", "lease-lost")) > 5
