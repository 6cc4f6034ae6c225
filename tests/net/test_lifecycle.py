"""The phases of a connection, its timers, and the wait for its first byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.net.lifecycle import TRANSITIONS, FirstByte, Phase, Timers


def test_every_phase_of_a_connection_leads_to_the_end_and_none_leads_back() -> None:
    order = list(Phase)
    assert list(TRANSITIONS) == order
    for phase, following in TRANSITIONS.items():
        assert all(order.index(next_phase) > order.index(phase) for next_phase in following)
        assert phase is Phase.GONE or Phase.GONE in following


class TestTimers:
    def test_an_error_of_a_function_is_passed_on_and_the_other_timers_go_on(self) -> None:
        clock, called, failures = Clock(), list[float](), list[Failure]()
        timers = Timers(clock, failures.append)

        def fail() -> None:
            raise RuntimeError("bug")

        timers.start(1.0, fail)
        timers.start(2.0, lambda: called.append(clock.seconds()))
        clock.advance(3.0)
        assert called == [3.0]
        assert [failure.getErrorMessage() for failure in failures] == ["bug"]

    def test_an_error_of_a_function_is_raised_where_nobody_handles_it(self) -> None:
        clock = Clock()
        Timers(clock).start(1.0, lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            clock.advance(1.0)

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

    @given(delays=st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0]), min_size=1))
    def test_starting_a_timer_again_only_makes_it_fire_earlier(self, delays: list[float]) -> None:
        clock, called = Clock(), list[float]()
        timers = Timers(clock)

        def call() -> None:
            called.append(clock.seconds())

        for delay in delays:
            timers.start(delay, call)
        clock.pump([1.0] * 5)
        assert called == [min(delays)]

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


class TestFirstByte:
    def test_a_silent_peer_is_given_up_after_the_timeout(self) -> None:
        clock, given_up = Clock(), []
        first = FirstByte(Timers(clock), 30.0, lambda: given_up.append(clock.seconds()))
        first.start()
        clock.advance(20.0)
        first.start()  # after the TLS handshake
        clock.advance(29.0)
        assert (given_up, first.awaited) == ([], True)
        clock.advance(1.0)
        assert given_up == [50.0]

    def test_a_peer_that_has_sent_a_byte_is_not_given_up(self) -> None:
        clock, given_up = Clock(), []
        first = FirstByte(Timers(clock), 30.0, lambda: given_up.append(clock.seconds()))
        first.start()
        first.arrived(b"GET / HTTP/1.1\r\n")
        first.start()
        clock.advance(31.0)
        assert (given_up, first.awaited) == ([], False)

    def test_without_a_timeout_a_silent_peer_may_stay(self) -> None:
        clock = Clock()
        FirstByte(Timers(clock), 0.0, lambda: None).start()
        assert not clock.getDelayedCalls()
