"""HTTP's additions to TCP connections: idle and half-closed connections, unread bodies, and tokens."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import Logger

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.net.connections import SessionFactory
from fyrehose.net.tcp import CLOSE_TIMEOUT_S, on
from fyrehose.testing import ClientSide, MemoryJournal
from fyrehose.web.session import MAX_AHEAD, RequestHead, WebSession
from fyrehose.web.shell import BATCHES, WebProtocol, WebSettings, host_names, token_of
from fyrehose.web.tokens import same

GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"


class Toy(WebProtocol):
    """Answers each request immediately, except /wait and /call, which :meth:`answer` answers.

    :ivar called: the call of the broker whose result answers the request; None: the request has none
    """

    called: Deferred[bytes] | None = None

    protocol_name: ClassVar[str] = "toy"
    log: ClassVar[Logger] = Logger()

    def __init__(self, factory: SessionFactory) -> None:
        super().__init__(factory, WebSession())

    def on_request(self, event: RequestHead) -> None:
        if event.path[0] == "call":
            self.called = Deferred()
            self.call(self.called, self.give)
        elif event.path[0] != "wait":
            self.session.respond(200, b"{}")

    handlers = WebProtocol.handlers | on(RequestHead, on_request)

    def answer(self) -> None:
        called, self.called = self.called, None
        if called is None:
            self.give(b"late")
        else:
            called.callback(b"late")

    def give(self, body: bytes) -> None:
        self.session.respond(200, body)
        self.proceed()


class ToyFactory(SessionFactory):
    protocol = Toy
    defaults = WebSettings(refusal_delay=0.0)


class ToyPeer(ClientSide):
    """A client of the toy."""

    @property
    def answers(self) -> int:
        return self.transport.value().count(b"HTTP/1.1 ")


@pytest.fixture
def connect() -> Callable[..., ToyPeer]:
    def connect(**settings: Any) -> ToyPeer:
        clock = Clock()
        broker = Broker(clock, MemoryJournal(), Sequencer())
        broker.open()
        made = WebSettings(**{"refusal_delay": 0.0, **settings})
        factory = ToyFactory(broker, made, clock)
        return ToyPeer.connect(factory, clock)

    return connect


def test_many_requests_in_one_read_are_answered_in_turns(connect: Callable[..., ToyPeer]) -> None:
    peer = connect()
    peer.send(GET % b"" * 500)
    assert peer.answers == 1 + BATCHES, "other connections get their turn"
    assert peer.transport.producerState == "paused"
    peer.clock.advance(0)
    assert peer.answers == 500
    assert peer.transport.producerState == "producing"


def test_disconnected_peer_is_not_answered_further(connect: Callable[..., ToyPeer]) -> None:
    peer = connect()
    peer.send(GET % b"" * 50)
    peer.leave()
    peer.clock.advance(0)
    assert peer.answers == 1 + BATCHES


def test_reading_pauses_while_too_many_bytes_wait(connect: Callable[..., ToyPeer]) -> None:
    peer = connect()
    peer.send(GET % b"wait")
    flood = GET % b"" * (MAX_AHEAD // len(GET % b"") + 2)
    peer.send(flood)
    assert peer.transport.producerState == "paused"
    peer.protocol.answer()
    peer.clock.advance(0)
    assert peer.transport.producerState == "producing"
    assert peer.answers == 1 + flood.count(b"GET")


def test_idle_connection_is_closed_unless_it_waits_for_an_answer(connect: Callable[..., ToyPeer]) -> None:
    peer = connect(idle_timeout=10.0)
    peer.clock.advance(9)
    peer.send(GET % b"")
    peer.clock.advance(9)
    assert not peer.transport.disconnecting
    peer.send(GET % b"wait")
    for _ in range(10):
        peer.clock.advance(9)
    assert not peer.transport.disconnecting
    peer.protocol.answer()
    peer.clock.advance(20)
    assert peer.transport.disconnecting


@pytest.mark.parametrize("seed", range(30))
def test_requests_are_answered_in_order_and_calls_have_ended_before_a_connection_closes(
    seed: int, connect: Callable[..., ToyPeer]
) -> None:
    dice, peer, pending, answers = Random(seed), connect(), list[str](), list[bytes]()
    ends = dice.choice(("the peer has sent all", "the server stops", "the server stops"))

    def check(stops: bool) -> None:
        """Answer those that need not wait, and compare."""
        while pending and pending[0] == "now" and not stops:
            answers.append(b"{}")
            del pending[0]
        peer.clock.advance(0)
        assert re.findall(rb"late|{}", peer.transport.value()) == answers

    for _ in range(dice.randrange(1, 8)):
        kinds = dice.choices(("now", "wait", "call"), k=dice.randrange(4))
        peer.send(b"".join(GET % kind.encode() for kind in kinds))
        pending += kinds
        check(False)
        if pending and dice.random() < 0.5:
            peer.protocol.answer()
            answers.append(b"late")
            del pending[0]
            check(False)
    stops = ends == "the server stops"
    peer.protocol.finish() if stops else peer.protocol.readConnectionLost()
    while pending and (not stops or pending[0] == "call"):
        assert not peer.transport.disconnecting, f"it waits for {pending}"
        peer.protocol.answer()
        answers.append(b"late")
        pending = [] if stops else pending[1:]
        check(stops)
    assert peer.transport.disconnecting, f"nothing is left, and {ends}"


def test_peer_that_still_sends_a_refused_body_receives_the_answer(connect: Callable[..., ToyPeer]) -> None:
    peer = connect()
    peer.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\nabc")
    assert b" 413 " in peer.transport.value()
    assert not peer.transport.disconnecting
    assert peer.transport.half_closed
    peer.send(b"more")
    peer.protocol.readConnectionLost()
    assert peer.transport.disconnecting


def test_peer_that_sends_a_refused_body_is_aborted_after_the_linger_time(connect: Callable[..., ToyPeer]) -> None:
    peer = connect()
    peer.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\nabc")
    peer.clock.advance(CLOSE_TIMEOUT_S)
    assert peer.transport.aborted


def test_lost_connection_leaves_no_timers(connect: Callable[..., ToyPeer]) -> None:
    peer = connect()
    peer.send(GET % b"wait")
    peer.leave()
    peer.protocol.proceed()
    assert not [call for call in peer.clock.getDelayedCalls() if call.active()]


def request_with(value: str | None) -> RequestHead:
    headers = {} if value is None else {"authorization": value}
    return RequestHead(method="GET", path=("",), query={}, headers=headers, length=0, framed=False)


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (None, None),
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Bearer ", None),
        ("Bearer " + "tökén".encode().decode("latin-1"), "tökén"),
        ("Bearer \xff", "\udcff"),
        ("Basic " + b64encode(b"anybody:s:cret").decode(), "s:cret"),
        ("Basic " + b64encode(b"anybody").decode(), None),
        ("Basic " + b64encode(b"\xff:\xff").decode(), None),
        ("Basic !!!", None),
        ("Digest abc", None),
    ],
)
def test_the_token_of_an_authorization_header_is_found(value: str | None, token: str | None) -> None:
    assert token_of(request_with(value)) == token


def test_tokens_are_equal_only_if_all_characters_match() -> None:
    assert same("secret", "secret")
    assert not same("Secret", "secret")
    assert not same("", "secret")
    assert not same(None, "secret")
    assert not same(None, "")
    assert not same("\udcff", "?")


def test_host_names_are_split_at_commas_and_converted_to_lower_case() -> None:
    assert host_names("A.example, b ,") == ("a.example", "b")
