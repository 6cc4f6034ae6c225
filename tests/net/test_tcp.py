"""The base of the TCP protocols: limits, deadlines, slow peers, and closing in good order.

With a toy protocol: a line is a message for the stream "s", "?" subscribes, "!" is against the rules, "#N" announces
a frame of N bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import attrs
import pytest
from cryptography.x509 import load_pem_x509_certificate
from OpenSSL.crypto import X509
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener, ISSLTransport
from twisted.internet.task import Clock
from twisted.logger import Logger
from zope.interface import alsoProvides, implementer
from zope.interface.verify import verifyObject

from fyrehose.broker.broker import Broker
from fyrehose.broker.policy import parse
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Broken, Closed, RemoteProtocolError
from fyrehose.identity import Identity
from fyrehose.interfaces import ISink, JournalState
from fyrehose.net.connections import SessionFactory
from fyrehose.net.endpoints import TCPService
from fyrehose.net.holding import FIRST, RefusedConnection
from fyrehose.net.incoming import SLOWEST, SMALL, Reading
from fyrehose.net.inflight import InFlight
from fyrehose.net.lifecycle import Phase
from fyrehose.net.peers import PROOFS
from fyrehose.net.tcp import CLOSE_TIMEOUT_S, FULL_GRACE, ClosesIdle, SessionProtocol, TCPSettings, on
from fyrehose.net.turns import INPUT_S
from fyrehose.records import Delivery, Publish, Run
from fyrehose.sessions import ByteSession
from fyrehose.subscriptions.letters import PREFIX
from fyrehose.testing import MemoryJournal, Transport
from fyrehose.testing.certificates import Authority


class Session(ByteSession):
    """Lines."""

    def __init__(self) -> None:
        self.buffer = b""
        self.announced = 0
        self.out: list[bytes] = []

    @property
    def expected(self) -> int:
        return self.announced or len(self.buffer)

    @property
    def buffered(self) -> int:
        return len(self.buffer)

    def receive_data(self, data: bytes) -> list[Any]:
        self.buffer += data
        events: list[Any] = []
        while True:
            if self.announced and len(self.buffer) >= self.announced:
                events.append(f"{self.announced} bytes")
                self.buffer = self.buffer[self.announced :]
                self.announced = 0
            line, feed, rest = self.buffer.partition(b"\n")
            if self.announced or not feed:
                return events
            self.buffer = rest
            if line == b"!":
                return [*events, Broken(error=RemoteProtocolError("rude", "a line said !"))]
            if line.startswith(b"#"):
                self.announced = int(line[1:])
            elif line.startswith(b"echo"):
                self.out.append(line[4:])
            else:
                events.append(line.decode())

    def receive_eof(self) -> list[Any]:
        self.buffer, self.announced = b"", 0
        return []


@implementer(ISink)
class Toy(SessionProtocol):
    protocol_name: ClassVar[str] = "toy"
    log: ClassVar[Logger] = Logger()
    session: Session

    def __init__(self, factory: SessionFactory) -> None:
        super().__init__(factory, Session())

    def line(self, text: str) -> None:
        if text == "?":
            self.attach(self.broker.subscribe("s", 0, self))
        else:
            run = Run.of("s", [text.encode()], source="toy", producer=self.address)
            self.publish([run], text)

    handlers = SessionProtocol.handlers | on(str, line)

    def durable(self, items: Sequence[Publish]) -> None:
        self.session.out += [f"ok {item.note}\n".encode() for item in items]
        self.flush()

    def deliver(self, delivery: Delivery) -> None:
        self.session.out.append(b"".join(bytes(p) + b"\n" for run in delivery.runs for p in run.payloads()))
        self.flush()

    def skipped(self, first: int, last: int) -> None:
        raise AssertionError("nothing is skipped here")

    def ended(self, reason: Exception) -> None:
        self.finish()


class ToyFactory(SessionFactory):
    protocol = Toy
    defaults = TCPSettings(refusal_delay=0.0)


@attrs.define(eq=False)
class Server:
    """A factory, and a way to connect to it."""

    journal: MemoryJournal
    broker: Broker
    clock: Clock
    factory: SessionFactory

    def connect(self, host: str = "10.0.0.1", port: int = 5000) -> tuple[Toy, Transport]:
        address = IPv4Address("TCP", host, port)
        protocol = self.factory.buildProtocol(address)
        assert protocol is not None, "refused"
        transport = Transport(peerAddress=address)
        protocol.makeConnection(transport)
        return protocol, transport  # type: ignore[return-value]

    def lose(self, protocol: Toy) -> None:
        from twisted.internet.error import ConnectionDone
        from twisted.python.failure import Failure

        protocol.connectionLost(Failure(ConnectionDone()))

    def count(self, what: str) -> int:
        return self.broker.counters.counts["toy", what]


def make(auto: bool = True, budget: InFlight | None = None, **settings: Any) -> Server:
    journal, clock = MemoryJournal(auto=auto), Clock()
    broker = Broker(clock, journal, Sequencer(), budget=budget or InFlight())
    broker.open()
    chosen = TCPSettings(**{"refusal_delay": 0.0, **settings})
    return Server(journal, broker, clock, ToyFactory(broker, chosen, clock))


@pytest.fixture(autouse=True)
def _only_warnings(logged_errors: Any) -> None:
    """Nothing here logs errors; the fixture of all tests sees to it."""


class TwoAtATime(Session):
    """Lines, of which two are handled in a turn; the end of the input is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[Any] = []

    @property
    def more(self) -> bool:
        return bool(self.left)

    def receive_data(self, data: bytes) -> list[Any]:
        self.left += super().receive_data(data)
        return self.next_events()

    def next_events(self) -> list[Any]:
        now, self.left = self.left[:2], self.left[2:]
        return now

    def receive_eof(self) -> list[Any]:
        self.out.append(b"bye\n")
        return super().receive_eof()


