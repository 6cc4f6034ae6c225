"""The client of shared subscriptions: what becomes of a record when its body ends, fails, hangs or is cancelled."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred, DeferredLock, fail
from twisted.internet.error import ConnectError
from twisted.internet.task import Clock, deferLater

from fyrehose.errors import FyrehoseError, LeaseLost
from fyrehose.net.clients import ConnectionFailed
from fyrehose.protocols.http.calling import Called
from fyrehose.protocols.http.workers import SharedWork, WorkClient, WorkRecord
from fyrehose.records import MAX_NAME
from tests.doubles.awkward import NAMES, SURROGATES, TOO_LONG
from tests.doubles.steps import advance_until

from .test_leasing import World


@attrs.define(eq=False)
class DirectCaller:
    """Asks the server of *world*, one request after the other, whose way there and back takes a while.

    :ivar lost: the share of the answers that are lost, so that their requests are sent again
    :ivar delays: for how many seconds a request, or an answer, may be on its way; 0: it takes no turn of the reactor
    :ivar silent: while there is one, no request is sent
    :ivar latest: the latest answer
    """

    world: World
    dice: Random = attrs.field(factory=lambda: Random(0))
    lost: float = 0.0
    delays: tuple[float, ...] = (0.0,)
    silent: Deferred[None] | None = None
    latest: Called = attrs.field(init=False)
    _one: DeferredLock = attrs.field(factory=DeferredLock, init=False)

    async def call(self, method: str, path: str, body: object = None, wait: float = 0.0) -> Called:
        await self._one.acquire()
        try:
            if self.silent is not None:
                await self.silent
            repeats = -1
            while repeats < 0 or self.dice.random() < self.lost:
                repeats += 1
                asked_at = self.world.clock.seconds()
                await self.pass_time()
                peer = self.world.peer()
                answer = peer.ask(f"{method} {path}", body)
                peer.leave()
                await self.pass_time()
            self.latest = Called(*answer, asked_at, repeats)
            return self.latest
        finally:
            self._one.release()

    async def pass_time(self) -> None:
        seconds = self.dice.choice(self.delays)
        if seconds:
            await deferLater(self.world.clock, seconds)

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
    world.add(2, "logs.a")
    world.add(2, "logs.b")
    assert sorted(run(handle_all(share(world, most=2, stream="logs.*")))) == [b"1", b"1", b"2", b"2"]
    assert world.show()["settled_total"] == 4


class Workers:
    """Two workers whose requests take a while, and whose bodies settle, fail, hang, or publish a result."""

    def __init__(self, seed: int) -> None:
        self.dice, self.world = Random(seed), World()
        self.prompt = seed % 2 == 0  #: whether requests are so fast that no lease is lost on the way
        self.held: dict[str, WorkRecord] = {}  #: by worker, the record that it works on
        self.running: dict[str, Deferred[None]] = {}
        self.told: dict[str, bool] = {}  #: the results whose workers know that they count; True: after a repetition
        self.seen: Counter[str] = Counter()
        assert self.world.create(lease=10)[0] == 200
        self.peer = self.world.peer()

    def run(self) -> None:
        advance_until(self.are_done, self.world.clock)
        results = Counter(payload.decode() for payload in self.world.payloads("invoices"))
        assert results.keys() <= self.told.keys(), "a result is published, and its worker knows only that it is late"
        # If the answer was lost, a worker cannot know whether its own result counts or that of the other one.
        certain = Counter(result for result, repeated in self.told.items() if not repeated)
        assert certain <= results <= Counter(self.told.keys()), "each result is published once"

    def are_done(self) -> bool:
        self.check_leases()
        shown = self.shown()
        left = shown["settled_total"] + shown["dead_total"] < 10
        for name in ("w1", "w2"):
            if name in self.running and self.running[name].called:
                result(self.running.pop(name))
            if left and name not in self.running:
                self.running[name] = Deferred.fromCoroutine(self.work(name))
        return not left and not self.running

    def shown(self) -> Any:
        return self.peer.ask("GET /subscriptions/work")[1]

    def check_leases(self) -> None:
        leased = {(each["seq"], each["consumer"]) for each in self.shown()["leases"]}
        for name, record in self.held.items():
            if not (record.lost or record.ended):
                assert (record.seq, name) in leased, f"{name} counts on record {record.seq} longer than its lease lasts"

    async def work(self, name: str) -> None:
        delays, lost = ((0.0, 0.0, 1.0), 0.0) if self.prompt else ((0.0, 1.0, 4.0, 7.0), 0.3)
        polling, acting = (DirectCaller(self.world, self.dice, lost, delays) for _ in range(2))

        work = SharedWork(self.world.clock, polling, acting, "orders", "work", name, 3, 3, 0.0, None)  # type: ignore[arg-type]
        try:
            async with work:
                async for record in work:
                    self.held[name] = record
                    try:
                        await self.handle(work, record)
                    finally:
                        del self.held[name]
        except ValueError:
            self.seen["raised"] += 1

    async def handle(self, work: SharedWork, record: WorkRecord) -> None:
        how = self.dice.choice(("settle", "publish", "publish", "raise", "untried", "failed"))
        try:
            await work.hold(record, deferLater(self.world.clock, self.dice.choice((0.0, 3.0, 8.0, 20.0, 60.0))))
            longest = record.leased + 4 * work.lease  # it is extended until it is held for three times its length
            assert self.world.clock.seconds() < longest, "a lease is extended for ever"
            if how == "publish":
                payload = f"{record.seq} by {work.consumer}"
                await work.settle(record, [{"stream": "invoices", "payload": payload}])
                acting: Any = work.acting
                self.told[payload] = acting.latest.repeats > 0
            elif how == "raise":
                raise ValueError("broken")
            elif how != "settle":
                await getattr(work, how)(record, delay=self.dice.choice((0.0, 5.0)))
            self.seen[how] += 1
        except LeaseLost:
            self.seen["lost"] += 1
            assert record.ended, "a record whose lease is lost is settled nevertheless"
            late = self.world.clock.seconds() - record.leased >= 25
            assert late or not self.prompt, "a lease is lost although it was extended in time"


def test_a_worker_never_counts_on_a_lease_that_has_ended() -> None:
    seen: Counter[str] = Counter()
    for seed in range(6):
        workers = Workers(seed)
        try:
            workers.run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        seen += workers.seen
    assert seen.keys() == {"settle", "publish", "raised", "untried", "failed", "lost"}, f"not all happen: {seen}"


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
