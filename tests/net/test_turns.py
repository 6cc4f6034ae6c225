"""All work takes turns: the share that has paid least is next, and one turn of the reactor does a bounded part."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.net.turns import INPUT_S, LEAST, LONG, ROUND, ROUND_S, STEPS, SteppedWork, Turns
from tests.doubles.steps import advance_until


class Reactor(Clock):
    """A clock that makes one turn of the reactor out of each second."""

    def callLater(self, delay: float, *args: Any, **kw: Any) -> Any:
        return super().callLater(max(delay, 1), *args, **kw)


@attrs.define(eq=False)
class Job:
    """Work of which each turn handles *size* bytes in *seconds*.

    :ivar left: how many turns it still wants
    :ivar seen: the jobs whose turns were taken, in their order
    """

    turns: Turns
    clock: Clock
    share: str = ""
    size: int = 0
    seconds: float = 0.0
    left: int = 1 << 30
    seen: list[Job] = attrs.field(factory=list)
    count: int = attrs.field(default=0, init=False)
    failure: Failure | None = attrs.field(default=None, init=False)

    def take_turn(self) -> int:
        self.count += 1
        self.seen.append(self)
        self.clock.rightNow += self.seconds
        self.left -= 1
        if self.left > 0:
            self.turns.ready(self, self.share)
        return self.size

    def failed(self, failure: Failure) -> None:
        self.failure = failure


@pytest.fixture
def clock() -> Reactor:
    return Reactor()


@pytest.fixture
def turns(clock: Clock) -> Turns:
    return Turns(clock)


def start(turns: Turns, clock: Clock, jobs: int, share: str = "", **how: Any) -> list[Job]:
    found = [Job(turns, clock, share, **how) for _ in range(jobs)]
    for job in found:
        turns.ready(job, share)
    return found


def test_a_round_ends_when_its_time_is_over_however_little_it_has_handled(turns: Turns, clock: Clock) -> None:
    jobs = start(turns, clock, 100, size=100, seconds=ROUND_S / 2)
    clock.advance(1)
    assert sum(job.count for job in jobs) == 3, "the first turn of a round is not counted"
    clock.advance(1)
    assert sum(job.count for job in jobs) == 6
    assert max(job.count for job in jobs) == 1


def test_a_share_with_one_work_gets_as_much_as_one_with_a_hundred(turns: Turns, clock: Clock) -> None:
    many = start(turns, clock, 100, "many", size=1 << 14)
    one, two = start(turns, clock, 1, "one", size=1 << 14), start(turns, clock, 1, "two", size=1 << 14)
    for _ in range(20):
        clock.advance(1)
    counts = [sum(job.count for job in jobs) for jobs in (many, one, two)]
    assert max(counts) - min(counts) <= 1


def test_a_share_pays_for_the_time_of_its_turns(turns: Turns, clock: Clock) -> None:
    [heavy] = start(turns, clock, 1, "heavy", seconds=(1 << 16) * ROUND_S / ROUND)
    [light] = start(turns, clock, 1, "light", size=1 << 14)
    for _ in range(100):
        clock.advance(1)
    assert light.count == pytest.approx(4 * heavy.count, rel=0.05)


@pytest.mark.parametrize("alone", [True, False])
def test_work_that_is_run_within_a_turn_has_its_own_turn_behind_it(turns: Turns, clock: Clock, alone: bool) -> None:
    seen: list[Job] = []
    later = Job(turns, clock, "later", left=1, seen=seen)

    class Running(Job):
        def take_turn(self) -> int:
            turns.run(later, "later")
            assert not seen, "a round within a turn would have no bound"
            return super().take_turn()

    first = Running(turns, clock, left=1, seen=seen)
    if alone:
        turns.run(first)
    else:
        turns.add(first, "")
        turns.run()
    assert bool(clock.getDelayedCalls()) == alone, "a round of several works has both"
    clock.advance(1)
    assert seen == [first, later]


def test_work_waits_for_the_round_that_is_scheduled_because_the_time_for_input_is_over(
    turns: Turns, clock: Clock
) -> None:
    turns.charge("<10.0.0.0", INPUT_S)
    job = Job(turns, clock, left=1)
    turns.run(job)
    assert job.count == 0
    clock.advance(1)
    assert job.count == 1


def test_closing_forgets_all_work(turns: Turns, clock: Clock) -> None:
    [job] = start(turns, clock, 1)
    turns.close()
    assert clock.getDelayedCalls() == [], "no round would come"
    clock.advance(1)
    assert job.count == 0


def test_closing_within_a_turn_forgets_the_rest(turns: Turns, clock: Clock) -> None:
    class Closing(Job):
        def take_turn(self) -> int:
            turns.close()
            return 0

    turns.add(Closing(turns, clock), "")
    [rest] = start(turns, clock, 1)
    clock.advance(1)
    assert (rest.count, clock.getDelayedCalls()) == (0, [])
    [again] = start(turns, clock, 1, left=1)
    clock.advance(1)
    assert again.count == 1


def test_work_whose_turn_fails_is_ended_and_does_not_stop_the_others(turns: Turns, clock: Clock) -> None:
    class Failing(Job):
        def take_turn(self) -> int:
            raise GeneratorExit

    alone, broken, other = Failing(turns, clock), Failing(turns, clock), Job(turns, clock, left=1)
    turns.run(alone)
    turns.add(broken, "")
    turns.add(other, "")
    turns.run()
    assert [each.failure is not None and each.failure.type for each in (alone, broken)] == [GeneratorExit] * 2
    assert other.count == 1


def test_many_shares_that_come_and_go_leave_no_memory_behind(turns: Turns, clock: Clock) -> None:
    start(turns, clock, 1, "busy", size=LEAST)
    for number in range(20_000):
        start(turns, clock, 1, f"{number}", left=1)
        if number % 100 == 0:
            clock.advance(1)
    clock.advance(1)
    clock.advance(1)
    kept = sum(len(value) for value in attrs.asdict(turns, recurse=False).values() if isinstance(value, dict))
    assert kept < 3_000


# A plain model: of the shares that wait, the next turn is one of those that have paid least.


@attrs.define(eq=False)
class Counted(Job):
    """A job whose turns the model counts, too."""

    model: Model = attrs.field(kw_only=True)

    def take_turn(self) -> int:
        self.model.begin_turn(self)
        size = super().take_turn()
        if self.left > 0:
            self.model.waiting[self.share].append(self)
        return size


class Model(RuleBasedStateMachine):
    """Any works, beside a table of what each share that waits has paid, and what the others owe."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Reactor()
        self.turns = Turns(self.clock)
        self.jobs: list[Counted] = []
        self.waiting: dict[str, list[Counted]] = {share: [] for share in "abcde"}
        self.left = INPUT_S  # how long input is handled as it arrives
        self.seen: list[Job] = []
        self.paid: dict[str, float] = {}
        self.debts: dict[str, float] = {}
        self.level = 0.0
        self.last: Counted | None = None

    def waits(self, share: str) -> bool:
        return bool(self.waiting[share])

    @rule(share=st.sampled_from("abcde"), size=st.integers(0, ROUND), left=st.integers(1, 20))
    def add(self, share: str, size: int, left: int) -> None:
        if not self.waits(share):
            self.paid[share] = max(self.debts.pop(share, 0.0), self.level)
        job = Counted(self.turns, self.clock, share, size, left=left, seen=self.seen, model=self)
        self.jobs.append(job)
        self.waiting[share].append(job)
        self.turns.ready(job, share)

    @rule(share=st.sampled_from("abcde"), seconds=st.floats(0, ROUND_S))
    def handle_input_as_it_arrives(self, share: str, seconds: float) -> None:
        assert self.turns.open(share) == (self.left > 0 and not self.waits(share)), "it would overtake earlier input"
        self.turns.charge(share, seconds)
        self.left -= seconds
        if self.paid:
            table = self.paid if share in self.paid else self.debts
            table[share] = max(table.get(share, 0.0), self.level) + seconds * (ROUND / ROUND_S)

    @rule(share=st.sampled_from("abcde"), size=st.integers(0, ROUND), left=st.integers(1, 20))
    def run(self, share: str, size: int, left: int) -> None:
        """Run work, which has its first turn at once if no round is scheduled; nothing waits, so nobody pays for it."""
        at_once = not self.clock.getDelayedCalls()
        if not at_once and not self.waits(share):
            self.paid[share] = max(self.debts.pop(share, 0.0), self.level)
        job = Counted(self.turns, self.clock, share, size, left=left, seen=self.seen, model=self)
        self.jobs.append(job)
        self.waiting[share].append(job)
        self.turns.run(job, share)
        assert job.count == at_once
        if at_once:
            self.left = INPUT_S
            self.paid |= {share: 0.0} if job.left else {}

    def begin_turn(self, job: Counted) -> None:
        self.end_turn()
        assert self.waiting[job.share].pop(0) is job, "works of one share take turns in their order"
        if not self.paid:
            return
        assert self.paid[job.share] == min(self.paid.values())
        self.level, self.last = self.paid[job.share], job

    def end_turn(self) -> None:
        """Let the share of the last turn pay for it."""
        job, self.last = self.last, None
        if job is not None:
            paid = self.level + max(job.size, LEAST)
            if self.waits(job.share):
                self.paid[job.share] = paid
            else:
                del self.paid[job.share]
                self.debts[job.share] = paid

    @precondition(lambda self: self.paid)
    @rule()
    def one_round(self) -> None:
        before = len(self.seen)
        self.clock.advance(1)
        self.end_turn()
        taken = self.seen[before:]
        assert taken
        costs = [max(job.size, LEAST) for job in taken]
        assert sum(costs[:-1]) < ROUND
        assert not self.paid or sum(costs) >= ROUND
        self.left = INPUT_S
        if not self.paid:
            self.debts.clear()
            self.level = 0.0

    @precondition(lambda self: not self.paid)
    @rule()
    def one_round_without_work(self) -> None:
        before = len(self.seen)
        self.clock.advance(1)
        self.left = self.left if self.left > 0 else INPUT_S
        assert len(self.seen) == before

    @invariant()
    def a_round_is_scheduled_while_anything_waits(self) -> None:
        assert bool(self.clock.getDelayedCalls()) == (bool(self.paid) or self.left <= 0)
        assert self.turns.left == self.left

    def teardown(self) -> None:
        while self.paid:
            self.one_round()
        assert all(job.left == 0 for job in self.jobs)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "among others"])