class Busy(Toy):
    """A connection whose events take several turns."""

    def __init__(self, factory: SessionFactory) -> None:
        super().__init__(factory)
        self.session = TwoAtATime()


#: The largest message of the stream "s", where lines are written in random order.
LARGEST = 40_000
TOO_LARGE = b"x" * (LARGEST + 1)
#: Lines that end a connection, and the causes that are counted for them.
REFUSED = {b"!": "rude", b"?": "Forbidden", TOO_LARGE: "PayloadTooLarge"}


class Writer:
    """A peer that sends lines and frames in random pieces while it is read, and closes its sending side at the end.

    :ivar refused: the line that ends the connection, if any; what follows it is ignored
    :ivar letter: the line that is refused and stored as a dead letter, if any
    """

    def __init__(self, server: Server, host: str, port: int, dice: Random, letters: bool) -> None:
        self.protocol, self.transport = server.connect(host, port)
        self.unsent, self.answers, self.ended, self.lost = b"", b"", False, False
        self.refused, self.letter = dice.choice((None, None, None, *REFUSED)), b""
        if letters and self.refused == TOO_LARGE:
            self.refused, self.letter = None, TOO_LARGE
        count = dice.randrange(1, 20)
        last = dice.randrange(count)
        for number in range(count):
            line = b"%d/%d%b" % (port, number, b"x" * dice.choice((0, 30, SMALL * (number % 9 == 8))))
            if number == last and (self.refused or self.letter):
                self.unsent += (self.refused or self.letter) + b"\n"
                self.answers += b"ok %b\n" % self.letter if self.letter else b""
            self.unsent += b"#%d\n%b" % (len(line), line) if number % 4 == 3 else line + b"\n"
            if number < last or self.refused is None:
                self.answers += b"ok %d bytes\n" % len(line) if number % 4 == 3 else b"ok %b\n" % line

    @property
    def got(self) -> bytes:
        return self.transport.value().replace(b"bye\n", b"")

    def send(self, size: int, late: bool) -> None:
        """Send *size* bytes if they are read, or if they were under way *late*, as within TLS."""
        if (self.transport.reads or late) and self.unsent:
            data, self.unsent = self.unsent[:size], self.unsent[size:]
            self.protocol.dataReceived(data)
        elif self.transport.reads and not self.ended:
            self.ended = True
            self.protocol.readConnectionLost()

    def check(self, seen: Counter[str]) -> None:
        """Check what was answered so far, and count what the connection waits for."""
        waiting, closes = self.protocol.waiting_input, self.transport.disconnecting
        assert self.answers.startswith(self.got), "answers are in order, to what was sent"
        assert not closes or self.lost or self.got == self.answers, "all that was accepted is acknowledged before"
        assert not closes or self.lost or self.ended or self.refused
        seen["waits"] += waiting.waits
        seen["more"] += waiting.waits and self.protocol.session.more
        seen["ended"] += waiting.waits and waiting.ended
        seen["behind"] += waiting.waits and self.protocol.account.behind
        seen["paused"] += not self.transport.reads
        seen["refused"] += closes and self.refused is not None and bool(self.got)


