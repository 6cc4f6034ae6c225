"""The clock that stamps records: steps of the wall clock of every size and sign."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from random import Random
from typing import Any

import attrs
import pytest

from fyrehose.interfaces import Unread
from fyrehose.journal import subscriptions
from fyrehose.journal.clock import BOUND, SETTLED, STEADY, RecordClock, wall_clock
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


@pytest.mark.parametrize(
    ("ahead", "doubt"),
    [(-HOUR, False), (0, False), (SECOND, False), (SECOND + 1, True), (BOUND, True), (BOUND + 1, False)],
)
def test_times_of_the_last_leader_change_the_clock_if_they_are_ahead_by_a_second_to_an_hour(
    ahead: int, doubt: bool
) -> None:
    clocks = Clocks()
    clock = clocks.record_clock()
    clock.start(NOW)
    assert clock.lead(NOW + ahead) == max(NOW, NOW + ahead)
    assert (clock.now(), clock.in_doubt) == (NOW + ahead * doubt, doubt)


#: Steps of the wall clock: none, the largest that is followed at once, one more, drifts, and clocks that are years off.
STEPS = (0, 0, 0, BOUND, -BOUND, BOUND + 1, -BOUND - 1, STEADY, -STEADY, STEADY + 1, -STEADY - 1, YEAR, -YEAR, 1 << 62)


@pytest.mark.parametrize("seed", range(0, 400, 50))
def test_record_times_agree_with_a_plain_clock_over_random_steps(seed: int) -> None:
    """Steps up to an hour are followed at once, larger ones when the wall clock has run steadily for ten minutes."""
    assert (BOUND, SETTLED, STEADY) == (HOUR, HOUR // 6, HOUR // 60)
    for number in range(seed, seed + 50):
        random, clocks = Random(number), Clocks()
        clock, said = clocks.record_clock(), list[str]()
        assert clock.now() == NOW, "before it is started"
        for step in range(60):
            if step % 30 == 0:  # the journal is opened, and opened again
                clock.messages()
                last = clocks.wall + random.choice(STEPS) if number % 5 else 0
                followed, since = abs(last - clocks.wall) <= BOUND or not last, clocks.monotonic
                offset = (clocks.wall if followed else last) - since
                stepped = None if followed else clocks.wall - since
                way = "ahead of" if last < clocks.wall else "behind"
                said = [] if followed else [f"{way} the last record; it is not"]
                assert clock.start(last) == offset + since
            texts = clock.messages()
            assert all(what in text for what, text in zip(said, texts, strict=True)), f"{number}: {texts}, not {said}"
            said = []
            clocks.wall += random.choice((*STEPS, offset + clocks.monotonic - clocks.wall))
            clocks.advance(random.choice((0, 1, SECOND, SETTLED - 1, SETTLED)))
            shown = clocks.wall - clocks.monotonic
            if abs(shown - offset) <= BOUND:
                said = [] if stepped is None else ["agrees with the time of the records again, and is followed"]
                offset, stepped = shown, None
            elif stepped is None or abs(shown - stepped) > STEADY:
                stepped, since = shown, clocks.monotonic
                said = [
                    f"{'ahead of' if shown > offset else 'behind'} the time of the records; it is not followed until"
                ]
            elif clocks.monotonic - since >= SETTLED:
                offset, stepped = shown, None
                said = ["the wall clock has run steadily for 0:10:00 since its step, and is followed from now on"]
            assert clock.now() == clocks.monotonic + offset, f"another time in schedule {number}"
            assert clock.in_doubt is (stepped is not None)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (NOW - YEAR, "ahead of the last record; {}, unless the server was down for that long"),
        (NOW + YEAR, "behind the last record; {}"),
    ],
)
def test_a_start_with_a_clock_that_is_far_off_says_what_to_check(last: int, said: str) -> None:
    clock = Clocks().record_clock()
    clock.start(last)
    shown = datetime.fromtimestamp(NOW // SECOND, UTC).isoformat(timespec="seconds")
    said = said.format("it is not followed until it has run steadily for 0:10:00: check the machine's clock")
    assert clock.messages() == [f"the wall clock shows {shown}, 365 days, 0:00:00 {said}"]


def test_only_the_latest_messages_about_a_clock_that_steps_all_the_time_are_kept() -> None:
    clocks = Clocks()
    clock = clocks.record_clock()
    for step in (0, *[YEAR, -YEAR] * 9):
        clocks.wall += step
        clock.now()
    assert len(clock.messages()) == 4


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


def test_wall_clock_is_in_microseconds() -> None:
    before = time.time_ns()
    assert before // 1000 <= wall_clock() <= time.time_ns() // 1000
