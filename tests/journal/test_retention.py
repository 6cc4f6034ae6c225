"""Which segments are not kept, and what reading says while they go (more: tests/journal/test_journal.py)."""

from __future__ import annotations

import pytest

from fyrehose.journal import scan
from fyrehose.journal.retention import expired
from fyrehose.journal.settings import JournalSettings


@pytest.mark.parametrize(("keep", "least"), [(1, 10), (30_000, 5), (10_000_000, 0)])
def test_bytes(open_journal, keep: int, least: int) -> None:
    bench = open_journal(segment_size=4096)
    for i in range(100):
        bench.append(b"%03d" % i * 200)
    store = bench.journal._store
    count = expired(store, JournalSettings(keep_bytes=keep), 0)
    assert count >= least
    assert count <= len(store.sealed), "the segment that is written stays"
    left = store.active.end - [*store.sealed, (store.active.base, 0)][count][0]
    assert left <= max(keep, store.active.end - store.active.base)


def test_nothing_where_nothing_is_sealed(open_journal) -> None:
    bench = open_journal()
    bench.append(b"x")
    assert expired(bench.journal._store, JournalSettings(keep_bytes=1, keep_age=1), 1 << 60) == 0


def test_a_reader_goes_on_while_the_oldest_go(open_journal) -> None:
    """Whoever is behind is told by the numbers what was not kept; nothing raises, and no descriptor is left."""
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
    assert set(bench.journal._store._readers) <= {segment.base for segment in scan.segments(bench.directory)}


def test_its_index_goes_with_a_segment(open_journal) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=10_000)
    for i in range(100):
        bench.append(b"%03d" % i * 100)
    indexes = {path.stem for path in bench.directory.glob("*.index")}
    assert indexes < {segment.path.stem for segment in scan.segments(bench.directory)}
