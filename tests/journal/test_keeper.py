"""Retention of an open journal: what it deletes, and what readers see meanwhile."""

from __future__ import annotations

import pytest

from fyrehose.interfaces import FileLag, Unread
from fyrehose.journal import scan, subscriptions
from fyrehose.journal.store import Store
from tests.doubles.killed import opened


def test_reading_continues_while_retention_deletes(open_journal) -> None:
    """A subscriber that lags sees a gap in the numbers; nothing raises, and no descriptor is left."""
    bench = open_journal(segment_size=4096, keep_bytes=30_000)
    seen: list[int] = []
    wrote = 0
    for i in range(300):
        bench.append(b"%03d" % i * 100)
        wrote += 1
        if i % 3 == 0 and (runs := bench.journal.read("s", seen[-1] + 1 if seen else 1, 400)):
            seen += range(runs[0].first_seq, runs[-1].last_seq + 1)
    assert seen == sorted(set(seen))
    oldest, last = bench.journal.bounds("s")
    assert last == wrote
    assert bench.payloads("s", 1) == [b"%03d" % i * 100 for i in range(oldest - 1, 300)]
    assert not [path for path in opened(bench.directory) if not path.exists()], "deleted segments are closed"


def test_subscription_to_the_files_keeps_segments(open_journal, log_lines: list[str]) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=10_000, subscription_timeout=100.0)
    subscriptions.update(bench.directory, "lake", 0, now=1_000_000)
    bench.fill(100)
    assert bench.journal.bounds("s") == (1, 100)
    assert bench.journal.status().held_by == "lake"
    third = scan.segments(bench.directory)[3].base
    subscriptions.update(bench.directory, "lake", third, now=1_000_000)
    bench.clock.advance(1)
    assert scan.segments(bench.directory)[0].base == third
    assert bench.payloads("s", 1)[-1] == b"099" * 100
    subscriptions.update(bench.directory, "lake", 1 << 60, now=1_000_000)
    bench.clock.advance(1)
    assert bench.journal.status().held_by == ""
    assert bench.journal.status().overrun_subscriptions == 0
    assert sum(segment.size for segment in scan.segments(bench.directory)) <= 10_000 + 2 * 4096
    assert len([line for line in log_lines if "subscription lake keeps" in line]) == 1


def test_a_subscription_to_the_files_that_times_out_keeps_nothing(open_journal, log_lines: list[str]) -> None:
    now = [1_000_000]
    bench = open_journal(
        segment_size=4096, keep_bytes=10_000, subscription_timeout=100.0, now=lambda: now[0], monotonic=lambda: now[0]
    )
    subscriptions.update(bench.directory, "dead", 0, now=1_000_000)
    bench.fill(50)
    assert bench.journal.bounds("s")[0] == 1
    now[0] += 101_000_000
    bench.clock.advance(1)
    assert bench.journal.bounds("s")[0] > 1
    assert bench.journal.status().overrun_subscriptions == 1
    assert any("subscription dead has not read: it is at position 0" in line for line in log_lines)


@pytest.mark.parametrize("of", ["files", "stream"])
def test_subscriptions_keep_no_more_than_subscription_bytes(open_journal, of: str) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=10_000, subscription_bytes=20_000)
    if of == "files":
        subscriptions.update(bench.directory, "slow", 0, now=1_000_000)
    else:
        bench.journal.keeper.unread = lambda: [Unread("slow", "s", 0, 1_000_000)]
    bench.fill(300)
    assert sum(segment.size for segment in scan.segments(bench.directory)) <= 10_000 + 20_000 + 3 * 4096
    assert bench.journal.status().overrun_subscriptions > 0
    assert bench.journal.status().held_by == "slow"


@pytest.mark.parametrize("streams", ["s", "sq", "qs"])
def test_retention_keeps_what_a_named_subscription_has_not_acknowledged(open_journal, streams: str) -> None:
    """Also if it has acknowledged everything of another stream of its pattern, the quiet stream q."""
    bench = open_journal(segment_size=4096, keep_bytes=10_000, subscription_timeout=100.0)
    position = 0
    bench.journal.keeper.unread = lambda: [
        Unread("billing", stream, position if stream == "s" else 1, 1_000_000) for stream in streams
    ]
    bench.fill(100)
    bench.append(b"x", stream="q")
    bench.clock.advance(1)
    assert bench.journal.bounds("s") == (1, 100)
    assert bench.journal.status().held_by == "billing"
    position = 50
    bench.clock.advance(1)
    oldest = bench.journal.bounds("s")[0]
    assert 35 < oldest <= 51, "the segment with record 51 stays, and no earlier one"
    position = 100
    bench.clock.advance(1)
    assert bench.journal.bounds("s")[0] > 51
    assert bench.journal.status().held_by == ""


def test_a_subscription_at_the_end_of_a_quiet_stream_keeps_nothing(open_journal) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=10_000)
    bench.append(b"x", stream="quiet")
    bench.journal.keeper.unread = lambda: [Unread("billing", "quiet", 1, 1_000_000)]
    bench.fill(100)
    assert bench.journal.status().held_by == ""
    assert bench.journal.bounds("s")[0] > 1


@pytest.mark.parametrize("streams", ["a", "abc"])
def test_a_subscription_of_many_streams_counts_once(open_journal, streams: str) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=10_000, subscription_bytes=0)
    for stream in "abc":
        bench.append(b"old", stream=stream)
    bench.journal.keeper.unread = lambda: [Unread("slow", stream, 0, 1_000_000) for stream in streams]
    while not bench.journal.status().overrun_subscriptions:
        bench.append(b"x" * 300)
    assert bench.journal.status().overrun_subscriptions == 1


def test_pinned_records_are_kept_whatever_the_limits(open_journal) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=10_000, subscription_bytes=0, subscription_timeout=1.0)
    bench.append(b"checkpoint", stream="own")
    bench.journal.keeper.unread = lambda: [Unread("", "own", 0, 0, pinned=True)]
    bench.fill(100)
    assert bench.journal.bounds("own") == (1, 1)
    assert bench.journal.keeper.is_sealed("own", 1)
    assert not bench.journal.keeper.is_sealed("s", 100)


def test_subscriptions_are_listed_and_deleted(open_journal) -> None:
    now = [1_000_000]
    bench = open_journal(now=lambda: now[0], monotonic=lambda: now[0])
    bench.append(b"x" * 1000)
    subscriptions.update(bench.directory, "lake", 100, now=7)
    end = bench.journal.status().position
    assert bench.journal.keeper.subscriptions() == [FileLag("lake", end - 100, 1_000_000)]
    now[0] = 2_000_000
    subscriptions.update(bench.directory, "lake", end, now=8)
    assert bench.journal.keeper.subscriptions() == [FileLag("lake", 0, 2_000_000)]
    assert bench.journal.keeper.delete("lake")
    assert not bench.journal.keeper.delete("lake")
    assert not bench.journal.keeper.delete("../LOCK")


def test_the_segment_of_an_unread_record_is_looked_up_once_if_it_is_sealed(open_journal, monkeypatch) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=10_000)
    looked = []
    place = Store.place
    monkeypatch.setattr(Store, "place", lambda self, *record: looked.append(record) or place(self, *record))
    bench.fill(50)
    bench.journal.keeper.unread = lambda: [Unread("billing", "s", 3, 1_000_000)]
    for _ in range(3):
        bench.clock.advance(1)
    assert looked == [("s", 4)]
