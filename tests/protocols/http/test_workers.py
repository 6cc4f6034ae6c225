"""The client of shared subscriptions: what becomes of a record when its body ends, fails, hangs or is cancelled."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.error import ConnectError
from twisted.internet.task import Clock

from fyrehose.errors import FyrehoseError, LeaseLost
from fyrehose.net.clients import ConnectionFailed
from fyrehose.protocols.http.workers import SharedWork, WorkClient, WorkRecord
from fyrehose.records import MAX_NAME
from tests.doubles.awkward import NAMES, SURROGATES, TOO_LONG

from .test_leasing import World


@attrs.define(eq=False)
class DirectCaller:
    """Asks the server of *world* directly; loses the next *lost* answers."""

    world: World
    lost: int = 0
    repeats: int = 0
    asked_at: float = 0.0
    #: while there is one, no request is answered
    silent: Deferred[None] | None = None

    async def call(self, method: str, path: str, body: object = None, wait: float = 0.0) -> tuple[int, Any]:
        if self.silent is not None:
            await self.silent
        self.asked_at = self.world.clock.seconds()
        answer = self.world.ask(f"{method} {path}", body)
        while self.lost:
            self.lost -= 1
            self.repeats += 1
            answer = self.world.ask(f"{method} {path}", body)
        return answer

    def close(self) -> None:
        """Keep nothing open."""


def share(
    world: World,
    most: int = 1,
    stream: str = "orders",
    longest: int = 10,
    clock: Clock | None = None,
    **options: Any,
) -> SharedWork:
    caller = DirectCaller(world)
    return SharedWork(clock or world.clock, caller, caller, stream, "work", "w1", most, longest, 0.0, options or None)  # type: ignore[arg-type]


def result(deferred: Deferred[Any]) -> Any:
    """Return the result of *deferred*, which has fired; raise its error."""
    found: list[Any] = []
    deferred.addBoth(found.append)
    if hasattr(found[0], "raiseException"):
        found[0].raiseException()
    return found[0]


def run(coroutine: Any) -> Any:
    return result(Deferred.fromCoroutine(coroutine))


async def handle_all(work: SharedWork) -> list[bytes]:
    found = []
    async with work:
        async for record in work:
            found.append(record.payload)
    return found


def test_each_record_is_handled_and_settled() -> None:
    world = World()
    assert run(handle_all(share(world))) == [b"%d" % number for number in range(1, 11)]
    assert (world.show()["settled_total"], world.show()["in_flight"]) == (10, 0)


def test_subscription_is_created_with_the_options_or_must_have_the_same_ones() -> None:
    world = World()
    run(handle_all(share(world, lease=60, dead="dead")))
    assert (world.show()["lease"], world.show()["dead"]) == (60, "dead")
    run(handle_all(share(world)))
    with pytest.raises(FyrehoseError, match="exists with other options"):
        run(handle_all(share(world, lease=10)))
    with pytest.raises(FyrehoseError, match="not a shared one of 'other'"):
        run(handle_all(share(world, stream="other")))


def test_a_body_that_raises_returns_its_record_as_failed_and_the_others_as_not_tried() -> None:
    world = World()

    async def body() -> None:
        async with share(world, most=3, clock=timers) as work:
            async for _ in work:
                raise ValueError("broken")

    timers = Clock()
    with pytest.raises(ValueError, match="broken"):
        run(body())
    assert world.show()["in_flight"] == 0
    assert timers.getDelayedCalls() == [], "timers of leases that it has returned"
    world.clock.advance(2)
    found = {each["seq"]: each["failures"] for each in world.lease(10)}
    assert [found[seq] for seq in (1, 2, 3)] == [1, 0, 0]


def test_a_body_that_is_cancelled_returns_its_record_as_not_tried() -> None:
    world = World()

    async def body() -> None:
        async with share(world) as work:
            async for _ in work:
                await Deferred()

    running = Deferred.fromCoroutine(body())
    assert world.show()["in_flight"] == 1
    running.cancel()
    with pytest.raises(CancelledError):
        result(running)
    world.clock.advance(2)
    assert [(each["seq"], each["failures"]) for each in world.lease()] == [(1, 0)]


def test_leases_are_extended_while_the_body_runs_but_not_for_ever() -> None:
    world, waiting = World(), Deferred[None]()

    async def body() -> WorkRecord:
        async with share(world, longest=3, lease=10) as work:
            async for record in work:
                await waiting
                return record
        raise AssertionError("there are records")

    running = Deferred.fromCoroutine(body())
    for _ in range(30):
        world.clock.advance(1)
    assert [each["seq"] for each in world.show()["leases"]] == [1]
    for _ in range(20):
        world.clock.advance(1)
    assert world.show()["leases"] == []
    assert world.lease(1, "w2")[0]["failures"] in (0, 1), "it is leased to somebody else"
    waiting.callback(None)
    with pytest.raises(LeaseLost):
        result(running)


async def hold_first(
    work: SharedWork, held: Deferred[None], seen: list[object], before: Deferred[None] | None = None
) -> None:
    """Wait for *before*, and then for *held*, with the first record that is new; append what comes of each record."""
    async with work:
        async for record in work:
            if record.seq > 1 or record.failures:
                seen.append((record.seq, record.failures))
                continue
            if before is not None:
                await before
            try:
                await work.hold(record, held)
            except LeaseLost as lost:
                seen.append(str(lost))


def test_a_worker_that_waits_too_long_is_cancelled_and_goes_on_with_other_records() -> None:
    world, seen, cancelled = World(), [], []
    held: Deferred[None] = Deferred(cancelled.append)
    running = Deferred.fromCoroutine(hold_first(share(world, longest=3, lease=10), held, seen))
    world.clock.pump([1.0] * 45)
    assert cancelled == [held]
    result(running)
    others = [(number, 0) for number in range(2, 11)]
    assert (
        seen[0] == "the lease of record 1 of stream 'orders' is lost: it was not extended, or the server refused that"
    )
    assert sorted(seen[1:]) == others
    assert world.show()["settled_total"] == 9
    assert world.lease()[0]["failures"] == 1, "the end of the lease was a failure"


@pytest.mark.parametrize("late", [False, True], ids=["while it waits", "before it waits"])
def test_a_worker_is_cancelled_when_the_server_has_taken_its_lease_away(late: bool) -> None:
    world, seen, before = World(), [], Deferred[None]()
    running = Deferred.fromCoroutine(hold_first(share(world, lease=9), Deferred(), seen, before if late else None))
    world.ask("POST /subscriptions/work/rewind", {"seq": 1})
    world.clock.advance(3)
    before.callback(None)
    result(running)
    assert (
        seen[0] == "the lease of record 1 of stream 'orders' is lost: it was not extended, or the server refused that"
    )
    assert world.show()["settled_total"] == 9


def test_the_late_result_of_a_worker_counts_that_could_not_extend_its_lease() -> None:
    world, waiting = World(), Deferred[None]()
    work = share(world, lease=10)
    caller: Any = work.acting

    async def body() -> WorkRecord:
        async with work:
            async for record in work:
                await waiting
                return record
        raise AssertionError("there are records")

    running = Deferred.fromCoroutine(body())
    caller.silent = Deferred()
    world.clock.pump([1.0] * 12)
    caller.silent.callback(None)
    caller.silent = None
    waiting.callback(None)
    assert result(running).lost
    assert world.show()["settled_total"] == 1


def test_a_lost_lease_is_reported() -> None:
    world = World()

    async def body() -> None:
        async with share(world) as work:
            async for record in work:
                world.settle(done=[[record.seq, record.token]])
                await work.settle(record)

    with pytest.raises(LeaseLost, match="record 1 of stream 'orders' was not settled: final"):
        run(body())


def test_results_are_published_once_if_the_answer_is_lost() -> None:
    world = World()

    async def body() -> None:
        async with share(world) as work:
            async for record in work:
                work.acting.lost = 1  # type: ignore[attr-defined]
                await work.settle(record, publish=[{"stream": "invoices", "payload": f"{record.seq}"}])

    run(body())
    assert world.payloads("invoices") == [b"%d" % number for number in range(1, 11)]


def test_records_are_returned_and_rejected() -> None:
    world = World()

    async def body() -> None:
        async with share(world, dead="dead") as work:
            async for record in work:
                if record.seq == 1:
                    await work.failed(record, delay=60)
                elif record.seq == 2:
                    await work.untried(record, delay=60)
                elif record.seq == 3:
                    await work.reject(record, "no address")

    run(body())
    shown = world.show()
    assert (shown["settled_total"], shown["dead_total"], shown["delayed"]) == (7, 1, 2)
    assert shown["dead_letters"][0]["why"] == "no address"


@pytest.mark.parametrize("why", [*NAMES, *TOO_LONG, *SURROGATES, ""])
def test_reason_of_a_rejection_is_stored_as_far_as_a_name_may_reach(why: str) -> None:
    world = World()

    async def body() -> None:
        async with share(world, most=1) as work:
            await work.reject(await anext(work), why)

    run(body())
    wanted = "".join("?" if "\ud800" <= each <= "\udfff" else each for each in why)
    while len(wanted.encode()) > MAX_NAME:
        wanted = wanted[:-1]
    assert [each["why"] for each in world.show()["dead_letters"]] == [wanted or "rejected"]


def test_workers_share_the_records_of_a_pattern() -> None:
    world = World()
    world.publish(2, "logs.a")
    world.publish(2, "logs.b")
    assert sorted(run(handle_all(share(world, most=2, stream="logs.*")))) == [b"1", b"1", b"2", b"2"]
    assert world.show()["settled_total"] == 4


class Nobody:
    """An endpoint whose connections are refused."""

    def connect(self, factory: object) -> Deferred[Any]:
        return fail(ConnectError(string="refused"))


def test_a_program_decides_which_errors_end_a_worker() -> None:
    ends = WorkClient(Clock(), Nobody(), "h:1", process_exception=lambda error: error)  # type: ignore[arg-type]
    with pytest.raises(ConnectionFailed, match="refused"):
        run(handle_all(ends.share("orders", "billing")))
    waits = WorkClient(Clock(), Nobody(), "h:1")  # type: ignore[arg-type]
    waiting = Deferred.fromCoroutine(handle_all(waits.share("orders", "billing")))
    assert not waiting.called
    waiting.cancel()
    waiting.addErrback(lambda failure: failure.trap(CancelledError))
