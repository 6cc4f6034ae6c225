"""Turns: round and round, within the pool, first come first served, and never stuck."""

from __future__ import annotations

from collections import deque

import attrs
import pytest
from twisted.internet.task import Clock

from fyrehose.core.budget import Budget
from fyrehose.net.incoming import Reading
from fyrehose.protocols.lumberjack.turns import MAX_IN_FLIGHT, POOL, TURNS_PER_ITERATION, Outcome, Turns


@attrs.define(eq=False)
class Toy:
    """Does as it was told: (needs before, outcome) for each turn."""

    name: str
    plan: deque[tuple[int, Outcome]]
    log: list[str]
    grants: list[int] = attrs.field(factory=list)

    @property
    def needs(self) -> int:
        return self.plan[0][0] if self.plan else 0

    def take_turn(self, granted: int) -> Outcome:
        needs, outcome = self.plan.popleft()
        assert granted >= needs
        self.grants.append(granted)
        self.log.append(self.name)
        return outcome


class Table:
    """Turns, a clock, and who had one."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.clock, self.budget, self.log = Clock(), Budget(limit=limit), list[str]()
        self.turns = Turns(self.clock, self.budget)

    def toy(self, name: str, *plan: tuple[int, Outcome]) -> Toy:
        return Toy(name, deque(plan), self.log)

    def ask(self, *toys: Toy) -> None:
        for toy in toys:
            self.turns.request(toy)

    def run(self) -> str:
        """Who has had a turn when nobody asks any more."""
        for _ in range(1000):
            if not self.clock.getDelayedCalls():
                break
            self.clock.advance(0)
        said, self.log[:] = "".join(self.log), []
        return said


MORE, DONE, BACK = Outcome.MORE, Outcome.DONE, Outcome.HELD_BACK


def test_everybody_has_a_turn_and_then_the_next() -> None:
    table = Table()
    table.ask(*(table.toy(name, (0, MORE), (0, MORE), (0, DONE)) for name in "abc"))
    assert table.run() == "abcabcabc"


def test_there_are_so_many_turns_between_two_looks_at_the_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table()
    looks: list[int] = []
    call_later = table.clock.callLater
    monkeypatch.setattr(table.clock, "callLater", lambda *words: (looks.append(len(table.log)), call_later(*words))[1])
    table.ask(table.toy("a", *[(0, MORE)] * 9, (0, DONE)))
    assert table.run() == "a" * 10
    assert looks == list(range(0, 10, TURNS_PER_ITERATION))


def test_asking_twice_is_asking_once() -> None:
    table = Table()
    toy = table.toy("a", (0, DONE))
    table.ask(toy, toy)
    assert table.run() == "a"


def test_the_pool_is_shared_in_the_order_in_which_they_asked() -> None:
    table = Table()
    half = POOL // 2
    table.ask(
        table.toy("a", (half, MORE), (half, DONE)),
        table.toy("b", (half, MORE), (half, MORE), (half, DONE)),
        table.toy("c", (half, DONE)),
        table.toy("d", (1, DONE)),
    )
    assert table.run() == "ababcbd"
    assert table.turns._granted == 0


def test_somebody_who_needs_more_than_there_is_waits_and_nobody_overtakes() -> None:
    table = Table()
    table.ask(
        table.toy("a", (POOL, MORE), (POOL, DONE)),
        table.toy("b", (POOL, DONE)),
        table.toy("c", (1, DONE)),
    )
    assert table.run() == "aabc"


def test_more_than_the_pool_is_granted_to_one_alone() -> None:
    table = Table(limit=10)
    table.ask(table.toy("a", (2 * POOL, DONE)), table.toy("b", (2 * POOL, DONE)))
    assert table.run() == "ab"


def test_what_is_not_needed_any_more_is_given_back() -> None:
    table = Table()
    first = table.toy("a", (POOL, MORE), (10, MORE), (0, MORE), (0, DONE))
    table.ask(first, table.toy("b", (POOL - 10, DONE)))
    assert table.run() == "aabaa"
    assert first.grants == [POOL, 10, 0, 0]


def test_a_worker_that_needs_more_than_it_was_granted_goes_to_the_end_of_the_queue() -> None:
    table = Table()
    first = table.toy("a", (POOL // 2, MORE), (POOL, DONE))
    table.ask(first, table.toy("b", (POOL, DONE)))
    assert table.run() == "aba"
    assert first.grants == [POOL // 2, POOL]


def test_a_worker_that_is_held_back_gives_its_grant_back_and_asks_again() -> None:
    """Only a commit lets it go on, and others can inflate meanwhile; what it holds already is in its account."""
    table = Table()
    toy = table.toy("a", (POOL, BACK), (POOL, DONE))
    table.ask(toy, table.toy("b", (POOL, DONE)))
    assert table.run() == "ab"
    assert table.turns._granted == 0
    assert not table.clock.getDelayedCalls(), "it is not asked again and again"
    table.ask(toy)
    assert table.run() == "a"


def test_the_budget_of_all_plugins_counts_while_something_of_ours_will_be_released() -> None:
    table = Table(limit=100)
    table.budget.account(Reading(lambda: None, lambda: None)).hold(90)
    table.turns.in_flight = 5
    table.ask(table.toy("a", (20, DONE)), table.toy("b", (20, DONE)))
    assert table.run() == ""
    table.turns.in_flight = 0
    table.turns.schedule()
    assert table.run() == "ab", "waiting would change nothing"


def test_what_was_granted_and_not_filled_yet_counts_as_used() -> None:
    table = Table(limit=100)
    table.turns.in_flight = 5
    table.ask(table.toy("a", (60, MORE), (60, DONE)), table.toy("b", (60, DONE)))
    assert table.run() == "aab"


@pytest.mark.parametrize(("limit", "most"), [(1 << 40, MAX_IN_FLIGHT), (1 << 20, 512 << 10)])
def test_nobody_has_a_turn_while_much_is_on_its_way_to_the_disk(limit: int, most: int) -> None:
    table = Table(limit)
    table.turns.in_flight = most - 1
    assert not table.turns.saturated
    table.ask(table.toy("a", (0, MORE), (0, MORE), (0, DONE)))
    table.turns.in_flight = most
    assert table.turns.saturated
    assert table.run() == ""
    table.turns.in_flight = most - 1
    table.turns.schedule()
    assert table.run() == "aaa"


def test_who_leaves_is_not_served() -> None:
    table = Table()
    others = [table.toy("b", (POOL // 2, DONE)), table.toy("c", (POOL, DONE))]  # one with its grant, and one without

    class Breaker(Toy):
        def take_turn(self, granted: int) -> Outcome:
            assert table.turns._granted in (POOL, POOL // 2)
            for other in others:
                table.turns.withdraw(other)
            return super().take_turn(granted)

    table.ask(Breaker("a", deque([(POOL // 2, MORE), (POOL // 2, DONE)]), table.log), *others)
    assert table.run() == "aa"
    assert table.turns._granted == 0


def test_who_leaves_in_its_turn_is_forgotten() -> None:
    table = Table()

    class Leaver(Toy):
        def take_turn(self, granted: int) -> Outcome:
            table.turns.withdraw(self)
            return super().take_turn(granted)

    table.ask(Leaver("a", deque([(5, MORE)]), table.log))
    assert table.run() == "a"
    assert table.turns._granted == 0
