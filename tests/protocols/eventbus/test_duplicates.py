"""The option `dedup`: which events count as seen, and how many are remembered."""

from __future__ import annotations

from fyrehose.protocols.eventbus.columns import run_of
from fyrehose.protocols.eventbus.duplicates import MOST_SEEN, SEEN_AGE, SeenEvents
from fyrehose.records import Run
from tests.protocols.eventbus.world import event


def runs(*numbers: int) -> list[Run]:
    """Return one run of events with these numbers as UUIDs and data."""
    ids = b"".join(n.to_bytes(16, "big") for n in numbers)
    return [Run.of("s", [b"%d" % n for n in numbers], source="eventbus", event_ids=ids)]


def data(found: list[Run]) -> list[bytes]:
    return [bytes(payload) for run in found for payload in run.payloads()]


def test_each_event_is_new_once() -> None:
    seen = SeenEvents()
    assert data(seen.new(runs(1, 2, 1, 3), 0)) == [b"1", b"2", b"3"]
    assert data(seen.new(runs(3, 4, 5, 1, 6), 0)) == [b"4", b"5", b"6"]
    assert seen.new(runs(1, 2), 0) == []


def test_text_that_is_no_uuid_counts_as_well() -> None:
    seen = SeenEvents()
    odd = [run_of(event(1, uuid=b"odd"), "s")]
    assert data(seen.new(odd, 0)) == [b"1"]
    assert seen.new(odd, 0) == []


def test_an_event_is_forgotten_after_its_age_and_when_it_was_not_published() -> None:
    seen = SeenEvents()
    seen.new(runs(1, 2), 0)
    assert seen.new(runs(1), SEEN_AGE) == []
    assert data(seen.new(runs(2), SEEN_AGE + 1)) == [b"2"]
    seen.forget(runs(2))
    assert data(seen.new(runs(2), SEEN_AGE + 1)) == [b"2"]


def test_the_oldest_is_forgotten_when_there_are_many() -> None:
    seen = SeenEvents()
    seen.new(runs(*range(MOST_SEEN)), 0)
    assert seen.new(runs(0), 0) == []
    seen.new(runs(MOST_SEEN), 0)
    assert data(seen.new(runs(1, 0), 0)) == [b"1"]
