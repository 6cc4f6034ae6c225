"""Test forwarding to another server of Fyrehose: each record is stored once, wherever a forwarder is killed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.quotas import PeerLimits
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Closed
from fyrehose.forward.destination import DONE, Around, BatchOutcome, Secret, place, template
from fyrehose.forward.engine import Forwarding
from fyrehose.protocols.http.destination import MOST, MOST_BYTES, FyrehoseSender, FyrehoseTable, fyrehose, longest
from fyrehose.protocols.http.server import HttpFactory, HttpSettings
from fyrehose.records import Run
from fyrehose.testing import ClientSide, MemoryJournal
from fyrehose.web.client_session import ServerAnswer
from tests.doubles.answering import EndingEndpoint


def answer(status: int, detail: str = "") -> ServerAnswer:
    collected = ServerAnswer(status, {b"content-type": b"application/json"})
    return attrs.evolve(collected, body=json.dumps({"error": detail}).encode())


class Server:
    """A server that stores each key once, as docs/protocols/http.md says, and may lose its answers.

    :ivar lose: how many of the next requests are stored, and not answered; the forwarder is killed then
    :ivar records: what is stored, in order
    :ivar requests: the number of messages of each request
    """

    def __init__(self) -> None:
        self.lose = 0
        self.records: list[bytes] = []
        self.requests: list[int] = []
        self.keys: dict[str, bytes] = {}
        self.refuses: bytes | None = None
        self.status = 413

    async def ask(self, method: str, target: str, body: bytes, headers: Any) -> ServerAnswer:
        assert (method, target) == ("POST", "/streams/copy.s")
        fields = dict(headers)
        lines = body.split(b"\n") if fields["Content-Type"] == "application/x-ndjson" else [body]
        assert len(body) <= 1 << 20, "a body of lines with a key is limited to 1 MiB"
        self.requests.append(len(lines))
        key = fields["Idempotency-Key"]
        if self.keys.get(key, body) != body:
            return answer(422, "the key belongs to other messages")
        if self.refuses is not None and self.refuses in lines:
            return answer(self.status, "no")
        if key not in self.keys:
            self.keys[key] = body
            self.records += lines
        if self.lose:
            self.lose -= 1
            raise Closed("killed")
        return answer(200)

    def close(self) -> None:
        """Do nothing."""


def sender_to(server: Any) -> FyrehoseSender:
    return FyrehoseSender(Around(Clock(), [], lambda: "e1"), template("stream")("copy.{stream}"), server)


def run_of(payloads: Sequence[bytes], first: int = 1) -> Run:
    return Run.of("s", payloads, source="figg", first_seq=first)


def sent(sender: FyrehoseSender, *runs: Run) -> BatchOutcome:
    result: list[BatchOutcome] = []
    Deferred.fromCoroutine(sender.send(runs)).addCallback(result.append)
    return result[0]


def test_records_go_in_requests_of_powers_of_two() -> None:
    server = Server()
    payloads = [b"%d" % number for number in range(1_500)]
    assert sent(sender_to(server), run_of(payloads[:1_000]), run_of(payloads[1_000:], 1_001)) == DONE
    assert server.records == payloads
    assert server.requests == [1024, 256, 128, 64, 16, 8, 4]


def test_repetition_with_fewer_records_waits_for_the_others() -> None:
    server = Server()
    payloads = [b"%d" % number for number in range(8)]
    server.lose = 1
    sent(sender_to(server), run_of(payloads))
    outcome = sent(sender_to(server), run_of(payloads[:5]))
    assert outcome.more
    assert sent(sender_to(server), *outcome.again, run_of(payloads[5:], 6)) == DONE
    assert server.records == payloads


def test_message_that_is_no_line_has_a_request_of_its_own() -> None:
    server = Server()
    assert sent(sender_to(server), run_of([b"a", b"b\nc", b"d\r", b"e", b""])) == DONE
    assert server.records == [b"a", b"b\nc", b"d\r", b"e", b""]
    assert server.requests == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("large", [b"b\n", b"b"])
@pytest.mark.parametrize("at", range(7))
@pytest.mark.parametrize("status", [400, 413])
def test_message_that_the_server_refuses_is_a_dead_letter(large: bytes, at: int, status: int) -> None:
    """Also one that shares a request with others, which are stored."""
    server = Server()
    server.refuses, server.status = large, status
    payloads = [b"%d" % number for number in range(7)]
    payloads[at] = large
    outcome = sent(sender_to(server), run_of(payloads[:3]), run_of(payloads[3:], 4))
    assert [(run.first_seq, reason) for run, reason in outcome.refused] == [(at + 1, f"status {status}: no")]
    assert not outcome.again
    assert server.records == payloads[:at] + payloads[at + 1 :]


def test_every_message_of_a_batch_may_be_refused() -> None:
    server = Server()
    server.refuses = b"b"
    outcome = sent(sender_to(server), run_of([b"b"] * 1_500))
    assert [run.first_seq for run, _ in outcome.refused] == list(range(1, 1_501))
    assert (outcome.again, server.records) == ((), [])


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_server_that_refuses_everything_gets_the_same_records_again(status: int) -> None:
    server = Server()
    server.refuses, server.status = b"b", status
    outcome = sent(sender_to(server), run_of([b"a", b"b"]))
    assert (outcome.again, outcome.refused) == ((run_of([b"a", b"b"]),), ())
    assert outcome.reason == f"status {status}: no"


def test_request_has_at_most_half_of_what_a_key_allows() -> None:
    views = [memoryview(bytes(1_000)) for _ in range(MOST + 5)]
    assert longest(views) == MOST_BYTES // 1_001
    assert longest([memoryview(b"x")] * (MOST + 5)) == MOST


@given(st.data())
def test_every_record_is_stored_once_however_often_forwarders_are_killed(data: st.DataObject) -> None:
    """A forwarder begins behind the acknowledged record, reads as many as there are, and dies after any request."""
    server = Server()
    payloads = [b"%d" % number for number in range(data.draw(st.integers(1, 300)))]
    acknowledged = 0
    for _ in range(20):
        there = data.draw(st.integers(acknowledged, len(payloads)))
        sender = sender_to(server)
        while acknowledged < there:
            end = data.draw(st.integers(acknowledged + 1, there))
            server.lose = data.draw(st.sampled_from([0, 0, 0, 1]))
            outcome = sent(sender, run_of(payloads[acknowledged:end], acknowledged + 1))
            if outcome.again:
                break  # killed, or more records are needed: the next forwarder has them
            if data.draw(st.booleans()):
                break  # killed before the acknowledgement
            acknowledged = end
    server.lose = 0
    if acknowledged < len(payloads):
        assert sent(sender_to(server), run_of(payloads[acknowledged:], acknowledged + 1)) == DONE
    assert server.records == payloads


class Receiver:
    """A real server that lets its peers create only one stream each."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.broker = Broker(self.clock, MemoryJournal(), Sequencer(), limits=PeerLimits(streams=1))
        self.broker.open()
        self.factory = HttpFactory(self.broker, HttpSettings(), self.clock)

    async def ask(self, method: str, target: str, body: bytes, headers: Any) -> ServerAnswer:
        peer = ClientSide.connect(self.factory, self.clock)
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
        peer.send(
            f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{fields}\r\n".encode()
        )
        peer.send(body)
        head, _, content = peer.received().partition(b"\r\n\r\n")
        return ServerAnswer(int(head.split()[1]), {b"content-type": b"application/json"}, content)

    def allow(self, streams: int) -> None:
        self.broker.change_limits(self.broker.rules, PeerLimits(streams=streams), 1_000, 1_000)

    def stored(self) -> dict[str, list[bytes]]:
        ends = [stream for stream in self.broker.journal.ends() if not stream.startswith(".")]
        runs = {stream: self.broker.read(stream, 1, 1 << 20) for stream in ends}
        return {stream: [bytes(payload) for run in runs[stream] for payload in run.payloads()] for stream in ends}


