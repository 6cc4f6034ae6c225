"""The server of syslog: what is acknowledged, refused messages, streams by content, and datagrams."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.policy import LOOPBACK
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import ConfigError
from fyrehose.interfaces import JournalState
from fyrehose.net.inflight import InFlight
from fyrehose.options import build
from fyrehose.protocols.syslog.plugin import plugin
from fyrehose.protocols.syslog.server import SyslogDatagrams, SyslogFactory, SyslogSettings
from fyrehose.records import Run
from fyrehose.testing import ClientSide, MemoryJournal

OPEN = b"1 open 15 commands=syslog\n"
HELLO = b"<34>1 2026-11-28T12:00:00Z web-1 app 7 - - hello"
NAMED = {"facility": "auth", "severity": "crit", "timestamp": "2026-11-28T12:00:00Z", "hostname": "web-1"}
SENDER = ("10.0.0.7", 4000)
OWN = ("127.0.0.1", 4000)


def relp(number: int, data: bytes, command: bytes = b"syslog") -> bytes:
    return b"%d %b %d %b\n" % (number, command, len(data), data)


@attrs.define(eq=False)
class Server:
    journal: MemoryJournal
    broker: Broker
    clock: Clock
    settings: SyslogSettings

    def connect(self, begin: bytes = b"") -> ClientSide:
        factory = SyslogFactory(self.broker, self.settings, self.clock)
        peer = ClientSide.connect(factory, self.clock, port=5000)
        peer.send(begin)
        peer.received()
        return peer

    def datagrams(self) -> SyslogDatagrams:
        protocol = SyslogDatagrams(self.broker, self.settings, self.clock)
        protocol.makeConnection(FakeTransport())
        return protocol

    def runs(self, stream: str = "syslog") -> list[Run]:
        found: list[Run] = []
        while runs := self.journal.read(stream, found[-1].last_seq + 1 if found else 1, 1 << 20):
            found += runs
        return found

    def stored(self, stream: str = "syslog") -> list[bytes]:
        return [bytes(payload) for run in self.runs(stream) for payload in run.payloads()]

    def count(self, what: str) -> int:
        return self.broker.counters.counts["syslog", what]


class FakeTransport:
    """The part of Twisted's UDP port that a protocol uses."""

    maxPacketSize = 8_192


def make(auto: bool = True, memory: int = 1 << 26, **settings: Any) -> Server:
    journal, clock = MemoryJournal(auto=auto), Clock()
    clock.advance(1_000_000)
    broker = Broker(clock, journal, Sequencer(), budget=InFlight(limit=memory))
    broker.open()
    broker.guard.change(LOOPBACK)
    options = SyslogSettings(**{"refusal_delay": 0.0, **settings})
    return Server(journal, broker, clock, options)


def receive(port: SyslogDatagrams, *datagrams: bytes) -> None:
    """Let *datagrams* of this machine arrive in one turn."""
    for datagram in datagrams:
        port.datagrams_received(memoryview(datagram), len(datagram), OWN)
    port.turn_over()


def test_message_of_relp_is_answered_when_it_is_durable() -> None:
    server = make(auto=False)
    peer = server.connect(OPEN)
    peer.send(relp(2, b"one") + relp(3, b"two"))
    assert peer.received() == b""
    server.journal.commit()
    assert peer.received() == b"2 rsp 6 200 OK\n3 rsp 6 200 OK\n"
    (run,) = server.runs()
    assert (run.source, run.producer, list(run.producer_seqs() or ())) == ("syslog", "127.0.0.1:5000", [2, 3])


def test_session_of_relp_is_closed_after_the_answers_to_its_messages() -> None:
    server = make(auto=False)
    peer = server.connect(OPEN)
    peer.send(relp(2, b"one") + relp(3, b"", b"close"))
    assert peer.received() == b""
    assert not peer.transport.disconnecting
    server.journal.commit()
    assert peer.received() == b"2 rsp 6 200 OK\n3 rsp 0\n0 serverclose 0\n"
    assert peer.transport.disconnecting


def test_server_that_stops_closes_the_session_after_its_answers() -> None:
    server = make(auto=False)
    peer = server.connect(OPEN)
    peer.send(relp(2, b"one"))
    peer.protocol.stop()
    server.journal.commit()
    assert peer.received() == b"2 rsp 6 200 OK\n0 serverclose 0\n"


def test_senders_without_relp_are_answered_nothing() -> None:
    server = make()
    peer = server.connect(b"<1>one\n7 <2>two\n<3>three")
    assert server.stored() == [b"<1>one", b"<2>two\n"]
    peer.protocol.readConnectionLost()
    assert server.stored() == [b"<1>one", b"<2>two\n", b"<3>three"]
    assert peer.received() == b""
    assert peer.transport.disconnecting