def exchange_in_random_order(dice: Random, seen: Counter[str]) -> None:
    """Let peers of two networks send while the journal commits and other input takes time, until all have ended."""
    refused, room = dice.choice((("close", True), ("dead-letter", True), ("dead-letter", False)))
    server = make(auto=False, budget=InFlight(each=dice.choice((50, 8 << 20))), timeout=1e6, refused=refused)
    server.factory.protocol = Busy
    server.journal.window = dice.choice((20, 1 << 30))
    server.broker.restrict("s", LARGEST)
    server.broker.guard.change(parse({"allow": [{"network": "10.0.0.0/8", "publish": "s"}]}))
    server.broker.restrict(f"{PREFIX}toy", LARGEST + 1 if room else 1)
    letters = refused == "dead-letter" and room
    writers = [Writer(server, f"10.0.0.{dice.randrange(2)}", port, dice, letters) for port in range(1, 5)]
    drains, drained = dice.choice((50, 2_000)), list[None]()
    for step in range(1_000):
        writer = dice.choice(writers)
        if all(each.transport.disconnecting for each in writers):
            break
        match dice.randrange(5) if step < 200 else dice.randrange(1, 5):
            case 0:
                server.broker.turns.left = 0.0  # others have used the time of this round
            case 1:
                server.clock.advance(0)
            case 2:
                server.journal.commit()
            case _:
                if not writer.transport.disconnecting:
                    writer.send(dice.choice((1, 10, 100, 1 << 20)), late=dice.random() < 0.1)
        if step == drains:
            server.factory.drain().addCallback(drained.append)
            for each in writers:
                each.lost = True
        if dice.random() < 0.002 and not writer.transport.disconnecting:
            writer.lost = writer.transport.disconnecting = True
            server.lose(writer.protocol)
        writer.check(seen)
    else:
        raise AssertionError("a connection does not close, although its peer has ended")
    stored = [(run.producer, bytes(each)) for run in server.journal.read("s", 1, 1 << 30) for each in run.payloads()]
    for writer in writers:
        if not writer.lost:
            assert writer.got == writer.answers, "everything is answered in the end"
            assert writer.refused or writer.transport.value().count(b"bye\n") == 1
        of_writer = b"".join(b"ok %b\n" % text for producer, text in stored if producer == writer.protocol.address)
        got = writer.got.replace(b"ok %b\n" % TOO_LARGE, b"")
        assert of_writer == got or (writer.lost and of_writer.startswith(got)), "it is acknowledged"
        seen["letter"] += writer.got != got
        seen["no letter"] += refused == "dead-letter" and writer.refused == TOO_LARGE and not writer.lost
        if writer.protocol.phase is not Phase.GONE:
            server.lose(writer.protocol)
    for line, cause in REFUSED.items():
        lost = [each.lost for each in writers if each.refused == line]
        assert lost.count(False) <= server.count(cause) <= len(lost), f"each connection is refused once for {cause}"
    server.clock.advance(0)
    server.journal.commit()
    assert bool(drained) == (step >= drains), "it is drained when all connections have ended"
    assert server.broker.budget.used == 0
    assert not [call for call in server.clock.getDelayedCalls() if call.getTime() > 0]


def test_everything_that_is_sent_is_answered_in_order_until_a_refusal_whatever_it_waits_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(80):
        exchange_in_random_order(Random(seed), seen)
    cases = ("waits", "more", "ended", "behind", "paused", "refused", "letter", "no letter")
    assert min(seen[name] for name in cases) > 5, f"hardly tried: {seen}"


@pytest.mark.parametrize(("note", "stored"), [(None, [b"abc", b"ab"]), ("one answer", [])])
def test_messages_that_were_refused_together_are_stored_one_by_one(note: Any, stored: list[bytes]) -> None:
    class Several(Toy):
        def line(self, text: str) -> None:
            self.publish([Run.of("s", [each.encode() for each in text.split("|")], source="toy")], note)

        handlers = Toy.handlers | on(str, line)

    server = make(refused="dead-letter")
    server.factory.protocol = Several
    server.broker.restrict("s", 3)
    protocol, transport = server.connect()
    protocol.dataReceived(b"abc|abcd|ab\n")
    assert [bytes(p) for run in server.journal.read("s", 1, 100) for p in run.payloads()] == stored
    assert (server.count("dead-letters"), transport.disconnecting) == (bool(stored), not stored)


def test_input_waits_once_others_of_its_network_wait_or_the_time_of_a_round_is_used_up() -> None:
    server = make()

    class Long(Toy):
        def line(self, text: str) -> None:
            server.clock.rightNow += 0.4 * INPUT_S
            super().line(text)

        handlers = Toy.handlers | on(str, line)

    server.factory.protocol = Long
    (one, answers), (other, later) = server.connect(), server.connect()
    for number in range(1, 5):
        one.dataReceived(b"x\n")
        assert answers.value().count(b"ok") == min(number, 3), "the fourth waits"
    server.broker.turns.left = INPUT_S
    other.dataReceived(b"x\n")
    assert not later.value()
    server.clock.advance(0)
    assert (answers.value() + later.value()).count(b"ok") == 5


def test_small_input_does_not_wait_behind_the_many_events_of_its_network() -> None:
    server = make()
    server.factory.protocol = Busy
    for port in range(1, 11):
        server.connect(port=port)[0].dataReceived(b"x\n" * 300)
    before: list[int] = []
    small, _ = server.connect()
    server.clock.callLater(0, lambda: before.append(server.journal.bounds("s")[1]))  # after the first round
    server.clock.callLater(0, small.dataReceived, b"y\n")
    server.clock.advance(0)
    stored = [bytes(p) for run in server.journal.read("s", 1, 1 << 20) for p in run.payloads()]
    assert stored.index(b"y") <= before[0] + 4, "it waits for one or two turns of them, not for one of each"


