"""Why reading is paused, and the watch over incomplete frames: their deadline, and when they count as slow."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from fyrehose.errors import RemoteProtocolError
from fyrehose.net.incoming import CERTAINTY, RETRY, SLOW_FRAME_S, SLOWEST, FrameWatch, Reading
from fyrehose.net.inflight import InFlight

#: The size that incomplete frames announce; what is in memory of them takes no room in these tests.
FRAME = 200


class World:
    """A connection with a clock and a frame watch."""

    def __init__(self, timeout: float = 30.0) -> None:
        self.clock = Clock()
        self.ended: list[str] = []
        self.watch = FrameWatch(self.clock, timeout, self.end, self.end)
        self.reading = Reading(self.watch.pause, self.watch.resume)
        self.watch.account = InFlight(limit=512).account(self.reading, "a", self.watch)

    def end(self, error: RemoteProtocolError) -> None:
        self.ended.append(error.cause)

    def is_slow(self) -> bool:
        """Return whether the frame is slow when it is checked twice."""
        slow = self.watch.slow
        assert not slow, "it is certain too soon"
        self.clock.advance(CERTAINTY)
        return self.watch.slow

    def bring(self, rate: float, seconds: int) -> list[bool]:
        """Bring *rate* bytes each second; whether the frame was slow, each second."""
        slow = []
        for _ in range(seconds):
            self.clock.advance(1)
            slow.append(self.watch.slow)
            self.receive(int(rate))
        return slow

    def receive(self, size: int, *, another: bool = False) -> None:
        """Receive *size* bytes of a frame that is still incomplete afterwards; *another*: of another frame."""
        self.watch.received(size, FRAME, 0, another)


@pytest.fixture
def world() -> World:
    made = World()
    made.receive(10, another=True)
    return made


def test_a_frame_that_arrives_at_the_lowest_rate_is_not_slow(world: World) -> None:
    assert not any(world.bring(SLOWEST, 300))


def test_a_frame_below_the_lowest_rate_becomes_slow(world: World) -> None:
    slow = world.bring(SLOWEST / 2, 30)
    assert not any(slow[: int(SLOW_FRAME_S)])
    assert slow[-1]


def test_a_burst_does_not_excuse_a_pause_after_it(world: World) -> None:
    world.receive(16 << 20)
    world.clock.advance(SLOW_FRAME_S)
    assert not world.watch.slow
    world.clock.advance(0.1)
    assert world.is_slow()


def test_a_frame_that_arrives_fast_again_is_not_slow_any_more(world: World) -> None:
    world.clock.advance(25)
    assert world.is_slow()
    world.receive(SLOWEST * 6)
    assert not world.watch.slow


def test_a_frame_that_was_not_read_because_the_reactor_was_busy_is_not_slow(world: World) -> None:
    world.clock.advance(60)
    assert not world.watch.slow
    for _ in range(20):  # the turns of the reactor after that
        world.clock.advance(0.05)
        world.receive(SLOWEST)
        assert not world.watch.slow


def test_a_trickling_frame_is_slow_at_the_first_check(world: World) -> None:
    for _ in range(20):
        world.clock.advance(1)
        world.receive(900)
    assert world.watch.slow


def test_each_frame_is_watched_separately(world: World) -> None:
    world.clock.advance(25)
    world.receive(10, another=True)
    assert not world.watch.slow
    world.clock.advance(29)
    assert world.ended == []


def test_without_an_incomplete_frame_a_connection_is_neither_slow_nor_late(world: World) -> None:
    world.watch.received(10, 0, 0, True)
    world.clock.advance(1000)
    assert not world.watch.slow
    assert world.ended == []


def test_paused_time_does_not_count(world: World) -> None:
    world.clock.advance(4)
    world.reading.pauseProducing()
    world.clock.pump([10] * 100)
    assert not world.watch.slow
    world.reading.resumeProducing()
    assert not world.watch.slow
    for seconds in (CERTAINTY, SLOW_FRAME_S / 2 - 2 * CERTAINTY, CERTAINTY):
        world.clock.advance(seconds)
        assert not world.watch.slow, "what the peer sends has to get here first"
    world.clock.advance(0.1)
    assert world.is_slow()
    assert world.ended == []


def test_a_frame_is_late_after_the_timeout_and_a_second_per_64_kib(world: World) -> None:
    world.receive(3 * SLOWEST)
    world.clock.advance(32.9)
    assert world.ended == []
    world.clock.advance(0.2)
    assert world.ended == ["frame-timeout"]


def test_a_frame_that_waits_for_memory_retries_regularly(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    account = world.watch.account
    assert account is not None
    looks: list[float] = []
    monkeypatch.setattr(type(account), "retry", lambda self, now: looks.append(now))
    other = account.budget.account(Reading(lambda: None, lambda: None), "a", world.watch)
    other.expect(200, 100)
    account.expect(200, 100)
    assert world.reading.paused
    world.clock.pump([RETRY] * 5)
    assert looks == [1, 2, 3, 4, 5]
    other.close()
    assert not world.reading.paused
    world.clock.pump([RETRY] * 5)
    assert len(looks) == 5


def test_a_watch_that_is_closed_leaves_no_timer(world: World) -> None:
    world.watch.close()
    assert not world.clock.getDelayedCalls()
    assert not world.watch.slow


def test_a_dropped_slow_frame_reports_the_reason(world: World) -> None:
    world.watch.drop()
    assert world.ended == ["slow-frame"]


def test_reading_resumes_when_no_reason_to_pause_is_left() -> None:
    log: list[str] = []
    reading = Reading(lambda: log.append("pause"), lambda: log.append("resume"))
    reading.pauseProducing()
    reading.pause_for("turn")
    reading.pause_for("turn")
    reading.resume_after("turn")
    assert reading.paused
    reading.resumeProducing()
    reading.resume_after("turn")
    assert log == ["pause", "resume"]


def test_the_account_is_charged_for_the_incomplete_frame_only(world: World) -> None:
    account = world.watch.account
    assert account is not None
    world.watch.received(30, FRAME, 30, False)
    assert (account.frame, account.arrived, world.watch.size) == (FRAME, 30, FRAME)
    world.watch.received(70, 0, 0, True)
    assert world.watch.size == account.frame == 0