def test_silent_connection_stays_open() -> None:
    server = make()
    peer = server.connect()
    server.clock.advance(100_000)
    assert not peer.transport.disconnecting
    peer.send(b"<1>late\n")
    assert server.stored() == [b"<1>late"]


def test_violation_of_the_protocol_closes_after_what_came_before_it() -> None:
    server = make(auto=False)
    peer = server.connect(OPEN)
    peer.send(relp(2, b"one") + b"nonsense")
    server.journal.commit()
    assert peer.received() == b"2 rsp 6 200 OK\n0 serverclose 0\n"
    assert peer.transport.disconnecting
    assert server.count("bad-header") == 1


class TestRefused:
    """A message that is refused for good becomes a dead letter, is answered, and stops nothing behind it."""

    def test_message_that_is_too_large(self) -> None:
        server = make(max_payload=10)
        peer = server.connect(OPEN)
        wire = relp(2, b"one") + relp(3, b"x" * 25) + relp(4, b"two")
        for at in range(0, len(wire), 5):
            peer.send(wire[at : at + 5])
        assert peer.received() == b"2 rsp 6 200 OK\n3 rsp 6 200 OK\n4 rsp 6 200 OK\n"
        assert (server.stored(), server.stored("dead.syslog")) == ([b"one", b"two"], [b"x" * 10])
        (letter,) = server.runs("dead.syslog")
        assert letter.topic == "PayloadTooLarge 25 syslog"
        assert server.count("dead-letters") == 1

    def test_messages_for_streams_that_may_not_exist(self) -> None:
        server = make(routes=build(SyslogSettings, "syslog", {"routes": "{hostname}"}).routes)
        server.broker.max_streams = 1
        peer = server.connect(OPEN)
        peer.send(b"".join(relp(n, HELLO.replace(b"web-1", b"web-%d" % (n % 3))) for n in range(2, 8)))
        answers = peer.received().splitlines()
        assert sorted(answers) == [b"%d rsp 6 200 OK" % n for n in range(2, 8)]
        assert sum(len(server.stored(f"web-{n}")) for n in range(3)) == 2
        assert len(server.stored("dead.syslog")) == 4

    def test_option_close_refuses_it_instead(self) -> None:
        server = make(max_payload=10, refused="close")
        peer = server.connect(OPEN)
        peer.send(relp(2, b"one") + relp(3, b"x" * 25) + relp(4, b"two"))
        assert peer.received() == b"2 rsp 6 200 OK\n0 serverclose 0\n"
        assert (server.stored(), server.count("PayloadTooLarge")) == ([b"one"], 1)

    def test_full_disk_answers_nothing(self) -> None:
        server = make()
        server.journal.enter(JournalState.READ_ONLY, "full")
        peer = server.connect(OPEN)
        peer.send(relp(2, b"one"))
        server.clock.advance(10)
        assert peer.received() == b"0 serverclose 0\n"
        assert server.count("dead-letters") == 0


def test_streams_are_chosen_by_the_fields_of_messages() -> None:
    routes = build(SyslogSettings, "syslog", {"routes": "logs.{hostname}.{app-name}, by.{severity}"}).routes
    server = make(routes=routes)
    peer = server.connect(OPEN)
    peer.send(relp(2, HELLO) + relp(3, b"<35>text") + relp(4, b"text") + relp(5, HELLO))
    assert server.stored("logs.web-1.app") == [HELLO, HELLO]
    assert server.stored("by.err") == [b"<35>text"]
    assert server.stored() == [b"text"]
    assert [list(run.producer_seqs() or ()) for run in server.runs("logs.web-1.app")] == [[2, 5]]
    assert sorted(peer.received().splitlines()) == [b"%d rsp 6 200 OK" % n for n in range(2, 6)]