class TestLimits:
    def test_connections_beyond_the_limit_are_refused(self, log_lines: list[str]) -> None:
        server = make(auto=False, max_connections=2)
        first, _ = server.connect("10.0.0.1")
        second, _ = server.connect("10.0.0.2")
        for busy in (first, second):
            busy.dataReceived(b"message\n")
        assert TCPService(server.clock, "toy", "tcp:0", server.factory).connections == 2
        assert server.factory.buildProtocol(IPv4Address("TCP", "10.0.0.3", 1)) is None
        assert server.count("too-many-connections") == 1
        assert log_lines[-1].startswith("toy: too-many-connections from 10.0.0.3: all 2 connections are busy; to allow")
        server.lose(first)
        server.connect("10.0.0.3")

    @pytest.mark.parametrize("room", ["a reload", "connections that have closed"])
    def test_connections_are_served_while_few_are_closing_and_otherwise_when_there_is_room(self, room: str) -> None:
        server, served = make(max_connections=100), list[bool]()
        for number in range(60):
            server.connect(f"10.0.0.{number}")
        server.factory.configure(TCPSettings(max_connections=1))
        assert server.factory.newcomers.is_free(), "else new ones would wait until nearly all others have left"
        closing = [Toy(server.factory) for _ in range(30)]
        for each in closing:
            server.factory.holding.await_close(each)

        class Waiting:
            network = "10.9.9.9"

            def serve(self) -> None:
                served.append(True)

        server.factory.newcomers.enter(Waiting())  # type: ignore[arg-type]
        server.clock.advance(0)
        assert not served, "too many are closing"
        if room == "a reload":
            server.factory.configure(TCPSettings(max_connections=100))
        else:
            for each in closing:
                server.factory.lost(each)
        server.clock.advance(0)
        assert served

    @pytest.mark.parametrize(
        ("hosts", "other"),
        [(["10.0.0.1"] * 3, "10.0.0.2"), ([f"2001:db8::{number}" for number in (1, 2, 3)], "2001:db8:0:1::1")],
        ids=["IPv4 address", "IPv6 network"],
    )
    def test_connections_beyond_the_limit_of_a_network_are_refused(self, hosts: list[str], other: str) -> None:
        server = make(max_per_host=2)
        first, _ = server.connect(hosts[0])
        server.connect(hosts[1])
        assert server.factory.buildProtocol(IPv4Address("TCP", hosts[2], 1)) is None
        assert server.count("too-many-connections-from-one-host") == 1
        server.connect(other)
        server.lose(first)
        server.connect(hosts[2])

    def test_a_silent_connection_is_closed(self, log_lines: list[str]) -> None:
        server = make(timeout=30.0)
        _, transport = server.connect()
        server.clock.advance(29)
        assert not transport.disconnecting
        server.clock.advance(1)
        assert (transport.disconnecting, server.count("silent")) == (True, 1)
        said = "toy: silent from 10.0.0.1: nothing was received for 30 s; raise toy.timeout to allow more"
        assert log_lines == [said]

    def test_a_frame_must_be_complete_in_time_and_each_has_a_time_of_its_own(self) -> None:
        seen: Counter[str] = Counter()
        for seed in range(30):
            dice, server = Random(seed), make(timeout=30.0)
            protocol, transport = server.connect()
            due: float | None = None  #: when the incomplete line is late
            for _ in range(40):
                data = dice.choice((b"x", b"x", b"x\n", b"x\nx", b"x\nx\n"))
                protocol.dataReceived(data)
                if data.endswith(b"\n"):
                    due = None
                elif due is None or b"\n" in data:
                    due = server.clock.seconds() + 30.0
                seen["next"] += data == b"x\nx"
                server.clock.advance(dice.choice((1.0, 5.0, 12.0)))
                late = due is not None and server.clock.seconds() > due
                assert transport.disconnecting == late, f"the line is late at {due}, it is {server.clock.seconds()}"
                if late:
                    break
            seen["late"] += late
            assert server.count("frame-timeout") == late
        assert min(seen["next"], seen["late"]) > 10, f"hardly tried: {seen}"

    def test_bytes_that_arrive_extend_the_deadline_of_a_frame_and_its_announced_size_does_not(self) -> None:
        server = make(timeout=30.0)
        (protocol, transport), (other, announced) = server.connect(), server.connect()
        protocol.dataReceived(b"line\n#6553600\n")
        protocol.dataReceived(b"x" * 655_360)
        other.dataReceived(b"#6553600\n")
        server.clock.advance(31)
        assert announced.disconnecting
        server.clock.advance(8)
        assert not transport.disconnecting, "10 s more at the slowest rate"
        server.clock.advance(2)
        assert transport.disconnecting

    def test_the_deadline_of_a_frame_stops_while_reading_is_paused(self) -> None:
        server = make(budget=InFlight(limit=1000), timeout=30.0)
        large = server.broker.budget.account(Reading(lambda: None, lambda: None))
        large.expect(250, 200)
        waiting, transport = server.connect()
        waiting.dataReceived(b"#150\n" + bytes(100))
        assert transport.producerState == "paused"
        server.clock.pump([1] * 29)
        large.close()
        assert transport.producerState == "producing"
        server.clock.pump([1] * 20)
        assert not transport.disconnecting
        assert server.count("slow-frame") == 0
        server.clock.pump([1] * 11)
        assert transport.disconnecting, "now it has its time again, and no more than that"


