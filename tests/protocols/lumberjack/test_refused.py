"""The memory of refused frames: how long, how many, and whose."""

from __future__ import annotations

from twisted.internet.task import Clock

from fyrehose.protocols.lumberjack.refused import FIRST, LONGEST, RefusedFrames


def test_unknown_frame_is_not_refused() -> None:
    frames = RefusedFrames(Clock().seconds)
    frames.add("10.0.0.1", b"a", "bomb", hopeless=True)
    assert frames.of("10.0.0.1").reason(b"a") == "bomb"
    assert frames.of("10.0.0.1").reason(b"b") == ""
    assert frames.of("10.0.0.2").reason(b"a") == "", "networks share nothing"


def test_frame_that_can_be_acknowledged_in_part_is_tried_again_after_pauses_that_double() -> None:
    clock = Clock()
    frames = RefusedFrames(clock.seconds).of("10.0.0.1")
    pause = FIRST
    for _ in range(15):
        frames.add(b"a", "bomb", hopeless=False)
        clock.advance(pause - 1)
        assert frames.reason(b"a") == "bomb"
        clock.advance(1)
        assert frames.reason(b"a") == ""
        pause = min(2 * pause, LONGEST)
    assert pause == LONGEST


def test_hopeless_frame_is_never_tried_again() -> None:
    clock = Clock()
    frames = RefusedFrames(clock.seconds).of("10.0.0.1")
    frames.add(b"a", "bomb", hopeless=True)
    clock.advance(1e9)
    assert frames.reason(b"a") == "bomb"


def test_full_memory_forgets_the_oldest_frame_of_the_network_with_the_most() -> None:
    frames = RefusedFrames(Clock().seconds, most=5)
    honest = frames.of("10.0.0.1")
    honest.add(b"own", "bomb", hopeless=True)
    for number in range(10_000):
        frames.add("10.6.6.6", b"%d" % number, "flood", hopeless=True)
        assert len(frames) <= 5
    assert honest.reason(b"own") == "bomb"
    assert [bool(frames.reason("10.6.6.6", b"%d" % number)) for number in range(9_994, 10_000)] == [False, False] + [
        True
    ] * 4
    frames.reason("10.6.6.6", b"9996")
    frames.add("10.6.6.6", b"more", "flood", hopeless=True)
    assert frames.reason("10.6.6.6", b"9996"), "a frame that came again counts as the latest"
    assert not frames.reason("10.6.6.6", b"9997")
