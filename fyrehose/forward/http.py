"""Destinations over HTTP: lines of JSON, or a body of any form, and the ``_bulk`` of Elasticsearch and OpenSearch.

    runs -> session.request() -> BatchRequest -> POST -> status, headers, body -> session.answered() -> BatchOutcome

A session does no input or output.  Elasticsearch stores each record once: its ``_id`` is the record's identity, and
``create`` answers 409 if it is there.  Other receivers find the identities of a batch in ``Idempotency-Key``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeout

from fyrehose.forward.destination import (
    DONE,
    WORDS,
    Around,
    BatchOutcome,
    BatchSender,
    Destination,
    ForwardTable,
    Item,
    RecordTemplate,
    Secret,
    Word,
    alone,
    by_stream,
    documents,
    identity,
    merged,
    secret,
    template,
)
from fyrehose.imports import Extra
from fyrehose.inflate import deflated
from fyrehose.jsontext import dumped, one_line, quoted
from fyrehose.net.clients import ConnectionFailed
from fyrehose.records import Run, halves
from fyrehose.toml_files import key, text, truth
from fyrehose.web.client_session import ServerAnswer, retry_after

TREQ = Extra("forward", "treq", "treq")
#: The statuses that are about what was sent; with every other one the same records may be accepted later.
_FINAL = (400, 413, 415, 422)
#: The longest pause that an answer may ask for, in seconds, and the largest answer, in bytes.
MOST_PAUSE, MOST_ANSWER = 3600.0, 16 << 20
#: The longest key; a digest stands in for a longer one, so that two batches never have the same.
MOST_KEY = 255
#: The parameter of zlib for gzip.
GZIP = 31
#: How much of a refusal is shown, in characters.
_SHOWN = 200


#: The name of a stream is its publisher's choice, and must not end the JSON string that a template puts it into.
LINE_WORDS: dict[str, Word] = {**WORDS, "stream": lambda record, document: quoted(record.stream)[1:-1]}
_line = template(*WORDS, words=LINE_WORDS)


def _headers(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) and each.isprintable() for each in value.values()):
        raise ValueError("a table of headers, each with a text")
    return value


@attrs.frozen(kw_only=True, slots=False)
class WebTable(ForwardTable):
    """The keys of all destinations over HTTP.

    :ivar authorization: the whole value of the header, such as ``Bearer ...``
    """

    gzip: bool = key(truth, default=True)
    authorization: Secret | None = key(secret, default=None)
    headers: Mapping[str, str] = key(_headers, default=attrs.Factory(dict))


@attrs.frozen(kw_only=True, slots=False)
class HttpTable(WebTable):
    """The keys of ``http://`` and ``https://``.

    :ivar line: what is sent for a record
    :ivar body: what is sent for a batch, if it has another form than lines; ``{lines}`` stands for the lines
    :ivar separator: what is between two lines
    """

    content_type: str = key(text, default="application/x-ndjson")
    line: RecordTemplate = key(_line, default=_line("{document}"))
    separator: str = key(text, default="\n")
    body: RecordTemplate = key(template("lines", "stream"), default=RecordTemplate(("", "lines", "\n")))


@attrs.frozen(kw_only=True, slots=False)
class BulkTable(WebTable):
    """The keys of ``elasticsearch+http(s)://`` and ``opensearch+http(s)://``."""

    index: RecordTemplate = key(template("stream", "date"), default=RecordTemplate(("logs-", "stream", "")))


@attrs.frozen
class BatchRequest:
    """A request for some records.

    :ivar target: path and query, behind those of the URL
    :ivar items: the records that it has
    :ivar refused: those that it cannot have
    """

    target: str
    headers: Mapping[str, str]
    body: bytes
    items: Sequence[Item]
    refused: Sequence[tuple[Run, str]]


@attrs.frozen
class LineSession:
    """Sends lines, or what a template makes of them, in one request; in one for each stream if ``body`` names it."""

    table: Any

    def requests(self, runs: Sequence[Run], epoch: str) -> Iterator[BatchRequest]:
        """Yield the requests for *runs*."""
        body = self.table.body
        for group in by_stream(runs) if "stream" in body.parts[1::2] else [runs]:
            items, refused = documents(group)
            lines = self.table.separator.join(self.table.line.filled(*item) for item in items)
            values = {"lines": lines, "stream": quoted(group[0].stream)[1:-1]}
            found = [values[each] if at % 2 else each for at, each in enumerate(body.parts)]
            ends = [f"{identity(run, 0, epoch)}-{run.last_seq}" for run in group]
            name = ",".join(ends).encode("ascii", "backslashreplace").decode()
            if len(name) > MOST_KEY:
                name = blake2b(name.encode(), digest_size=16).hexdigest()
            headers = {"Content-Type": self.table.content_type, "Idempotency-Key": name}
            yield BatchRequest("", headers, "".join(found).encode(), items, refused)

    def answered(self, request: BatchRequest, answer: ServerAnswer) -> BatchOutcome:
        """Return the outcome of a request, except for :attr:`BatchRequest.refused`: it succeeds or fails as a whole."""
        if 200 <= answer.status < 300:
            return DONE
        said = " ".join(answer.body.decode("utf-8", "replace").split())
        return BatchOutcome(
            again=_runs(request.items),
            reason=f"status {answer.status}: {said}"[:_SHOWN],
            pause=retry_after(answer.headers, MOST_PAUSE),
            whole=answer.status in _FINAL,
        )


