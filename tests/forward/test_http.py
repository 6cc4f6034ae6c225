"""Test the destinations over HTTP: golden bytes of the sessions, and the sender against doubles that misbehave."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.protocol import Factory, Protocol

from fyrehose import plugins
from fyrehose.forward.destination import DONE, WORDS, Around, BatchOutcome, Secret, place
from fyrehose.forward.http import (
    LINE_WORDS,
    MOST_ANSWER,
    MOST_PAUSE,
    BulkSession,
    BulkTable,
    HttpSender,
    HttpTable,
    LineSession,
    RecordTemplate,
    template,
)
from fyrehose.records import Run
from fyrehose.web.client_session import ServerAnswer, retry_after

#: 2026-11-29 12:00:00 UTC, in microseconds
NOON = 1_795_953_600_000_000


def run_of(*payloads: bytes, stream: str = "logs.web", first: int = 7) -> Run:
    return Run.of(stream, payloads, source="figg", first_seq=first, time=NOON)


def table(cls: Any = HttpTable, url: str = "http://h:80", **keys: Any) -> Any:
    return cls(name="n", streams="logs.*", to=(place(url),), **keys)


# Sessions: nothing here does input or output.


def test_lines_are_the_documents_of_the_records() -> None:
    runs = [run_of(b'{"n": 1}', b"plain"), run_of(b'{\n"n": 3}', stream="logs.db", first=1)]
    (request,) = LineSession(table()).requests(runs, "e1")
    assert request.body == (b'{"n": 1}\n{"@timestamp": "2026-11-29T12:00:00+00:00", "message": "plain"}\n{ "n": 3}\n')
    assert request.headers == {
        "Content-Type": "application/x-ndjson",
        "Idempotency-Key": "e1:logs.web:7-8,e1:logs.db:1-1",
    }


def test_batches_that_begin_alike_have_different_keys() -> None:
    """A receiver that took a longer batch for a repetition would lose its last records."""
    runs = [run_of(b"x", stream=f"logs.{number:030}") for number in range(20)]
    keys = set()
    for count in range(1, 21):
        (request,) = LineSession(table()).requests(runs[:count], "e1")
        keys.add(request.headers["Idempotency-Key"])
    assert len(keys) == 20
    assert max(map(len, keys)) <= 255


def test_body_of_loki_is_one_for_each_stream() -> None:
    """The template of the page: https://grafana.com/docs/loki/latest/reference/loki-http-api/#ingest-logs."""
    made = table(
        line=template("time_ns", "text")('["{time_ns}", {text}]'),
        separator=", ",
        body=template("lines", "stream")('{"streams": [{"stream": {"app": "{stream}"}, "values": [{lines}]}]}'),
        content_type="application/json",
    )
    requests = list(LineSession(made).requests([run_of(b'say "hi"'), run_of(b"x", b"y", stream="logs.db")], "e1"))
    assert [json.loads(request.body) for request in requests] == [
        {"streams": [{"stream": {"app": "logs.web"}, "values": [["1795953600000000000", 'say "hi"']]}]},
        {"streams": [{"stream": {"app": "logs.db"}, "values": [["1795953600000000000", text] for text in "xy"]}]},
    ]


def test_name_of_a_stream_cannot_end_a_json_string() -> None:
    name = 'a"b\\c'
    body = template("lines", "stream")('{"app": "{stream}", "values": [{lines}]}')
    own = table(line=template(*WORDS, words=LINE_WORDS)('["{stream}", {text}]'), body=body)
    (request,) = LineSession(own).requests([run_of(b"x", stream=name)], "e1")
    assert json.loads(request.body) == {"app": name, "values": [[name, "x"]]}


def test_record_that_is_no_text_is_refused() -> None:
    (request,) = LineSession(table()).requests([run_of(b"a", b"\xff", b"c")], "e1")
    assert [(run.first_seq, why) for run, why in request.refused] == [(8, "the payload is not UTF-8")]
    assert request.body.count(b"\n") == 2


