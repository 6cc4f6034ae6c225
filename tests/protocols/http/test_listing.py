"""Lists of streams and of subscriptions, whose steps are short."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.stream_statistics import Ends
from fyrehose.patterns import Pattern
from fyrehose.protocols.http.listing import MOST_COMPARED, Listing, described, matching, subscriptions
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal


def result_of(listing: Listing[Any]) -> tuple[Any, int]:
    """Return the result of *listing*, and how many steps it took."""
    steps = 0
    while True:
        try:
            next(listing)
        except StopIteration as last:
            return last.value, steps
        steps += 1


def broker_with(count: int) -> Broker:
    broker = Broker(Clock(), MemoryJournal(), Sequencer())
    broker.open()
    for number in range(count):
        broker.publish([Run.of(f"s{number}", [b"abc"] * 2, source="test")])
    return broker


@pytest.mark.parametrize("count", [0, 1, MOST_COMPARED, MOST_COMPARED + 1, 10 * MOST_COMPARED])
def test_one_step_compares_a_bounded_number_of_names_with_a_pattern(count: int) -> None:
    names = [f"{number}.{number % 3}" for number in range(count)]
    compared: list[str] = []

    class Counted(Pattern):
        def covers(self, stream: str) -> bool:
            compared.append(stream)
            return super().covers(stream)

    listing = matching(Counted("*.1"), iter(names))
    for _ in range(0, count, MOST_COMPARED):
        before = len(compared)
        next(listing)
        assert len(compared) - before <= MOST_COMPARED
    assert result_of(listing) == ([name for name in names if name.endswith(".1")], 0)
    assert compared == names


def test_one_step_reads_the_ends_of_one_stream() -> None:
    broker = broker_with(30)
    names, reads = [f"s{number}" for number in range(30)], list[str]()
    broker.journal.before_read = lambda stream, start: reads.append(stream)
    found, steps = result_of(described(broker, Ends(broker), names, lambda: 2.5))
    assert steps == len(names)
    assert reads == [name for name in names for _ in range(2)]
    assert [each["name"] for each in found] == names
    assert {(each["bytes"], each["oldest_age"], each["newest_age"]) for each in found} == {(6, 1.5, 1.5)}


def test_an_empty_stream_has_no_bytes_and_no_ages() -> None:
    broker = broker_with(1)
    broker.journal.empty("s0")
    [each], _ = result_of(described(broker, Ends(broker), ["s0"], lambda: 0.0))
    assert each == {"name": "s0", "first": 3, "last": 2, "bytes": 0, "oldest_age": None, "newest_age": None}


def test_one_step_describes_one_subscription_and_skips_those_that_were_deleted_meanwhile() -> None:
    broker = broker_with(9)
    for number in range(9):
        broker.named.open(f"n{number}", f"s{number}", 0)
    listing = subscriptions(broker.named, None)
    next(listing)
    broker.named.delete(broker.table.find("n4"))
    found, steps = result_of(listing)
    assert ([each["name"] for each in json.loads(found)["subscriptions"]], steps) == (
        [f"n{n}" for n in range(9) if n != 4],
        7,
    )
    assert result_of(subscriptions(broker.named, "s7"))[0].startswith(b'{"subscriptions":[{"name": "n7", ')
    assert result_of(subscriptions(broker.named, "nothing"))[0] == b'{"subscriptions":[]}\n'