class BulkSession(LineSession):
    """Sends ``_bulk`` requests with ``create``, and judges their answers item by item."""

    def requests(self, runs: Sequence[Run], epoch: str) -> Iterator[BatchRequest]:
        """Yield the request for *runs*."""
        items, refused = documents(runs)
        lines = []
        for run, index, document in items:
            create = {"_index": self.table.index.filled(run, index), "_id": identity(run, index, epoch)}
            lines += [dumped({"create": create}), one_line(document.decode()).encode()]
        target = "/_bulk?filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason"
        body = b"".join(b"%b\n" % line for line in lines)
        yield BatchRequest(target, {"Content-Type": "application/x-ndjson"}, body, items, refused)

    def answered(self, request: BatchRequest, answer: ServerAnswer) -> BatchOutcome:
        if answer.status != 200:
            return super().answered(request, answer)
        try:
            found = json.loads(answer.body)
            if found["errors"] is False:
                return DONE
            results = [next(iter(each.values())) for each in found["items"]]
            pairs = [
                (item, int(each["status"]), str((each.get("error") or {}).get("reason", "")))
                for item, each in zip(request.items, results, strict=True)
            ]
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
            return BatchOutcome(_runs(request.items), f"the answer to _bulk is not one of Elasticsearch: {error!r}")
        final = [(item, code, why) for item, code, why in pairs if code in _FINAL]
        done = {409, *range(200, 300), *_FINAL}
        later = [(item, code, why) for item, code, why in pairs if code not in done]
        return BatchOutcome(
            again=_runs([item for item, _, _ in later]),
            reason=f"status {later[0][1]}: {later[0][2]}"[:_SHOWN] if later else "",
            refused=[(alone(item), f"status {code}: {why}"[:_SHOWN]) for item, code, why in final],
        )


def _runs(items: Sequence[Item]) -> list[Run]:
    """Return the records of *items* as runs, neighbours together."""
    found: list[tuple[Run, int, int]] = []
    for run, index, _ in items:
        if found and found[-1][0] is run and found[-1][2] == index:
            found[-1] = (run, found[-1][1], index + 1)
        else:
            found.append((run, index, index + 1))
    return [run.slice(begin, end) for run, begin, end in found]


class HttpSender(BatchSender):
    """Sends the requests of a session by treq, to one place after the other if they fail."""

    def __init__(self, table: WebTable, around: Around, session: LineSession) -> None:
        TREQ.require("forwarding by HTTP")
        from treq.client import HTTPClient
        from twisted.web.client import Agent, HTTPConnectionPool

        self._table, self._around, self._session, self._at = table, around, session, 0
        self._pool = HTTPConnectionPool(around.reactor, persistent=True)
        self._pool.retryAutomatically = False
        self._client = HTTPClient(Agent.usingEndpointFactory(around.reactor, self, self._pool))

    def endpointForURI(self, uri: Any) -> Any:
        """Return the endpoint of the present place: see :class:`twisted.web.iweb.IAgentEndpointFactory`."""
        return self._around.endpoints[self._at]

    async def send(self, runs: Sequence[Run]) -> BatchOutcome:
        outcomes = []
        for request in self._session.requests(runs, self._around.epoch()):
            outcome = await self._post(request) if request.items else DONE
            if outcome.whole and len(request.items) > 1:
                outcome = merged([await self.send(half) for half in halves(_runs(request.items))])
            elif outcome.whole:
                outcome = BatchOutcome(refused=[(alone(request.items[0]), outcome.reason)])
            outcomes += [outcome, BatchOutcome(refused=request.refused)]
        return merged(outcomes)

    async def _post(self, request: BatchRequest) -> BatchOutcome:
        from twisted.web.client import ResponseFailed

        posting = Deferred.fromCoroutine(self._answer(request))
        try:
            answer = await posting.addTimeout(self._table.timeout, self._around.reactor)
        except CancelledError:
            raise
        except DeferredTimeout:
            outcome = BatchOutcome(_runs(request.items), f"no answer within {self._table.timeout:g} s")
        except Exception as error:
            cause = error.reasons[0].value if isinstance(error, ResponseFailed) else error
            outcome = BatchOutcome(_runs(request.items), str(ConnectionFailed(cause)))
        else:
            outcome = self._session.answered(request, answer)
        if outcome.again:
            self._at = (self._at + 1) % len(self._around.endpoints)
        return outcome

    async def _answer(self, request: BatchRequest) -> ServerAnswer:
        from treq import collect

        place, table = self._table.to[self._at], self._table
        headers: Any = {**request.headers, **table.headers}
        if table.authorization is not None:
            headers["Authorization"] = table.authorization.value
        body = request.body
        if table.gzip:
            headers["Content-Encoding"] = "gzip"
            body = deflated(body, 3, GZIP)
        url = f"http{'s' if place.encrypted else ''}://{place.authority}{place.path.rstrip('/')}{request.target}"
        response = await self._client.request("POST", url, headers=headers, data=body, allow_redirects=False)
        fields = {name.lower(): values[0] for name, values in response.headers.getAllRawHeaders()}
        answer = bytearray()

        def received(data: bytes) -> None:
            if len(answer) + len(data) > MOST_ANSWER:
                raise ValueError(f"the answer has more than {MOST_ANSWER} bytes")
            answer.extend(data)

        await collect(response, received)
        return ServerAnswer(response.code, fields, bytes(answer))

    def close(self) -> Deferred[Any]:
        closing: Deferred[Any] = self._pool.closeCachedConnections()
        return closing


http = Destination(HttpTable, lambda table, around: HttpSender(table, around, LineSession(table)))
elasticsearch = Destination(BulkTable, lambda table, around: HttpSender(table, around, BulkSession(table)))
opensearch = elasticsearch