@pytest.mark.parametrize(
    ("size", "seconds", "counted"), [(0, 0.0501, ["Job"]), (LONG, 0.0, ["Job"]), (LONG - 1, 0.0499, [])]
)
def test_turn_that_costs_much_is_counted_by_the_kind_of_its_work(
    clock: Reactor, others: int, size: int, seconds: float, counted: list[str]
) -> None:
    """50 ms, or the bytes that cost as much."""
    found: list[str] = []
    turns = Turns(clock, long=found.append)
    for number in range(others):
        turns.ready(Job(turns, clock, f"10.0.0.{number}", left=1))
    turns.run(Job(turns, clock, "10.0.1.0", size, seconds, left=1), "10.0.1.0")
    clock.pump([1.0] * 3)
    assert found == counted


@pytest.mark.parametrize(("seconds", "counted"), [(0.05, ["input"]), (0.0499, [])])
def test_input_that_takes_long_as_it_arrives_is_counted(clock: Reactor, seconds: float, counted: list[str]) -> None:
    found: list[str] = []
    Turns(clock, long=found.append).charge("<10.0.0.0", seconds)
    assert found == counted


@pytest.mark.parametrize("later", [False, True])
def test_steps_end_with_the_result_of_their_generator(turns: Turns, clock: Clock, later: bool) -> None:
    taken: list[int] = []

    def counted() -> Generator[None, None, str]:
        for step in range(3 * STEPS):
            taken.append(step)
            yield
        return "the end"

    found: list[object] = []
    work = SteppedWork(turns, counted(), "10.0.0.1")
    (work.later if later else work.begin)().addCallback(found.append)
    assert len(taken) == (0 if later else STEPS), "one turn takes a part"
    assert list(turns.waiting) == ["10.0.0.1"]
    advance_until(lambda: found, clock)
    assert (found, len(taken)) == (["the end"], 3 * STEPS)


def test_steps_fail_with_the_error_of_their_generator(turns: Turns) -> None:
    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError("of a step")

    failures: list[Failure] = []
    SteppedWork(turns, failing()).begin().addErrback(failures.append)
    assert [failure.type for failure in failures] == [ValueError]


def test_steps_that_are_stopped_go_no_further(turns: Turns, clock: Clock) -> None:
    taken: list[int] = []

    def counted() -> Generator[None, None, None]:
        for step in range(3 * STEPS):
            taken.append(step)
            yield

    steps = SteppedWork(turns, counted())
    done = steps.begin()
    steps.stop()
    clock.pump([1] * 5)
    assert (len(taken), done.called) == (STEPS, False)
