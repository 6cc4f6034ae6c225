"""Windows as our own session reads them, and acknowledgements as writers count them."""

from __future__ import annotations

import json

import pytest

from fyrehose.bench.wires.base import Job, Wrong
from fyrehose.bench.wires.lumberjack import LumberjackPublisherWire, event, varied, window
from fyrehose.protocols.lumberjack.frames import Ack, EventRun
from fyrehose.protocols.lumberjack.session import LumberjackServerSession


def read(data: bytes) -> list[bytes]:
    """Return the events in ``data``."""
    session = LumberjackServerSession()
    events = session.receive_data(data)
    while session.more_work:
        events += session.next_events()
    found = []
    for run in events:
        if isinstance(run, EventRun):
            lengths, payload, at = memoryview(run.lengths).cast("I"), bytes(run.payload), 0
            for length in lengths:
                found.append(payload[at : at + length])
                at += length
    return found


@pytest.mark.parametrize("size", [490, 1_024, 16_384])
def test_an_event_has_its_size_and_is_json(size: int) -> None:
    assert len(event(size)) == size
    assert json.loads(event(size))["@metadata"]["beat"] == "filebeat"


def test_events_differ_and_keep_their_size() -> None:
    assert len({varied(event(490), number) for number in range(1, 100)}) == 99
    assert {len(varied(event(490), number)) for number in range(100)} == {490}
    assert all(json.loads(varied(event(490), number)) for number in range(2_048))


@pytest.mark.parametrize("level", [0, 3])
def test_window_contains_the_events_of_a_writer(level: int) -> None:
    found = read(window(490, 5, level))
    assert found == [varied(event(490), number) for number in range(1, 6)]


def acks(*numbers: int) -> bytearray:
    return bytearray(b"".join(Ack(number=number).serialize() for number in numbers))


def test_windows_are_counted_as_they_are_acknowledged() -> None:
    publisher = LumberjackPublisherWire(Job(stream="", size=490, messages=10, extra={"batch": 4}))
    assert publisher.unit == 4
    assert [len(read(bytes(publisher.block(count)))) for count in (4, 4, 2)] == [4, 4, 2]
    heard = acks(0, 2, 2, 4, 0, 4) + b"2A"
    assert publisher.scan(heard, len(heard)) == 36
    assert publisher.done == 8
    publisher.scan(acks(2), 6)
    assert publisher.done == 10
    with pytest.raises(Wrong):
        publisher.scan(acks(1), 6)


def test_acknowledgement_of_more_than_was_sent_fails_the_load() -> None:
    publisher = LumberjackPublisherWire(Job(stream="", size=490, messages=4))
    publisher.block(4)
    with pytest.raises(Wrong):
        publisher.scan(acks(5), 6)
