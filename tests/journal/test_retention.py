"""Which segments are not kept (what a journal does about it: tests/journal/test_keeper.py)."""

from __future__ import annotations

import pytest

from fyrehose.journal.retention import expired, judge
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


def test_nobody_is_asked_where_nothing_is_to_be_deleted(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    for i in range(50):
        bench.append(b"%03d" % i * 100)
    verdict = judge(bench.journal._store, JournalSettings(), 0, lambda: pytest.fail("asked"))
    assert verdict.expired == 0
