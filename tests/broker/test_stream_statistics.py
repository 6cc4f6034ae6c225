"""The ends of streams: ages and sizes from a bounded number of reads."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker import stream_statistics as ends
from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.stream_statistics import Ends
from fyrehose.errors import JournalCorrupt
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal


class Watched:
    """A broker to which the test publishes."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.broker = Broker(Clock(), self.journal, Sequencer())
        self.broker.open()

    def publish(self, *payloads: bytes, stream: str = "s") -> None:
        self.broker.publish([Run.of(stream, payloads, source="test")])


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def reads(watched: Watched) -> list[tuple[str, int]]:
    """Return the stream and the first number of every read, as they happen."""
    made: list[tuple[str, int]] = []
    watched.journal.before_read = lambda stream, start: made.append((stream, start))
    return made


def test_the_mean_size_is_computed_from_the_newest_records(watched: Watched) -> None:
    watched.publish(*[b"x" * 100] * 50)
    watched.publish(*[b"y" * 10] * ends.RECORDS)
    found = Ends(watched.broker)
    end = found.of("s", 1, 50 + ends.RECORDS, False)
    assert (end.mean, end.first, end.last) == (10, 1, 50 + ends.RECORDS)
    assert end.oldest is not None
    assert end.newest is not None
    assert end.oldest <= end.newest


def test_the_newest_of_large_records_is_read_by_itself(watched: Watched, reads: list[tuple[str, int]]) -> None:
    for _ in range(4):
        watched.publish(b"x" * ends.BYTES)
    found = Ends(watched.broker)
    assert found.of("s", 1, 4, False).mean == ends.BYTES
    assert reads == [("s", 1), ("s", 1), ("s", 4)]


def test_an_end_of_a_stream_that_has_not_moved_is_not_read_again(
    watched: Watched, reads: list[tuple[str, int]]
) -> None:
    watched.publish(b"x", b"y")
    found = Ends(watched.broker)
    for _ in range(3):
        found.of("s", 1, 2, False)
    assert len(reads) == 2
    watched.publish(b"z")
    found.of("s", 1, 3, True)
    assert len(reads) == 2, "the newest record of a stream that grows is not looked up"
    found.of("s", 1, 3, False)
    assert reads[2:] == [("s", 1)]


def test_the_streams_that_were_asked_for_last_are_remembered_up_to_a_limit(watched: Watched, reads: list[Any]) -> None:
    for n in range(6):
        watched.publish(b"x", stream=f"s{n}")
    found = Ends(watched.broker, kept=4)
    for n in range(6):
        found.of(f"s{n}", 1, 1, False)
    reads.clear()
    for n in (2, 3, 4, 5):
        found.of(f"s{n}", 1, 1, False)
    assert reads == []
    found.of("s1", 1, 1, False)
    assert reads


def test_ends_of_an_empty_or_damaged_stream_are_unknown(watched: Watched) -> None:
    watched.publish(b"x")
    found = Ends(watched.broker)
    assert found.of("s", 1, 1, False).mean == 1
    assert found.of("s", 2, 1, False).mean is None

    def damaged(*_: Any) -> Any:
        raise JournalCorrupt("damaged")

    watched.journal.before_read = damaged
    end = found.of("s", 1, 1, False)
    assert (end.mean, end.oldest, end.newest) == (None, None, None)
