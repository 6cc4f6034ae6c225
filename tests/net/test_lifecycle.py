"""The phases of a connection, and its timers."""

from __future__ import annotations

from twisted.internet.task import Clock

from fyrehose.net.lifecycle import TRANSITIONS, Phase, Timers


def test_every_phase_leads_to_the_end_and_none_leads_back() -> None:
    order = list(Phase)
    assert list(TRANSITIONS) == order
    for phase, following in TRANSITIONS.items():
        assert all(order.index(next_phase) > order.index(phase) for next_phase in following)
        assert phase is Phase.GONE or Phase.GONE in following


class TestTimers:
    def test_a_timer_calls_its_function_once(self) -> None:
        clock, called = Clock(), []
        timers = Timers(clock)

        def call() -> None:
            called.append(clock.seconds())

        timers.start(2.0, call)
        clock.advance(5.0)
        assert called == [5.0]
        timers.start(1.0, call)
        clock.advance(1.0)
        assert called == [5.0, 6.0]

    def test_a_second_start_only_brings_the_timer_forward(self) -> None:
        clock, called = Clock(), []
        timers = Timers(clock)

        def call() -> None:
            called.append(clock.seconds())

        timers.start(2.0, call)
        timers.start(3.0, call)
        timers.start(1.0, call)
        clock.advance(1.0)
        assert called == [1.0]
        assert clock.getDelayedCalls() == []

    def test_stopped_timers_call_nothing(self) -> None:
        clock, called = Clock(), []
        timers = Timers(clock)
        timers.start(1.0, lambda: called.append("one"))
        timers.start(1.0, stopped := lambda: called.append("two"))
        timers.stop(stopped)
        timers.stop(stopped)
        clock.advance(1.0)
        assert called == ["one"]
        timers.start(1.0, stopped)
        timers.clear()
        assert clock.getDelayedCalls() == []

    def test_no_timer_starts_after_the_end_of_its_connection(self) -> None:
        clock = Clock()
        timers = Timers(clock)
        timers.start(1.0, lambda: None)
        timers.end()
        timers.start(1.0, lambda: None)
        assert clock.getDelayedCalls() == []
