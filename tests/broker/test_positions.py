"""The records of positions are read from the last checkpoint on."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from fyrehose.broker import positions
from fyrehose.broker.broker import Broker
from fyrehose.broker.positions import SOURCE, STREAM, Position
from fyrehose.broker.sequencer import Sequencer
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal

A, B = Position(stream="a", seq=1), Position(stream="b", seq=2, owner="link", time=5)


def stored(*records: Run) -> MemoryJournal:
    journal = MemoryJournal()
    broker = Broker(Clock(), journal, Sequencer())
    broker.open()
    for record in records:
        broker.publish([record])
    return journal


def recovered(journal: MemoryJournal) -> positions.SavedPositions:
    return positions.recover(journal.read, journal.bounds(STREAM))


def test_nothing_is_recovered_from_a_new_journal() -> None:
    assert recovered(stored()) == positions.SavedPositions({})


def test_the_last_state_of_each_subscription_is_recovered() -> None:
    moved = Position(stream="a", seq=7)
    journal = stored(positions.pack({"one": A, "two": B}, 0), positions.pack({"one": moved, "two": None}, 0))
    assert recovered(journal) == positions.SavedPositions({"one": moved})


def test_recovery_begins_at_the_last_checkpoint() -> None:
    journal = stored(positions.pack({"old": A}, 0), positions.pack({"two": B}, None), positions.pack({"one": A}, 2))
    journal.forget(STREAM, 2)
    assert recovered(journal) == positions.SavedPositions({"two": B, "one": A}, checkpoint=2)


def test_records_of_others_are_skipped() -> None:
    journal = stored(
        Run.of(STREAM, [b"not JSON"], source="figg"),
        positions.pack({"one": A}, 0),
        Run.of(STREAM, [b"{}", b"not JSON"], source="figg"),
    )
    assert recovered(journal).positions == {"one": A}


def test_missing_records_are_counted() -> None:
    journal = stored(positions.pack({"one": A}, None), positions.pack({"two": B}, 1), positions.pack({"one": B}, 1))
    journal.forget(STREAM, 3)
    assert recovered(journal) == positions.SavedPositions({"one": B}, missing=2)


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
    with pytest.raises(ValueError, match=STREAM):
        recovered(journal)