def test_bulk_request_names_each_record_by_its_identity() -> None:
    made = table(BulkTable, index=template("stream", "date")("{stream}-{date}"))
    (request,) = BulkSession(made).requests([run_of(b'{"n": 1}', b'{\n"n": 2}')], "e1")
    assert request.body == (
        b'{"create": {"_index": "logs.web-2026.11.29", "_id": "e1:logs.web:7"}}\n{"n": 1}\n'
        b'{"create": {"_index": "logs.web-2026.11.29", "_id": "e1:logs.web:8"}}\n{ "n": 2}\n'
    )
    assert request.target.startswith("/_bulk?filter_path=errors,items.*.status,")


def bulk(status: int, body: bytes, headers: dict[bytes, bytes] | None = None, count: int = 5) -> BatchOutcome:
    session = BulkSession(table(BulkTable))
    (request,) = session.requests([run_of(*[b"%d" % number for number in range(count)])], "e1")
    return session.answered(request, ServerAnswer(status, headers or {}, body))


def items(*codes: int) -> bytes:
    made = [{"create": {"status": code, **({"error": {"reason": f"r{code}"}} if code > 201 else {})}} for code in codes]
    return json.dumps({"errors": True, "items": made}).encode()


def numbers(runs: Sequence[Run]) -> list[tuple[int, int]]:
    return [(run.first_seq, run.last_seq) for run in runs]


def test_answer_of_bulk_is_judged_item_by_item() -> None:
    """409 says that the record is there, 400 and 413 are about the record, and the rest may be accepted later."""
    outcome = bulk(200, items(201, 409, 400, 429, 503, 403, 404, 300, 0, 413), count=10)
    assert numbers(outcome.again) == [(10, 15)]
    assert outcome.reason == "status 429: r429"
    assert [(run.first_seq, why) for run, why in outcome.refused] == [(9, "status 400: r400"), (16, "status 413: r413")]


@given(
    st.lists(st.lists(st.sampled_from([200, 201, 299, 300, 199, 409, 400, 413, 415, 422, 403, 429, 503]), max_size=5))
)
def test_each_record_of_bulk_is_done_refused_or_sent_again(codes: list[list[int]]) -> None:
    session = BulkSession(table(BulkTable))
    runs = [run_of(*[b"x"] * len(each), stream=f"s{at}") for at, each in enumerate(codes) if each]
    if not runs:
        return
    (request,) = session.requests(runs, "e1")
    answer = ServerAnswer(200, body=items(*[code for each in codes for code in each]))
    outcome = session.answered(request, answer)
    again = [(run.stream, seq) for run in outcome.again for seq in range(run.first_seq, run.last_seq + 1)]
    refused = [(run.stream, run.first_seq) for run, _ in outcome.refused]
    coded = {(f"s{at}", 7 + index): code for at, each in enumerate(codes) for index, code in enumerate(each)}
    assert refused == [record for record, code in coded.items() if code in (400, 413, 415, 422)]
    assert again == [record for record, code in coded.items() if code in (300, 199, 403, 429, 503)]
    assert all(len(run) == 1 for run, _ in outcome.refused)


def test_answer_of_bulk_without_errors_ends_the_batch() -> None:
    assert bulk(200, b'{"errors":false}') == DONE


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"{}", b"null", b"<html>", b'{"errors": true}', b'{"errors": true, "items": []}'),
        *(b'{"errors": true, "items": [{}, {}, {}, {}, {}]}', b'{"errors": true, "items": 5}', b'{"errors": 0}'),
        items(201),
    ],
)
def test_invalid_answer_of_bulk_confirms_nothing(body: bytes) -> None:
    outcome = bulk(200, body)
    assert numbers(outcome.again) == [(7, 11)]
    assert not outcome.refused


