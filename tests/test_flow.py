"""The budget: nobody holds what others need to finish, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fyrehose.flow import Account, Budget


class Transport:
    """Remembers whether it reads."""

    reading = True
    switched = 0

    def pauseProducing(self) -> None:
        assert self.reading
        self.reading = False
        self.switched += 1

    def resumeProducing(self) -> None:
        assert not self.reading
        self.reading = True
        self.switched += 1


def accounts(budget: Budget, count: int) -> tuple[list[Account], list[Transport]]:
    transports = [Transport() for _ in range(count)]
    return [budget.account(transport) for transport in transports], transports


def test_whoever_holds_more_than_its_share_reads_again_when_half_of_it_is_free() -> None:
    (account,), (transport,) = accounts(Budget(limit=1000, each=100), 1)
    for _ in range(5):
        account.hold(25)
    assert not transport.reading
    for _ in range(2):
        account.release(25)
    assert not transport.reading, "75 of 100 are too many still"
    account.release(25)
    assert transport.reading


def test_a_frame_that_does_not_fit_waits_its_turn() -> None:
    budget = Budget(limit=100, each=1000)
    (first, second, third), transports = accounts(budget, 3)
    first.expect(80)
    second.expect(50)
    third.expect(60)
    assert [t.reading for t in transports] == [True, False, False]
    first.expect(0)
    assert [t.reading for t in transports] == [True, True, False], "in the order in which they asked"
    second.expect(0)
    assert [t.reading for t in transports] == [True, True, True]
    assert budget.used == 60


def test_a_frame_larger_than_the_budget_is_granted_alone() -> None:
    budget = Budget(limit=100, each=1000)
    (first, second), transports = accounts(budget, 2)
    first.expect(500)
    assert transports[0].reading
    second.expect(10)
    assert not transports[1].reading
    first.close()
    assert transports[1].reading
    assert budget.used == 10


def test_when_all_of_it_is_used_whoever_publishes_stops_and_goes_on_later() -> None:
    budget = Budget(limit=100, each=1000)
    (first, second), transports = accounts(budget, 2)
    first.hold(90)
    second.hold(20)
    assert [t.reading for t in transports] == [True, False]
    first.release(90)
    assert transports[1].reading


def test_a_closed_account_counts_until_what_it_published_is_released() -> None:
    budget = Budget(limit=100, each=1000)
    (first, second), transports = accounts(budget, 2)
    first.hold(100)
    first.expect(50)
    first.close()
    assert budget.used == 100
    second.hold(10)
    assert not transports[1].reading
    first.release(100)
    assert transports[1].reading
    assert budget.used == 10


def test_announcing_large_frames_keeps_nobody_with_small_ones_from_going_on() -> None:
    budget = Budget(limit=1000, each=1000, small=10)
    announcers, waiting = accounts(budget, 200)
    for account in announcers:
        account.expect(100)
    assert sum(t.reading for t in waiting) == 7, "a quarter of it is not for large frames"
    small, transports = accounts(budget, 15)
    for account in small:
        account.expect(10)
        account.hold(10)
        account.expect(5)
    assert all(t.reading for t in transports)


def test_a_stream_of_small_frames_does_not_keep_a_large_one_waiting_for_ever() -> None:
    budget = Budget(limit=1000, each=1000, small=10)
    small, small_transports = accounts(budget, 100)
    for account in small:
        account.hold(10)
    (large,), (transport,) = accounts(budget, 1)
    large.expect(700)
    assert not transport.reading
    for done, account in enumerate(small[:70]):
        assert not transport.reading, done
        account.expect(10)
        account.release(10)
    assert transport.reading
    large.expect(0)
    assert all(t.reading for t in small_transports)


class BudgetMachine(RuleBasedStateMachine):
    """Connections as they come: each announces a frame only while it reads, and publishes it when it is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(limit=100, each=60, small=20)
        self.open: list[tuple[Account, Transport]] = []
        self.in_flight: list[tuple[Account, int]] = []

    @rule()
    def connect(self) -> None:
        transport = Transport()
        self.open.append((self.budget.account(transport), transport))

    def reading(self) -> list[Account]:
        return [account for account, transport in self.open if transport.reading]

    @precondition(lambda self: self.reading())
    @rule(data=st.data(), size=st.integers(1, 150))
    def announce(self, data: st.DataObject, size: int) -> None:
        account = data.draw(st.sampled_from(self.reading()))
        account.expect(size)

    @precondition(lambda self: any(account.frame for account in self.reading()))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        account = data.draw(st.sampled_from([account for account in self.reading() if account.frame]))
        size = account.frame
        account.hold(size)
        self.in_flight.append((account, size))
        account.expect(0)

    @precondition(lambda self: self.in_flight)
    @rule()
    def durable(self) -> None:
        account, size = self.in_flight.pop(0)
        account.release(size)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(self.open))
        self.open.remove(pair)
        pair[0].close()

    @invariant()
    def sums_agree(self) -> None:
        held = sum(size for _, size in self.in_flight)
        granted = sum(account.granted for account, _ in self.open)
        assert self.budget.used == held + granted >= 0
        assert all(account.granted in (0, account.frame) for account, _ in self.open)
        assert all(account.paused != transport.reading for account, transport in self.open)

    @invariant()
    def what_is_reserved_is_given(self) -> None:
        sizes = [size for _, size in self.in_flight] + [account.granted for account, _ in self.open]
        assert self.budget.large == sum(size for size in sizes if size > self.budget.small)
        small = self.budget.used - self.budget.large
        for account, transport in self.open:
            if not transport.reading and account.frame <= self.budget.small and account.held <= self.budget.each // 2:
                assert small + account.frame - account.granted > self.budget.reserved, "it waits for nothing"

    @invariant()
    def somebody_can_go_on(self) -> None:
        if self.open and not self.in_flight:
            assert any(transport.reading for _, transport in self.open), "all wait, and for nobody"

    def teardown(self) -> None:
        while self.in_flight:
            self.durable()
        for account, transport in list(self.open):
            if transport.reading:
                account.expect(0)
        for _ in range(len(self.open)):
            for account, transport in self.open:
                if transport.reading and account.frame:
                    account.expect(0)
        assert all(transport.reading for _, transport in self.open), "in the end everybody reads"


TestBudgetMachine = BudgetMachine.TestCase
TestBudgetMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
