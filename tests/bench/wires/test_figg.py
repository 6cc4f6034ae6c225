"""What the load maker says is Figg to our own session, and what that answers is counted."""

from __future__ import annotations

import pytest

from fyrehose.bench.wires.base import Job, Wrong, payload
from fyrehose.bench.wires.figg import FiggPublisherWire, FiggSubscriberWire
from fyrehose.protocols.figg.frames import Ack, Attach, Attached, Data, Publish
from fyrehose.protocols.figg.session import FiggServerSession

JOB = Job(stream="news", size=20, messages=10)


def data(*offsets: int) -> bytearray:
    return bytearray(b"".join(Data(topic="news", number=n, data=payload(20)).serialize() for n in offsets))


def test_blocks_are_publishes_with_rising_numbers() -> None:
    publisher, sent = FiggPublisherWire(JOB), b""
    for count in (3, 7):
        sent += bytes(publisher.block(count))
    size = len(sent) // 10
    found = [Publish.parse(sent[at + 8 : at + size]) for at in range(0, len(sent), size)]
    assert found == [Publish(topic="news", number=number, data=payload(20)) for number in range(1, 11)]
    assert found[0].serialize() == sent[:size]


def test_messages_go_to_several_topics_in_turn() -> None:
    publisher, sent = FiggPublisherWire(Job(stream="news", size=20, messages=10, extra={"streams": 3})), b""
    for count in (4, 3):
        sent += bytes(publisher.block(count))
    size = len(sent) // 7
    found = [Publish.parse(sent[at + 8 : at + size]) for at in range(0, len(sent), size)]
    assert [each.topic for each in found] == [f"grown-00000{number % 3}" for number in range(1, 8)]
    assert [each.number for each in found] == list(range(1, 8))


def test_last_ack_gives_the_number_of_published_messages() -> None:
    publisher = FiggPublisherWire(JOB)
    heard = bytearray(Ack(number=3).serialize() + Ack(number=7).serialize() + Ack(number=9).serialize()[:5])
    assert publisher.scan(heard, len(heard)) == 32
    assert publisher.done == 7
    with pytest.raises(Wrong):
        publisher.scan(bytearray(Ack(number=6).serialize()), 16)


def test_subscriber_attaches_at_the_start_of_the_topic() -> None:
    (event,) = FiggServerSession().receive_data(FiggSubscriberWire(JOB).begin())
    assert event == Attach(topic="news", offset=0)


def test_data_is_counted_in_chunks_of_any_size() -> None:
    subscriber = FiggSubscriberWire(JOB)
    heard = bytearray(Attached(topic="news", offset=0).serialize()) + data(1, 2, 3)
    assert subscriber.scan(heard, len(heard) - 4) == len(heard) - len(data(3))
    assert subscriber.done == 2
    more = data(3, 4, 5)
    assert subscriber.scan(more, len(more)) == len(more)
    assert subscriber.done == 5


@pytest.mark.parametrize("offsets", [(2, 3), (1, 3), (1, 1)])
def test_missing_and_duplicate_messages_fail_the_load(offsets: tuple[int, ...]) -> None:
    with pytest.raises(Wrong):
        FiggSubscriberWire(JOB).scan(data(*offsets), len(data(*offsets)))
