"""Test the limit of the number of streams at its default: one below it, at it, one above it."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import TooManyStreams
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.records import Run
from fyrehose.server.config import ServerSettings

MOST = ServerSettings().max_streams


def test_exactly_as_many_streams_exist_as_the_limit(tmp_path: Path) -> None:
    clock = Clock()
    journal = FileJournal(clock, tmp_path / "journal", JournalSettings(min_free=0), worker=InlineWorker())
    broker = Broker(clock, journal, Sequencer(), max_streams=MOST)
    broker.open()

    def publish(first: int, last: int) -> object:
        runs = [Run.of(f"stream {n}", [b"x"], source="test") for n in range(first, last + 1)]
        found: list[object] = []
        broker.publish(runs).addCallbacks(found.append, lambda failure: found.append(failure.type))
        return found[0]

    for first in range(1, MOST - 1, 1000):
        publish(first, min(first + 999, MOST - 1))
    assert publish(MOST, MOST) == (1,)
    assert publish(MOST + 1, MOST + 1) is TooManyStreams
    assert publish(MOST, MOST) == (2,)
    broker.close()
