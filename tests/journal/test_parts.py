"""The parts of an event that is larger than a record are joined, wherever a reader begins."""

from __future__ import annotations

import json

import pytest

from fyrehose.journal.parts import JSON, LAST_PART, PART, Joiner, event_at
from fyrehose.records import MAX_PAYLOAD, Run

DOCUMENT = json.dumps({"message": "x" * (2 * MAX_PAYLOAD)}).encode()
PIECES = [DOCUMENT[at : at + MAX_PAYLOAD] for at in range(0, len(DOCUMENT), MAX_PAYLOAD)]


def part(seq: int, at: int, producer: str = "a:1", number: int = 7) -> Run:
    kind = LAST_PART if at == len(PIECES) - 1 else PART
    labels = {"producer": producer, "producer_seq": number, "content_type": kind, "topic": "t", "time": 10 * seq}
    return Run.of("s", [PIECES[at]], source="lumberjack", first_seq=seq, **labels)


def other(seq: int, producer: str = "b:2", count: int = 1) -> Run:
    return Run.of("s", [b"{}"] * count, source="lumberjack", first_seq=seq, producer=producer, producer_seq=seq)


def join(*runs: Run) -> list[Run]:
    joiner = Joiner()
    return [each for run in runs for each in joiner.join(run)] + list(joiner.end())


def test_parts_become_one_event_with_the_number_of_the_last_part() -> None:
    assert len(PIECES) == 3
    before, event = join(part(1, 0), other(2), part(3, 1), part(4, 2))
    assert before.first_seq == 2
    assert (event.first_seq, event.time, event.content_type) == (4, 40, JSON)
    assert (event.producer, event.producer_seq, event.topic) == ("a:1", 7, "t")
    assert bytes(event.payload) == DOCUMENT


def test_events_of_several_producers_are_joined_at_once() -> None:
    runs = [part(seq, at, producer) for seq, (at, producer) in enumerate(((0, "a"), (0, "b"), (1, "b"), (1, "a")), 1)]
    events = join(*runs, part(5, 2, "a"), part(6, 2, "b"))
    assert [(event.producer, bytes(event.payload) == DOCUMENT) for event in events] == [("a", True), ("b", True)]


def test_end_of_an_event_whose_beginning_is_missing_stays_in_parts() -> None:
    assert [run.first_seq for run in join(part(2, 1), part(3, 2))] == [2, 3]
    assert [run.first_seq for run in join(part(3, 2))] == [3]


def test_parts_of_an_incomplete_event_are_passed_on_in_order() -> None:
    runs = (part(1, 0), part(2, 1), other(3, "a:1"), part(4, 0, number=8))
    assert [run.first_seq for run in join(*runs)] == [1, 2, 3, 4]


def test_events_of_more_than_the_bound_stay_in_parts() -> None:
    joiner = Joiner(most=MAX_PAYLOAD)
    passed = [run.first_seq for each in (part(1, 0), part(2, 1), part(3, 2)) for run in joiner.join(each)]
    assert [*passed, *(run.first_seq for run in joiner.end())] == [1, 2, 3]


def test_position_before_held_parts_is_known() -> None:
    joiner = Joiner()
    assert list(joiner.join(part(5, 0))) == []
    assert (joiner.first_held("s"), joiner.first_held("t"), joiner.holding) == (5, None, True)


class Stream:
    """A stream that can be read at any number."""

    def __init__(self, *runs: Run) -> None:
        self.runs, self.reads = runs, 0

    def read(self, start: int, size: int) -> tuple[Run, ...]:
        self.reads += 1
        found: list[Run] = []
        for run in self.runs:
            left = run.slice(max(0, start - run.first_seq), len(run)) if run.last_seq >= start else None
            if left is not None and size > 0:
                found.append(left)
                size -= left.size
        return tuple(found)

    def event(self, seq: int, oldest: int = 1, last: int = 10_000) -> tuple[int, ...] | None:
        return event_at(self.read, self.read(seq, 1)[0].slice(0, 1), oldest, last)


def test_parts_are_found_from_each_of_them() -> None:
    stream = Stream(other(1), part(2, 0), other(3, count=500), part(503, 1), other(504), part(505, 2), other(506))
    assert {stream.event(seq) for seq in (2, 503, 505)} == {(2, 503, 505)}


@pytest.mark.parametrize(
    ("runs", "seq", "oldest", "last"),
    [
        ((other(1), part(2, 0), part(3, 1)), 2, 1, 3),  # its last part is missing
        ((other(1), part(2, 0), part(3, 1), part(4, 2)), 2, 1, 3),  # its last part is not wanted
        ((part(3, 1), part(4, 2)), 4, 3, 9),  # its beginning is no longer kept
        ((other(1), part(2, 0), other(3, "a:1"), part(4, 2)), 2, 1, 9),  # its producer has sent something else
        ((other(1), part(2, 2)), 2, 1, 9),  # it has one part
    ],
)
def test_incomplete_event_is_not_found(runs: tuple[Run, ...], seq: int, oldest: int, last: int) -> None:
    assert Stream(*runs).event(seq, oldest, last) is None


def test_search_for_parts_reads_a_bounded_number_of_bytes() -> None:
    filler = [Run.of("s", [bytes(1 << 20)], source="x", producer="b:2", first_seq=seq) for seq in range(2, 200)]
    stream = Stream(part(1, 0), *filler, part(200, 1), part(201, 2))
    stream.reads = 0
    assert stream.event(1) is None
    assert stream.event(201) is None
    assert stream.reads < 100
