"""The option `dedup`: which events count as seen, and how many are remembered."""

from __future__ import annotations

from random import Random

import pytest

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


def test_text_that_is_no_uuid_counts_as_well() -> None:
    seen = SeenEvents()
    odd = [run_of(event(1, uuid=b"odd"), "s")]
    assert data(seen.new(odd, 0)) == [b"1"]
    assert seen.new(odd, 0) == []


@pytest.mark.parametrize("seed", range(20))
def test_an_event_is_new_until_it_was_not_seen_for_its_age_or_was_not_published(seed: int) -> None:
    dice, seen, now = Random(seed), SeenEvents(), 0.0
    last: dict[int, float] = {}
    for _ in range(200):
        now += dice.choice([0.0, 1.0, SEEN_AGE / 3, SEEN_AGE, SEEN_AGE + 1])
        if dice.random() < 0.2:
            gone = dice.sample(range(8), 2)
            seen.forget(runs(*gone))
            last = {number: time for number, time in last.items() if number not in gone}
        numbers, new = [dice.randrange(8) for _ in range(dice.randrange(5))], []
        for number in numbers:
            if number not in last or now - last[number] > SEEN_AGE:
                new.append(b"%d" % number)
            last[number] = now
        assert data(seen.new(runs(*numbers), now)) == new, f"{numbers} at {now}, seen at {last}"


def test_the_oldest_is_forgotten_when_there_are_many() -> None:
    seen = SeenEvents()
    seen.new(runs(*range(MOST_SEEN)), 0)
    assert seen.new(runs(0), 0) == []
    seen.new(runs(MOST_SEEN), 0)
    assert data(seen.new(runs(1, 0), 0)) == [b"1"]
