"""The memory budget is bounded, shared between addresses, and free of deadlock and starvation."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fyrehose.broker.budget import READ, Account, Budget
from fyrehose.net import sockets
from tests.doubles.references import references

MIB = 1 << 20


@attrs.define(eq=False)
class Peer:
    """A connection: the transport and the frame of its account, which remember what they are told."""

    budget: Budget
    network: str | None = "a"
    reading: bool = True
    slow: bool = False
    dropped: bool = False
    closes: bool = False  #: whether its connection ends as soon as it is dropped
    size: int = 0  #: of the frame that it sends
    account: Account = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.account = self.budget.account(self, self.network, self)

    def pauseProducing(self) -> None:
        assert self.reading
        self.reading = False

    def resumeProducing(self) -> None:
        assert not self.reading
        self.reading = True

    def drop(self) -> None:
        assert self.slow
        self.dropped = True
        if self.closes:
            self.account.close()

    def send(self, size: int, read: int = READ) -> int:
        """Send *size* bytes of the frame, as far as they are read; how many were."""
        before = sent = self.account.arrived
        while self.reading and sent < min(before + size, self.size):
            sent = min(sent + read, before + size, self.size)
            self.account.expect(self.size, sent)
        return sent - before

    def finish(self) -> None:
        """Complete the frame, and publish it."""
        assert self.account.arrived == self.size
        size, self.size = self.size, 0
        self.account.complete()
        self.account.hold(size)
        self.account.expect(0, 0)


def peers(budget: Budget, count: int, network: str | None = "a", size: int = 0) -> list[Peer]:
    return [Peer(budget, network, size=size) for _ in range(count)]


def reading(found: Iterable[Peer]) -> int:
    return sum(peer.reading for peer in found)


def test_a_connection_above_its_limit_reads_again_below_half_of_the_limit() -> None:
    peer = Peer(Budget(limit=10_000, each=100))
    for _ in range(5):
        peer.account.hold(25)
    assert not peer.reading
    for _ in range(2):
        peer.account.release(25)
    assert not peer.reading, "75 of 100 are too many still"
    peer.account.release(25)
    assert peer.reading


def test_free_memory_resumes_as_many_connections_as_fill_it() -> None:
    """All that wait at once would read megabytes more than there is room for."""
    budget = Budget(limit=64 * MIB)
    found = [Peer(budget, None) for _ in range(60)]
    for peer in found:
        peer.account.hold(MIB)
    waiting = [peer for peer in found if not peer.reading]
    assert len(waiting) == 13, "60 MiB are held, and the pool is 48 MiB"
    for peer in found[:13]:
        peer.account.release(MIB)
    assert reading(waiting) == 3, "47 MiB are held, half a MiB more by each, and 256 KiB are read at once"


def test_resumed_connections_of_one_address_leave_room_for_others() -> None:
    budget = Budget(limit=64 * MIB)
    found = peers(budget, 60)
    for peer in found:
        peer.account.hold(MIB)
    waiting = [peer for peer in found if not peer.reading]
    assert len(waiting) == 28, "an address has 32 MiB of the 48 MiB of the pool, so that half as much is left"
    for peer in found[:27]:
        peer.account.release(MIB)
    assert reading(waiting) == 0
    found[27].account.release(MIB)
    assert reading(waiting) == 1


def test_small_connections_resume_until_the_limit_is_full() -> None:
    budget = Budget(limit=64 * MIB)
    assert budget.keep(30 * MIB)
    large = Peer(budget, None)
    large.account.hold(20 * MIB)
    small = [Peer(budget, None) for _ in range(256)]
    for peer in small:
        peer.account.hold(1024)
    assert reading(small) == 0
    large.account.release(20 * MIB)
    assert reading(small) == 136, "34 MiB less the 256 KiB of the small ones are free, for reads of 256 KiB"


def test_a_closed_connection_does_not_wait() -> None:
    budget = Budget(limit=64 * MIB)
    found = [Peer(budget, None) for _ in range(60)]
    for peer in found:
        peer.account.hold(MIB)
    last = found[-1].account
    assert last.waits
    last.close()
    assert not last.waits
    last.release(MIB)


def test_connection_that_is_closed_twice_counts_once() -> None:
    budget = Budget()
    first, second = peers(budget, 2)
    first.account.close()
    first.account.close()
    assert Peer(budget).account.share is second.account.share


def test_defaults_are_those_of_the_documentation() -> None:
    budget = Budget()
    assert (budget.limit, budget.each) == (512 * MIB, 8 * MIB)
    assert (budget.pool, budget.grants, budget.spare) == (384 * MIB, 96 * MIB, 32 * MIB)
    assert (budget.part, budget.next_to_nothing) == (MIB, MIB // 16)
    assert READ == 256 << 10


def test_the_budget_counts_on_reads_of_the_size_that_sockets_use() -> None:
    assert READ == sockets.READ


def test_a_connection_may_hold_exactly_the_limit_of_each_connection() -> None:
    peer = Peer(Budget(limit=100_000, each=100))
    peer.account.hold(100)
    assert peer.reading
    peer.account.hold(1)
    assert not peer.reading


def test_frame_with_a_memory_grant_is_charged_once_and_in_full() -> None:
    budget = Budget()
    peer = Peer(budget, size=16 * MIB)
    assert peer.send(2 * MIB) == 2 * MIB
    assert (budget.granted, budget.charged, budget.used) == (16 * MIB, 0, 16 * MIB)
    peer.account.close()
    assert budget.used == 0


def test_announced_frames_are_not_charged_before_they_arrive() -> None:
    budget = Budget()
    found = peers(budget, 10_000)
    for peer in found:
        peer.account.expect(16 * MIB, 8)
    assert reading(found) == 10_000
    assert budget.used == 80_000


@pytest.mark.parametrize("size", [300_000, MIB])
@pytest.mark.parametrize("large", [MIB + 1, 3 * MIB // 2, 16 * MIB])
def test_199_connections_with_large_frames_do_not_block_another_of_their_address(size: int, large: int) -> None:
    budget = Budget()
    crowd = peers(budget, 199, size=large)
    for peer in crowd:
        peer.send(100)  # so that reads end just behind the part that is free
    while any(peer.send(READ) for peer in crowd if peer.account.arrived < large - READ):
        pass
    honest = Peer(budget, size=size)
    assert honest.send(size) == size
    honest.finish()
    assert honest.reading


def test_one_address_leaves_room_for_frames_of_another() -> None:
    budget = Budget()
    crowd = peers(budget, 300, size=16 * MIB)
    while any(peer.send(READ) for peer in crowd if peer.account.arrived < 15 * MIB):
        pass
    other = peers(budget, 16, "b", size=MIB)
    for peer in other:
        assert peer.send(MIB) == MIB
    (large,) = peers(budget, 1, "c", size=16 * MIB)
    assert large.send(16 * MIB) == 16 * MIB


def test_connections_with_small_messages_continue_when_their_address_has_used_up_its_share() -> None:
    budget = Budget()
    crowd = peers(budget, 400, size=16 * MIB)
    while any(peer.send(READ) for peer in crowd if peer.account.arrived < 15 * MIB):
        pass
    small = peers(budget, 100)
    for _ in range(3):
        for peer in small:
            peer.account.hold(10_000)
            assert peer.reading
            peer.account.release(10_000)


def test_a_frame_larger_than_the_budget_is_granted_alone() -> None:
    budget = Budget(limit=MIB)
    first, second = Peer(budget, size=3 * MIB), Peer(budget, "b", size=2 * MIB)
    assert first.send(3 * MIB) == 3 * MIB
    assert second.send(2 * MIB) < 2 * MIB
    first.finish()
    assert not second.reading, "it is not durable"
    first.account.release(3 * MIB)
    assert second.send(2 * MIB) + READ == 2 * MIB


def test_many_large_frames_finish_one_after_the_other_within_the_limit() -> None:
    budget = Budget(limit=16 * MIB)
    crowd = [Peer(budget, f"{number % 4}", size=4 * MIB) for number in range(200)]
    finished = most = 0
    while finished < len(crowd):
        moved = 0
        for peer in crowd:
            if peer.size and peer.reading:
                moved += peer.send(READ)
                most = max(most, budget.used)
                if peer.account.arrived == peer.size:
                    peer.finish()
                    most = max(most, budget.used)
                    peer.account.release(4 * MIB)
                    finished += 1
        assert moved, "all wait, and for nobody"
    assert most <= (16 + 4) * MIB + 200 * READ
    assert budget.used == 0


def test_publishers_pause_when_the_budget_is_used_up_and_resume_later() -> None:
    budget = Budget(limit=1000, each=10_000)
    first, second = peers(budget, 2)
    first.account.hold(600)
    second.account.hold(200)
    assert (first.reading, second.reading) == (False, False)
    first.account.release(600)
    assert (first.reading, second.reading) == (True, True)


def test_a_closed_account_stays_charged_until_its_publishes_are_released() -> None:
    budget = Budget(limit=1000, each=10_000)
    first, second = peers(budget, 2)
    first.account.hold(800)
    first.account.expect(100, 50)
    first.account.close()
    assert budget.used == 800
    second.account.hold(10)
    assert not second.reading
    first.account.release(800)
    assert second.reading
    assert budget.used == 10


def test_the_share_of_an_address_without_connections_is_forgotten() -> None:
    budget = Budget()
    left: list[tuple[int, int]] = []
    for _ in range(2):
        peer, other = peers(budget, 2)
        peer.account.hold(10)
        peer.account.close()
        other.account.close()
        closed = references(budget)
        peer.account.release(10)
        left.append((closed, references(budget)))
    assert left[0] == left[1]
    assert left[0][0] > left[0][1], "until it is durable, what was published belongs to the share"


def slow_and_waiting() -> tuple[Budget, list[Peer], Peer]:
    """A budget whose grants are taken by slow frames of one address, and a frame that needs one."""
    budget = Budget(limit=512 * MIB)
    slow = peers(budget, 4, size=16 * MIB)
    for peer in slow:
        assert peer.send(2 * MIB) == 2 * MIB
        peer.slow = True
    waiting = Peer(budget, size=16 * MIB)
    waiting.send(2 * MIB)
    return budget, slow, waiting


def test_no_more_slow_frames_are_dropped_than_a_waiting_frame_needs() -> None:
    budget, slow, waiting = slow_and_waiting()
    assert [peer.dropped for peer in slow] == [True, False, False, False]
    assert not waiting.reading, "the memory is not free yet"
    waiting.account.retry()
    assert sum(peer.dropped for peer in slow) == 1
    slow[0].account.close()
    assert waiting.reading
    assert waiting.account.granted == 16 * MIB
    assert budget.granted == 4 * 16 * MIB


def test_no_more_connections_are_dropped_than_needed_when_they_end_at_once() -> None:
    budget = Budget()
    slow = peers(budget, 4, size=16 * MIB)
    for peer in slow:
        assert peer.send(2 * MIB) == 2 * MIB
        peer.slow = peer.closes = True
    waiting = Peer(budget, size=16 * MIB)
    assert waiting.send(2 * MIB) == 2 * MIB
    assert [peer.dropped for peer in slow] == [True, False, False, False]
    assert waiting.account.granted == 16 * MIB


@pytest.mark.parametrize("more", [1, 2 * MIB])
def test_a_growing_frame_drops_no_more_slow_frames_than_it_needs(more: int) -> None:
    budget = Budget(limit=64 * MIB)
    oldest, growing = Peer(budget, "a", size=4 * MIB), Peer(budget, "b", size=4 * MIB)
    slow = [Peer(budget, name, size=2 * MIB) for name in "cd"]
    for peer in (oldest, growing, *slow):
        peer.send(MIB)
        assert peer.account.granted
    for peer in slow:
        peer.slow = True
    growing.size += more
    growing.send(READ)
    assert [peer.dropped for peer in slow] == [True, False], "12 MiB are granted, which is all"
    assert not growing.reading
    slow[0].account.close()
    assert growing.account.granted == 4 * MIB + more
    assert growing.reading


@pytest.mark.parametrize("closes", [False, True])
def test_frame_that_is_dropped_as_it_grows_is_granted_nothing(closes: bool) -> None:
    budget = Budget(limit=64 * MIB)
    oldest, first, second = (Peer(budget, name, size=4 * MIB) for name in "abc")
    for peer in (oldest, first, second):
        peer.send(MIB)
    first.size = 7 * MIB
    first.send(READ)
    assert not first.reading
    second.slow, second.closes, second.size = True, closes, 5 * MIB
    second.send(READ)
    assert second.dropped
    second.account.close()
    assert first.account.granted == 7 * MIB
    last = Peer(budget, "d", size=MIB)
    last.send(READ)
    oldest.account.close()
    first.account.close()
    last.size = 100 * MIB
    last.send(100 * MIB)
    assert last.account.arrived == 100 * MIB, "it has the oldest grant now, which is always extended"


def test_dropped_frame_is_granted_no_memory_later() -> None:
    budget = Budget()
    brisk = peers(budget, 4, size=16 * MIB)
    for peer in brisk:
        peer.send(2 * MIB)
    slow = Peer(budget, size=16 * MIB)
    slow.send(MIB)
    slow.slow = True
    slow.send(READ)
    assert slow.dropped
    assert not slow.account.waits
    for peer in brisk:
        peer.account.close()
    assert budget.granted == 0


def test_small_frames_of_an_address_that_used_up_its_share_are_granted_one_after_the_other() -> None:
    budget = Budget(each=1 << 40)
    publisher, found = Peer(budget), peers(budget, 5, size=MIB)
    publisher.account.hold(300 * MIB)
    for peer in found:
        peer.send(100)
        assert peer.reading
    assert budget.granted == 5 * MIB


def test_frames_of_a_waiting_publisher_resume_with_it() -> None:
    budget = Budget(each=1 << 40)
    publisher, *found = peers(budget, 4, size=2 * MIB)
    for peer in found[:2]:
        assert peer.send(2 * MIB) == 2 * MIB
        assert peer.account.granted
    publisher.account.hold(300 * MIB)
    found[2].send(READ)
    assert not publisher.reading
    assert not found[2].reading
    publisher.account.release(300 * MIB)
    assert publisher.reading
    assert found[2].send(2 * MIB) == 2 * MIB - READ


@pytest.mark.parametrize("whole", [False, True])
def test_a_frame_that_was_handled_in_part_or_as_a_whole_frees_memory(whole: bool) -> None:
    budget = Budget(limit=64 * MIB, each=1 << 40)
    Peer(budget, None).account.hold(47 * MIB)
    found = [Peer(budget, None, size=MIB) for _ in range(5)]
    for peer in found:
        peer.send(MIB // 8)
    waiting = Peer(budget, None)
    waiting.account.hold(300 << 10)
    assert not waiting.reading, "the pool is 48 MiB, and half of what it has must be left of it"
    if whole:
        found[0].account.complete()
    found[0].account.expect(0 if whole else MIB, 0 if whole else 8)
    assert waiting.reading


@pytest.mark.parametrize("size", [MIB // 2, 16 * MIB])
def test_the_memory_of_a_complete_frame_is_charged_again_for_its_publish(size: int) -> None:
    budget = Budget()
    peer = Peer(budget, size=size)
    assert peer.send(size) == size
    peer.account.complete()
    assert budget.used == 0
    peer.account.hold(size)
    assert (budget.held, budget.charged, budget.granted) == (size, size, 0)


def test_a_frame_that_waits_for_a_larger_grant_stops_waiting_when_it_is_complete() -> None:
    budget = Budget(limit=64 * MIB)
    oldest, growing = Peer(budget, "a", size=4 * MIB), Peer(budget, "b", size=4 * MIB)
    for peer in (oldest, growing):
        peer.send(MIB)
    growing.account.expect(20 * MIB, MIB)
    assert growing.account.waits
    growing.account.complete()
    assert not growing.account.waits


def test_connections_that_hold_very_little_read_until_publishes_use_up_the_spare() -> None:
    budget = Budget(limit=64 * MIB, each=1 << 40)
    for peer in peers(budget, 300, size=14 * MIB):
        peer.send(budget.part)
    publisher, small, late, other = peers(budget, 4)
    publisher.account.hold(budget.spare - budget.next_to_nothing)
    assert not publisher.reading, "the address has used up its share"
    small.account.hold(budget.next_to_nothing)
    assert small.reading
    late.account.hold(budget.next_to_nothing)
    assert not late.reading
    small.account.release(budget.next_to_nothing)
    assert late.reading, "exactly the spare is held"
    other.account.hold(budget.next_to_nothing + 1)
    last = Peer(budget)
    last.account.hold(budget.next_to_nothing)
    assert not last.reading
    publisher.account.release(budget.spare - budget.next_to_nothing)
    assert last.reading
    assert not other.reading


def test_a_slow_frame_is_dropped_instead_of_waiting_for_others() -> None:
    budget = Budget(limit=512 * MIB)
    brisk = peers(budget, 4, size=16 * MIB)
    for peer in brisk:
        peer.send(2 * MIB)
    slow = Peer(budget, size=16 * MIB)
    slow.send(MIB)
    slow.slow = True
    slow.send(READ)
    assert slow.dropped
    assert not any(peer.dropped for peer in brisk)


def test_a_slow_frame_with_few_bytes_is_dropped_if_frames_fill_the_pool() -> None:
    budget = Budget(limit=64 * MIB)
    crowd = peers(budget, 300, size=14 * MIB)
    for peer in crowd:
        peer.send(budget.part)
    slow = Peer(budget, size=14 * MIB, slow=True)
    slow.send(budget.part // 2)
    assert slow.dropped
    assert not any(peer.dropped for peer in crowd)


def test_a_slow_frame_with_very_few_bytes_is_not_dropped() -> None:
    budget = Budget(limit=64 * MIB, each=1 << 40)
    publisher, slow = Peer(budget, "a"), Peer(budget, "b", size=MIB, slow=True)
    publisher.account.hold(50 * MIB)
    slow.send(100)
    assert not slow.reading, "it waits for the disk"
    assert not slow.dropped


def test_a_slow_frame_is_not_dropped_while_there_is_memory() -> None:
    budget = Budget(limit=512 * MIB)
    slow = Peer(budget, size=16 * MIB, slow=True)
    assert slow.send(16 * MIB) == 16 * MIB
    assert not slow.dropped


def test_a_slow_frame_is_not_dropped_while_it_waits_for_the_disk() -> None:
    budget = Budget(limit=512 * MIB, each=1 << 40)
    publisher, slow = Peer(budget), Peer(budget, size=MIB, slow=True)
    publisher.account.hold(400 * MIB)
    slow.send(MIB)
    assert not slow.reading
    assert not slow.dropped
    publisher.account.release(400 * MIB)
    assert slow.reading


def test_a_frame_that_became_slow_is_dropped_when_a_waiting_frame_checks_again() -> None:
    budget = Budget(limit=512 * MIB)
    first = peers(budget, 4, size=16 * MIB)
    for peer in first:
        peer.send(2 * MIB)
    waiting = Peer(budget, size=16 * MIB)
    waiting.send(2 * MIB)
    waiting.account.retry()
    waiting.account.retry()
    assert not any(peer.dropped for peer in first)
    first[3].slow = True
    waiting.account.retry()
    waiting.account.retry()
    assert [peer.dropped for peer in first] == [False, False, False, True]


def test_addresses_take_turns() -> None:
    budget = Budget(limit=64 * MIB)
    (running,) = peers(budget, 1, "c", size=16 * MIB)
    running.send(MIB)
    crowd, (other,) = peers(budget, 100, size=16 * MIB), peers(budget, 1, "b", size=16 * MIB)
    for peer in [*crowd, other]:
        peer.send(MIB)
    assert reading([*crowd, other]) == 0
    running.account.close()
    assert reading(crowd) == 1
    assert not other.reading
    crowd[0].account.close()
    assert other.reading


def test_the_smallest_frame_of_an_address_does_not_wait_for_all_earlier_ones() -> None:
    budget = Budget()
    crowd, small = peers(budget, 200, size=16 * MIB), Peer(budget, size=9 * MIB)
    for peer in [*crowd, small]:
        peer.send(2 * MIB)
    granted = [peer for peer in crowd if peer.reading]
    assert not small.reading
    for peer in granted[:3]:
        peer.account.close()
    assert small.reading


def test_a_large_frame_is_granted_however_many_smaller_ones_come_after_it() -> None:
    budget = Budget()
    crowd, large = peers(budget, 30, size=4 * MIB), Peer(budget, size=16 * MIB)
    for peer in [*crowd, large]:
        peer.send(2 * MIB)
    for _ in range(60):
        if large.reading:
            break
        done = next(peer for peer in crowd if peer.account.granted)
        done.account.close()
        crowd.remove(done)
        crowd.append(Peer(budget, size=4 * MIB))
        crowd[-1].send(2 * MIB)
    assert large.reading


def test_a_large_frame_that_is_next_keeps_its_turn_before_smaller_ones() -> None:
    budget = Budget(limit=64 * MIB)
    small = [Peer(budget, str(number), size=2 * MIB) for number in range(100)]
    for peer in small[:8]:
        peer.send(MIB)
    large = Peer(budget, "large", size=16 * MIB)
    large.send(MIB)
    for number, peer in enumerate(small[8:], 8):
        peer.send(MIB)
        assert not peer.reading
        if number < 16:
            assert not large.reading, number
            small[number - 8].account.close()
    assert large.reading


def test_a_frame_that_turns_out_larger_than_its_grant_waits_behind_older_grants() -> None:
    budget = Budget(limit=64 * MIB)
    first, second = Peer(budget, "a", size=6 * MIB), Peer(budget, "b", size=6 * MIB)
    first.send(MIB)
    second.send(MIB)
    second.size = first.size = 14 * MIB
    second.send(READ)
    assert not second.reading
    assert first.send(13 * MIB) == 13 * MIB, "the oldest may always go on"
    first.finish()
    assert second.reading
    assert second.account.granted == 14 * MIB


@pytest.mark.parametrize(("size", "granted"), [(6 * MIB, True), (6 * MIB + 1, False)])
def test_an_address_gets_another_grant_only_if_the_free_rest_is_half_of_its_grants(size: int, granted: bool) -> None:
    budget = Budget(limit=64 * MIB)
    first, second = Peer(budget, size=4 * MIB), Peer(budget, size=size)
    assert first.send(MIB) == MIB
    second.send(MIB)
    assert bool(second.account.granted) is granted, "12 MiB are for grants: 4, 6, and 2 for others"


@pytest.mark.parametrize(("size", "granted"), [(2 * MIB, True), (2 * MIB + 1, False)])
def test_grants_of_all_addresses_are_given_until_exactly_their_bound(size: int, granted: bool) -> None:
    budget = Budget(limit=64 * MIB)
    for name, others in (("a", 4 * MIB), ("b", 4 * MIB), ("c", 2 * MIB)):
        Peer(budget, name, size=others).send(MIB)
    last = Peer(budget, "d", size=size)
    last.send(MIB)
    assert bool(last.account.granted) is granted, "12 MiB are for grants"


def test_a_frame_needs_a_grant_when_more_than_the_first_part_has_arrived() -> None:
    budget = Budget(limit=64 * MIB)
    peer = Peer(budget, size=MIB)
    assert peer.send(budget.part) == budget.part
    assert (budget.charged, budget.granted) == (budget.part, 0)
    peer.send(1)
    assert (budget.charged, budget.granted) == (0, MIB)


def test_a_frame_of_at_most_a_part_waits_for_the_pool_and_a_larger_one_for_a_grant() -> None:
    budget = Budget(limit=64 * MIB, each=1 << 40)
    for _ in range(3):
        Peer(budget, None, size=4 * MIB).send(MIB)
    assert budget.granted == budget.grants
    publisher = Peer(budget, None)
    publisher.account.hold(budget.pool)
    part, larger = Peer(budget, None, size=MIB), Peer(budget, None, size=MIB)
    part.send(budget.part)
    larger.send(budget.part + 1)
    assert reading([publisher, part, larger]) == 0
    publisher.account.release(budget.pool)
    assert [peer.reading for peer in (publisher, part, larger)] == [True, True, False]


def test_the_smallest_part_counts_publishes_and_the_incomplete_frame_together() -> None:
    budget = Budget(limit=64 * MIB, each=1 << 40)
    for peer in peers(budget, 300, size=14 * MIB):
        peer.send(budget.part)
    half, more = peers(budget, 2, size=MIB)
    for peer, size in ((half, budget.next_to_nothing // 2), (more, budget.next_to_nothing)):
        peer.account.hold(size)
        peer.send(size)
    assert half.reading
    assert not more.reading
    assert budget.held <= budget.spare


def test_a_closed_account_releases_its_frame_once() -> None:
    budget = Budget()
    for done in (False, True):
        account = Peer(budget).account
        account.expect(100, 50)
        account.close()
        if done:
            account.complete()
        account.expect(0, 0)
        assert budget.used == 0


def test_lasting_state_is_limited_to_half_of_the_memory() -> None:
    budget = Budget(limit=512 * MIB)
    assert budget.keep(200 * MIB)
    assert budget.keep(56 * MIB)
    assert not budget.keep(1)
    assert (budget.used, budget.pool) == (256 * MIB, 128 * MIB)
    (peer,) = peers(budget, 1)
    peer.size = MIB
    assert peer.send(MIB) == MIB, "there is room for messages all the same"
    peer.finish()
    budget.forget(56 * MIB)
    assert budget.keep(1)
    budget.forget(200 * MIB + 1)
    assert budget.pool == 384 * MIB


class BudgetMachine(RuleBasedStateMachine):
    """Connections as they come: they send while they are read, publish what is whole, stop, become slow and leave."""

    limit, largest, read = 2048, 900, 16

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(limit=self.limit, each=700)
        self.open: list[Peer] = []
        self.in_flight: list[tuple[Account, int]] = []
        self.most = 0

    def draw(self, data: st.DataObject, found: list[Peer]) -> Peer:
        return data.draw(st.sampled_from(found))

    def leaves(self, peer: Peer) -> None:
        self.open.remove(peer)
        peer.account.close()

    def advances(self, peer: Peer, size: int) -> None:
        if not peer.size:
            return
        peer.send(size, self.read)
        if peer.account.arrived == peer.size:
            self.in_flight.append((peer.account, peer.size))
            peer.finish()

    @rule(network=st.sampled_from(["a", "a", "b", "c", None]))
    def connect(self, network: str | None) -> None:
        self.open.append(Peer(self.budget, network))

    @precondition(lambda self: reading(self.open))
    @rule(data=st.data(), size=st.integers(1, largest), first=st.integers(0, 200))
    def begin(self, data: st.DataObject, size: int, first: int) -> None:
        peer = self.draw(data, [peer for peer in self.open if peer.reading])
        if not peer.size and not peer.dropped:
            peer.size = size
            self.advances(peer, first)

    @precondition(lambda self: any(peer.size and peer.reading for peer in self.open))
    @rule(data=st.data(), size=st.integers(1, 400))
    def go_on(self, data: st.DataObject, size: int) -> None:
        self.advances(self.draw(data, [peer for peer in self.open if peer.size and peer.reading]), size)

    @precondition(lambda self: any(peer.account.granted and peer.reading for peer in self.open))
    @rule(data=st.data(), size=st.integers(1, largest))
    def grow(self, data: st.DataObject, size: int) -> None:
        peer = self.draw(data, [peer for peer in self.open if peer.account.granted and peer.reading])
        peer.size = max(peer.size, size)
        self.advances(peer, 1)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def change_pace(self, data: st.DataObject) -> None:
        peer = self.draw(data, self.open)
        peer.slow = not peer.slow and bool(peer.size)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def look_again(self, data: st.DataObject) -> None:
        self.draw(data, self.open).account.retry()

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def durable(self, data: st.DataObject) -> None:
        account, size = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        account.release(size)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.leaves(self.draw(data, self.open))

    @invariant()
    def sums_agree(self) -> None:
        budget = self.budget
        assert budget.held == sum(size for _, size in self.in_flight)
        assert budget.granted == sum(peer.account.granted for peer in self.open)
        frames = sum(peer.account.arrived for peer in self.open if not peer.account.granted)
        assert budget.charged == budget.held + frames
        assert all(peer.account.paused != peer.reading for peer in self.open)
        shares = {id(share): share for share in [peer.account.share for peer in self.open]}.values()
        assert sum(share.granted for share in shares) == budget.granted
        assert set(budget._waiting) == {share for share in shares if any(share.queues)}

    @invariant()
    def it_is_bounded(self) -> None:
        # A frame as large as a third of the limit may be granted alone, and what is published was a frame before.
        slack = self.largest + self.read * len(self.open)
        assert self.budget.used <= self.limit + slack

    @invariant()
    def some_connection_can_go_on(self) -> None:
        if not self.in_flight and self.open:
            assert any(peer.reading for peer in self.open), "all wait, and for nobody"

    def teardown(self) -> None:
        """Everything that waits is served, as publishes become durable, and frames become whole or are dropped."""
        for _ in range(20 * len(self.open) + 20):
            while self.in_flight:
                account, size = self.in_flight.pop(0)
                account.release(size)
            for peer in list(self.open):
                if peer.dropped:
                    self.leaves(peer)
                elif peer.reading and peer.size and not peer.slow:
                    self.advances(peer, 100)
            for peer in self.open:
                peer.account.retry()
        waiting = [peer for peer in self.open if not peer.reading or (peer.size and not peer.slow)]
        assert waiting == []


TestBudgetMachine = BudgetMachine.TestCase
TestBudgetMachine.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)


def test_reserved_memory_is_released_when_the_next_frame_is_smaller() -> None:
    budget = Budget(limit=64 * MIB)
    peer = Peer(budget, size=4 * MIB)
    peer.send(MIB)
    assert budget.granted == 4 * MIB
    peer.account.expect(MIB, 8)
    assert (budget.granted, budget.used) == (0, 8)


def test_a_waiting_frame_gets_the_memory_that_a_smaller_next_frame_releases() -> None:
    budget = Budget(limit=64 * MIB)
    first, second = Peer(budget, "a", size=12 * MIB), Peer(budget, "b", size=4 * MIB)
    first.send(MIB)
    second.send(MIB)
    assert (first.account.granted, second.reading) == (12 * MIB, False)
    first.account.expect(MIB, 8)
    assert (second.account.granted, second.reading) == (4 * MIB, True)