class TestSlowReaders:
    def test_a_peer_that_does_not_read_is_disconnected(self) -> None:
        server = make(timeout=30.0)
        protocol, transport = server.connect()
        protocol.dataReceived(b"?\n")
        assert protocol.closes_in is None
        protocol.pauseProducing()
        server.clock.advance(29)
        assert not transport.aborted
        assert 1 <= protocol.closes_in < 2
        protocol.resumeProducing()
        assert protocol.closes_in is None
        server.clock.advance(100)
        assert not transport.disconnecting, "it reads in time"
        protocol.pauseProducing()
        server.clock.advance(31)
        assert transport.aborted
        assert server.count("stalled-peer") == 1

    @pytest.mark.parametrize("unread", [0, 10 * SLOWEST])
    def test_deadline_is_extended_by_what_the_peer_was_sent_last_and_not_by_what_it_has_read(self, unread: int) -> None:
        server = make(timeout=30.0)
        protocol, transport = server.connect()
        for size in (65_536, 65_536, unread):
            protocol.dataReceived(b"echo" + b"x" * size + b"\n")
        protocol.pauseProducing()
        assert protocol.closes_in == 30 + unread / SLOWEST
        server.clock.advance(protocol.closes_in)
        assert transport.aborted

    def test_nothing_is_delivered_to_a_peer_that_does_not_read(self) -> None:
        server = make()
        protocol, transport = server.connect()
        protocol.dataReceived(b"?\n")
        server.clock.advance(0)
        protocol.pauseProducing()
        other, _ = server.connect(port=5001)
        for i in range(100):
            other.dataReceived(b"%d\n" % i)
        server.clock.advance(1)
        assert transport.value() == b""
        protocol.resumeProducing()
        server.clock.advance(0)
        assert transport.value() == b"".join(b"%d\n" % i for i in range(100))


class TestBudget:
    def test_a_frame_is_charged_as_it_arrives_and_not_as_it_is_announced(self) -> None:
        server = make()
        protocol, _ = server.connect()
        protocol.dataReceived(b"#900000\n")
        assert server.broker.budget.used == 0
        protocol.dataReceived(bytes(1000))
        protocol.dataReceived(bytes(500))
        assert server.broker.budget.used == 1500
        server.lose(protocol)
        assert server.broker.budget.used == 0

    def test_a_complete_frame_is_charged_only_as_a_publish(self) -> None:
        server, frames = make(auto=False), list[int]()

        class Watched(Toy):
            def line(self, text: str) -> None:
                frames.append(self.broker.budget.used - self.broker.budget.held)
                super().line(text)

            handlers = SessionProtocol.handlers | on(str, line)

        server.factory.protocol = Watched
        for port in (1, 2):
            protocol, _ = server.connect(port=port)
            for part in (b"x" * 400, b"x" * 500 + b"\n" + b"y" * 300, b"y" * 600 + b"\n"):
                protocol.dataReceived(part)
        assert frames == [0] * 4

    @pytest.mark.parametrize("before", [b"", b"before\n"])
    def test_a_slow_frame_with_a_grant_gives_way_to_a_waiting_frame(self, before: bytes) -> None:
        server = make(auto=False, budget=InFlight(limit=1 << 20))
        slow, slow_transport = server.connect()
        slow.dataReceived(before + b"#250000\n" + bytes(10_000))
        server.clock.advance(6)
        assert not slow_transport.disconnecting, "nobody waits"
        waiting, transport = server.connect(port=5001)
        waiting.dataReceived(b"#200000\n" + bytes(5_000))
        server.clock.pump([1] * 3)
        assert (server.count("slow-frame"), slow_transport.aborted) == (1, not before)
        server.journal.commit()
        assert slow_transport.value() == (b"ok " + before if before else b"")
        server.lose(slow)
        assert transport.producerState == "producing"
        waiting.dataReceived(bytes(195_000))
        server.journal.commit()
        assert transport.value() == b"ok 200000 bytes\n"


