"""Bytes that are not durable or not read are bounded, shared between networks, and nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random

import attrs
import pytest

from fyrehose.net.inflight import Account, InFlight, UnreadMemory
from fyrehose.net.slots import RELIEF_S
from tests.doubles.references import references

MIB = 1 << 20


def test_defaults_are_those_of_the_documentation() -> None:
    budget = InFlight()
    assert (budget.limit, budget.each, budget.window()) == (512 * MIB, 8 * MIB, 1 << 62)
    assert (budget.room, budget.reserve) == (352 * MIB, 32 * MIB)
    assert (budget.slots.capacity, budget.unread.capacity) == (64 * MIB, 32 * MIB)
    assert (budget.part, budget.small) == (256 << 10, 64 << 10)


# What is not durable, and incomplete frames.


@attrs.define(eq=False)
class Peer:
    """A connection: the transport and the frame of its account, which remember what they are told.

    :ivar owner: whose share of the memory it uses: that of its network, or its own
    :ivar held: the sizes of its publishes that are not durable
    :ivar crowded: whether these have exceeded the limit of a connection, and still take more than half of it
    :ivar slot: the size of the slot of its frame
    """

    budget: InFlight
    network: str | None = "a"
    size: int = attrs.field(default=0, kw_only=True)  #: of the frame that it sends
    held: list[int] = attrs.field(factory=list, init=False)
    crowded: bool = attrs.field(default=False, init=False)
    slot: int = attrs.field(default=0, init=False)
    reading: bool = attrs.field(default=True, init=False)
    slow: bool = attrs.field(default=False, init=False)
    dropped: bool = attrs.field(default=False, init=False)
    account: Account = attrs.field(init=False)
    owner: object = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.account = self.budget.account(self, self.network, self)
        self.owner = self.network or self

    def pauseProducing(self) -> None:
        assert self.reading
        self.reading = False

    def resumeProducing(self) -> None:
        assert not self.reading
        self.reading = True

    def drop(self) -> None:
        assert self.slow
        assert self.reading, "time in which it waits for the disk does not count"
        self.dropped = True
        self.account.close()

    def send(self, size: int, read: int, then: Callable[[Peer], object] = lambda peer: None) -> int:
        """Send *size* bytes of the frame, as far as they are read, and call *then* after each; return how many were."""
        before = sent = self.account.arrived
        while self.reading and sent < min(before + size, self.size):
            sent = min(sent + read, before + size, self.size)
            self.account.expect(self.size, sent)
            then(self)
        return sent - before


@pytest.mark.parametrize(("large", "network", "size"), [(5 * MIB, "b", 2 * MIB), (14 * MIB, "a", 8 << 10)])
def test_frame_of_another_network_or_a_small_one_arrives_while_one_network_sends_very_many(
    large: int, network: str, size: int
) -> None:
    budget = InFlight(limit=64 * MIB)
    for _ in range(300):
        Peer(budget, size=large).send(4 * MIB, 16 << 10)
    assert Peer(budget, network, size=size).send(size, read=1000) == size


class History:
    """A random history of connections, beside the rules that say which of them is read.

    They send frames while they are read, publish what is complete, become slow, and leave.  Sizes are often those with
    which one of the rules changes, or one byte less or more.

    :ivar in_flight: the publishes that are not durable: whose, their sizes, and how much of them the journal writes
    :ivar seen: how often each cause let a connection wait, or alone let it be read
    """

    limit, room, reserve, part, small, read = 1 << 16, 45_056, 4_096, 32, 8, 700

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.dice, self.seen = Random(seed), seen
        self.each = self.dice.choice((700, 5_000, 1 << 40))
        self.budget = InFlight(limit=self.limit, each=self.each)
        self.empty = references(self.budget)
        self.budget.window = lambda: self.window
        self.window, self.now, self.kept, self.charged = 4_000, 0.0, 0, 0
        self.open: list[Peer] = []
        self.in_flight: list[tuple[Peer, int, int]] = []
        self.parked: list[Peer] = []

    # The rules.

    @property
    def held(self) -> int:
        return sum(size for _, size, _ in self.in_flight)

    @property
    def used(self) -> int:
        return self.held + sum(peer.account.arrived for peer in self.open) + self.kept + self.charged

    def share(self, peer: Peer) -> int:
        """Return what the network of *peer* has in flight."""
        arrived = sum(each.account.arrived for each in self.open if each.owner == peer.owner)
        return arrived + sum(size for each, size, _ in self.in_flight if each.owner == peer.owner)

    def causes(self, peer: Peer) -> dict[str, bool]:
        """Return which causes there are to read *peer*, unless it is crowded."""
        arrived, used = peer.account.arrived, self.used
        own = sum(peer.held) + arrived
        return {
            "nothing in flight": not own,
            "slot": self.budget.slots.covers(peer.account),
            "room": arrived <= self.part and used + self.share(peer) // 2 <= self.room,
            "small": own <= self.small and used <= self.room + self.reserve,
        }

    def check_read(self, peer: Peer) -> None:
        """Check whether *peer* is read, after its account has looked; it need not have seen what others freed since."""
        causes = self.causes(peer)
        read = not peer.crowded and any(causes.values())
        assert peer.reading == read, f"read: {peer.reading}, crowded: {peer.crowded}, causes to read: {causes}"
        self.seen["crowded"] += peer.crowded
        self.seen["no cause"] += not peer.crowded and not read
        if sum(causes.values()) == 1 and read:
            self.seen[next(cause for cause in causes if causes[cause])] += 1

    def submitted(self) -> dict[object, int]:
        found: Counter[object] = Counter()
        for each, _, submitted in self.in_flight:
            found[each.owner] += submitted
        return +found

    def is_behind(self, peer: Peer) -> bool:
        found = self.submitted()
        own = found.get(peer.owner, 0)
        return own > 0 and own * len(found) >= self.window

    # What happens.

    def near(self, size: int) -> int:
        """Return *size*, or one less or more, if that is positive; else any size."""
        near = size + self.dice.choice((-1, 0, 0, 1))
        return near if near > 0 else self.dice.randint(1, 9_000)

    def a_size(self, peer: Peer) -> int:
        """Return a size of what *peer* publishes next, or of its frame."""
        bounds = (
            self.part,
            self.small - sum(peer.held),
            (self.room - self.used - self.share(peer) // 2) * 2 // 3,
            self.room + self.reserve - self.used,
            self.reserve - self.held,
            min(self.each, 9_000) - sum(peer.held),
            self.each // 2 - sum(peer.held),
        )
        size = self.near(self.dice.choice(bounds))
        return (
            size
            if size <= 9_000 and self.dice.random() < 0.5
            else self.dice.randint(1, self.dice.choice((20, 3_000, 9_000)))
        )

    def connect(self) -> None:
        if len(self.open) < 12:
            self.open.append(Peer(self.budget, self.dice.choice(("a", "a", "b", "c", None))))

    def send(self, part: float = 1.0) -> None:
        """Let a connection send a part of a frame, which becomes a publish once it is complete."""
        if found := [peer for peer in self.open if peer.reading]:
            peer = self.dice.choice(found)
            peer.size = peer.size or self.a_size(peer)
            left = peer.size - peer.account.arrived
            sizes = (left, left, self.part - peer.account.arrived, self.dice.randint(1, left))
            peer.send(max(1, self.dice.choice(sizes)), self.read, self.check_read)
            if peer.account.arrived == peer.size:
                self.publish(peer)

    def publish(self, peer: Peer) -> None:
        size, peer.size, peer.slow = peer.size, 0, False
        peer.account.complete()
        peer.account.complete()
        self.hold(peer, size)
        peer.account.expect(0, 0)

    def publish_unread(self) -> None:
        """Let a connection publish what it had sent before it was paused."""
        if found := [peer for peer in self.open if not peer.size]:
            peer = self.dice.choice(found)
            self.hold(peer, self.dice.choice((1, self.a_size(peer))))

    def hold(self, peer: Peer, size: int) -> None:
        submitted = self.dice.choice((0, size))
        peer.held.append(size)
        peer.crowded = peer.crowded or sum(peer.held) > self.each
        self.in_flight.append((peer, size, submitted))
        peer.account.hold(size, *[submitted] * (submitted > 0))
        self.check_read(peer)

    def durable(self) -> None:
        if self.in_flight:
            peer, size, submitted = self.in_flight.pop(self.dice.randrange(len(self.in_flight)))
            peer.held.remove(size)
            peer.crowded = peer.crowded and sum(peer.held) > self.each // 2
            was_read = peer.reading
            peer.account.release(size, *[submitted] * (submitted > 0))
            if peer in self.open and not was_read:
                self.check_read(peer)
            behind = [each for each in self.parked if each.owner == peer.owner]
            assert all(map(self.is_behind, behind)), "input of the network whose publish is durable still waits"
            self.check_served()

    def check_served(self) -> None:
        before = self.budget.slots.used, [peer.reading for peer in self.open]
        self.budget.slots.serve()
        assert before == (self.budget.slots.used, [peer.reading for peer in self.open]), (
            "frames wait, and there is room"
        )

    def grow(self) -> None:
        if found := [peer for peer in self.open if 0 < peer.size < 9_000 and peer.reading]:
            peer = self.dice.choice(found)
            peer.size = self.dice.randint(peer.size + 1, 9_000)
            peer.account.expect(peer.size, peer.account.arrived)
            self.check_read(peer)

    def replace(self) -> None:
        """Let a read end one frame and begin a smaller one."""
        if found := [peer for peer in self.open if peer.account.arrived > 1]:
            peer = self.dice.choice(found)
            peer.size = self.dice.randint(2, peer.account.frame)
            if peer.size < peer.account.frame:
                peer.slot = 0
            peer.account.expect(peer.size, self.dice.randint(1, min(peer.size, peer.account.arrived) - 1))
            self.check_read(peer)

    def change_speed(self) -> None:
        if found := [peer for peer in self.open if peer.size]:
            peer = self.dice.choice(found)
            peer.slow = not peer.slow

    def retry(self) -> None:
        if self.open:
            self.now += RELIEF_S
            peer = self.dice.choice(self.open)
            peer.account.retry(self.now)
            gone = [each for each in self.open if each.dropped]
            self.seen["dropped"] += len(gone)
            self.open = [each for each in self.open if not each.dropped]
            if not gone:
                self.check_read(peer)

    def keep(self) -> None:
        """Charge the memory for lasting state, or release it."""
        if self.kept and self.dice.random() < 0.6:
            size = self.dice.randint(1, self.kept)
            self.budget.forget(size)
            self.kept -= size
            self.check_served()
        else:
            size = self.near(self.dice.choice((500, self.limit // 2 - self.kept)))
            kept = self.budget.keep(size)
            assert kept == (self.kept + size <= self.limit // 2)
            self.seen["kept"] += kept
            self.seen["not kept"] += not kept
            self.kept += size * kept
        size = self.dice.randint(-self.charged, 500)
        self.charged += size
        self.budget.charge(size)

    def park(self) -> None:
        """Let the input of a connection wait for the journal, if that has much of its network to write."""
        if self.open:
            peer = self.dice.choice(self.open)
            behind = self.is_behind(peer)
            assert peer.account.behind == behind
            assert peer.account.park(lambda: self.proceed(peer)) == behind
            self.parked += [peer] * behind
            self.seen["parked"] += behind

    def proceed(self, peer: Peer) -> None:
        assert not self.is_behind(peer), "the journal has still much of its network to write"
        self.parked.remove(peer)

    def change_window(self) -> None:
        """Let the disk become faster or slower."""
        self.window = self.dice.choice((0, self.near(self.dice.choice([*self.submitted().values(), 400, 9_000]))))
        self.budget.proceed()
        assert all(map(self.is_behind, self.parked)), "input waits for a journal that is fast enough"

    def leave(self, peer: Peer | None = None) -> None:
        if self.open:
            peer = peer or self.dice.choice(self.open)
            self.open.remove(peer)
            for _ in range(2):
                peer.account.close()
                peer.account.expect(0, 0)
                peer.account.complete()
            assert not peer.account.park(lambda: None), "it is closed"

    def check(self) -> None:
        budget, slots = self.budget, self.budget.slots
        assert (budget.used, budget.held, budget.kept) == (self.used, self.held, self.kept)
        assert budget.submitting == len(self.submitted())
        assert slots.held_up() == (self.used > self.room and self.held > self.reserve)
        for peer in self.open:
            account = peer.account
            assert account.share.used == self.share(peer)
            assert (account.held, account.paused) == (sum(peer.held), not peer.reading)
            assert account.waits == (not peer.reading and not peer.crowded and account.arrived > 0)
            if slots.covers(account):
                peer.slot = account.frame
            elif not account.frame:
                peer.slot = 0
        assert slots.used <= sum(peer.slot for peer in self.open), "slots that frames no longer need take memory"
        assert slots.used >= sum(peer.slot for peer in self.open if slots.covers(peer.account))
        assert not [each for each in self.parked if each.owner not in self.submitted()], "it waits for ever"
        # A frame may have a slot alone, and each connection is read once more.
        assert self.used <= self.limit + self.kept + self.charged + 9_000 + self.read * len(self.open)
        if not self.in_flight and self.open:
            assert any(peer.reading for peer in self.open), "all wait, and for nobody"

    def run(self) -> None:
        often = [self.send] * 12 + [self.durable] * 4 + [self.connect, self.park, self.retry] * 3
        steps = [
            *often,
            self.publish_unread,
            self.grow,
            self.replace,
            self.change_speed,
            self.keep,
            self.change_window,
            self.leave,
        ]
        for _ in range(150):
            self.dice.choice(steps)()
            self.check()
        self.finish()

    def finish(self) -> None:
        """Everything that waits is served, as publishes become durable, and frames become complete or are dropped."""
        self.budget.forget(self.kept)
        self.budget.charge(-self.charged)
        self.kept = self.charged = 0
        for _ in range(20 * len(self.open) + 20):
            while self.in_flight:
                self.durable()
            assert not self.parked
            for peer in self.open:
                if peer.reading and peer.size and not peer.slow:
                    peer.send(3_000, self.read, self.check_read)
                    if peer.account.arrived == peer.size:
                        self.publish(peer)
            self.retry()
        assert [peer for peer in self.open if not peer.reading or (peer.size and not peer.slow)] == []
        for peer in list(self.open):
            self.leave(peer)
        while self.in_flight:
            self.durable()
        self.check()
        budget = self.budget
        assert (budget.used, budget.submitting, budget.slots.used) == (0, 0, 0), "nobody is here"
        budget.window = InFlight().window
        assert references(budget) == self.empty, "something of a connection that has left is remembered"


def test_connections_are_read_by_the_rules_of_the_budget_in_any_order_of_events() -> None:
    seen: Counter[str] = Counter()
    for seed in range(80):
        History(seed, seen).run()
    alone = ("nothing in flight", "slot", "room", "small")
    causes = (*alone, "crowded", "no cause", "dropped", "kept", "not kept", "parked")
    assert min(seen[each] for each in causes) > 10, f"hardly tried: {seen}"


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
