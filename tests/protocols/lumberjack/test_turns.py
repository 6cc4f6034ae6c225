"""WriterTurns: round robin within the pool, grants in the order of requests, no deadlock."""

from __future__ import annotations

from collections import deque

import attrs
import pytest
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.net.incoming import Reading
from fyrehose.net.inflight import InFlight
from fyrehose.protocols.lumberjack.turns import MAX_IN_FLIGHT, POOL, TURNS_PER_ITERATION, Outcome, WriterTurns


@attrs.define(eq=False)
class PlannedWorker:
    """A worker with a plan: (needs before the turn, outcome) of each turn."""

    name: str
    plan: deque[tuple[int, Outcome]]
    log: list[str]
    grants: list[int] = attrs.field(factory=list)
    failure: Failure | None = None

    def failed(self, failure: Failure) -> None:
        self.failure = failure

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
    """WriterTurns with a clock, and a log of the workers that took a turn."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.clock, self.budget, self.log = Clock(), InFlight(limit=limit), list[str]()
        self.turns = WriterTurns(self.clock, self.budget)

    def worker(self, name: str, *plan: tuple[int, Outcome]) -> PlannedWorker:
        return PlannedWorker(name, deque(plan), self.log)

    def request(self, *workers: PlannedWorker) -> None:
        for worker in workers:
            self.turns.request(worker)

    def run(self) -> str:
        """Run until no turn is scheduled; return the names of the workers that took turns."""
        for _ in range(1000):
            if not self.clock.getDelayedCalls():
                break
            self.clock.advance(0)
        said, self.log[:] = "".join(self.log), []
        return said


MORE, DONE, BACK = Outcome.MORE, Outcome.DONE, Outcome.HELD_BACK


def test_worker_whose_turn_fails_is_ended_and_the_others_go_on() -> None:
    table = Table()
    broken, other = table.worker("a", (7, Outcome.DONE)), table.worker("b", (5, Outcome.MORE), (5, Outcome.DONE))
    broken.log = None  # type: ignore[assignment]
    table.request(broken, other)
    assert table.run() == "bb"
    assert broken.failure is not None
    assert broken.failure.check(AttributeError)
    assert table.turns.granted == 0


def test_workers_take_turns_in_a_round_robin() -> None:
    table = Table()
    table.request(*(table.worker(name, (0, MORE), (0, MORE), (0, DONE)) for name in "abc"))
    assert table.run() == "abcabcabc"


def test_turns_per_reactor_iteration_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table()
    iterations: list[int] = []
    call_later = table.clock.callLater
    monkeypatch.setattr(
        table.clock, "callLater", lambda *words: (iterations.append(len(table.log)), call_later(*words))[1]
    )
    table.request(table.worker("a", *[(0, MORE)] * 9, (0, DONE)))
    assert table.run() == "a" * 10
    assert iterations == list(range(0, 10, TURNS_PER_ITERATION))


def test_second_request_is_ignored() -> None:
    table = Table()
    worker = table.worker("a", (0, DONE))
    table.request(worker, worker)
    assert table.run() == "a"


def test_pool_is_granted_in_the_order_of_requests() -> None:
    table = Table()
    half = POOL // 2
    table.request(
        table.worker("a", (half, MORE), (half, DONE)),
        table.worker("b", (half, MORE), (half, MORE), (half, DONE)),
        table.worker("c", (half, DONE)),
        table.worker("d", (1, DONE)),
    )
    assert table.run() == "ababcbd"
    assert table.turns.granted == 0


def test_later_requests_do_not_overtake_one_that_waits_for_memory() -> None:
    table = Table()
    table.request(
        table.worker("a", (POOL, MORE), (POOL, DONE)),
        table.worker("b", (POOL, DONE)),
        table.worker("c", (1, DONE)),
    )
    assert table.run() == "aabc"


def test_request_larger_than_the_pool_is_granted_alone() -> None:
    table = Table(limit=10)
    table.request(table.worker("a", (2 * POOL, DONE)), table.worker("b", (2 * POOL, DONE)))
    assert table.run() == "ab"


def test_memory_grant_shrinks_with_the_needs_of_its_worker() -> None:
    table = Table()
    first = table.worker("a", (POOL, MORE), (10, MORE), (0, MORE), (0, DONE))
    table.request(first, table.worker("b", (POOL - 10, DONE)))
    assert table.run() == "aabaa"
    assert first.grants == [POOL, 10, 0, 0]


def test_worker_that_needs_more_than_its_memory_grant_queues_again() -> None:
    table = Table()
    first = table.worker("a", (POOL // 2, MORE), (POOL, DONE))
    table.request(first, table.worker("b", (POOL, DONE)))
    assert table.run() == "aba"
    assert first.grants == [POOL // 2, POOL]


def test_delayed_worker_releases_its_memory_grant_until_it_requests_again() -> None:
    """A worker that waits for a commit lets other workers inflate; its buffers stay charged to its account."""
    table = Table()
    worker = table.worker("a", (POOL, BACK), (POOL, DONE))
    table.request(worker, table.worker("b", (POOL, DONE)))
    assert table.run() == "ab"
    assert table.turns.granted == 0
    assert not table.clock.getDelayedCalls(), "a held back worker is not polled"
    table.request(worker)
    assert table.run() == "a"


def test_budget_limits_grants_only_while_data_is_in_flight() -> None:
    table = Table(limit=100)
    table.budget.account(Reading(lambda: None, lambda: None)).hold(90)
    table.turns.in_flight = 5
    table.request(table.worker("a", (20, DONE)), table.worker("b", (20, DONE)))
    assert table.run() == ""
    table.turns.in_flight = 0
    table.turns.schedule()
    assert table.run() == "ab", "waiting would not release memory"


def test_granted_memory_counts_as_used_before_it_is_used() -> None:
    table = Table(limit=100)
    table.turns.in_flight = 5
    table.request(table.worker("a", (60, MORE), (60, DONE)), table.worker("b", (60, DONE)))
    assert table.run() == "aab"


@pytest.mark.parametrize(("limit", "most"), [(1 << 40, MAX_IN_FLIGHT), (1 << 20, 512 << 10)])
def test_no_turn_is_taken_while_the_disk_is_saturated(limit: int, most: int) -> None:
    table = Table(limit)
    table.turns.in_flight = most - 1
    assert not table.turns.saturated
    table.request(table.worker("a", (0, MORE), (0, MORE), (0, DONE)))
    table.turns.in_flight = most
    assert table.turns.saturated
    assert table.run() == ""
    table.turns.in_flight = most - 1
    table.turns.schedule()
    assert table.run() == "aaa"


def test_withdrawn_workers_get_no_turn() -> None:
    table = Table()
    others = [
        table.worker("b", (POOL // 2, DONE)),
        table.worker("c", (POOL, DONE)),
    ]  # one with its grant, and one without

    class Withdrawer(PlannedWorker):
        def take_turn(self, granted: int) -> Outcome:
            assert table.turns.granted in (POOL, POOL // 2)
            for other in others:
                table.turns.withdraw(other)
            return super().take_turn(granted)

    table.request(Withdrawer("a", deque([(POOL // 2, MORE), (POOL // 2, DONE)]), table.log), *others)
    assert table.run() == "aa"
    assert table.turns.granted == 0


def test_worker_may_withdraw_during_its_turn() -> None:
    table = Table()

    class Leaver(PlannedWorker):
        def take_turn(self, granted: int) -> Outcome:
            table.turns.withdraw(self)
            return super().take_turn(granted)

    table.request(Leaver("a", deque([(5, MORE)]), table.log))
    assert table.run() == "a"
    assert table.turns.granted == 0
