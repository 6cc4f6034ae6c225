"""Test forwarding to syslog servers: the client's session of RELP, and the sender over connections of the test."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.error import ConnectionRefusedError as NobodyListens
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.errors import Broken
from fyrehose.forward.destination import DONE, Around, BatchOutcome, ForwardTable, place
from fyrehose.protocols.syslog.destination import message, relp
from fyrehose.protocols.syslog.session import (
    RelpAnswered,
    RelpClientSession,
    SyslogMessages,
    SyslogServerSession,
)
from fyrehose.records import Run
from fyrehose.testing import Transport

#: What a server answers to ``open``: https://github.com/rsyslog/librelp/blob/master/doc/relp.html
OPENED = b"1 rsp 6 200 OK\n"


def run_of(*payloads: bytes, first: int = 1) -> Run:
    return Run.of("logs web", payloads, source="figg", first_seq=first, time=1_795_953_600_000_000)


def wire(session: RelpClientSession) -> bytes:
    return b"".join(session.data_to_send())


# The session.


def test_client_opens_a_session_before_it_sends() -> None:
    session = RelpClientSession()
    session.send([b"one", b"two"])
    assert wire(session) == b"1 open 53 relp_version=0\nrelp_software=fyrehose\ncommands=syslog\n"
    assert session.receive_data(OPENED) == []
    assert wire(session) == b"2 syslog 3 one\n3 syslog 3 two\n"
    assert session.receive_data(b"2 rsp 6 200 OK\n3 rsp 6 200 OK\n") == [RelpAnswered([b"200 OK", b"200 OK"])]


@given(st.integers(1, 4), st.integers(0, 3), st.lists(st.integers(0, 9), max_size=5))
def test_client_sends_no_more_than_the_window_with_numbers_that_begin_with_1_again_behind_the_last(
    window: int, more: int, sizes: list[int]
) -> None:
    session = RelpClientSession(window=window, last=window + more)
    numbers = cycle(range(1, window + more + 1))
    assert wire(session).startswith(b"%d open " % next(numbers))
    session.receive_data(OPENED)
    for size in sizes:
        messages = [b"%d" % number for number in range(size)]
        session.send(messages)
        while messages:
            begun, messages = messages[:window], messages[window:]
            expected = [(b"%d" % next(numbers), payload) for payload in begun]
            assert re.findall(rb"(\d+) syslog \d+ (\d+)\n", wire(session)) == expected
            answer = b"".join(b"%b rsp 6 200 OK\n" % number for number, _ in expected)
            assert session.receive_data(answer) == [RelpAnswered([b"200 OK"] * len(begun))]
        assert wire(session) == b""


def test_answers_do_not_depend_on_how_bytes_arrive() -> None:
    session = RelpClientSession()
    session.send([b"1", b"2"])
    data = OPENED + b"2 rsp 9 500 nope!\n3 rsp 6 200 OK\n"
    answers = []
    for at in range(len(data)):
        for event in session.receive_data(data[at : at + 1]):
            assert isinstance(event, RelpAnswered)
            answers += event.answers
    assert answers == [b"500 nope!", b"200 OK"]


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"HTTP/1.1 400\r\n", "bad-header"),
        (b"1 rsp 8 500 no!!\n", "not-opened"),
        (b"2 rsp 6 200 OK\n", "bad-answer"),
        (OPENED + b"3 rsp 6 200 OK\n", "bad-answer"),
        (OPENED + b"2 rsp 6 200 OK\n3 rsp 6 200 OK\n", "bad-answer"),
        (OPENED + b"0 serverclose 0\n", "server-closed"),
        (OPENED + b"2 rsp 6 200 OKx", "bad-trailer"),
        (OPENED + b"2 rsp 99999 ", "frame-too-large"),
    ],
)
def test_invalid_answer_ends_the_session(data: bytes, cause: str) -> None:
    session = RelpClientSession()
    session.send([b"1"])
    broken = session.receive_data(data)[-1]
    assert isinstance(broken, Broken)
    assert broken.error.cause == cause
    assert session.receive_data(b"2 rsp 6 200 OK\n") == []


def test_both_sides_of_relp_understand_each_other() -> None:
    client, server = RelpClientSession(), SyslogServerSession()
    client.send([b"<13>a", b"two\nlines", b""])
    found: list[bytes] = []
    answered = 0
    for _ in range(4):
        for event in server.receive_data(wire(client)):
            assert isinstance(event, SyslogMessages)
            found += event.payloads
            server.acknowledge(event.numbers)
        for each in client.receive_data(b"".join(server.data_to_send())):
            assert isinstance(each, RelpAnswered)
            answered += len(each.answers)
    assert found == [b"<13>a", b"two\nlines", b""]
    assert answered == 3


def test_record_that_is_no_syslog_message_becomes_one() -> None:
    assert message(run_of(b""), b"<34>Oct 11 su: x") == b"<34>Oct 11 su: x"
    assert message(run_of(b""), b"{}") == b"<13>1 2026-11-29T12:00:00.000000Z - logs_web - - - {}"


# The sender.


class Bench:
    """A sender whose connections are in the test's hands."""

    def __init__(self, url: str = "relp://h:1") -> None:
        self.clock, self.refuses = Clock(), False
        self.protocols: list[Any] = []
        table = ForwardTable(name="n", streams="s", to=(place(url),), timeout=30.0)
        self.sender = relp.sender(table, Around(self.clock, [self], lambda: ""))  # type: ignore[list-item]
        self.outcomes: list[BatchOutcome] = []

    def connect(self, factory: Any) -> Deferred[Any]:
        if self.refuses:
            return fail(NobodyListens())
        self.protocols.append(factory.buildProtocol(None))
        self.protocols[-1].makeConnection(Transport())
        return succeed(None)

    def send(self, runs: Sequence[Run]) -> None:
        Deferred.fromCoroutine(self.sender.send(runs)).addCallback(self.outcomes.append)

    def receive(self, data: bytes) -> None:
        self.protocols[-1].dataReceived(data)

    def lose(self) -> None:
        self.protocols[-1].connectionLost(Failure(ConnectionDone()))


