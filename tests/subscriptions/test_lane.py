"""The rules of shared subscriptions, one by one; tests/verification/consumers runs them in random schedules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fyrehose.subscriptions.lane import Group, Lane, LaneChange, Leased, OpenRecord, backoff
from fyrehose.subscriptions.progress import ShareOptions, StreamProgress, merged


class World:
    """A lane whose batches become durable when the test says so."""

    def __init__(
        self, progress: StreamProgress | None = None, before: int = 0, keyed: bool = False, **options: int
    ) -> None:
        self.now, self.oldest, self.last, self.trusted = 0.0, 1, 10, True
        self.waiting: list[LaneChange] = []
        chosen = ShareOptions(stream="s", **{"lease": 10, "limit": 3, "window": 4, **options})
        self.group = Group(chosen, self.append, lambda: self.now, lambda: self.trusted, before=before)
        keys_of = self.keys if keyed else None
        self.lane = Lane(self.group, "s", progress or StreamProgress(), self.bounds, keys_of)

    def bounds(self) -> tuple[int, int]:
        return self.oldest, self.last

    def keys(self, first: int, last: int) -> dict[int, str]:
        return {seq: ("even", "odd")[seq % 2] for seq in range(max(first, self.oldest), last + 1)}

    def append(self, batches: Sequence[LaneChange]) -> None:
        self.waiting += batches

    def commit(self) -> None:
        while self.waiting:
            self.group.committed(self.waiting.pop(0))

    def refuse(self) -> None:
        waiting, self.waiting = self.waiting, []
        for batch in waiting:
            self.group.undone(batch)

    def lease(self, most: int = 1, consumer: str = "w") -> list[int]:
        """Lease as a request does that waits: again when what it needs is durable."""
        for _ in range(3):
            found = self.lane.lease(consumer, most)
            if found:
                return numbers(found)
            self.commit()
        return []

    def settle(self, *seqs: int) -> None:
        batch = LaneChange(self.lane)
        self.lane.settle(merged((seq, seq) for seq in seqs), batch)
        self.append([batch])

    def fail(self, seq: int, **how: object) -> None:
        batch = LaneChange(self.lane)
        self.lane.give_back(seq, batch, **{"failed": True, "delay": 0.0, **how})
        if batch.ended:
            self.append([batch])

    def entry(self, seq: int) -> OpenRecord:
        return self.lane.entries[seq]


def numbers(leased: Sequence[Leased]) -> list[int]:
    return [seq for each in leased for seq in range(each.first, each.last + 1)]


def test_epoch_and_highest_leasable_number_are_durable_before_the_first_lease() -> None:
    world = World()
    assert world.lane.lease("w", 1) == []
    assert [batch.epoch for batch in world.waiting] == [1]
    world.commit()
    assert world.lane.lease("w", 1) == []
    assert [batch.reach for batch in world.waiting] == [4]
    world.commit()
    assert numbers(world.lane.lease("w", 1)) == [1]


def test_settling_raises_the_highest_leasable_number_in_the_same_append() -> None:
    world = World()
    world.lease(4)
    world.settle(1, 2)
    assert (world.waiting[-1].settled, world.waiting[-1].reach) == ([(1, 2)], 6)
    world.commit()
    assert world.lane.progress.final.floor == 2
    assert numbers(world.lane.lease("w", 9)) == [5, 6]


def test_at_most_a_window_of_records_is_open() -> None:
    world = World()
    assert world.lease(9) == [1, 2, 3, 4]
    assert world.lease(9) == []
    world.settle(3)
    assert world.lease(9) == [5], "a settling counts at once"


def test_a_record_whose_settling_is_being_written_cannot_be_settled_again() -> None:
    world = World()
    world.lease()
    world.settle(1)
    assert world.lane.why_not(1, (1, 1)) == "being-settled"
    world.commit()
    assert world.lane.why_not(1, (1, 1)) == "final"


def test_a_lease_does_not_end_while_its_settling_is_written() -> None:
    world = World()
    world.lease()
    world.settle(1)
    world.now = 20.0
    world.lane.tick()
    assert len(world.waiting) == 1


def test_a_refused_settling_is_undone() -> None:
    world = World()
    world.lease(4)
    world.settle(1)
    world.refuse()
    assert (world.lane.why_not(1, (1, 1)), world.group.open) == ("", 4)
    assert world.lease(9) == []
    world.now = 20.0
    world.lane.tick()
    assert sorted(world.waiting[0].ended) == [1, 2, 3, 4]


def test_the_end_of_a_lease_is_durable_before_the_record_is_leased_again() -> None:
    world = World()
    world.lease()
    world.fail(1)
    assert numbers(world.lane.lease("x", 1)) == [2]
    world.commit()
    assert numbers(world.lane.lease("x", 1)) == [1]
    assert world.lane.holds(1, (1, 2))


def test_only_the_token_of_the_last_lease_settles_a_record() -> None:
    world = World()
    world.lease()
    world.fail(1)
    world.commit()
    assert world.lane.why_not(1, (1, 1)) == "", "it is late, and nobody else has had the record"
    assert not world.lane.holds(1, (1, 1)), "returning late does not count"
    assert world.lane.extend(1, (1, 1), "w") is None
    world.lease()
    assert world.lane.why_not(1, (1, 1)) == "lease-lost"
    assert world.lane.why_not(1, (1, 2)) == ""
    assert world.lane.why_not(99, (1, 1)) == "lease-lost"


def test_leases_end_by_themselves_and_count_as_failures() -> None:
    world = World()
    world.lease(2)
    world.lane.extend(2, (1, 1), "w")
    world.now = 5.0
    world.lane.extend(2, (1, 1), "w")
    world.now = 10.0
    world.lane.tick()
    assert [batch.ended for batch in world.waiting] == [{1: (1, 1)}]
    world.commit()
    world.now = 10.0 + backoff(1)
    assert world.lease() == [1]


def test_the_last_failure_makes_a_dead_letter() -> None:
    world = World(limit=2)
    world.lease()
    world.fail(1)
    world.commit()
    world.lease()
    world.fail(1)
    assert [(batch.letter, batch.ended) for batch in world.waiting] == [((1, 2, "limit", 0), {})]
    world.commit()
    assert (world.lane.progress.counts["dead"], world.lane.progress.final.floor) == (1, 1)


def test_without_a_limit_there_are_no_dead_letters() -> None:
    world = World(limit=0)
    for _ in range(20):
        world.lease()
        world.fail(1)
        world.commit()
    assert world.entry(1).ended == (20, 20)


def test_a_record_returned_untried_counts_as_failed_only_after_many_times() -> None:
    world = World(limit=2)
    for _ in range(20):
        world.lease()
        world.fail(1, failed=False)
        world.commit()
    assert world.entry(1).ended == (20, 0)
    world.lease()
    world.fail(1, failed=False)
    world.commit()
    assert world.entry(1).ended == (21, 1)


def test_a_rejected_record_is_a_dead_letter_at_once() -> None:
    world = World()
    world.lease()
    world.fail(1, why="no address")
    assert world.waiting[-1].letter == (1, 1, "no address", 0)


def test_returned_records_take_at_most_half_of_an_answer() -> None:
    world = World(window=8, limit=0)
    world.lease(4)
    for seq in (1, 2, 3, 4):
        world.fail(seq)
    world.commit()
    assert world.lease(4) == [1, 2, 5, 6]
    assert world.lease(4) == [3, 4, 7, 8]


def started(**options: int) -> World:
    """Return a server after a start: records up to 4 were within reach, record 1 is settled, 2 has failed once."""
    before = StreamProgress()
    before.apply({"final": [1], "reach": 4, "ends": {"2": [1, 1]}})
    return World(before, before=1, window=8, **options)


def test_after_a_start_records_that_may_be_leased_wait_for_a_lease_time() -> None:
    world = started()
    assert world.lease(9) == [5, 6, 7, 8, 9], "nobody has had them"
    world.now = 10.0
    assert world.lease(9)[:3] == [2, 3, 4]


def test_a_worker_of_the_previous_epoch_settles_or_extends_its_records() -> None:
    world = started()
    assert world.lane.why_not(3, (1, 1)) == ""
    assert world.lane.why_not(2, (1, 1)) == "lease-lost", "the delivery 1 had ended"
    assert world.lane.why_not(2, (1, 2)) == ""
    assert world.lane.why_not(3, (0, 1)) == "lease-lost", "an epoch before"
    world.lease()
    assert world.lane.extend(3, (1, 1), "w") == (2, 1)
    world.settle(2)
    world.commit()
    world.now = 10.0
    world.lane.tick()
    assert numbers(world.lane.lease("x", 9))[:1] == [4]


def test_a_server_that_may_be_deposed_leases_and_extends_nothing() -> None:
    world = World()
    world.lease()
    world.trusted = False
    assert world.lane.lease("w", 1) == []
    assert world.lane.extend(1, (1, 1), "w") is None
    assert world.lane.why_not(1, (1, 1)) == "", "an append is fenced by the shared log"


def test_records_of_a_key_are_leased_one_at_a_time() -> None:
    world = World(keyed=True)
    assert world.lease(9) == [1, 2]
    world.settle(1)
    assert world.lane.lease("w", 9) == [], "its end is not durable"
    world.commit()
    assert world.lease(9) == [3]
    world.fail(2)
    world.commit()
    assert world.lease(9) == [2], "4 waits for it"


def test_a_deleted_record_expires_at_once_if_it_waits_or_else_with_its_lease() -> None:
    world = World()
    world.lease()
    world.oldest = 8
    world.lane.tick()
    world.commit()
    assert world.lane.progress.counts["expired"] == 6
    assert world.lane.why_not(1, (1, 1)) == ""
    world.now = 10.0
    world.lane.tick()
    world.commit()
    assert (world.lane.progress.counts["expired"], world.lane.progress.final.floor) == (7, 7)


def test_a_deleted_record_of_the_previous_epoch_expires_after_a_lease_time() -> None:
    world = started()
    world.oldest = 4
    world.lane.tick()
    assert world.waiting == []
    world.now = 10.0
    world.lane.tick()
    world.commit()
    assert world.lane.progress.counts["expired"] == 2


def test_nothing_is_leased_while_a_deleted_record_may_have_any_key() -> None:
    """While a worker may be at it, nothing is leased: its key is not known any more."""
    before = StreamProgress()
    before.apply({"reach": 2})
    world = World(before, before=1, keyed=True)
    world.oldest = 3
    world.lane = Lane(world.group, "s", before, lambda: (world.oldest, world.last), world.lane.keys)
    assert world.lease(9) == []
    world.now = 10.0
    assert world.lease(9) == [3, 4]


def test_a_refused_expiry_is_tried_again() -> None:
    world = World()
    world.oldest = 3
    world.lane.tick()
    world.refuse()
    assert world.lane.appended().counts["expired"] == 0
    world.lane.tick()
    world.commit()
    assert world.lane.progress.counts["expired"] == 2


def test_a_checkpoint_has_all_changes_that_were_appended() -> None:
    world = World()
    world.lease(4)
    world.settle(1)
    world.fail(2)
    appended = world.lane.appended()
    assert (appended.counts["settled"], appended.final.floor, appended.ends) == (1, 1, {2: (1, 1)})
    assert world.lane.progress.counts["settled"] == 0
    world.refuse()
    assert (world.lane.appended().counts["settled"], world.lane.appended().ends) == (0, {})


def test_nothing_is_appended_or_forgotten_while_a_rewind_is_written() -> None:
    world = World(limit=0)
    world.lease(2)
    world.fail(1)
    world.oldest = 2
    world.lane.tick()
    world.group.rewinding = True
    world.commit()
    assert world.waiting == [], "retention has deleted the record, and the rewind forgets it"
    world.group.rewinding = False
    world.lane.resume()
    world.commit()
    assert world.lane.progress.counts["expired"] == 1


def test_a_leased_record_that_the_journal_lacks_expires() -> None:
    world = World()
    world.lease(2)
    world.lane.missing(1, 1)
    world.commit()
    assert (world.lane.progress.counts["expired"], world.group.held["w"]) == (1, 1)


def test_a_withdrawn_lease_does_not_count_as_a_failure() -> None:
    world = World()
    world.lease(2)
    world.lane.withdraw(2, 2)
    assert world.group.held["w"] == 1
    assert world.lease() == [2]
    assert world.lane.holds(2, (1, 1))


@pytest.mark.parametrize(("failures", "delay"), [(1, 1), (2, 2), (5, 16), (99, 300)])
def test_the_delay_doubles_with_each_failure(failures: int, delay: float) -> None:
    assert backoff(failures) == delay
