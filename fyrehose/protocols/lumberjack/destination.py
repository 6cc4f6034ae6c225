"""Forward to lumberjack servers: Logstash, Elastic Agent, Graylog, Vector, or another Fyrehose.

A batch is confirmed when the servers have acknowledged each of its events; the client sends what is not acknowledged
again, on any connection.  A Fyrehose there stores events that have an identity once (the option ``resent``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from fyrehose.errors import FyrehoseError
from fyrehose.forward.destination import (
    Around,
    BatchOutcome,
    BatchSender,
    Destination,
    ForwardTable,
    alone,
    documents,
    objects,
)
from fyrehose.protocols.lumberjack.client import LumberjackClient
from fyrehose.protocols.lumberjack.frames import MAX_EVENT
from fyrehose.records import Column, Run, column_of
from fyrehose.toml_files import key, scalar

log = Logger()


def level(value: str) -> int:
    """Convert a level of compression, 0 to 9."""
    if value not in set("0123456789"):
        raise ValueError("a level of zlib from 0 (no compression) to 9")
    return int(value)


@attrs.frozen(kw_only=True, slots=False)
class LumberjackTable(ForwardTable):
    """The keys of ``lumberjack://`` and ``lumberjacks://``."""

    compression: int = key(scalar(level), default=3)
    window: int = key(scalar(int), default=2048)


@attrs.define(eq=False)
class LumberjackSender(BatchSender):
    """Sends batches by a client that connects with the first one."""

    client: LumberjackClient
    _begun: bool = False
    problem: str = attrs.field(default="", init=False)

    async def send(self, runs: Sequence[Run]) -> BatchOutcome:
        if not self._begun:
            self._begun = True
            self.client.connect().addErrback(lambda failure: failure.trap(FyrehoseError))
        columns: list[Column] = []
        refused: list[tuple[Run, str]] = []
        for run, fits in (found for each in runs for found in objects(each)):
            if fits and max(run.sizes) <= MAX_EVENT:
                columns.append(run)
                continue
            items, binary = documents([run])
            large = [
                (alone(item), f"an event of more than {MAX_EVENT} bytes") for item in items if len(item[2]) > MAX_EVENT
            ]
            refused += binary + large
            columns.append(column_of(document for _, _, document in items if len(document) <= MAX_EVENT))
        await self.client.publish_columns(columns)
        self.problem = ""
        return BatchOutcome(refused=refused)

    def failed(self, error: Exception) -> None:
        """Log a failure of a connection, unless it was logged: the client tries again until a batch is delivered.

        None is final, because what the destination lacks may be mended while this process runs.
        """
        if str(error) != self.problem:
            self.problem = str(error)
            log.warn("lumberjack: {error}; retrying", error=error)

    def close(self) -> Deferred[None]:
        return self.client.close()


def _sender(table: Any, around: Around) -> LumberjackSender:
    client = LumberjackClient(
        around.reactor, list(around.endpoints), compression=table.compression, window=table.window
    )
    sender = LumberjackSender(client)
    client.process_exception = sender.failed
    return sender


lumberjack = Destination(LumberjackTable, _sender)
