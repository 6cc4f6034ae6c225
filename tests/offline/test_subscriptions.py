"""Named subscriptions as they are in a journal's files."""

from __future__ import annotations

import attrs
import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal.subscriptions import update
from fyrehose.offline.subscriptions import subscriptions
from fyrehose.records import Run
from fyrehose.subscriptions.progress import (
    SOURCE,
    STREAM,
    SavedSubscription,
    SubscriptionOptions,
    pack,
    pack_whole,
)
from tests.doubles.appending import append_runs


def created(name: str, options: SubscriptionOptions) -> Run:
    return change(name, set=attrs.asdict(options), floors={}, epoch=1, redriven=0)


def change(name: str, **fields: object) -> Run:
    return Run.of(STREAM, [pack(name, 0, fields)], source=SOURCE)


def test_subscriptions_to_streams_and_to_files_are_listed_with_their_lag(open_journal) -> None:
    bench = open_journal()
    for stream in ("logs.a", "logs.b", "logs.c", "other"):
        bench.append(*[b"x"] * 10, stream=stream)
    records = (
        created("one", SubscriptionOptions(stream="other", ack="all")),
        change("one", stream="other", final=[[1, 4]]),
        created("gone", SubscriptionOptions(stream="other", ack="all")),
        created("many", SubscriptionOptions(stream="logs.*", pattern=True, ack="all")),
        change("gone", set=None),
        change("many", stream="logs.a", final=[[1, 9]]),
        change("many", stream="logs.b", final=[[1, 3]]),
        created("work", SubscriptionOptions(stream="other")),
        change("work", stream="other", final=[[1, 2], 4], reach=7),
        created("both", SubscriptionOptions(stream="logs.*", pattern=True)),
        change("both", stream="logs.a", final=[[1, 2]], reach=7),
        change("both", stream="logs.c", final=[[1, 5], 7], reach=7),
    )
    for seq, record in enumerate(records, 1):
        append_runs(bench.journal, [record], [seq])
    position = bench.journal.status().position
    update(bench.directory, "archive", position - 5, now=3)
    progress: list[tuple[int, int]] = []
    found = subscriptions(bench.directory, lambda *done: progress.append(done))
    assert all(each.pop("active") for each in found)
    assert found == [
        {"name": "one", "stream": "other", "kind": "stream", "position": 4, "lag": 6},
        {"name": "many", "stream": "logs.*", "kind": "pattern", "streams": 3, "lag": 18},
        {
            "name": "work",
            "stream": "other",
            "kind": "shared",
            "streams": 1,
            "settled_total": 3,
            "dead_total": 0,
            "expired_total": 0,
            "paused": False,
            "lag": 8,
        },
        {
            "name": "both",
            "stream": "logs.*",
            "kind": "shared",
            "streams": 3,
            "settled_total": 8,
            "dead_total": 0,
            "expired_total": 0,
            "paused": False,
            "lag": 23,
        },
        {"name": "archive", "kind": "files", "behind_bytes": 5},
    ]
    assert progress[-1][0] == progress[-1][1] > 0


def test_a_subscription_that_has_read_everything_has_no_lag(open_journal) -> None:
    bench = open_journal()
    bench.append(b"x", b"y")
    append_runs(bench.journal, [created("done", SubscriptionOptions(stream="s", ack="all"))], [1])
    append_runs(bench.journal, [change("done", stream="s", final=[[1, 2]])], [2])
    assert [each["lag"] for each in subscriptions(bench.directory)] == [0]


def test_a_journal_without_subscriptions_has_none(open_journal) -> None:
    bench = open_journal()
    bench.append(b"x")
    assert subscriptions(bench.directory) == []


def test_subscriptions_are_read_although_records_before_the_checkpoint_are_gone(open_journal) -> None:
    """Retention may have deleted the earlier records of subscriptions, which the checkpoint replaces."""
    bench = open_journal()
    append_runs(bench.journal, [Run.of(STREAM, [b"{}"], source=SOURCE)], [1])
    saved = SavedSubscription(SubscriptionOptions(stream="s", ack="all"))
    append_runs(bench.journal, [Run.of(STREAM, [*pack_whole("billing", 2, saved)], source=SOURCE)], [2])
    assert [each["name"] for each in subscriptions(bench.directory)] == ["billing"]


def test_invalid_positions_are_an_error(open_journal) -> None:
    bench = open_journal()
    append_runs(bench.journal, [Run.of(STREAM, [b"{}"], source=SOURCE)], [1])
    with pytest.raises(JournalCorrupt, match=r"record 1 of stream \.subscriptions cannot be replayed"):
        subscriptions(bench.directory)
