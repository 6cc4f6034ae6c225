"""Named subscriptions as they are in a journal's files."""

from __future__ import annotations

import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal.subscriptions import update
from fyrehose.offline.subscriptions import subscriptions
from fyrehose.records import Run
from fyrehose.subscriptions import positions
from fyrehose.subscriptions.positions import SOURCE, STREAM, Position
from tests.doubles.appending import append_runs


def pack(changes: dict[str, Position | None], since: int | None) -> Run:
    return Run.of(STREAM, [positions.pack(changes, since)], source=SOURCE)


def test_subscriptions_to_streams_and_to_files_are_listed_with_their_lag(open_journal) -> None:
    bench = open_journal()
    for stream in ("logs.a", "logs.b", "other"):
        bench.append(*[b"x"] * 10, stream=stream)
    one = Position(stream="other", seq=4, time=7)
    many = Position(stream="logs.*", seq=0, time=8, streams={"logs.a": 9})
    records = (
        pack({"one": one, "gone": one}, 0),
        pack({"many": many, "gone": None}, 0),
        pack({"many": Position(stream="logs.*", seq=0, time=9, streams={"logs.b": 3})}, 0),
    )
    for seq, record in enumerate(records, 1):
        append_runs(bench.journal, [record], [seq])
    position = bench.journal.status().position
    update(bench.directory, "archive", position - 5, now=3)
    progress: list[tuple[int, int]] = []
    assert subscriptions(bench.directory, lambda *done: progress.append(done)) == [
        {"name": "one", "stream": "other", "kind": "stream", "position": 4, "lag": 6, "active": 7},
        {"name": "many", "stream": "logs.*", "kind": "pattern", "streams": 2, "lag": 8, "active": 9},
        {"name": "archive", "kind": "files", "behind_bytes": 5, "active": 3},
    ]
    assert progress[-1][0] == progress[-1][1] > 0


def test_a_subscription_that_has_read_everything_has_no_lag(open_journal) -> None:
    bench = open_journal()
    bench.append(b"x", b"y")
    append_runs(bench.journal, [pack({"done": Position(stream="s", seq=2, time=7)}, 0)], [1])
    assert [each["lag"] for each in subscriptions(bench.directory)] == [0]


def test_a_journal_without_subscriptions_has_none(open_journal) -> None:
    bench = open_journal()
    bench.append(b"x")
    assert subscriptions(bench.directory) == []


def test_subscriptions_are_read_although_records_before_the_checkpoint_are_gone(open_journal) -> None:
    """Retention may have deleted the earlier records of subscriptions, which the checkpoint replaces."""
    bench = open_journal()
    append_runs(bench.journal, [Run.of(STREAM, [b"{}"], source=SOURCE)], [1])
    append_runs(bench.journal, [pack({"billing": Position(stream="s", seq=2, time=7)}, None)], [2])
    assert [each["name"] for each in subscriptions(bench.directory)] == ["billing"]


def test_invalid_positions_are_an_error(open_journal) -> None:
    bench = open_journal()
    append_runs(bench.journal, [Run.of(STREAM, [b"{}"], source=SOURCE)], [1])
    with pytest.raises(JournalCorrupt, match=r"record 1 of stream \.subscriptions cannot be replayed"):
        subscriptions(bench.directory)
