"""The records of positions are read from the last checkpoint on."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.state_stream import Replayed, replay
from fyrehose.errors import JournalCorrupt
from fyrehose.records import Run
from fyrehose.subscriptions import positions
from fyrehose.subscriptions.positions import SOURCE, STREAM, Position, SavedPositions
from fyrehose.testing import MemoryJournal

A, B = Position(stream="a", seq=1), Position(stream="b", seq=2, owner="link", time=5)


def stored(*records: Run) -> MemoryJournal:
    journal = MemoryJournal()
    broker = Broker(Clock(), journal, Sequencer())
    broker.open()
    for record in records:
        broker.publish([], [record])
    return journal


def pack(changes: Mapping[str, Position | None], since: int | None) -> Run:
    return Run.of(STREAM, [positions.pack(changes, since)], source=SOURCE)


def recovered(journal: MemoryJournal) -> tuple[dict[str, Position], Replayed]:
    saved = SavedPositions()
    found = replay(saved, journal.read, journal.bounds(STREAM), STREAM, SOURCE)
    return saved.positions, found


def test_nothing_is_recovered_from_a_new_journal() -> None:
    assert recovered(stored()) == ({}, Replayed())


def test_the_last_state_of_each_subscription_is_recovered() -> None:
    moved = Position(stream="a", seq=7)
    journal = stored(pack({"one": A, "two": B}, 0), pack({"one": moved, "two": None}, 0))
    assert recovered(journal) == ({"one": moved}, Replayed(last=2))


def test_recovery_begins_at_the_last_checkpoint() -> None:
    journal = stored(pack({"old": A}, 0), pack({"two": B}, None), pack({"one": A}, 2))
    journal.forget(STREAM, 2)
    assert recovered(journal) == ({"two": B, "one": A}, Replayed(last=3, checkpoint=2))


def test_records_of_other_sources_are_skipped() -> None:
    journal = stored(
        Run.of(STREAM, [b"not JSON"], source="figg"),
        pack({"one": A}, 0),
        Run.of(STREAM, [b"{}", b"not JSON"], source="figg"),
    )
    assert recovered(journal)[0] == {"one": A}


def test_missing_records_are_counted() -> None:
    journal = stored(pack({"one": A}, None), pack({"two": B}, 1), pack({"one": B}, 1))
    journal.forget(STREAM, 3)
    assert recovered(journal) == ({"one": B}, Replayed(last=3, missing=2))


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff",
        b"[]",
        b"{}",
        b'{"v": 2, "set": {}}',
        b'{"v": 1, "set": []}',
        b'{"v": 1, "since": "x", "set": {}}',
        b'{"v": 1, "set": {"a": {"stream": "s", "seq": -1}}}',
        b'{"v": 1, "set": {"a": {"stream": 5, "seq": 1}}}',
        b'{"v": 1, "set": {"a": {"unknown": 5}}}',
        b'{"v": 1, "set": {"a": 5}}',
    ],
)
def test_invalid_records_are_errors(payload: bytes) -> None:
    journal = stored(Run.of(STREAM, [payload], source=SOURCE))
    with pytest.raises(JournalCorrupt, match=STREAM):
        recovered(journal)