@pytest.mark.parametrize(("form", "more"), [("json", {}), ("json+raw", {"raw": HELLO.decode()})])
def test_payload_may_be_an_object_of_the_fields(form: str, more: dict[str, str]) -> None:
    server = make(format=form)
    server.connect(HELLO + b"\n")
    (payload,) = server.stored()
    assert json.loads(payload) == NAMED | {"app-name": "app", "procid": "7", "message": "hello"} | more
    assert server.runs()[0].content_type == "application/json"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("routes", "logs.{host.name}", "routes have no field 'host.name'; expected hostname, "),
        ("format", "xml", "expected raw, json or json+raw"),
        ("max-payload", "0", "max-payload must be from 1 to 16MiB, not 0"),
        ("max-payload", "17MiB", "max-payload must be from 1 to 16MiB, not 17MiB"),
    ],
)
def test_invalid_option_is_refused(option: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(SyslogSettings, "syslog", {option: value})
    assert expected in str(caught.value)


class TestDatagrams:
    """Each datagram is a message; what cannot be stored is dropped and counted."""

    def test_datagrams_of_one_turn_are_published_together(self) -> None:
        server = make(auto=False)
        port = server.datagrams()
        port.datagrams_received(memoryview(b"<1>one<2>two<3>x"), 6, OWN)
        port.datagrams_received(memoryview(b""), 1, OWN)
        port.datagrams_received(memoryview(b"<4>four"), 7, ("127.0.0.1", 4001))
        port.turn_over()
        server.journal.commit()
        assert server.stored() == [b"<1>one", b"<2>two", b"<3>x", b"<4>four"]
        assert [run.producer for run in server.runs()] == ["127.0.0.1:4000", "127.0.0.1:4001"]

    def test_senders_without_the_right_to_publish_are_counted(self) -> None:
        server = make()
        port = server.datagrams()
        port.datagrams_received(memoryview(b"<1>one<2>two"), 6, SENDER)
        receive(port, b"<3>own")
        assert (server.stored(), server.count("Forbidden")) == ([b"<3>own"], 2)

    def test_refused_datagrams_become_dead_letters_alone(self) -> None:
        server = make()
        server.broker.restrict("syslog", 6)
        port = server.datagrams()
        receive(port, b"<1>one", b"<2>too large", b"<3>two")
        assert (server.stored(), server.stored("dead.syslog")) == ([b"<1>one", b"<3>two"], [b"<2>too large"])
        assert server.count("dead-letters") == 1

    def test_datagrams_are_dropped_while_the_journal_is_behind(self) -> None:
        server = make()
        port = server.datagrams()
        port.pauseProducing()
        receive(port, b"<1>one")
        port.resumeProducing()
        receive(port, b"<2>two")
        assert (server.stored(), server.count("journal-behind")) == ([b"<2>two"], 1)

    @pytest.mark.parametrize("seed", range(5))
    def test_each_datagram_is_stored_or_a_dead_letter_or_counted_as_dropped(self, seed: int) -> None:
        dice = Random(seed)
        server = make(auto=False, memory=dice.choice((2_000, 10_000, 50_000)))
        server.broker.restrict("syslog", 50)
        server.broker.restrict("dead.syslog", dice.choice((50, 100)))
        port, sent = server.datagrams(), 0
        for _ in range(30):
            for _ in range(dice.randint(0, 5)):
                port.datagrams_received(memoryview(b"<1>" + b"x" * dice.choice((1, 10, 60))), 100, OWN)
                sent += 1
            port.turn_over()
            if dice.random() < 0.2:
                server.journal.commit()
        server.journal.commit()
        dropped = server.count("journal-behind") + server.count("PayloadTooLarge")
        assert len(server.stored()) + len(server.stored("dead.syslog")) + dropped == sent

    def test_full_disk_drops_and_counts(self) -> None:
        server = make()
        server.journal.enter(JournalState.READ_ONLY, "full")
        port = server.datagrams()
        port.datagrams_received(memoryview(b"<1>one<2>two"), 6, OWN)
        port.turn_over()
        assert (server.stored(), server.count("ReadOnly")) == ([], 2)

    def test_port_that_stops_waits_until_its_messages_are_durable(self) -> None:
        server = make(auto=False)
        port = server.datagrams()
        port.datagrams_received(memoryview(b"<1>one"), 6, OWN)
        ended: list[None] = []
        port.drain().addCallback(ended.append)
        receive(port, b"<2>two")
        assert ended == []
        server.journal.commit()
        assert (ended, server.stored()) == ([None], [b"<1>one"])
        port.stopProtocol()

    def test_port_that_stops_waits_for_a_stuck_journal_only_for_a_while(self) -> None:
        server = make(auto=False)
        port = server.datagrams()
        port.datagrams_received(memoryview(b"<1>one"), 6, OWN)
        ended: list[None] = []
        port.drain().addCallback(ended.append)
        server.clock.advance(10)
        assert ended == [None]

    def test_changed_options_apply_to_the_next_datagrams(self) -> None:
        server = make()
        port = server.datagrams()
        port.change(SyslogSettings(stream="other"))
        receive(port, b"<1>one")
        assert server.stored("other") == [b"<1>one"]


def test_endpoint_says_whether_a_listener_is_of_tcp_or_udp() -> None:
    server = make()
    services = [
        plugin.make_service(server.clock, server.broker, endpoint, server.settings)
        for endpoint in ("tcp:0:interface=127.0.0.1", "udp:0:interface=127.0.0.1")
    ]
    assert [type(service).__name__ for service in services] == ["TCPService", "UDPService"]
    with pytest.raises(ConfigError, match="syslog=udp:x"):
        plugin.make_service(server.clock, server.broker, "udp:x", server.settings)
