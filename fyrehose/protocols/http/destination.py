"""Forward to another server of Fyrehose, by HTTP with keys: the server stores each record once.

    runs of one stream -> requests of 1, 2, 4 ... 1,024 records -> POST with Idempotency-Key -> 200, when it is durable

The key of a request is the identity of its first record.  After a crash nobody knows how many records the last request
had, and the server refuses the key with another number of them.  So the number is a power of two, and the sender tries
each: at most eleven requests, of which one is the repetition, and the others store nothing.  In the same way it finds a
record that the server refuses for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

import attrs

from fyrehose.errors import Closed
from fyrehose.forward.destination import (
    Around,
    BatchOutcome,
    BatchSender,
    Destination,
    ForwardTable,
    RecordTemplate,
    Secret,
    by_stream,
    identity,
    merged,
    secret,
    template,
)
from fyrehose.net.clients import ConnectionFailed, process_exception
from fyrehose.net.several import AnyServer
from fyrehose.patterns import Pattern
from fyrehose.protocols.http.acknowledging import ESCAPED
from fyrehose.protocols.http.calling import Caller
from fyrehose.protocols.http.session import KEYED, NDJSON
from fyrehose.records import Run, split
from fyrehose.toml_files import Mistake, key

#: Limits of one request, in records and bytes.  Requests are repeated over restarts, so these do not depend on options.
MOST, MOST_BYTES = 1024, KEYED // 2


@attrs.frozen(kw_only=True, slots=False)
class FyrehoseTable(ForwardTable):
    """The keys of ``fyrehose://`` and ``fyrehoses://``.

    :ivar stream: the stream there
    """

    stream: RecordTemplate = key(template("stream"), default=RecordTemplate(("", "stream", "")))
    token: Secret | None = key(secret, default=None)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        # The pattern itself is a name that it matches.
        written = self.stream.filled(Run.of(self.streams, [b""], source=""), 0)
        if {place.authority for place in self.to} & set(self.source) and Pattern(self.streams).matches(written):
            raise Mistake(f"streams {self.streams!r} include {written!r}, which this writes; expected stream = NAME")


def line(payload: memoryview) -> bool:
    """Return whether *payload* can share a request with others."""
    return 0 < len(payload) <= MOST_BYTES and b"\n" not in bytes(payload) and payload[-1] != 13


def longest(payloads: Sequence[memoryview]) -> int:
    """Return how many of the first payloads one request can have."""
    size = count = 0
    for payload in payloads[:MOST]:
        size += len(payload) + 1
        if not line(payload) or size > MOST_BYTES:
            break
        count += 1
    return max(1, count)


@attrs.define(eq=False)
class FyrehoseSender(BatchSender):
    """Sends records by requests whose keys are known again after a restart.

    :ivar stream: the stream there
    """

    around: Around
    stream: RecordTemplate
    caller: Caller
    problem: str = attrs.field(default="", init=False)

    async def send(self, runs: Sequence[Run]) -> BatchOutcome:
        outcomes = []
        for group in by_stream(runs):
            outcomes.append(await self._stream(group))
        return merged(outcomes)

    async def _stream(self, runs: list[Run]) -> BatchOutcome:
        """Send the records of one stream, until a request fails."""
        refused: list[tuple[Run, str]] = []
        while runs:
            payloads = [payload for run in runs for payload in run.payloads()]
            count = 1 << (longest(payloads).bit_length() - 1)
            answer = None
            try:
                while answer is None or (answer.status in (400, 413, 422) and count > 1):
                    count = count if answer is None else count // 2
                    answer = await self._post(runs[0], payloads[:count])
            except (ConnectionFailed, Closed) as error:
                return BatchOutcome(runs, str(error), refused)
            reason = f"status {answer.status}: {answer.detail}"
            if answer.status == 422:
                waits = f"{reason}; waiting for all records of the request before"
                return BatchOutcome(runs, waits, refused, more=True)
            if answer.status in (400, 413):
                refused.append((runs[0].slice(0, 1), reason))
            elif answer.status != 200:
                return BatchOutcome(runs, reason, refused)
            runs = split(runs, count)[1]
        return BatchOutcome(refused=refused)

    async def _post(self, run: Run, payloads: Sequence[memoryview]) -> Any:
        """Send a request for *payloads*, of which the first is that of the first record of *run*."""
        name = blake2b(identity(run, 0, self.around.epoch()).encode(errors=ESCAPED), digest_size=16).hexdigest()
        kind = NDJSON if line(payloads[0]) else run.content_type or "application/octet-stream"
        target = f"/streams/{quote(self.stream.filled(run, 0), safe='', errors=ESCAPED)}"
        headers = (("Content-Type", kind), ("Idempotency-Key", f"forward-{name}"))
        answer = await self.caller.ask("POST", target, b"\n".join(payloads), headers)
        self.problem = ""
        return answer

    def close(self) -> None:
        self.caller.close()


def _sender(table: Any, around: Around) -> FyrehoseSender:
    names = [place.authority for place in table.to]
    token = None if table.token is None else table.token.value
    caller = Caller(around.reactor, AnyServer(around.endpoints, names), names[0], token)
    sender = FyrehoseSender(around, table.stream, caller)

    def retries(error: Exception) -> bool:
        sender.problem = str(error)
        return process_exception(error) is None

    caller.retries = retries
    return sender


fyrehose = Destination(FyrehoseTable, _sender)