class OtherBroker:
    """A broker of another package, whose publishes are stored and end as the test says.

    :ivar done: the end of the last publish
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self.broker, name)

    def identified(self, identity: Identity) -> OtherBroker:
        return self

    def publish(self, *args: Any) -> Deferred[Any]:
        self.broker.publish(*args)
        self.done: Deferred[Any] = Deferred()
        return self.done


#: What ends a connection at once, and the line in the log that says so.
ABORTS: dict[str, tuple[Callable[[Server, Toy], object], str]] = {
    "an unread answer": (
        lambda server, protocol: protocol.abort_unread(),
        "toy: answers-unread from 10.0.0.1: 0 bytes, and others need the memory",
    ),
    "a peer that does not read": (
        lambda server, protocol: [protocol.pauseProducing(), server.clock.advance(31)],
        "toy: stalled-peer from 10.0.0.1",
    ),
    "a stuck journal": (
        lambda server, protocol: server.broker.stuck("full"),
        "toy: OutcomeUnknown from 10.0.0.1: full",
    ),
    "a publish of another broker that fails": (
        lambda server, protocol: server.factory.broker.done.errback(Closed("gone")),  # type: ignore[attr-defined]
        "toy: OutcomeUnknown from 10.0.0.1: gone",
    ),
    "a bug of another broker": (
        lambda server, protocol: server.factory.broker.done.errback(ValueError("bug")),  # type: ignore[attr-defined]
        "toy: serving 10.0.0.1 failed, and its connection is closed; please report this bug",
    ),
    "a bug while it acknowledges": (
        lambda server, protocol: [setattr(protocol.session, "out", None), server.journal.commit()],
        "toy: serving 10.0.0.1 failed, and its connection is closed; please report this bug",
    ),
    "a damaged record": (
        lambda server, protocol: protocol.record_lost(OSError("damaged")),
        "toy: closing the connection of 10.0.0.1 within a record: damaged",
    ),
}


@pytest.mark.parametrize("cause", ABORTS)
def test_connection_is_aborted_once_with_a_line_in_the_log_and_takes_nothing_more(
    cause: str, log_lines: list[str], logged_errors: Any
) -> None:
    server = make(auto=False, timeout=30.0)
    if "another broker" in cause:
        server.factory.broker = OtherBroker(server.broker)  # type: ignore[assignment]
    (protocol, transport), (_, other) = server.connect(), server.connect()
    protocol.dataReceived(b"before\n")
    end, line = ABORTS[cause]
    end(server, protocol)
    assert (transport.aborted, other.aborted) == (True, False), "the other one waits for nothing"
    assert line in log_lines
    assert bool(logged_errors.take()) is ("report this bug" in line)
    transport.aborted = False
    protocol.dataReceived(b"after\n")
    protocol.abort()
    server.journal.commit()
    assert not transport.aborted
    assert (transport.value(), server.journal.bounds("s")) == (b"", (1, 1)), "it is stored nevertheless"
    assert server.broker.budget.used == 0


class TestClosing:
    def test_who_publishes_while_the_disk_is_full_is_closed_after_a_while(self) -> None:
        server = make()
        protocol, transport = server.connect()
        server.journal.enter(JournalState.READ_ONLY, "full")
        protocol.dataReceived(b"no room for this\n")
        assert transport.producerState == "paused"
        server.clock.advance(FULL_GRACE - 1)
        assert not transport.disconnecting, "else it would be back at once"
        server.clock.advance(2)
        assert transport.disconnecting
        assert transport.value() == b""
        assert server.count("ReadOnly") == 1

    def test_who_waits_for_a_publish_when_the_disk_fills_is_acknowledged_when_there_is_room(self) -> None:
        server = make(auto=False)
        protocol, transport = server.connect()
        protocol.dataReceived(b"first\n")
        server.journal.enter(JournalState.READ_ONLY, "full")
        assert (transport.value(), transport.disconnecting) == (b"", False)
        server.journal.enter(JournalState.WRITABLE, "room")
        assert transport.value() == b"ok first\n"

    def test_a_connection_that_waits_for_a_call_before_it_closes_gets_no_more_records(self) -> None:
        server = make()
        (protocol, transport), (other, _) = server.connect(), server.connect()
        protocol.dataReceived(b"?\n")
        protocol.unsettled += 1  # a call of the broker is under way
        protocol.finish()
        other.dataReceived(b"a record\n")
        server.clock.advance(0)
        assert (transport.value(), transport.disconnecting) == (b"", False)
        protocol.unsettled -= 1
        protocol.settled()
        assert transport.disconnecting

    def test_a_peer_that_does_not_close_is_aborted(self) -> None:
        server = make()
        _, transport = server.connect()
        server.factory.drain()
        server.clock.advance(CLOSE_TIMEOUT_S + 1)
        assert transport.aborted

    def test_a_closed_connection_leaves_no_producer_registered(self) -> None:
        server = make()
        protocol, transport = server.connect()
        assert transport.producer is protocol
        protocol.finish()
        assert transport.producer is None, "else loseConnection would wait for it for ever"


@pytest.mark.parametrize(("before", "data"), [(b"", (b"one\n", b"two\n")), (b"on", (b"e\ntwo\n",))])
def test_connection_is_read_while_it_waits_for_a_turn_unless_more_data_arrives_or_has_begun_before(
    before: bytes, data: tuple[bytes, ...]
) -> None:
    """The time of a message that has begun does not pass while its connection waits."""
    server = make()
    protocol, transport = server.connect()
    protocol.dataReceived(before)
    server.broker.turns.left = 0.0  # Others have used the time of this round.
    for piece in data:
        assert transport.producerState == "producing"
        protocol.dataReceived(piece)
    assert (transport.value(), transport.producerState) == (b"", "paused")
    server.clock.advance(0)
    assert (transport.value(), transport.producerState) == (b"ok one\nok two\n", "producing")


def test_memory_of_a_publish_is_released_before_the_protocol_hears_of_its_end() -> None:
    heard: list[tuple[str, Phase, int]] = []

    class Hearing(Toy):
        def durable(self, items: Sequence[Publish]) -> None:
            heard.append(("durable", self.phase, self.broker.budget.used))

        def settled(self) -> None:
            heard.append(("settled", self.phase, self.broker.budget.used))

    server = make(auto=False)
    server.factory.protocol = Hearing
    protocol, _ = server.connect()
    for closes in (False, True):
        protocol.dataReceived(b"message\n")
        if closes:
            protocol.finish()
        server.journal.commit()
    closing = [("durable", Phase.SETTLING, 0), ("settled", Phase.SETTLING, 0)]
    assert heard == [("durable", Phase.OPEN, 0), *closing], "only a connection that closes has to hear twice"
    server.lose(protocol)


def test_input_of_a_network_waits_while_the_journal_is_behind_with_its_publishes() -> None:
    server = make(auto=False)
    server.journal.window = 1000
    heavy, heavy_transport = server.connect()
    light, light_transport = server.connect("10.9.9.9")
    heavy.dataReceived(b"x" * 2000 + b"\n")
    heavy.dataReceived(b"one\n")
    heavy.dataReceived(b"two\n")
    light.dataReceived(b"three\n")
    server.clock.advance(0)
    assert heavy_transport.producerState == "paused"
    server.journal.commit()
    assert light_transport.value() == b"ok three\n"
    server.clock.advance(0)
    server.journal.commit()
    assert heavy_transport.value().endswith(b"ok one\nok two\n")
    assert heavy_transport.producerState == "producing"


def test_input_that_waits_for_the_journal_is_refused_when_the_disk_is_full() -> None:
    server = make(auto=False)
    server.journal.window = 1000
    heavy, _ = server.connect()
    other, transport = server.connect(port=5001)
    heavy.dataReceived(b"x" * 2000 + b"\n")
    other.dataReceived(b"one\n")
    server.clock.advance(0)
    assert server.count("ReadOnly") == 0
    server.journal.window = 1 << 30
    server.journal.enter(JournalState.READ_ONLY, "full")
    server.clock.advance(0)
    assert server.count("ReadOnly") >= 1
    assert not transport.value()


class TestPolicy:
    """Each connection has the broker as its peer may use it."""

    def rules(self, **rule: str) -> Any:
        return parse({"allow": [rule]})

    def test_a_forbidden_publish_closes_without_acknowledgement(self, log_lines: list[str]) -> None:
        server = make()
        rules = [{"network": "10.0.0.2", "publish": "*"}, {"network": "10.0.0.1", "subscribe": "s"}]
        server.broker.guard.change(parse({"allow": rules}))
        peer, transport = server.connect()
        peer.dataReceived(b"one\ntwo\n")
        assert (transport.value(), transport.disconnecting) == (b"", True)
        assert server.count("Forbidden") >= 1
        assert log_lines == ["toy: Forbidden from 10.0.0.1: 10.0.0.1 may not publish into stream 's'"]
        friend, transport = server.connect("10.0.0.2")
        friend.dataReceived(b"one\n")
        assert transport.value() == b"ok one\n"

    def test_a_new_policy_ends_subscriptions_and_refuses_the_next_publish(self) -> None:
        server = make()
        server.broker.guard.change(self.rules(network="10.0.0.0/8", publish="s", subscribe="s"))
        (reader, reading), (writer, writing) = server.connect(), server.connect()
        reader.dataReceived(b"?\n")
        writer.dataReceived(b"one\n")
        server.clock.advance(0)
        assert reading.value() == b"one\n"
        assert server.broker.guard.change(self.rules(network="11.0.0.0/8", publish="s")).result == 1
        assert (reading.disconnecting, writing.disconnecting) == (True, False)
        writer.dataReceived(b"two\n")
        assert (writing.value(), writing.disconnecting) == (b"ok one\n", True)

    def test_a_tls_peer_is_identified_after_the_handshake_and_then_has_its_time_to_speak(self, tmp_path: Path) -> None:
        server = make(timeout=30.0)
        server.broker.guard.change(self.rules(certificate="writer", publish="s"))
        issued = Authority(tmp_path).issue("writer")
        certificate = X509.from_cryptography(load_pem_x509_certificate(Path(issued.certificate).read_bytes()))
        (peer, transport), (silent, other), (_, late) = (self.connect_with_tls(server) for _ in range(3))
        assert verifyObject(IHandshakeListener, peer)
        assert verifyObject(IHalfCloseableProtocol, peer)
        assert peer.identity == Identity(host="10.0.0.1")
        server.clock.advance(9)
        for protocol, each in ((peer, transport), (silent, other)):
            each.getPeerCertificate = lambda: certificate
            protocol.handshakeCompleted()
        assert peer.identity == Identity(host="10.0.0.1", certificates=("writer",))
        peer.dataReceived(b"one\n")
        assert transport.value() == b"ok one\n"
        server.clock.advance(1)
        assert [each.aborted for each in (transport, other, late)] == [False, False, True]
        server.clock.advance(28)
        assert not other.disconnecting
        server.clock.advance(1)
        assert [each.disconnecting for each in (transport, other)] == [False, True]

    def connect_with_tls(self, server: Server) -> tuple[Any, Any]:
        address = IPv4Address("TCP", "10.0.0.1", 5000)
        peer: Any = server.factory.buildProtocol(address)
        transport: Any = Transport(peerAddress=address)
        alsoProvides(transport, ISSLTransport)
        transport.getPeerCertificate = lambda: None
        peer.makeConnection(transport)
        return peer, transport

    def test_an_address_without_any_access_is_refused_when_it_connects(self, log_lines: list[str]) -> None:
        server = make(refusal_delay=1.0)
        server.broker.guard.change(self.rules(network="10.0.0.2", publish="*"))
        refused = server.factory.buildProtocol(IPv4Address("TCP", "10.0.0.1", 5000))
        assert isinstance(refused, RefusedConnection)
        transport = Transport()
        refused.makeConnection(transport)
        assert (transport.producerState, transport.value()) == ("paused", b"")
        assert server.count("forbidden-address") == 1
        said = "toy: forbidden-address from 10.0.0.1: no rule of the policy lets 10.0.0.1 publish or read anything"
        assert log_lines == [said]
        server.connect("10.0.0.2")

    def test_without_the_required_certificate_the_connection_ends_after_the_handshake(self) -> None:
        server = make(refusal_delay=1.0)
        server.broker.guard.change(self.rules(certificate="writer", publish="s"))
        peer, transport = server.connect()
        assert server.count("Forbidden") == 1, "no certificate can come without TLS"
        server.clock.advance(FIRST)
        assert transport.disconnecting
        assert peer not in server.factory.connections

    def test_a_protocol_with_tokens_admits_peers_that_may_send_one(self) -> None:
        server = make()
        server.factory.proofs = PROOFS | {"token"}
        server.broker.guard.change(self.rules(token=f"sha256:{'0' * 64}", publish="s"))
        _, transport = server.connect()
        assert not transport.disconnecting


@attrs.frozen
class LazySettings(TCPSettings):
    idle_timeout = 60.0


class Lazy(ClosesIdle, Toy):
    waiting = False


@pytest.mark.parametrize("seed", range(20))
def test_connection_is_closed_when_it_was_idle_for_the_time_and_waited_for_nothing(seed: int) -> None:
    dice, server = Random(seed), make(auto=False)
    server.factory.protocol, server.factory.settings = Lazy, LazySettings(refusal_delay=0.0)
    server.clock.advance(100.0)
    connected: Any = server.connect()
    protocol, transport = connected
    closing, _ = server.connect()
    closing.dataReceived(b"under way\n")
    closing.finish()
    protocol.dataReceived(b"echo\n")
    active, due = 100.0, 160.0  #: when it is looked at next
    for _ in range(dice.choice((61, 150, 400))):
        server.clock.advance(1.0)
        now = server.clock.seconds()
        if now == due:
            active = now if protocol.waiting else active
            due = active + 60.0
        assert transport.disconnecting == (now >= active + 60.0), f"active at {active}, now it is {now}"
        if transport.disconnecting:
            break
        if dice.random() < 0.02:
            protocol.active_at = active = now
        if dice.random() < 0.02:
            protocol.waiting = not protocol.waiting
    protocol.waiting = False
    server.clock.pump([1.0] * 121)
    assert (transport.disconnecting, server.count("idle")) == (True, 1), "the other one closes already"


class TestRefusals:
    """A refused connection is closed late; what it is owed comes at once."""

    def test_each_refusal_of_an_address_delays_the_close_longer(self) -> None:
        server = make(refusal_delay=3.2)
        for seconds in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2):
            protocol, transport = server.connect()
            protocol.dataReceived(b"!\n")
            server.clock.advance(seconds * 0.99)
            assert not transport.disconnecting
            server.clock.advance(seconds * 0.02)
            assert (transport.disconnecting, transport.aborted) == (True, False)
            server.lose(protocol)

    @pytest.mark.parametrize("refused", [b"!", b"?", b"too large"])
    def test_publishes_before_a_refusal_are_acknowledged_at_once(self, refused: bytes) -> None:
        server = make(auto=False, refusal_delay=3.2)
        server.broker.restrict("s", 4)
        server.broker.guard.change(parse({"allow": [{"network": "10.0.0.1", "publish": "s"}]}))
        protocol, transport = server.connect()
        protocol.dataReceived(b"good\n" + refused + b"\ngood\n")
        assert not transport.value()
        server.journal.commit()
        assert transport.value() == b"ok good\n"
        assert not transport.disconnecting

    def test_a_held_connection_keeps_only_its_socket(self) -> None:
        server = make(max_connections=1, refusal_delay=3.2)
        protocol, transport = server.connect()
        protocol.dataReceived(b"#90\n" + b"x" * 80)
        assert server.broker.budget.used == 80
        protocol.dataReceived(b"x" * 10 + b"!\n")
        assert transport.producerState == "paused"
        assert server.broker.budget.used == 0
        assert server.broker.counters.gauges["toy", "connections"] == 0
        other, _ = server.connect("10.0.0.2")
        server.lose(protocol)
        server.clock.advance(10)
        assert not transport.disconnecting, "it was lost before its time was over"
        server.lose(other)
        assert server.broker.counters.gauges["toy", "connections"] == 0

    @pytest.mark.parametrize("refused", [b"!", b"the disk is full"])
    def test_stopping_does_not_wait_for_the_delay_of_refused_connections(self, refused: bytes) -> None:
        server = make(refusal_delay=3.2)
        protocol, transport = server.connect()
        server.journal.enter(JournalState.READ_ONLY, "full")
        protocol.dataReceived(refused + b"\n")
        assert not transport.disconnecting
        drained = server.factory.drain()
        assert transport.disconnecting
        server.lose(protocol)
        assert drained.called

    def test_connection_that_waits_for_its_peer_to_read_gives_way_to_another_at_once(self) -> None:
        server = make()
        protocol, transport = server.connect()
        protocol.dataReceived(b"echo" + b"x" * 1000 + b"\n")
        protocol.pauseProducing()
        protocol.finish()
        assert (protocol.phase, transport.aborted) == (Phase.LINGERING, False)
        protocol.make_room()
        assert transport.aborted

    def test_a_refused_peer_with_unread_data_has_time_to_read(self) -> None:
        server = make(refusal_delay=3.2)
        protocol, transport = server.connect()
        protocol.dataReceived(b"echo" + b"x" * 1000 + b"\n")
        protocol.pauseProducing()
        protocol.dataReceived(b"!\n")
        assert transport.disconnecting
        assert protocol in server.factory.connections, "it has not gone, and keeps its place"
        server.clock.advance(CLOSE_TIMEOUT_S)
        assert transport.aborted