@pytest.mark.parametrize(
    ("status", "whole"),
    [
        *((status, True) for status in (400, 413, 415, 422)),
        *((status, False) for status in (302, 401, 403, 404, 429, 500, 503)),
    ],
)
def test_refusal_of_a_request_sends_all_again_or_each_alone(status: int, whole: bool) -> None:
    outcome = bulk(status, b"no\nway", {b"retry-after": b"7"})
    assert numbers(outcome.again) == [(7, 11)]
    assert (outcome.whole, outcome.pause, outcome.reason) == (whole, 7.0, f"status {status}: no way")


@pytest.mark.parametrize(
    ("value", "now", "seconds"),
    [
        ("120", "", 120.0),
        ("Sun, 29 Nov 2026 12:00:30 GMT", "Sun, 29 Nov 2026 12:00:00 GMT", 30.0),
        ("Sun, 29 Nov 2026 11:00:30 GMT", "Sun, 29 Nov 2026 12:00:00 GMT", 0.0),
        ("", "", 0.0),
        ("soon", "", 0.0),
        ("9" * 400, "", MOST_PAUSE),
        ("Sun, 29 Nov 9999 12:00:30 GMT", "Sun, 29 Nov 2026 12:00:00 GMT", MOST_PAUSE),
        ("-5", "", 0.0),
    ],
)
def test_retry_after_is_a_number_or_a_time(value: str, now: str, seconds: float) -> None:
    assert retry_after({b"retry-after": value.encode(), b"date": now.encode()}, MOST_PAUSE) == seconds


def test_template_refuses_an_unknown_word() -> None:
    with pytest.raises(ValueError, match=r"not \{steam\}; did you mean stream\?"):
        template("stream", "date")("logs-{steam}")
    assert template("stream")('{"a": {"b": 1}}') == RecordTemplate(('{"a": {"b": 1}}',))


# The sender, over sockets.

Answer = Callable[[bytes, Protocol], None]


