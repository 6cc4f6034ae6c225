"""Test forwarding to Kafka, with the mock brokers of librdkafka."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import pytest_twisted
from confluent_kafka import Consumer, KafkaError, KafkaException
from twisted.internet import reactor

from fyrehose.errors import ConfigError, MissingExtra
from fyrehose.forward.destination import DONE, Around, place, template
from fyrehose.forward.kafka import CONFLUENT, KafkaSender, KafkaTable, kafka
from fyrehose.imports import Extra
from fyrehose.records import Run


def table(**keys: Any) -> KafkaTable:
    options = {"test.mock.num.brokers": "3", **keys.pop("options", {})}
    return KafkaTable(name="n", streams="s", to=(place("kafka://127.0.0.1:1"),), options=options, timeout=60.0, **keys)


def run_of(*payloads: bytes, stream: str = "logs.web") -> Run:
    return Run.of(stream, payloads, source="figg", first_seq=7, time=1_795_953_600_000_000)


@pytest_twisted.ensureDeferred
async def test_records_arrive_with_key_and_number() -> None:
    sender = kafka.sender(table(topic=template("stream")("in-{stream}")), Around(reactor, [], lambda: "e1"))
    assert await sender.send([run_of(b"one", b"two"), run_of(b"three", stream="logs.db")]) == DONE
    # The mock brokers live in the producer; it knows their addresses.
    brokers = ",".join(str(broker).partition("/")[0] for broker in sender.producer.list_topics().brokers.values())
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["in-logs.web", "in-logs.db"])
    found: list[Any] = []
    for _ in range(120):
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append((message.topic(), message.key(), message.value(), dict(message.headers())))
        if len(found) == 3:
            break
    consumer.close()
    assert sorted(found, key=lambda each: (each[0], each[3]["seq"])) == [
        ("in-logs.db", b"logs.db", b"three", {"stream": b"logs.db", "seq": b"7", "epoch": b"e1"}),
        ("in-logs.web", b"logs.web", b"one", {"stream": b"logs.web", "seq": b"7", "epoch": b"e1"}),
        ("in-logs.web", b"logs.web", b"two", {"stream": b"logs.web", "seq": b"8", "epoch": b"e1"}),
    ]
    sender.close()


@pytest_twisted.ensureDeferred
async def test_message_that_is_too_large_is_refused() -> None:
    made = table(options={"message.max.bytes": "2000"})
    sender = kafka.sender(made, Around(reactor, [], lambda: ""))
    outcome = await sender.send([run_of(b"small", bytes(5_000), b"small")])
    assert [run.first_seq for run, _ in outcome.refused] == [8]
    assert not outcome.again
    sender.close()


@pytest_twisted.ensureDeferred
async def test_records_are_sent_again_while_no_broker_answers() -> None:
    made = KafkaTable(name="n", streams="s", to=(place("kafka://127.0.0.1:1"),), timeout=1.0)
    sender = kafka.sender(made, Around(reactor, [], lambda: ""))
    outcome = await sender.send([run_of(b"one", b"two")])
    assert [run.first_seq for run in outcome.again] == [7, 8]
    assert outcome.reason
    assert sender.problem == outcome.reason
    sender.close()


def test_invalid_option_of_librdkafka_is_an_error() -> None:
    with pytest.raises(ConfigError, match="options: No such configuration property"):
        kafka.sender(table(options={"no.such": "1"}), Around(reactor, [], lambda: ""))


class Odd:
    """A producer with a fate for each record, which is its payload."""

    FINAL = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_EXCEPTION, KafkaError.INVALID_RECORD)
    LATER = (KafkaError._MSG_TIMED_OUT, KafkaError.NOT_LEADER_FOR_PARTITION)

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def produce(self, topic: str, value: bytes, on_delivery: Any, **values: Any) -> None:
        fate, _, code = value.decode().partition(" ")
        if fate == "full":
            raise BufferError
        error = KafkaError(int(code), "why", code == FATAL) if code else None
        if fate == "raised":
            raise KafkaException(error)
        if fate != "silent":
            self.reports.append((on_delivery, error))

    def flush(self, seconds: float) -> int:
        """Report in another order than that of the records, as brokers do."""
        while self.reports:
            on_delivery, error = self.reports.pop()
            on_delivery(error, None)
        return 0


FATAL = str(KafkaError._FATAL)  # the producer has failed for good
FATES = (
    *("stored", "silent", "full"),
    *(f"{how} {code}" for how in ("told", "raised") for code in (*Odd.FINAL, *Odd.LATER, FATAL)),
)


@pytest.mark.parametrize("seed", range(50))
@pytest_twisted.ensureDeferred
async def test_each_record_is_stored_refused_or_sent_again_whatever_becomes_of_the_others(seed: int) -> None:
    dice = Random(seed)
    fates = [dice.choice(FATES) if dice.random() < 0.5 else "stored" for _ in range(dice.randint(1, 12))]
    end = fates.index("full") if "full" in fates else len(fates)
    refused = [at for at, fate in enumerate(fates[:end]) if any(fate.endswith(f" {code}") for code in Odd.FINAL)]
    again = [at for at, fate in enumerate(fates) if at >= end or (fate != "stored" and at not in refused)]
    made: list[Odd] = []

    def make() -> Odd:
        made.append(Odd())
        return made[-1]

    sender = KafkaSender(table(), Around(reactor, [], lambda: ""), make)
    outcome = await sender.send([run_of(*(fate.encode() for fate in fates))])
    assert [run.first_seq - 7 for run in outcome.again] == again
    assert [run.first_seq - 7 for run, _ in outcome.refused] == refused
    assert bool(outcome.reason) is bool(again)
    failed = any(fate.endswith(f" {FATAL}") for fate in fates[:end])
    assert len(made) == 1 + failed, "a producer that has failed for good is replaced, and no other"
    assert await sender.send([run_of(b"stored")]) == DONE


def test_missing_package_is_named() -> None:
    assert CONFLUENT.installed
    with pytest.raises(MissingExtra, match="pip install 'fyrehose\\[forward\\]'"):
        Extra(CONFLUENT.name, CONFLUENT.package, "no_such_module").require("forwarding to Kafka")