def test_records_beyond_the_quota_of_streams_wait_until_the_server_has_room_for_them() -> None:
    receiver, acknowledged, letters = Receiver(), list[tuple[str, int]](), Server()
    table = FyrehoseTable(name="n", streams="s*", to=(place("fyrehose://h:8117"),), linger=0.0)
    tailer = SimpleNamespace(pause=None, resume=None)
    forwarding = Forwarding(receiver.clock, table, tailer, sender_to(receiver), sender_to(letters))
    for stream in ("s1", "s2", "s3"):
        taken = forwarding.take(Run.of(stream, [b"1", b"2", b"3"], source="figg", first_seq=1))
        taken.addCallback(lambda seq, stream=stream: acknowledged.append((stream, seq)))
    working = Deferred.fromCoroutine(forwarding.run())
    for allowed in (1, 2, 3):
        receiver.allow(allowed)
        receiver.clock.advance(100.0)
        receiver.clock.advance(100.0)
        assert receiver.stored() == {f"copy.s{number}": [b"1", b"2", b"3"] for number in range(1, allowed + 1)}
        assert ("server.streams-per-address" in forwarding.error) == (allowed < 3)
    assert acknowledged == [("s1", 3), ("s2", 3), ("s3", 3)]
    assert letters.records == []
    working.addErrback(lambda failure: failure.trap(CancelledError)).cancel()


def test_sender_says_why_the_server_of_its_table_does_not_answer_until_it_does() -> None:
    table = FyrehoseTable(name="n", streams="s", to=(place("fyrehose://h:8117"),), token=Secret("env:T", "a"))
    server = EndingEndpoint()
    made = fyrehose.sender(table, Around(server.clock, [server], lambda: ""))  # type: ignore[list-item]
    sending = Deferred.fromCoroutine(made.send([run_of([b"a"])]))
    for answered in (False, True):
        assert bool(made.problem) == (len(server.connections) > 1), f"after a lost connection: {made.problem!r}"
        server.answer(200) if answered else server.lose()
    assert (sending.result, made.problem) == (DONE, ""), "the server has answered"
    assert b"\r\nAuthorization: Bearer a\r\n" in server.connections[-1][1].value()
    made.close()