class Server(Factory):
    """A double that answers each request as the test says, and keeps the bodies."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers, self.bodies, self.heads = list(answers), [], []  # type: ignore[var-annotated]
        self.open: dict[Protocol, Deferred[None]] = {}
        self.port: Any = reactor.listenTCP(0, self, interface="127.0.0.1")  # type: ignore[attr-defined]

    def buildProtocol(self, addr: Any) -> Protocol:
        server = self

        class Connection(Protocol):
            data = b""

            def connectionMade(self) -> None:
                server.open[self] = Deferred()

            def connectionLost(self, reason: Any = None) -> None:
                server.open.pop(self).callback(None)

            def dataReceived(self, data: bytes) -> None:
                self.data += data
                head, found, body = self.data.partition(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                if not found or len(body) < size:
                    return
                self.data = b""
                server.heads.append(head.decode())
                server.bodies.append(gzip.decompress(body) if b"content-encoding: gzip" in head.lower() else body)
                answer = server.answers.pop(0)
                if answer is None:
                    self.transport.abortConnection()  # type: ignore[union-attr]
                else:
                    self.transport.write(answer)  # type: ignore[union-attr]

        return Connection()

    async def stop(self) -> None:
        for connection, lost in list(self.open.items()):
            connection.transport.abortConnection()  # type: ignore[union-attr]
            await lost
        await self.port.stopListening()


def http(status: int, body: bytes = b"", *headers: bytes) -> bytes:
    lines = (b"HTTP/1.1 %d X" % status, b"Content-Length: %d" % len(body), *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@pytest.fixture
def sending() -> Iterator[Callable[..., tuple[HttpSender, Server]]]:
    made: list[tuple[HttpSender, Server]] = []

    def make(*answers: bytes | None, scheme: str = "elasticsearch", **keys: Any) -> Any:
        server = Server(*answers)
        port = server.port.getHost().port
        destination = plugins.destination(scheme)
        own: Any = table(destination.table, f"http://127.0.0.1:{port}/in", **{"gzip": False, **keys})
        endpoint = HostnameEndpoint(reactor, "127.0.0.1", port)
        made.append((destination.sender(own, Around(reactor, [endpoint], lambda: "e1")), server))
        return made[-1]

    yield make
    for sender, server in made:
        pytest_twisted.blockon(sender.close())
        pytest_twisted.blockon(Deferred.fromCoroutine(server.stop()))


@pytest_twisted.ensureDeferred
async def test_requests_share_a_connection_and_are_confirmed(sending: Any) -> None:
    yes = http(200, b'{"errors":false}')
    sender, server = sending(
        yes, yes, scheme="opensearch", gzip=True, authorization=Secret("env:X", "Bearer t"), headers={"x-a": "b"}
    )
    assert await sender.send([run_of(b"1")]) == DONE
    assert await sender.send([run_of(b"2")]) == DONE
    assert server.heads[0].startswith("POST /in/_bulk?filter_path=")
    for line in ("Authorization: Bearer t", "X-A: b", "Content-Encoding: gzip"):
        assert f"\r\n{line}\r\n" in f"{server.heads[0]}\r\n"
    assert len(server.open) == 1
    assert b'"message": "1"' in server.bodies[0]


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"220 ftp\r\n",
        http(503, b"busy", b"Retry-After: 9"),
        http(200, b"{"),
        pytest.param(http(200, b'{"errors":false}' + b" " * MOST_ANSWER), id="too-large"),
    ],
)
async def test_cut_late_and_wrong_answers_confirm_nothing(answer: bytes | None, sending: Any) -> None:
    late = answer is not None and answer.endswith(b"{") and b"100" in answer
    right = [http(200, b'{"errors":false}')] * 20
    sender, server = sending(answer, *right, timeout=0.5 if late else 60.0)
    outcome = await sender.send([run_of(b"1", b"2")])
    assert numbers(outcome.again) == [(7, 8)]
    assert outcome.reason
    assert outcome.pause == (9.0 if answer is not None and b"503" in answer else 0.0)
    while (outcome := await sender.send(outcome.again)) != DONE:
        assert late, "on a busy machine right answers may take longer than the short timeout, too"
    assert server.bodies[0] == server.bodies[1]  # the repetition has the same identities


@pytest_twisted.ensureDeferred
async def test_record_that_spoils_a_request_is_found_and_refused(sending: Any) -> None:
    no, yes = http(400, b"bad"), http(204)
    # 1 2 3 4 -> no; 1 2 -> yes; 3 4 -> no; 3 -> no, a dead letter; 4 -> yes
    sender, server = sending(no, yes, no, no, yes, scheme="http", line=template("payload")("{payload}"))
    outcome = await sender.send([run_of(b"1", b"2", b"3", b"4", b"\xff")])
    assert not outcome.again
    refused = {run.first_seq: why for run, why in outcome.refused}
    assert refused.keys() == {9, 11}, "the last one is no text, so no request had it"
    assert refused[9] == "status 400: bad"
    assert server.bodies == [b"1\n2\n3\n4\n", b"1\n2\n", b"3\n4\n", b"3\n", b"4\n"]


@pytest_twisted.ensureDeferred
async def test_next_place_is_tried_after_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nobody = probe.getsockname()[1]
    server = Server(http(200, b'{"errors":false}'))
    ports = [nobody, server.port.getHost().port]
    own = BulkTable(name="n", streams="s", to=tuple(place(f"elasticsearch+http://127.0.0.1:{port}") for port in ports))
    endpoints = [HostnameEndpoint(reactor, "127.0.0.1", port) for port in ports]
    sender = HttpSender(own, Around(reactor, endpoints, lambda: ""), BulkSession(own))
    outcome = await sender.send([run_of(b"1")])
    assert "refused" in outcome.reason
    assert await sender.send(outcome.again) == DONE
    await sender.close()
    await server.stop()
