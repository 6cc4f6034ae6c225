"""Bytes that are not durable or not read are bounded, shared between networks, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fyrehose.net.inflight import Account, InFlight, UnreadMemory
from fyrehose.net.slots import RELIEF_S
from tests.doubles.references import references

MIB = 1 << 20
READ = 256 << 10


@attrs.define(eq=False)
class Peer:
    """A connection: the transport and the frame of its account, which remember what they are told."""

    budget: InFlight
    network: str | None = "a"
    size: int = attrs.field(default=0, kw_only=True)  #: of the frame that it sends
    reading: bool = attrs.field(default=True, init=False)
    slow: bool = attrs.field(default=False, init=False)
    dropped: bool = attrs.field(default=False, init=False)
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
        self.account.close()

    def send(self, size: int, read: int = READ) -> int:
        """Send *size* bytes of the frame, as far as they are read; return how many were."""
        before = sent = self.account.arrived
        while self.reading and sent < min(before + size, self.size):
            sent = min(sent + read, before + size, self.size)
            self.account.expect(self.size, sent)
        return sent - before

    def finish(self, submitted: int = 0) -> None:
        """Complete the frame, and publish it; *submitted* bytes of it are submitted to the journal."""
        assert self.account.arrived == self.size
        size, self.size = self.size, 0
        self.account.complete()
        self.account.hold(size, submitted)
        self.account.expect(0, 0)


def peers(budget: InFlight, count: int, network: str | None = "a", size: int = 0) -> list[Peer]:
    return [Peer(budget, network, size=size) for _ in range(count)]


def reading(found: Iterable[Peer]) -> int:
    return sum(peer.reading for peer in found)


# Publishes that are not durable.


def test_a_connection_above_its_limit_reads_again_below_half_of_the_limit() -> None:
    peer = Peer(InFlight(limit=10_000, each=100))
    for _ in range(5):
        peer.account.hold(25)
    assert not peer.reading
    for _ in range(2):
        peer.account.release(25)
    assert not peer.reading, "75 of 100 are too many still"
    peer.account.release(25)
    assert peer.reading


def test_a_network_has_at_most_twice_what_it_leaves_free() -> None:
    budget = InFlight(limit=48 * MIB, each=1 << 40)
    assert budget.room == 33 * MIB
    one = Peer(budget, "a")
    one.account.hold(22 * MIB)
    assert one.reading
    one.account.hold(2)
    assert not one.reading
    other = Peer(budget, "b")
    other.account.hold(7 * MIB)
    assert other.reading
    other.account.hold(MIB)
    assert not other.reading


def test_a_connection_whose_publishes_are_durable_is_read_however_full_its_network_is() -> None:
    budget = InFlight(limit=64 * MIB)
    full = Peer(budget)
    full.account.hold(60 * MIB)
    small = Peer(budget)
    small.account.hold(MIB)
    assert not small.reading
    small.account.release(MIB)
    assert small.reading


def test_small_connections_of_a_network_are_read_after_it_has_used_up_its_share() -> None:
    budget = InFlight(limit=64 * MIB, each=1 << 40)
    Peer(budget).account.hold(40 * MIB)
    small, large = peers(budget, 2)
    small.account.hold(budget.small)
    large.account.hold(budget.small + 1)
    assert (small.reading, large.reading) == (True, False)


def test_small_connections_pause_when_the_reserve_is_used_up() -> None:
    budget = InFlight(limit=64 * MIB, each=1 << 40)
    Peer(budget).account.hold(budget.room + budget.reserve)
    small = Peer(budget)
    small.account.hold(1)
    assert not small.reading


def test_the_smallest_part_counts_publishes_and_the_incomplete_frame_together() -> None:
    budget = InFlight(limit=64 * MIB, each=1 << 40)
    Peer(budget).account.hold(budget.room)
    half, more = peers(budget, 2, size=MIB)
    for peer, size in ((half, budget.small // 2), (more, budget.small)):
        peer.account.hold(size)
        peer.send(size)
    assert (half.reading, more.reading) == (True, False)


# Incomplete frames.


def test_a_frame_needs_a_slot_when_more_than_the_first_part_has_arrived() -> None:
    budget = InFlight(limit=64 * MIB)
    peer = Peer(budget, size=MIB)
    assert peer.send(budget.part) == budget.part
    assert budget.slots.used == 0
    peer.send(1)
    assert (budget.slots.used, budget.used, peer.reading) == (MIB, budget.part + 1, True)


@pytest.mark.parametrize("size", [3 * MIB, 16 * MIB])
def test_large_frames_of_a_network_finish_one_after_the_other(size: int) -> None:
    budget = InFlight(limit=64 * MIB, each=1 << 40)
    found = peers(budget, 50, size=size)
    most = 0
    while found:
        for peer in list(found):
            peer.send(size)
            most = max(most, budget.used)
            if peer.account.arrived == size:
                found.remove(peer)
                peer.finish()
                peer.account.release(size)
    assert most <= budget.limit + READ


def test_frames_of_another_network_arrive_while_one_sends_very_many() -> None:
    budget = InFlight(limit=64 * MIB)
    for peer in peers(budget, 300, size=5 * MIB):
        peer.send(4 * MIB, 16 << 10)
    other = Peer(budget, "b", size=2 * MIB)
    assert other.send(2 * MIB) == 2 * MIB


def test_a_small_frame_arrives_beside_very_many_large_ones_of_its_network() -> None:
    budget = InFlight(limit=64 * MIB)
    for peer in peers(budget, 300, size=14 * MIB):
        peer.send(4 * MIB, 16 << 10)
    small = Peer(budget, size=budget.small)
    assert small.send(budget.small, read=1000) == budget.small


def test_no_slots_are_given_while_publishes_fill_the_memory() -> None:
    budget = InFlight(limit=64 * MIB, each=1 << 40)
    publisher = Peer(budget, None)
    publisher.account.hold(budget.room + 1)
    frame = Peer(budget, "b", size=MIB)
    frame.send(budget.small + 1)
    assert not frame.reading
    publisher.account.release(budget.room + 1)
    assert frame.reading


def test_a_frame_that_waits_is_read_again_when_there_is_room_without_a_slot() -> None:
    budget = InFlight(limit=64 * MIB, each=1 << 40)
    holder = Peer(budget, "c", size=12 * MIB)
    holder.send(MIB)
    publisher = Peer(budget, "a")
    publisher.account.hold(40 * MIB)
    frame = Peer(budget, "a", size=MIB)
    frame.send(budget.part)
    assert not frame.reading
    publisher.account.release(40 * MIB)
    frame.account.retry(0)
    assert frame.reading
    assert not frame.account.waits


def test_a_frame_that_became_slow_gives_way_when_a_waiting_frame_checks_again() -> None:
    budget = InFlight(limit=64 * MIB)
    slow, waiting = Peer(budget, "a", size=12 * MIB), Peer(budget, "b", size=12 * MIB)
    slow.send(MIB)
    waiting.send(MIB)
    slow.slow = True
    assert (slow.dropped, waiting.reading) == (False, False)
    waiting.account.retry(0)
    assert (slow.dropped, waiting.reading) == (True, True)


def test_a_frame_that_waits_for_the_disk_is_not_slow() -> None:
    budget = InFlight(limit=64 * MIB, each=1000)
    peer, waiting = Peer(budget, "a", size=12 * MIB), Peer(budget, "b", size=12 * MIB)
    peer.send(MIB)
    peer.account.hold(2000)
    peer.slow = True
    waiting.send(MIB)
    waiting.account.retry(0)
    assert not peer.dropped


def test_a_slot_ends_when_the_next_frame_is_smaller() -> None:
    budget = InFlight(limit=64 * MIB)
    first, second = Peer(budget, "a", size=12 * MIB), Peer(budget, "b", size=4 * MIB)
    first.send(MIB)
    second.send(MIB)
    assert not second.reading
    first.account.expect(MIB, 8)
    assert second.reading
    assert budget.slots.used == 4 * MIB


def test_a_frame_that_outgrows_its_slot_waits_for_a_larger_one() -> None:
    budget = InFlight(limit=64 * MIB)
    first, second = Peer(budget, "a", size=6 * MIB), Peer(budget, "b", size=6 * MIB)
    first.send(MIB)
    second.send(MIB)
    second.size = 14 * MIB
    second.send(READ)
    assert not second.reading
    first.send(6 * MIB)
    first.finish()
    assert second.reading


def test_a_connection_beyond_its_limit_is_not_read_before_half_is_free_whatever_it_publishes_meanwhile() -> None:
    peer = Peer(InFlight(limit=64 * MIB, each=MIB))
    peer.account.hold(MIB * 3 // 4)
    peer.account.hold(MIB // 2)
    peer.account.release(MIB // 2)
    peer.account.hold(1)
    assert not peer.reading
    peer.account.release(MIB * 3 // 4)
    assert peer.reading


def test_defaults_are_those_of_the_documentation() -> None:
    budget = InFlight()
    assert (budget.limit, budget.each) == (512 * MIB, 8 * MIB)
    assert (budget.room, budget.reserve) == (352 * MIB, 32 * MIB)
    assert (budget.slots.capacity, budget.unread.capacity) == (64 * MIB, 32 * MIB)
    assert (budget.part, budget.small) == (256 << 10, 64 << 10)


# Lasting state.


def test_lasting_state_is_limited_to_half_of_the_memory() -> None:
    budget = InFlight(limit=512 * MIB)
    assert budget.keep(200 * MIB)
    assert budget.keep(56 * MIB)
    assert not budget.keep(1)
    assert budget.used == 256 * MIB
    peer = Peer(budget, size=MIB)
    assert peer.send(MIB) == MIB, "there is room for messages all the same"
    budget.forget(56 * MIB)
    assert budget.keep(1)


def test_state_with_a_limit_of_its_own_is_charged_besides() -> None:
    budget = InFlight()
    budget.charge(100)
    assert (budget.used, budget.kept) == (100, 0)
    budget.charge(-100)
    assert budget.used == 0


# What is not read.


@attrs.define(eq=False)
class Data:
    """Bytes that one peer has not read; the table of all is told when it is displaced."""

    network: str
    table: Unread
    repeatable: bool = False

    def displace(self) -> None:
        self.table.displaced(self)


class Unread:
    """The rules of unread data, for a plain list of all of it, the oldest first.

    :ivar gone: what was displaced
    :ivar lent: the record that may take the place of others, and its size; None while an answer is added
    """

    def __init__(self, capacity: int) -> None:
        self.memory, self.capacity = UnreadMemory(capacity), capacity
        self.rows: dict[Data, int] = {}
        self.gone: list[Data] = []
        self.lent: tuple[Data, int] | None = None

    def of(self, network: str) -> int:
        return sum(size for data, size in self.rows.items() if data.network == network)

    def next_out(self, preferred: str) -> list[Data]:
        """Return the oldest data of each network with the most; of *preferred* alone, if it is one of them."""
        oldest = {data.network: data for data in reversed(self.rows)}
        most = max(map(self.of, oldest), default=0)
        found = {network: data for network, data in oldest.items() if self.of(network) == most}
        return [found[preferred]] if preferred in found else list(found.values())

    def has_room(self, record: Data, size: int) -> bool:
        used, own = sum(self.rows.values()), self.of(record.network)
        return used + size <= self.capacity and (not used or own + size <= self.capacity * 2 // 3)

    def displaced(self, data: Data) -> None:
        if self.lent is None:
            assert sum(self.rows.values()) > self.capacity, "there is room for all"
            assert len(self.rows) > 1, "the only one stays, however large it is"
            assert data in self.next_out("")
        else:
            assert data.repeatable, "it is sent at present"
            assert not self.has_room(*self.lent)
            assert data in self.next_out(self.lent[0].network)
        del self.rows[data]
        self.gone.append(data)

    def keep(self, data: Data, size: int) -> None:
        self.lent = None
        self.rows.pop(data, None)
        self.rows[data] = size
        self.memory.keep(data, size)
        assert sum(self.rows.values()) <= self.capacity or len(self.rows) == 1

    def lend(self, data: Data, size: int) -> None:
        self.lent = data, size
        if data in self.rows:
            self.rows[data] = self.rows.pop(data)
            assert self.memory.lend(data, size)
        elif self.memory.lend(data, size):
            assert self.has_room(data, size)
            self.rows[data] = size
        else:
            assert not self.has_room(data, size)
            assert not all(each.repeatable for each in self.next_out(data.network)) or not self.rows

    def discard(self, data: Data) -> None:
        self.rows.pop(data, None)
        self.memory.discard(data)

    def check(self, everybody: Iterable[Data]) -> None:
        assert {data for data in everybody if data in self.memory} == set(self.rows)
        assert self.memory.used == sum(self.rows.values())


@pytest.mark.parametrize("seed", range(20))
def test_networks_share_the_memory_of_unread_data_and_the_one_with_the_most_loses_its_oldest(seed: int) -> None:
    dice = Random(seed)
    unread = Unread(dice.choice((3, 30, 60)))
    everybody = [Data(network, unread) for network in dice.choices("aaabc", k=12)]
    for _ in range(300):
        data, size = dice.choice(everybody), dice.randint(1, dice.choice((5, 30, 70)))
        match dice.choice("klllldr"):
            case "k":
                unread.keep(data, size)
            case "l":
                unread.lend(data, size)
            case "d":
                unread.discard(data)
            case _:
                data.repeatable = not data.repeatable
        unread.check(everybody)
    assert unread.gone


@attrs.define(eq=False)
class Pending:
    """A publish that is not durable."""

    account: Account
    size: int
    submitted: int

    def end(self) -> None:
        self.account.release(self.size, self.submitted)


class InFlightMachine(RuleBasedStateMachine):
    """Connections as they come: they send while they are read, publish what is whole, become slow, and leave."""

    limit, largest, read = 2048, 300, 16

    def __init__(self) -> None:
        super().__init__()
        self.budget = InFlight(limit=self.limit, each=700)
        self.empty = references(self.budget)
        self.budget.window = lambda: self.window
        self.open: list[Peer] = []
        self.in_flight: list[Pending] = []
        self.parked: list[Account] = []
        self.window, self.now = 400, 0.0

    def draw(self, data: st.DataObject, found: list[Peer]) -> Peer:
        return data.draw(st.sampled_from(found))

    def leaves(self, peer: Peer) -> None:
        self.open.remove(peer)
        for _ in range(2):
            peer.account.close()
            peer.account.expect(0, 0)
            peer.account.complete()
        assert not peer.account.park(lambda: None), "it is closed"

    def advances(self, peer: Peer, size: int) -> None:
        if not peer.size:
            return
        peer.send(size, self.read)
        if peer.account.arrived == peer.size:
            submitted = peer.size if peer.size % 3 else 0
            self.in_flight.append(Pending(peer.account, peer.size, submitted))
            peer.slow = False
            peer.finish(submitted)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        """Let the input of a connection wait for the journal, which has much of its network to write."""
        account = self.draw(data, self.open).account
        behind = self.is_behind(account)
        assert account.park(lambda: self.parked.remove(account)) == behind
        if behind:
            self.parked.append(account)

    def submitted(self) -> dict[int, int]:
        """Return the submitted bytes of each share that has some."""
        found: dict[int, int] = {}
        for each in self.in_flight:
            if each.submitted:
                found[id(each.account.share)] = found.get(id(each.account.share), 0) + each.submitted
        return found

    def is_behind(self, account: Account) -> bool:
        found = self.submitted()
        own = found.get(id(account.share), 0)
        return own > 0 and own * len(found) >= self.window

    @rule(window=st.integers(1, 800))
    def pace(self, window: int) -> None:
        """Let the disk become faster or slower."""
        self.window = window
        self.budget.proceed()
        assert all(map(self.is_behind, self.parked)), "input waits for a journal that is fast enough"

    @rule(network=st.sampled_from(["a", "a", "b", "c", None]))
    def connect(self, network: str | None) -> None:
        self.open.append(Peer(self.budget, network))

    @precondition(lambda self: reading(self.open))
    @rule(data=st.data(), size=st.integers(1, largest), first=st.integers(1, 200))
    def begin(self, data: st.DataObject, size: int, first: int) -> None:
        peer = self.draw(data, [peer for peer in self.open if peer.reading])
        if not peer.size:
            peer.size = size
            self.advances(peer, first)

    @precondition(lambda self: any(peer.size and peer.reading for peer in self.open))
    @rule(data=st.data(), size=st.integers(1, largest))
    def go_on(self, data: st.DataObject, size: int) -> None:
        self.advances(self.draw(data, [peer for peer in self.open if peer.size and peer.reading]), size)

    @precondition(lambda self: any(peer.size and peer.reading for peer in self.open))
    @rule(data=st.data(), size=st.integers(1, largest))
    def grow(self, data: st.DataObject, size: int) -> None:
        peer = self.draw(data, [peer for peer in self.open if peer.size and peer.reading])
        peer.size = max(peer.size, size)
        self.advances(peer, 1)

    @precondition(lambda self: any(peer.size for peer in self.open))
    @rule(data=st.data())
    def change_pace(self, data: st.DataObject) -> None:
        peer = self.draw(data, [peer for peer in self.open if peer.size])
        peer.slow = not peer.slow

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def look_again(self, data: st.DataObject) -> None:
        self.now += RELIEF_S
        self.draw(data, self.open).account.retry(self.now)
        self.open = [peer for peer in self.open if not peer.dropped]

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def durable(self, data: st.DataObject) -> None:
        each = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        each.end()
        waiting = [account for account in self.parked if account.share is each.account.share]
        assert all(map(self.is_behind, waiting)), "input of the network whose publish is durable still waits"

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.leaves(self.draw(data, self.open))

    @invariant()
    def sums_agree(self) -> None:
        budget = self.budget
        assert budget.held == sum(each.size for each in self.in_flight)
        assert budget.submitting == len(self.submitted())
        assert not [account for account in self.parked if not account.share.submitted], "nothing will end the wait"
        assert budget.used == budget.held + sum(peer.account.arrived for peer in self.open)
        assert all(peer.account.paused != peer.reading for peer in self.open)
        for share in {peer.account.share for peer in self.open}:
            arrived = sum(peer.account.arrived for peer in self.open if peer.account.share is share)
            assert share.used == arrived + sum(each.size for each in self.in_flight if each.account.share is share)
        assert not [peer for peer in self.open if peer.reading and peer.account.waits]

    @invariant()
    def it_is_bounded(self) -> None:
        # A frame may have a slot alone, and each connection is read once more.
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
                self.in_flight.pop(0).end()
            assert not self.parked
            for peer in self.open:
                if peer.reading and peer.size and not peer.slow:
                    self.advances(peer, 100)
            for peer in self.open:
                self.now += RELIEF_S
                peer.account.retry(self.now)
            self.open = [peer for peer in self.open if not peer.dropped]
        assert [peer for peer in self.open if not peer.reading or (peer.size and not peer.slow)] == []
        for peer in list(self.open):
            self.leaves(peer)
        budget = self.budget
        assert (budget.used, budget.held, budget.submitting, budget.slots.used) == (0, 0, 0, 0), "nobody is here"
        budget.window = InFlight().window
        assert references(budget) == self.empty, "something of a connection that has left is remembered"


TestInFlightMachine = InFlightMachine.TestCase
TestInFlightMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