def numbers(outcome: BatchOutcome) -> list[tuple[int, int]]:
    return [(run.first_seq, run.last_seq) for run in outcome.again]


def test_batch_is_done_when_all_messages_are_answered() -> None:
    bench = Bench()
    bench.send([run_of(b"a", b"b")])
    bench.receive(OPENED)
    bench.receive(b"2 rsp 6 200 OK\n")
    assert bench.outcomes == []
    bench.receive(b"3 rsp 6 200 OK\n")
    assert bench.outcomes == [DONE]
    bench.send([run_of(b"c")])
    bench.receive(b"4 rsp 6 200 OK\n")
    assert len(bench.protocols) == 1
    assert bench.outcomes == [DONE, DONE]


def test_messages_without_an_answer_are_sent_again_on_the_next_connection() -> None:
    bench = Bench()
    bench.send([run_of(b"a", b"b"), run_of(b"c", b"d", first=3)])
    bench.receive(OPENED)
    bench.receive(b"2 rsp 6 200 OK\n3 rsp 6 200 OK\n4 rsp 6 200 OK\n")
    bench.lose()
    assert numbers(bench.outcomes[0]) == [(4, 4)]
    assert bench.outcomes[0].reason == "the server closed the connection"
    bench.send(bench.outcomes[0].again)
    bench.receive(OPENED)
    bench.receive(b"2 rsp 6 200 OK\n")
    assert bench.outcomes[1] == DONE


def test_message_that_is_refused_is_sent_again() -> None:
    bench = Bench()
    bench.send([run_of(b"a", b"b")])
    bench.receive(OPENED)
    bench.receive(b"2 rsp 6 200 OK\n3 rsp 14 500 disk full!\n")
    bench.lose()
    assert numbers(bench.outcomes[0]) == [(2, 2)]
    assert "500 disk full!" in bench.outcomes[0].reason


def test_silent_server_and_one_that_refuses_connections_are_reported() -> None:
    bench = Bench()
    bench.send([run_of(b"a")])
    bench.clock.advance(31.0)
    assert bench.outcomes[0].reason == "no answer within 30 s"
    bench.lose()
    bench.refuses = True
    bench.send(bench.outcomes[0].again)
    assert "refused" in bench.outcomes[1].reason


def test_tcp_confirms_a_batch_when_the_socket_has_taken_it() -> None:
    bench = Bench("syslog://h:1")
    bench.send([run_of(b"<13>a", b"<13>bc")])
    assert bench.protocols[0].transport.value() == b"5 <13>a6 <13>bc"
    assert bench.outcomes == []
    bench.protocols[0].resumeProducing()
    assert bench.outcomes == [DONE]
