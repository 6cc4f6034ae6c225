"""Records that are too old for their stream are not served; the times of batches tell which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import scan
from fyrehose.journal.clock import BOUND, SETTLED
from fyrehose.journal.floors import Floors
from fyrehose.journal.store import Store
from fyrehose.offline import dump

SECOND = 1_000_000
START = 1_000_000_000 * SECOND


class Time:
    """A wall clock and a monotonic clock that run in parallel, until a test sets the wall clock."""

    def __init__(self) -> None:
        self.passed = 0
        self.step = 0

    def wall(self) -> int:
        return START + self.passed + self.step

    def monotonic(self) -> int:
        return self.passed


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def open_aging(open_journal: Any, time: Time) -> Iterator[Any]:
    """Return a function that opens a journal whose streams ``old.*`` serve records of at most 100 s."""

    def open_it(stream_age: Any = lambda stream: 100.0 if stream.startswith("old.") else 0.0, **settings: Any) -> Any:
        return open_journal(now=time.wall, monotonic=time.monotonic, stream_age=stream_age, **settings)

    return open_it


def wait(bench: Any, time: Time, seconds: float) -> None:
    """Advance both clocks, and run the journal's check."""
    time.passed += int(seconds * SECOND)
    bench.clock.advance(1)


def test_records_stop_being_served_batch_by_batch_when_they_are_too_old(open_aging: Any, time: Time) -> None:
    bench = open_aging()
    for i in range(5):
        bench.append(b"%d" % i, b"%d again" % i, stream="old.a")
        bench.append(b"%d" % i, stream="kept")
        wait(bench, time, 10)
    assert bench.journal.bounds("old.a") == (1, 10)
    wait(bench, time, 50)
    assert bench.journal.bounds("old.a") == (1, 10), "the first is exactly as old as may be"
    wait(bench, time, 0.000_001)
    assert bench.journal.bounds("old.a") == (3, 10)
    wait(bench, time, 20)
    assert bench.journal.bounds("old.a") == (7, 10)
    assert bench.payloads("old.a") == [b"3", b"3 again", b"4", b"4 again"]
    assert bench.records("old.a", 2)[0].seq == 7, "who asks for what is too old gets what follows"
    wait(bench, time, 1000)
    assert bench.journal.bounds("old.a") == (11, 10)
    assert bench.payloads("old.a") == bench.payloads("old.a", 9) == []
    bench.append(b"new", stream="old.a")
    assert bench.journal.bounds("old.a") == (11, 11)
    assert [(r.seq, r.payload) for r in bench.records("old.a")] == [(11, b"new")]
    assert bench.journal.bounds("kept") == (1, 5)
    assert len(bench.payloads("kept")) == 5


