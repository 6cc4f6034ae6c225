"""The clock that stamps records: steps of the wall clock of every size and sign."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.interfaces import Unread
from fyrehose.journal import subscriptions
from fyrehose.journal.clock import BOUND, SETTLED, RecordClock, wall_clock
from fyrehose.records import Run

SECOND = 1_000_000
HOUR = 3600 * SECOND
YEAR = 365 * 24 * HOUR
NOW = 1_700_000_000 * SECOND


@attrs.define
class Clocks:
    """A wall clock that can be set, and a monotonic clock that cannot."""

    wall: int = NOW
    monotonic: int = 5 * SECOND

    def advance(self, microseconds: int) -> None:
        self.wall += microseconds
        self.monotonic += microseconds

    def record_clock(self) -> RecordClock:
        return RecordClock(lambda: self.wall, lambda: self.monotonic)


def test_times_of_a_new_leader_go_on_slowly_while_those_of_the_last_one_are_ahead() -> None:
    clocks = Clocks()
    clock = clocks.record_clock()
    clock.start(NOW - HOUR)
    ahead = NOW + 50 * 60 * SECOND
    assert clock.lead(ahead) == ahead
    assert clock.in_doubt
    assert "0:50:00 ahead of this server's clock" in " ".join(clock.messages())
    times = []
    for _ in range(50):
        clocks.advance(60 * SECOND)
        times.append(clock.now())
    assert times == [ahead + 30 * SECOND * number for number in range(1, 51)]
    clocks.advance(HOUR)
    assert clock.now() == clocks.wall
    assert not clock.in_doubt
    assert clock.messages() == ["this server's clock has caught up with the times of the records"]


@pytest.mark.parametrize("ahead", [-HOUR, 0, SECOND, BOUND + SECOND])
def test_other_times_of_the_last_leader_do_not_change_the_clock(ahead: int) -> None:
    clocks = Clocks()
    clock = clocks.record_clock()
    clock.start(NOW)
    assert clock.lead(NOW + ahead) == max(NOW, NOW + ahead)
    assert clock.now() == NOW
    assert not clock.in_doubt


@pytest.mark.parametrize("step", [BOUND + 1, YEAR, -BOUND - 1, -YEAR, -NOW, 1 << 62])
def test_record_times_do_not_follow_a_large_step_of_the_wall_clock(step: int) -> None:
    clocks = Clocks()
    clock = clocks.record_clock()
    clock.start(0)
    clocks.wall += step
    assert clock.now() == NOW
    assert clock.in_doubt
    clocks.advance(7 * SECOND)
    assert clock.now() == NOW + 7 * SECOND
    said = clock.messages()
    assert len(said) == 1
    assert ("ahead of" if step > 0 else "behind") in said[0]
    clocks.wall -= step
    assert clock.now() == NOW + 7 * SECOND
    assert not clock.in_doubt
    assert "is followed" in clock.messages()[0]


@pytest.mark.parametrize("ahead", [BOUND + 1, YEAR])
def test_clock_far_ahead_at_the_start_is_not_followed_until_it_has_settled(ahead: int) -> None:
    """The server may have been down for that long; only a clock that runs steadily shows that it is right."""
    clocks = Clocks()
    clock = clocks.record_clock()
    assert clock.start(NOW - ahead) == NOW - ahead
    assert clock.in_doubt
    (said,) = clock.messages()
    assert "ahead of the last record; it is not followed" in said
    assert "unless the server was down for that long" in said
    for _ in range(SETTLED // (10 * SECOND)):
        assert clock.now() == clocks.monotonic - 5 * SECOND + NOW - ahead
        clocks.advance(10 * SECOND)
    assert clock.now() == clocks.wall
    assert not clock.in_doubt


def test_clock_that_was_ahead_at_the_start_is_followed_as_soon_as_it_is_corrected() -> None:
    clocks = Clocks(wall=NOW + YEAR)
    clock = clocks.record_clock()
    assert clock.start(NOW) == NOW
    clocks.advance(SECOND)
    assert clock.now() == NOW + SECOND
    clocks.wall = NOW + 7 * SECOND
    assert clock.now() == NOW + 7 * SECOND
    assert not clock.in_doubt


@pytest.mark.parametrize("away", [10 * SECOND, -10 * SECOND, BOUND, -BOUND])
def test_a_clock_near_the_last_record_is_followed_at_the_start_without_a_message(away: int) -> None:
    clocks = Clocks()
    clock = clocks.record_clock()
    assert clock.start(NOW + away) == NOW
    assert clock.messages() == []
    assert not clock.in_doubt


def test_clock_far_behind_at_the_start_is_not_followed() -> None:
    clocks = Clocks()
    clock = clocks.record_clock()
    assert clock.start(NOW + YEAR) == NOW + YEAR
    assert clock.in_doubt
    shown = datetime.fromtimestamp(NOW // SECOND, UTC).isoformat(timespec="seconds")
    assert f"the wall clock shows {shown}, 365 days, 0:00:00 behind" in clock.messages()[0]
    clocks.advance(SECOND)
    assert clock.now() == NOW + YEAR + SECOND


@given(st.lists(st.tuples(st.integers(-(1 << 60), 1 << 60), st.integers(0, HOUR)), max_size=30))
def test_random_steps_are_followed_only_after_the_clock_has_run_steadily(steps: list[tuple[int, int]]) -> None:
    clocks = Clocks()
    clock = clocks.record_clock()
    before = clock.start(0)
    for step, passed in steps:
        clocks.wall += step
        found = clock.now()
        # Directly after a step, the time is near the last one, or it is that of a wall clock that made a small step.
        assert abs(found - before) <= BOUND
        clocks.advance(passed)
        before = clock.now()


class TestTheJournal:
    def journal(self, open_journal: Any, clocks: Clocks, **settings: Any) -> Any:
        return open_journal(now=lambda: clocks.wall, monotonic=lambda: clocks.monotonic, segment_size=4096, **settings)

    def fill(self, bench: Any, clocks: Clocks, count: int = 60) -> None:
        for i in range(count):
            clocks.advance(SECOND)
            bench.append(b"%03d" % i * 100)

    def times(self, bench: Any) -> list[int]:
        runs: tuple[Run, ...] = ()
        found = []
        start = bench.journal.bounds("s")[0]
        while runs := bench.journal.read("s", start, 1 << 20):
            found += [run.time for run in runs for _ in range(len(run))]
            start = runs[-1].last_seq + 1
        return found

    def test_step_of_the_clock_deletes_no_segment_and_stamps_no_record(
        self, open_journal: Any, log_lines: list[str]
    ) -> None:
        clocks = Clocks()
        bench = self.journal(open_journal, clocks, keep_age=3600.0)
        self.fill(bench, clocks)
        clocks.wall += YEAR
        for _ in range(3):
            bench.append(b"lost in time" * 100)
            bench.clock.advance(1)
        clocks.wall -= YEAR
        bench.append(b"back")
        bench.clock.advance(1)
        assert bench.journal.bounds("s") == (1, 64)
        assert max(self.times(bench)) <= NOW + 120 * SECOND
        assert any("not followed" in line for line in log_lines)
        bench.close()
        bench = self.journal(open_journal, clocks, keep_age=3600.0)
        bench.append(b"after the restart")
        assert max(self.times(bench)) <= NOW + 120 * SECOND

    def test_start_with_a_wrong_clock_deletes_no_segment_and_stamps_no_record(self, open_journal: Any) -> None:
        clocks = Clocks()
        bench = self.journal(open_journal, clocks)
        self.fill(bench, clocks, 90)
        bench.close()
        sealed = len(list(bench.directory.glob("*.segment"))) - 1
        assert sealed > 3
        clocks.wall += YEAR
        bench = self.journal(open_journal, clocks, keep_age=3600.0)
        for _ in range(60):
            bench.append(b"lost in time")
            clocks.advance(SECOND)
            bench.clock.advance(1)
        clocks.wall -= YEAR
        bench.append(b"back")
        bench.clock.advance(1)
        assert bench.journal.bounds("s")[0] == 1
        assert max(self.times(bench)) <= clocks.wall
        bench.append(b"after the correction")
        assert self.times(bench)[-1] == clocks.wall

    def test_after_a_year_of_downtime_segments_expire_once_the_clock_has_run_steadily(self, open_journal: Any) -> None:
        clocks = Clocks()
        bench = self.journal(open_journal, clocks)
        self.fill(bench, clocks, 90)
        bench.close()
        clocks.wall += YEAR
        bench = self.journal(open_journal, clocks, keep_age=3600.0)
        for _ in range(SETTLED // SECOND - 1):
            clocks.advance(SECOND)
            bench.clock.advance(1)
        assert bench.journal.bounds("s")[0] == 1
        clocks.advance(SECOND)
        bench.clock.advance(1)
        assert len(list(bench.directory.glob("*.segment"))) == 1
        bench.append(b"this year")
        assert self.times(bench)[-1] == clocks.wall

    def test_subscription_does_not_time_out_while_the_clock_is_in_doubt(self, open_journal: Any) -> None:
        clocks = Clocks()
        bench = self.journal(open_journal, clocks)
        self.fill(bench, clocks, 90)
        bench.close()
        subscriptions.update(bench.directory, "archive", 64, clocks.wall)
        clocks.wall -= YEAR  # the last record has the right time
        bench = self.journal(open_journal, clocks, keep_bytes=4096, subscription_timeout=3600.0)
        clocks.advance(2 * HOUR)
        for _ in range(5):
            clocks.wall -= YEAR  # the clock is in doubt again
            bench.clock.advance(1)
        assert bench.journal.bounds("s")[0] == 1

    @pytest.mark.parametrize("step", [-10 * YEAR, 10 * YEAR, 90 * 24 * HOUR], ids=["1970", "2070", "a quarter"])
    @pytest.mark.parametrize("kind", ["files", "named"])
    @pytest.mark.parametrize("believed", [False, True])
    def test_subscription_used_while_the_clock_was_wrong_loses_nothing_once_it_is_right(
        self, open_journal: Any, step: int, kind: str, believed: bool
    ) -> None:
        """The wrong clock is corrected before the server follows it, or long after that."""
        clocks = Clocks(NOW + step)
        bench = self.journal(open_journal, clocks, keep_bytes=4096, subscription_timeout=3600.0)
        named: list[Unread] = []
        bench.journal.keeper.unread = lambda: named

        def passes(seconds: int) -> None:
            for _ in range(seconds):
                clocks.advance(SECOND)
                bench.clock.advance(1)

        def use() -> None:
            """Acknowledge record 1: another program by its wall clock, a client of the server by the server's."""
            if kind == "files":
                subscriptions.update(bench.directory, "billing", 64, clocks.wall)
            else:
                named[:] = [Unread("billing", "s", 1, bench.journal.clock.now())]

        bench.append(b"acknowledged")
        use()
        if believed:
            passes(SETTLED // SECOND + 60)
        use()
        clocks.wall -= step
        passes(SETTLED // SECOND + 60)  # the server follows the corrected clock, and the consumer is busy meanwhile
        self.fill(bench, clocks, 90)
        passes(5)
        assert bench.journal.bounds("s")[0] == 1
        passes(3600)
        assert bench.journal.bounds("s")[0] > 1, "a subscription that is not used for an hour does not keep the log"

    @pytest.mark.parametrize("stamp", [NOW - YEAR, NOW + YEAR])
    def test_file_subscription_counts_from_when_the_server_first_saw_its_content(
        self, open_journal: Any, stamp: int
    ) -> None:
        """The time in the file is by the clock of another process, and wrong by a year."""
        clocks = Clocks()
        bench = self.journal(open_journal, clocks, keep_bytes=4096, subscription_timeout=3600.0)

        def passes(microseconds: int) -> None:
            clocks.advance(microseconds)
            bench.clock.advance(1)

        subscriptions.update(bench.directory, "archive", 0, stamp)
        self.fill(bench, clocks, 90)
        passes(HOUR - 100 * SECOND)
        assert bench.journal.bounds("s")[0] == 1
        subscriptions.update(bench.directory, "archive", 64, stamp)
        passes(SECOND)
        passes(HOUR - SECOND)
        assert bench.journal.bounds("s")[0] == 1, "another content counts anew"
        passes(2 * SECOND)
        assert bench.journal.bounds("s")[0] > 1

    @pytest.mark.parametrize("stamp", [NOW - YEAR, NOW + YEAR])
    def test_the_last_use_of_a_file_subscription_is_shown_by_the_clock_of_the_server(
        self, open_journal: Any, stamp: int
    ) -> None:
        """The time in the file is by the clock of another process, and wrong by a year."""
        clocks = Clocks()
        keeper = self.journal(open_journal, clocks).journal.keeper
        for position in (0, 64):
            subscriptions.update(keeper.directory, "archive", position, stamp)
            assert [each.time for each in keeper.subscriptions()] == [clocks.wall]
            clocks.advance(HOUR)
            assert [each.time for each in keeper.subscriptions()] == [clocks.wall - HOUR]

    def test_dead_subscription_is_seen_before_a_segment_is_due(self, open_journal: Any) -> None:
        """The time since its last use runs although nothing is to be deleted for long."""
        clocks = Clocks()
        bench = self.journal(open_journal, clocks, keep_bytes=4096, subscription_timeout=3600.0)
        subscriptions.update(bench.directory, "archive", 0, NOW)
        bench.clock.advance(61)
        clocks.advance(2 * HOUR)
        self.fill(bench, clocks, 90)
        bench.clock.advance(1)
        assert bench.journal.bounds("s")[0] > 1

    def test_a_stop_stores_the_time_of_a_server_that_had_no_messages(self, open_journal: Any) -> None:
        """The end of the log has the time when the journal was closed, not that of the last record."""
        clocks = Clocks()
        bench = self.journal(open_journal, clocks)
        bench.append(b"long ago")
        clocks.advance(30 * 24 * HOUR)
        bench.clock.advance(1)
        bench.close()
        clocks.advance(HOUR // 2)
        bench = self.journal(open_journal, clocks)
        bench.append(b"after the restart")
        assert self.times(bench)[-1] == clocks.wall


def test_a_step_of_an_hour_is_followed_at_once_and_a_longer_one_after_ten_minutes() -> None:
    """In these ten minutes the wall clock may drift by a minute."""
    hour, minute, second = 3_600_000_000, 60_000_000, 1_000_000
    time = [10**15, 0]
    clock = RecordClock(lambda: time[0], lambda: time[1])

    def passes(elapsed: int, step: int = 0) -> int:
        time[0] += elapsed + step
        time[1] += elapsed
        return time[0] - clock.now()

    assert clock.start(0) == 10**15
    assert passes(second, hour) == 0
    assert passes(second, -hour) == 0
    assert (clock.messages(), clock.in_doubt) == ([], False)
    assert passes(second, hour + 1) == hour + 1
    assert clock.in_doubt
    assert passes(10 * minute - 1, minute) == hour + 1 + minute
    assert passes(1) == 0
    assert not clock.in_doubt
    assert len(clock.messages()) == 2
    assert passes(second, -hour - 1) == -hour - 1
    assert passes(9 * minute, -minute - 1) == -hour - minute - 2
    assert passes(9 * minute) == -hour - minute - 2, "it did not stand"
    assert passes(minute) == 0
    for _ in range(9):
        passes(second, 2 * hour)
        passes(second, -2 * hour)
    assert len(clock.messages()) == 4, "the latest"


def test_wall_clock_is_in_microseconds() -> None:
    before = time.time_ns()
    assert before // 1000 <= wall_clock() <= time.time_ns() // 1000
