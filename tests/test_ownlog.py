"""The server's own records are found among those of others."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from fyrehose import ownlog
from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal


def stored(*sources: str) -> MemoryJournal:
    journal = MemoryJournal()
    broker = Broker(Clock(), journal, Sequencer())
    broker.open()
    for source in sources:
        broker.publish([Run.of("s", [b"x"], source=source)])
    return journal


@pytest.mark.parametrize(
    ("sources", "seq"),
    [((), 0), (("other",), 0), (("own", "own"), 2), (("own", *["other"] * 7), 1), (("other", "own", "other"), 2)],
)
def test_the_last_record_of_a_source_is_found(sources: tuple[str, ...], seq: int) -> None:
    journal = stored(*sources)
    found = ownlog.last_record(journal.read, "s", journal.bounds("s"), "own")
    assert (0 if found is None else found.seq) == seq


def test_records_are_read_from_a_number_on() -> None:
    journal = stored("own", "own", "own")
    assert [record.seq for record in ownlog.records(journal.read, "s", 2, 3)] == [2, 3]
    assert list(ownlog.records(journal.read, "s", 4, 3)) == []
    assert list(ownlog.records(journal.read, "s", 4, 9)) == []
