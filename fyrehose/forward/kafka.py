"""Forward to Kafka by confluent-kafka: an idempotent producer, the stream as key, the number as a header."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from twisted.internet.threads import deferToThreadPool

from fyrehose.errors import ConfigError
from fyrehose.forward.destination import (
    Around,
    BatchOutcome,
    BatchSender,
    Destination,
    ForwardTable,
    RecordTemplate,
    Secret,
    secret,
    template,
)
from fyrehose.imports import Extra
from fyrehose.records import Run
from fyrehose.toml_files import key

CONFLUENT = Extra("forward", "confluent-kafka", "confluent_kafka")
#: How long after its time-out the report of a record may come, in seconds.
REPORTS = 5.0


def _options(value: object) -> Mapping[str, Secret | str]:
    if not isinstance(value, dict) or not all(isinstance(each, str | int) for each in value.values()):
        raise ValueError("a table of options of librdkafka; passwords as file:PATH or env:NAME")
    texts = {name: str(each) for name, each in value.items()}
    return {name: secret(each) if each.startswith(("file:", "env:")) else each for name, each in texts.items()}


@attrs.frozen(kw_only=True, slots=False)
class KafkaTable(ForwardTable):
    """The keys of ``kafka://``.

    :ivar options: of librdkafka, such as ``"sasl.password" = "env:PASSWORD"``
    """

    topic: RecordTemplate = key(template("stream", "date"), default=RecordTemplate(("", "stream", "")))
    options: Mapping[str, Secret | str] = key(_options, default=attrs.Factory(dict))


@attrs.define(eq=False)
class KafkaSender(BatchSender):
    """Sends batches by a producer, whose calls block and therefore run in a thread.

    :ivar make: makes a producer; one that has failed for good is replaced
    """

    table: KafkaTable
    around: Around
    make: Callable[[], Any]
    producer: Any = attrs.field(default=attrs.Factory(lambda self: self.make(), takes_self=True), init=False)
    problem: str = attrs.field(default="", init=False)

    async def send(self, runs: Sequence[Run]) -> BatchOutcome:
        reactor = self.around.reactor
        outcome: BatchOutcome = await deferToThreadPool(reactor, reactor.getThreadPool(), self._send, runs)
        return outcome

    def _send(self, runs: Sequence[Run]) -> BatchOutcome:
        """Produce the records, and wait for their reports, of which the producer makes one for each."""
        from confluent_kafka import KafkaError, KafkaException

        reports: dict[int, Any] = {}
        records = [run.slice(at, at + 1) for run in runs for at in range(len(run))]
        fatal = None
        for at, run in enumerate(records):
            headers = {"stream": run.stream, "seq": str(run.first_seq), "epoch": self.around.epoch()}
            values = {"key": run.stream.encode(), "headers": headers, "timestamp": run.time // 1000}
            try:
                self.producer.produce(
                    self.table.topic.filled(run, 0),
                    bytes(run.payload),
                    on_delivery=lambda error, message, at=at: reports.update({at: error}),
                    **values,
                )
            except BufferError:
                fatal = "the producer's queue is full"
                break
            except KafkaException as error:
                reports[at] = error.args[0]
        self.producer.flush(self.table.timeout + REPORTS)  # by then each record has its report
        if any(error is not None and error.fatal() for error in reports.values()):
            self.producer = self.make()
        final = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_EXCEPTION, KafkaError.INVALID_RECORD)
        refused = {at: error for at, error in reports.items() if error is not None and error.code() in final}
        stored = {at for at, error in reports.items() if error is None}
        again = [at for at in range(len(records)) if at not in stored and at not in refused]
        reason = next((str(reports[at]) for at in again if at in reports), fatal or "no report in time")
        self.problem = reason if again else ""
        return BatchOutcome(
            again=[records[at] for at in again],
            reason=self.problem,
            refused=[(records[at], str(refused[at])) for at in sorted(refused)],
        )

    def close(self) -> None:
        self.producer.purge()


def producer_options(table: KafkaTable) -> dict[str, str]:
    """Return the options of librdkafka for the producer of *table*."""
    usual = {
        "bootstrap.servers": ",".join(place.authority for place in table.to),
        "enable.idempotence": "true",
        "delivery.timeout.ms": str(int(table.timeout * 1000)),
        "linger.ms": "5",
        "client.id": table.name,
    }
    if table.to[0].encrypted:
        names = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
        usual |= {"security.protocol": "ssl", **dict(zip(names, table.tls.paths, strict=False))}
    return usual | {name: each.value if isinstance(each, Secret) else each for name, each in table.options.items()}


def _sender(table: Any, around: Around) -> KafkaSender:
    CONFLUENT.require("forwarding to Kafka")
    from confluent_kafka import KafkaException, Producer

    try:
        return KafkaSender(table, around, partial(Producer, producer_options(table)))
    except KafkaException as error:
        raise ConfigError(f"options: {error.args[0].str()}") from None


kafka = Destination(KafkaTable, _sender)