@pytest.mark.parametrize("seed", range(6))
def test_random_records_are_served_according_to_their_age(open_aging: Any, time: Time, seed: int) -> None:
    dice = Random(seed)
    bench = open_aging(segment_size=dice.choice([4096, 1 << 16, 1 << 20]), keep_bytes=dice.choice([0, 1 << 17]))
    times: dict[str, list[int]] = {"old.a": [], "old.b": [], "old.rare": [], "busy": []}
    for _ in range(300):
        stream = dice.choices(list(times), [4, 2, 0.1, 4])[0]
        count = dice.randint(1, 3)
        time.passed += dice.choice([0, 1, SECOND // 10, SECOND, 3 * SECOND])
        bench.append(*[b"x" * dice.choice([10, 1000, 5000])] * count, stream=stream)
        times[stream] += [time.wall()] * count
        if dice.random() < 0.1:
            wait(bench, time, dice.choice([0, 1, 30]))
            check(bench, time, times)
        if dice.random() < 0.02:
            bench.close()
            bench = open_aging(segment_size=1 << 16, verify=0)
            check(bench, time, times)


def check(bench: Any, time: Time, times: dict[str, list[int]]) -> None:
    for stream, known in times.items():
        age = 100 * SECOND if stream.startswith("old.") else 1 << 60
        young = next((i for i, at in enumerate(known, 1) if at >= time.wall() - age), len(known) + 1)
        oldest, last = bench.journal.bounds(stream)
        if not known:
            assert (oldest, last) == (1, 0)
            continue
        kept = bench.journal.store.oldest(stream)
        assert (oldest, last) == (max(young, kept), len(known))
        served = [record.seq for record in bench.records(stream, max(1, oldest - 3))]
        assert served == list(range(oldest, last + 1))


@pytest.mark.parametrize("seed", range(6))
def test_first_record_of_a_time_is_found_at_equal_times_gaps_and_deleted_segments(
    open_aging: Any, time: Time, seed: int
) -> None:
    dice = Random(seed)
    bench = open_aging(segment_size=dice.choice([4096, 1 << 16, 1 << 20]), keep_bytes=dice.choice([0, 1 << 17]))
    times: dict[str, list[int]] = {"a": [], "rare": [], "old.b": []}
    for _ in range(200):
        stream, count = dice.choices(list(times), [4, 0.1, 2])[0], dice.randint(1, 3)
        time.passed += dice.choice([0, 0, 1, SECOND, 30 * SECOND])
        bench.append(*[b"x" * dice.choice([10, 5000])] * count, stream=stream)
        times[stream] += [time.wall()] * count
    wait(bench, time, 1)
    for stream, known in times.items():
        oldest, last = bench.journal.bounds(stream)
        for at in [0, *dice.sample(known, min(30, len(known))), time.wall(), 1 << 62]:
            for limit in (at - 1, at, at + 1):
                found = next((n for n, each in enumerate(known, 1) if each >= limit), last + 1)
                assert bench.journal.first_since(stream, limit) == max(found, oldest)


def test_first_record_of_a_time_in_streams_without_records(open_aging: Any, time: Time) -> None:
    bench = open_aging()
    bench.append(b"a", b"b", stream="gone")
    assert bench.journal.first_since("none", 0) == 1
    assert bench.journal.first_since("gone", time.wall() + 1) == 3
    bench.journal.retire(["gone"])
    assert bench.journal.first_since("gone", 0) == 3


@pytest.mark.parametrize("step", [3 * BOUND, -3 * BOUND])
def test_nothing_more_expires_while_the_clock_is_in_doubt(open_aging: Any, time: Time, step: int) -> None:
    bench = open_aging()
    bench.append(b"a", stream="old.a")
    wait(bench, time, 50)
    bench.append(b"b", stream="old.a")
    time.step = step
    wait(bench, time, 60)
    assert bench.journal.bounds("old.a") == (1, 2)
    assert bench.payloads("old.a") == [b"a", b"b"]
    time.step = 0
    wait(bench, time, 0)
    assert bench.journal.bounds("old.a") == (2, 2)
    assert bench.payloads("old.a") == [b"b"]


@pytest.mark.parametrize("step", [3 * BOUND, -3 * BOUND])
def test_a_clock_in_doubt_at_the_start_hides_no_records(open_aging: Any, time: Time, step: int) -> None:
    bench = open_aging()
    bench.append(b"a", stream="old.a")
    wait(bench, time, 99)
    bench.append(b"b", stream="old.a")
    bench.close()
    time.step = step
    bench = open_aging()
    wait(bench, time, 60)
    assert bench.journal.bounds("old.a") == (1, 2)
    if step > 0:  # The server was down for long: its clock is followed once it has run steadily.
        wait(bench, time, SETTLED / SECOND)
        assert bench.journal.bounds("old.a") == (3, 2)


def test_expired_records_stay_hidden_while_the_clock_is_in_doubt(open_aging: Any, time: Time) -> None:
    bench = open_aging()
    bench.append(b"a", stream="old.a")
    wait(bench, time, 150)
    bench.append(b"b", stream="old.a")
    bench.close()
    time.step = 3 * BOUND
    assert open_aging().journal.bounds("old.a") == (2, 2)


def test_a_record_that_expires_is_still_in_the_files_for_other_tools(open_aging: Any, time: Time) -> None:
    bench = open_aging()
    bench.append(b"a", stream="old.a")
    wait(bench, time, 200)
    assert bench.payloads("old.a") == []
    assert [bytes(run.payload) for run in dump.runs(bench.directory, "old.a")] == [b"a"]


def test_the_first_young_record_is_found_with_few_reads(
    open_aging: Any, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_aging(segment_size=1 << 20)
    for _ in range(400):
        bench.append(b"x" * 20_000, stream="old.a")
        time.passed += SECOND // 2
    looked, batches = [], []
    time_at, batch = Store.time_at, Store._batch
    monkeypatch.setattr(Store, "time_at", lambda self, *at: looked.append(at) or time_at(self, *at))
    monkeypatch.setattr(Store, "_batch", lambda self, *at: batches.append(at) or batch(self, *at))
    wait(bench, time, 0)
    assert bench.journal.bounds("old.a") == (201, 400)
    assert len(looked) < 10
    assert len(batches) < 10
    looked.clear()
    batches.clear()
    for _ in range(100):
        assert bench.journal.bounds("old.a") == (201, 400)
    bench.records("old.a", 400)
    assert looked == [], "an answer is kept until its record is too old"


def test_a_damaged_batch_is_reported_and_not_skipped(open_aging: Any, time: Time) -> None:
    bench = open_aging()
    bench.append(b"a", stream="old.a")
    wait(bench, time, 1)
    bench.append(b"b", stream="old.a")
    path: Path = scan.segments(bench.directory)[0].path
    position = bench.journal.store.index(0).pairs("old.a")[0][1]
    with path.open("r+b") as file:
        file.seek(position + 8)
        file.write(b"\xff" * 16)
    wait(bench, time, 100)
    with pytest.raises(JournalCorrupt, match=str(path)):
        bench.journal.bounds("old.a")
    bench.crash()


def test_the_age_limit_of_each_stream_is_looked_up_once(open_aging: Any, time: Time) -> None:
    asked = []
    bench = open_aging(stream_age=lambda stream: asked.append(stream) or 0.0)
    bench.append(b"a", stream="s")
    for _ in range(10):
        assert bench.journal.bounds("s") == (1, 1)
        assert bench.payloads("s") == [b"a"]
        wait(bench, time, 1)
    assert asked == ["s"]


def test_cached_first_numbers_of_short_lived_streams_are_bounded(open_aging: Any) -> None:
    bench, asked = open_aging(), list[str]()

    def age(stream: str) -> float:
        asked.append(stream)
        return 100.0

    floors = Floors(bench.journal.store, age, most=10)
    for i in range(25):
        bench.append(b"x", stream=f"s{i}")
        assert floors.floor(f"s{i}", 1) == 1
    for _ in range(2):
        assert floors.floor("s24", 1) == 1
        assert floors.floor("s0", 1) == 1
    assert len(asked) == 26


def test_the_journal_says_which_records_are_too_old(open_aging: Any, open_journal: Any, time: Time) -> None:
    bench = open_aging()
    bench.append(b"a", stream="old.a")
    (run,) = bench.journal.read("old.a", 1, 100)
    assert not bench.journal.expired("old.a", run.time)
    wait(bench, time, 1_000)
    assert bench.journal.expired("old.a", run.time)
    bench.close()
    assert not open_journal().journal.expired("old.a", 0), "without a limit of age"


def test_a_record_expires_when_it_is_older_than_its_stream_allows() -> None:
    ages: Any = Floors(None, lambda stream: 100.0 if stream == "s" else 0.0, now=START)
    assert [ages.expired("s", START - 100 * SECOND + by) for by in (-1, 0, 1)] == [True, False, False]
    assert not ages.expired("t", 0)
