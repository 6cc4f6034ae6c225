"""Why reading is paused, and the watch over incomplete frames: their deadline, and when they count as slow."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import attrs
from twisted.internet.task import Clock

from fyrehose.errors import RemoteProtocolError
from fyrehose.net.incoming import CERTAINTY, RETRY, SLOW_FRAME_S, SLOWEST, FrameWatch, Reading

#: Times and sizes are multiples of these, so that sums of them are exact.
TICK_S, PART = 1 / 8, SLOWEST // 8
TIMEOUT_S = 12.0


@attrs.define
class Memory:
    """The account of a connection, as a frame watch sees it.

    :ivar charged: the sizes that it was told last, of the frame and of what is in memory of it
    :ivar looks: when it was last asked to check again
    """

    waits: bool = False
    charged: tuple[int, int] = (0, 0)
    looks: list[float] = attrs.field(factory=list)

    def expect(self, size: int, arrived: int) -> None:
        self.charged = size, arrived

    def retry(self, now: float) -> None:
        self.looks.append(now)


class History:
    """Frames that arrive at any rate, with pauses, beside the rules: when one is slow, and when it is late.

    :ivar credit: for how many seconds the frame can stop before it is behind the lowest rate; negative: it is behind
    :ivar behind_at: when it was first seen to be behind
    :ivar began: when the frame began, or reading was resumed; None: no frame is incomplete
    :ivar seen: how often which case was tried
    """

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.dice, self.seen, self.clock, self.memory = Random(seed), seen, Clock(), Memory()
        self.ended: list[str] = []
        account: Any = self.memory
        self.watch = FrameWatch(self.clock, TIMEOUT_S, self.end, self.end, account)
        self.paused, self.looked_at = False, 0.0
        self.credit, self.arrived = 0.0, 0
        self.began: float | None = None
        self.behind_at: float | None = None
        self.rate, self.ends = self.dice.choice((0.0, 0.5, 1.0, 2.0)), self.dice.choice((0.0, 0.003, 0.03))
        self.pauses = self.dice.choice((0.0, 0.002, 0.02))
        self.silent_until = 0.0  #: until then nothing arrives, and nobody asks whether the frame is slow

    def end(self, error: RemoteProtocolError) -> None:
        self.ended.append(error.cause)

    @property
    def now(self) -> float:
        return self.clock.seconds()

    def observe(self) -> None:
        if self.credit >= 0:
            self.behind_at = None
        elif self.behind_at is None:
            self.behind_at = self.now

    def receive(self, parts: int, none: bool = False) -> None:
        """Receive some *parts* of a frame: the incomplete one, another, or the last of all."""
        another, none = (
            self.began is not None and self.dice.random() < self.ends,
            none or self.dice.random() < self.ends,
        )
        size, buffered = (0, 0) if none else (self.dice.choice((200, 1 << 30)), self.dice.randrange(200))
        if none:
            self.began = None
        elif another or self.began is None:
            self.began, self.credit, self.arrived = self.now, SLOW_FRAME_S, 0
        else:
            self.arrived += parts * PART
            # A burst saves no more time than this, and a pause of any length costs no more.
            self.credit = min(SLOW_FRAME_S, max(self.credit, -SLOW_FRAME_S) + parts * TICK_S)
        self.watch.received(parts * PART, size, buffered, another)
        if size:
            self.observe()
        assert (self.watch.size, self.memory.charged) == (size, (size, buffered))

    def pause(self) -> None:
        if self.dice.random() < 0.2:
            self.receive(1, none=True)
        self.paused, self.memory.waits, self.looked_at = True, self.dice.random() < 0.5, self.now
        self.watch.pause()

    def resume(self) -> None:
        self.paused = self.memory.waits = False
        self.watch.resume()
        # What the peer sends has to get here first.
        self.credit, self.behind_at = max(self.credit, SLOW_FRAME_S / 2), None
        self.began = None if self.began is None else self.now
        if self.dice.random() < 0.3:
            self.silent_until = self.now + SLOW_FRAME_S / 2 + TICK_S

    def pass_time(self) -> None:
        self.memory.looks.clear()
        self.clock.advance(TICK_S)
        if not self.paused:
            self.credit -= TICK_S
        self.check_looks()
        late = self.began is not None and self.now >= self.began + TIMEOUT_S + self.arrived / SLOWEST
        assert self.ended == ["frame-timeout"] * (late and not self.paused)

    def check_looks(self) -> None:
        """Check whether a frame that waits for memory has checked again in time, and no other has."""
        waits = self.memory.waits and self.began is not None
        if self.memory.looks:
            assert waits, "nothing waits"
            assert self.memory.looks == [self.now]
            self.looked_at = self.now
        assert not waits or self.now < self.looked_at + RETRY, "it is not asked again"
        self.seen["look"] += len(self.memory.looks)

    def check_slow(self) -> None:
        slow = False
        if self.began is not None and not self.paused:
            self.observe()
            slow = self.behind_at is not None and self.now >= self.behind_at + CERTAINTY
        assert self.watch.slow == slow, f"{self.credit:g} s are left, it is behind since {self.behind_at}"
        self.seen["slow"] += slow
        self.seen["behind"] += self.behind_at is not None and not slow

    def step(self) -> None:
        if self.dice.random() < 0.02:
            self.rate = self.dice.choice((0.0, 0.0, 0.5, 1.0, 2.0))
        if self.dice.random() < (0.1 if self.paused else self.pauses):
            (self.resume if self.paused else self.pause)()
        elif not self.paused and self.now >= self.silent_until and self.dice.random() < 0.5:
            burst = self.dice.random() < 0.002
            self.receive(self.dice.choice((40, 200)) if burst else round(self.dice.random() * 4 * self.rate))
        if self.now >= self.silent_until and self.dice.random() < 0.9:
            self.check_slow()
        self.pass_time()

    def run(self) -> None:
        for _ in range(1_000):
            self.step()
            if self.ended:
                self.seen["late"] += 1
                break
        self.watch.close()
        assert not self.clock.getDelayedCalls()
        assert not self.watch.slow


def test_frames_are_slow_and_late_by_the_rules_whatever_the_rate_and_the_pauses() -> None:
    seen: Counter[str] = Counter()
    for seed in range(80):
        History(seed, seen).run()
    assert min(seen[each] for each in ("slow", "behind", "late", "look")) > 10, f"hardly tried: {seen}"


def test_a_dropped_slow_frame_reports_the_reason() -> None:
    ended: list[str] = []
    watch = FrameWatch(Clock(), TIMEOUT_S, lambda error: None, lambda error: ended.append(str(error)))
    watch.received(10, 200, 0, True)
    watch.received(30, 200, 0, False)
    watch.drop()
    [said] = ended
    assert said.startswith("slow-frame: 30 bytes of a frame arrived at less than 64 KiB per second while others waited")


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
