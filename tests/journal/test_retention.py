"""Which segments expire (tests/journal/test_keeper.py tests that they are deleted)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.retention import Deletion, Verdict, expired, judge
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.store import Store
from fyrehose.journal.subscriptions import FileSubscription
from tests.doubles.disk import RecordingFiles, images


def test_subscriptions_are_read_only_if_a_segment_expired(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    bench.fill(50)
    bench.journal.keeper.unread = lambda: pytest.fail("asked")
    bench.clock.advance(1)
    assert bench.journal.bounds("s") == (1, 50)


SECOND = 1_000_000


class Kept:
    """Three sealed segments, created at 0, 10 and 20 s, and the one that is written, created at 30 s."""

    sealed = ((0, 100), (100, 250), (250, 400))
    active = SimpleNamespace(end=450)

    def created_after(self, base: int) -> int:
        return {0: 10, 100: 20, 250: 30}[base] * SECOND


@pytest.mark.parametrize(
    ("settings", "doubted", "count"),
    [
        ({"keep_bytes": 450}, False, 0),
        ({"keep_bytes": 449}, False, 1),
        ({"keep_bytes": 350}, False, 1),
        ({"keep_bytes": 349}, True, 2),
        ({"keep_bytes": 199}, False, 3),
        ({"keep_bytes": 1}, False, 3),
        ({"keep_age": 90.0}, False, 0),
        ({"keep_age": 89.999999}, False, 1),
        ({"keep_age": 70.0}, False, 2),
        ({"keep_age": 1.0}, False, 3),
        ({"keep_age": 1.0}, True, 0),
        ({"keep_age": 90.0}, True, 0),
        ({"keep_age": 70.0, "keep_bytes": 449}, False, 2),
        ({"keep_age": 1.0, "keep_bytes": 449}, True, 1),
        ({"keep_age": 1.0, "keep_bytes": 1}, True, 3),
        ({}, False, 0),
    ],
)
def test_expired_segments_are_counted_by_their_age(settings: dict[str, Any], doubted: bool, count: int) -> None:
    """The age of a segment is that of its last record, which was written when the next segment was created."""
    assert expired(cast("Store", Kept()), JournalSettings(**settings), 100 * SECOND, doubted) == count


NEAR, FAR, NONE = (
    FileSubscription("near", 100, 900 * SECOND),
    FileSubscription("far", 250, 900 * SECOND),
    FileSubscription("none", 0, 900 * SECOND),
)
LATE, DONE = FileSubscription("late", 100, 900 * SECOND - 1), FileSubscription("done", 400, 1000 * SECOND)


@pytest.mark.parametrize(
    ("found", "most", "verdict"),
    [
        ([], 0, Verdict(3)),
        ([DONE], 0, Verdict(3)),
        ([LATE], 1000, Verdict(3, overrun=(LATE,))),
        ([NEAR], 300, Verdict(1, 2, NEAR)),
        ([NEAR], 299, Verdict(2, 1, NEAR, (NEAR,))),
        ([NEAR], 150, Verdict(2, 1, NEAR, (NEAR,))),
        ([NEAR], 149, Verdict(3, overrun=(NEAR,))),
        ([NONE, NEAR], 400, Verdict(0, 3, NONE)),
        ([NONE, NEAR], 399, Verdict(1, 2, NONE, (NONE,))),
        ([LATE, FAR, DONE], 1000, Verdict(2, 1, FAR, (LATE,))),
        ([FAR, DONE], 0, Verdict(3, overrun=(FAR,))),
    ],
)
def test_subscriptions_keep_segments_until_they_time_out_or_keep_too_many_bytes(
    found: list[FileSubscription], most: int, verdict: Verdict
) -> None:
    settings = JournalSettings(keep_bytes=1, subscription_timeout=100.0, subscription_bytes=most)
    assert judge(cast("Store", Kept()), settings, 1000 * SECOND, 3, found) == verdict


def test_a_power_cut_never_leaves_a_segment_older_than_a_deleted_one(tmp_path: Path) -> None:
    paths = [scan.path_of(tmp_path, base) for base in (0, 100, 250, 400)]
    for path in paths:
        path.write_bytes(b"records")
    files = RecordingFiles(tmp_path)
    deletion = Deletion(tmp_path, files)
    deletion.segments = [(paths[0], 100, 100), (paths[1], 250, 250), (paths[2], 400, 400)]
    deletion.work(lambda begin: None)
    names = [path.name for path in paths]
    for upto in range(len(files.log) + 1):
        for state in images(files, upto, Random(1), 2):
            assert sorted(state) == names[-len(state) :]
    assert sorted(state) == names[-1:]


def test_only_one_caller_at_a_time_deletes_segments(tmp_path: Path) -> None:
    deletion = Deletion(tmp_path, Files())
    assert not deletion.is_due(), "there is nothing to delete"
    deletion.segments.append((scan.path_of(tmp_path, 0), 100, 100))
    assert deletion.is_due()
    assert not deletion.is_due(), "the first caller has not ended"
    deletion.work(lambda begin: None)
    deletion.segments.append((scan.path_of(tmp_path, 100), 200, 200))
    assert deletion.is_due()
