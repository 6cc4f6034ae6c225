"""Figg's server: the threats of docs/security.md, and the guarantees to publishers and subscribers."""

from __future__ import annotations

from random import Random
from struct import pack
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.fanout import TURN
from fyrehose.broker.policy import LOOPBACK, parse
from fyrehose.broker.quotas import PeerLimits
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.streams import UNLIMITED, StreamRule, StreamRules
from fyrehose.errors import ConfigError, JournalCorrupt
from fyrehose.interfaces import JournalState
from fyrehose.options import build
from fyrehose.protocols.figg.frames import (
    Ack,
    Attach,
    Attached,
    Data,
    DataRun,
    Detach,
    Detached,
    Ping,
    Pong,
    Publish,
)
from fyrehose.protocols.figg.server import FiggFactory, FiggSettings
from fyrehose.protocols.figg.session import FiggClientSession
from fyrehose.records import Run
from fyrehose.testing import ClientSide, MemoryJournal


@attrs.define(eq=False)
class FiggPeer(ClientSide):
    """A client that sends single frames."""

    session: FiggClientSession = attrs.field(factory=FiggClientSession)

    def say(self, *frames: Any) -> None:
        self.send(b"".join(frame.serialize() for frame in frames))

    def hear(self) -> list[Any]:
        """Return the frames that the server sent since the last call, one message each."""
        events: list[Any] = []
        for event in self.session.receive_data(self.received()):
            if isinstance(event, DataRun):
                run = Run(stream="x", source="x", lengths=event.lengths, payload=event.payload)
                events += [
                    Data(topic=event.topic, number=event.first + i, data=bytes(p)) for i, p in enumerate(run.payloads())
                ]
            else:
                events.append(event)
        return events


@attrs.define(eq=False)
class Server:
    journal: MemoryJournal
    broker: Broker
    clock: Clock
    factory: Any

    def connect(self, port: int = 5000) -> FiggPeer:
        return FiggPeer.connect(self.factory, self.clock, port=port)

    def stored(self, stream: str = "t") -> list[bytes]:
        found, start = [], 1
        while runs := self.journal.read(stream, start, 1 << 20):
            found += [bytes(p) for run in runs for p in run.payloads()]
            start = runs[-1].last_seq + 1
        return found

    def count(self, what: str) -> int:
        return self.broker.counters.counts["figg", what]


def make(
    auto: bool = True, limits: PeerLimits | None = None, rules: StreamRules = UNLIMITED, **settings: Any
) -> Server:
    journal, clock = MemoryJournal(auto=auto), Clock()
    broker = Broker(clock, journal, Sequencer(), limits=limits or PeerLimits(), rules=rules)
    broker.open()
    return Server(
        journal, broker, clock, FiggFactory(broker, FiggSettings(**{"refusal_delay": 0.0, **settings}), clock)
    )


def publish(number: int, data: bytes = b"x", topic: str = "t") -> Publish:
    return Publish(topic=topic, number=number, data=data)


def data(number: int, payload: bytes = b"x", topic: str = "t") -> Data:
    return Data(topic=topic, number=number, data=payload)


class TestPublish:
    def test_one_ack_is_sent_when_all_messages_of_a_commit_are_durable(self) -> None:
        server = make(auto=False)
        peer = server.connect()
        peer.say(publish(1))
        peer.say(publish(2), publish(3, topic="other"))
        assert peer.hear() == []
        server.journal.commit()
        assert peer.hear() == [Ack(number=3)]
        assert server.clock.getDelayedCalls() == [], "no ACK is delayed"

    def test_record_holds_the_peer_and_the_seq_num(self) -> None:
        server = make()
        server.connect(port=777).say(publish(41, b"a"), publish(42, b"b"))
        (run,) = server.journal.read("t", 1, 100)
        assert (run.source, run.producer, run.producer_seq) == ("figg", "127.0.0.1:777", 41)

    def test_threat_seq_num_that_goes_backwards_or_jumps_is_accepted(self) -> None:
        server = make()
        peer = server.connect()
        heard = []
        for number in (7, 3, 3, (1 << 64) - 1, 1):
            peer.say(publish(number, b"%d" % number))
            heard += peer.hear()
        assert heard == [Ack(number=n) for n in (7, 3, 3, (1 << 64) - 1, 1)]
        assert len(server.stored()) == 5, "nothing is de-duplicated"

    def test_threat_message_resent_after_a_reconnect_is_stored_twice(self) -> None:
        """If the connection is lost before the ACK, the client resends the message, and it is stored twice."""
        server = make(auto=False)
        peer = server.connect()
        peer.say(publish(1, b"once"))
        server.journal.commit()
        peer.leave()
        again = server.connect()
        again.say(publish(1, b"once"))
        server.journal.commit()
        assert again.hear() == [Ack(number=1)]
        assert server.stored() == [b"once", b"once"]

    @pytest.mark.parametrize("window", [1, 10_000])
    def test_payloads_are_delivered_unchanged_for_any_window(self, window: int) -> None:
        server = make()
        reader, writer = server.connect(), server.connect()
        reader.say(Attach(topic="t"))
        assert reader.hear() == [Attached(topic="t", offset=0)]
        payloads = [bytes([i % 256]) * (i % 300) for i in range(1000 if window == 1 else 20_000)]
        got: list[bytes] = []
        for start in range(0, len(payloads), window):
            part = payloads[start : start + window]
            wire = b"".join(publish(start + i + 1, p).serialize() for i, p in enumerate(part))
            for at in range(0, len(wire), 65_536):
                writer.protocol.dataReceived(wire[at : at + 65_536])
            assert writer.hear()[-1] == Ack(number=start + len(part))
            while heard := reader.hear():
                got += [event.data for event in heard]
        assert got == payloads


class TestRefusedAmongOthers:
    """Messages before a refused PUBLISH are stored and acknowledged; messages after it are not stored."""

    def server(self, **settings: Any) -> Server:
        server = make(auto=False, **settings)
        server.broker.guard.change(LOOPBACK)
        return server

    @pytest.mark.parametrize("refused", [".dot", "small", "new"], ids=["forbidden", "too-large", "too-many-streams"])
    def test_refusal_does_not_depend_on_chunking(self, refused: str) -> None:
        frames = [publish(1, b"one"), publish(2, b"two", topic="u"), publish(3, b"no", topic=refused)]
        frames += [publish(4, b"after"), publish(5, b"after", topic="u")]
        wire = b"".join(frame.serialize() for frame in frames)
        for cut in range(len(wire)):
            server = self.server()
            server.broker.restrict("small", 1)
            server.broker.max_streams = 2 if refused == "new" else 100
            peer = server.connect()
            for piece in (wire[:cut], wire[cut:]):
                peer.protocol.dataReceived(piece)
            assert not peer.transport.disconnecting, "the connection stays open until earlier messages are durable"
            server.journal.commit()
            assert peer.hear() == [Ack(number=2)]
            assert (server.stored("t"), server.stored("u")) == ([b"one"], [b"two"])
            assert server.journal.ends() == {"t": 1, "u": 1}
            assert peer.transport.disconnecting
            peer.leave()
            assert server.broker.budget.used == 0

    def test_full_disk_refuses_all_messages_in_one_step(self) -> None:
        server = self.server()
        server.journal.enter(JournalState.READ_ONLY, "full")
        server.connect().say(*(publish(i, topic=f"t{i}") for i in range(1, 100)))
        assert server.count("ReadOnly") == 1

    def test_follower_closes_connections_of_publishers_at_once(self, log_lines: list[str]) -> None:
        server = self.server()
        server.journal.follow("10.0.0.1:8117")
        server.broker.open()
        peer = server.connect()
        peer.say(publish(1))
        assert peer.transport.disconnecting, "the client finds the leader, and need not wait for this server"
        assert server.count("Following") == 1
        assert "another server leads; publish there" in log_lines[-1]

    def test_log_names_a_reserved_topic(self, log_lines: list[str]) -> None:
        server = self.server()
        server.connect().say(publish(1, topic=".dot"))
        (line,) = log_lines
        assert "may not publish into stream '.dot': names that begin with a dot are reserved for the server" in line


class TestAttachBehindPublishes:
    """The offset in ATTACHED includes the PUBLISHes before the ATTACH on the connection, and none after it."""

    def test_attach_waits_until_earlier_publishes_are_durable(self) -> None:
        server = make(auto=False)
        peer = server.connect()
        peer.say(publish(1), publish(2), Attach(topic="t"), publish(3, b"behind"), Ping(number=7))
        assert peer.hear() == []
        assert peer.transport.producerState == "paused"
        server.journal.commit()
        assert peer.hear() == [Ack(number=2), Attached(topic="t", offset=2), Pong(number=7)]
        assert peer.transport.producerState == "producing"
        server.journal.commit()
        assert sorted(peer.hear(), key=repr) == [Ack(number=3), data(3, b"behind")]

    def test_attach_without_earlier_publishes_is_answered_immediately(self) -> None:
        server = make(auto=False)
        peer, other = server.connect(), server.connect()
        other.say(publish(1))
        peer.say(Attach(topic="t"))
        assert peer.hear() == [Attached(topic="t", offset=0)]

    def test_postponed_events_are_charged_and_released(self) -> None:
        server = make(auto=False)
        peer = server.connect()
        peer.say(publish(1), Attach(topic="t"), publish(2, bytes(10_000)))
        assert server.broker.budget.used > 10_000
        peer.leave()
        server.journal.commit()
        assert server.broker.budget.used == 0

    def test_drain_drops_postponed_events(self) -> None:
        server = make(auto=False)
        peer = server.connect()
        peer.say(publish(1), Attach(topic="t"), publish(2))
        server.factory.drain()
        server.journal.commit()
        assert peer.hear() == [Ack(number=1)]
        assert server.stored() == [b"x"]
        assert peer.transport.disconnecting


class TestAttach:
    def test_attach_without_offset_delivers_new_messages_only(self) -> None:
        server = make()
        server.connect().say(publish(1), publish(2))
        peer = server.connect()
        peer.say(Attach(topic="t"))
        assert peer.hear() == [Attached(topic="t", offset=2)]
        server.connect().say(publish(1, b"new"))
        assert peer.hear() == [data(3, b"new")]

    def test_threat_second_attach_of_a_topic_moves_the_subscription(self) -> None:
        server = make()
        server.connect().say(*(publish(i, b"%d" % i) for i in range(1, 4)))
        peer = server.connect()
        peer.say(Attach(topic="t", offset=0), Attach(topic="t", offset=2))
        assert peer.hear() == [Attached(topic="t", offset=0), Attached(topic="t", offset=2), data(3, b"3")]
        server.connect().say(publish(1, b"4"))
        assert peer.hear() == [data(4, b"4")], "once, not twice"
        peer.say(Attach(topic="t", offset=1))
        assert [event.number for event in peer.hear()[1:]] == [2, 3, 4]

    @pytest.mark.parametrize("offset", [4, 1 << 32, (1 << 64) - 1])
    def test_threat_attach_at_a_future_offset_starts_at_the_oldest_message(self, offset: int) -> None:
        """The offset is one of another journal, and every message of this one is new to the client."""
        server = make()
        server.connect().say(*(publish(i) for i in range(1, 4)))
        peer = server.connect()
        peer.say(Attach(topic="t", offset=offset))
        attached, *messages = peer.hear()
        assert attached == Attached(topic="t", offset=0)
        assert [event.number for event in messages] == [1, 2, 3]

    def test_threat_attach_at_an_expired_offset_starts_at_the_oldest_message(self) -> None:
        server = make()
        for i in range(1, 6):
            server.connect().say(publish(i, b"%d" % i))
        server.journal.forget("t", 4)
        peer = server.connect()
        peer.say(Attach(topic="t", offset=1))
        assert peer.hear() == [Attached(topic="t", offset=3), data(4, b"4"), data(5, b"5")]

    def test_expired_records_are_skipped_and_counted(self) -> None:
        server = make()
        for i in range(1, 6):
            server.connect().say(publish(i, b"%d" % i))
        peer = server.connect()
        peer.say(Attach(topic="t", offset=1))
        server.journal.forget("t", 4)
        assert peer.hear() == [Attached(topic="t", offset=1), data(4, b"4"), data(5, b"5")]
        assert server.count("skipped") == 2

    def test_detach_ends_the_subscription_and_is_always_answered(self) -> None:
        server = make()
        peer = server.connect()
        peer.say(Attach(topic="t"), Detach(topic="t"), Detach(topic="never attached"))
        assert peer.hear() == [
            Attached(topic="t", offset=0),
            Detached(topic="t"),
            Detached(topic="never attached"),
        ]
        server.connect().say(publish(1))
        assert peer.hear() == []

    def test_threat_subscriptions_of_one_connection_are_limited(self) -> None:
        server = make(max_subscriptions=3)
        peer = server.connect()
        peer.say(*(Attach(topic=f"t{i}") for i in range(3)), Detach(topic="t0"), Attach(topic="t9"))
        peer.say(Attach(topic="t1"))
        assert not peer.transport.disconnecting
        peer.say(Attach(topic="one more"))
        assert peer.transport.disconnecting
        assert server.count("too-many-subscriptions") == 1

    def test_threat_streams_created_by_one_address_are_limited(self) -> None:
        server = make(limits=PeerLimits(streams=3))
        peer = server.connect()
        peer.say(*(publish(n, topic=f"topic {n}") for n in range(1, 4)))
        assert peer.hear() == [Ack(number=3)]
        peer.say(publish(4, topic="topic 4"))
        assert peer.transport.disconnecting
        assert server.count("TooManyStreamsFromPeer") == 1
        other = server.connect()
        other.say(publish(1, topic="topic 1"))
        assert other.hear() == [Ack(number=1)]

    def test_publish_to_a_forbidden_new_stream_closes_the_connection_after_earlier_acks(self) -> None:
        server = make(rules=StreamRules((StreamRule(names=("closed",), new_streams=False),)))
        peer = server.connect()
        peer.say(publish(1), publish(2, topic="closed"), publish(3))
        assert peer.hear() == [Ack(number=1)]
        assert peer.transport.disconnecting
        assert server.count("NewStreamForbidden") == 1
        assert (server.stored(), server.stored("closed")) == ([b"x"], [])
        again = server.connect()
        again.say(Attach(topic="closed"), publish(4))
        assert again.hear() == [Attached(topic="closed", offset=0), Ack(number=4)]

    def test_threat_subscriptions_of_all_connections_of_an_address_are_limited(self) -> None:
        server = make(limits=PeerLimits(subscriptions=3))
        peers = [server.connect() for _ in range(3)]
        peers[0].say(Attach(topic="a"), Attach(topic="b"))
        peers[1].say(Attach(topic="a"))
        peers[0].say(Attach(topic="a"), Detach(topic="b"), Attach(topic="c"))
        assert not peers[0].transport.disconnecting
        peers[2].say(Attach(topic="a"))
        assert peers[2].transport.disconnecting
        assert server.count("TooManySubscriptions") == 1
        peers[2].leave()
        peers[0].leave()
        again = server.connect()
        again.say(Attach(topic="a"), Attach(topic="b"))
        assert not again.transport.disconnecting
        for peer in (peers[1], again):
            peer.leave()
        assert server.broker.budget.kept == 0

    def test_threat_attaching_to_many_empty_topics_leaves_no_state(self) -> None:
        """Attaching to topics without messages leaves no state on the server."""
        server = make()
        for start in range(0, 3000, 1000):
            peer = server.connect()
            peer.say(*(Attach(topic=f"topic {start + i}") for i in range(1000)))
            peer.hear()
            peer.leave()
        assert server.journal.ends() == {}
        assert server.broker.largest == {}
        assert not server.broker.fanout.cursors


VIOLATIONS = [
    ("frame-too-large", pack(">HHI", 5, 1, 0xFFFFFFFF)),
    ("bad-length", pack(">HHI", 5, 1, 3)),
    ("unknown-type", pack(">HHI", 99, 1, 0)),
    ("wrong-direction", pack(">HHI", 7, 1, 30)),
    ("wrong-version", pack(">HHI", 5, 2, 30)),
    ("bad-length", pack(">HHII", 5, 1, 20, 1) + b"t" + pack(">QI", 1, 2) + b"abc"),
    ("bad-length", pack(">HHII", 5, 1, 20, 1) + b"t" + pack(">QI", 1, 4) + b"abc"),
    ("bad-topic", pack(">HHII", 5, 1, 19, 0) + pack(">QI", 1, 3) + b"abcd"),
]


class Expected:
    """The answers and records of *frames*, by the rules: nothing after a refused PUBLISH has an effect.

    :ivar answers: ATTACHED and PONG in order, each with the number of the last PUBLISH that has to be durable before
    """

    def __init__(self, frames: list[Any], dead_letters: bool) -> None:
        self.stored: dict[str, list[bytes]] = {topic: [] for topic in ("t", "u", "small", ".dot", "dead.figg")}
        self.answers: list[tuple[Any, int]] = []
        self.last, self.refused = 0, False
        for frame in frames:
            if isinstance(frame, Attach):
                answer = Attached(topic=frame.topic, offset=len(self.stored[frame.topic]))
                self.answers.append((answer, self.last))
            elif isinstance(frame, Ping):
                self.answers.append((Pong(number=frame.number), 0))
            else:
                large = frame.topic == "small" and len(frame.data) > 1
                self.refused = frame.topic == ".dot" or (large and not dead_letters)
                if self.refused:
                    return
                self.stored["dead.figg" if large else frame.topic].append(frame.data)
                self.last = frame.number


def random_frame(random: Random, number: int) -> Any:
    topic = random.choice(("t", "t", "u", "small", ".dot" if random.random() < 0.2 else "t"))
    message = publish(number, random.choice((b"x", b"xy")), topic)
    return random.choice((message, message, message, Attach(topic=random.choice("tu")), Ping(number=number)))


@pytest.mark.parametrize("refused", ["close", "dead-letter"])
def test_answers_and_records_are_those_of_the_frames_up_to_the_first_that_is_refused(refused: str) -> None:
    """However they are cut and committed, and also if a violation or the end follows."""
    for seed in range(300):
        random = Random(seed)
        server = make(auto=False, refused=refused)
        server.broker.guard.change(LOOPBACK)
        server.broker.restrict("small", 1)
        frames = [random_frame(random, number) for number in range(1, random.randrange(2, 12))]
        expected = Expected(frames, refused == "dead-letter")
        cause, violation = random.choice([*VIOLATIONS, *[("", b"")] * 8])
        wire = b"".join(frame.serialize() for frame in frames) + violation
        peer, at, heard, ends = server.connect(), 0, list[Any](), random.random() < 0.3
        while at < len(wire):
            cut = at + random.choice((1, 10, 50, len(wire)))
            peer.protocol.dataReceived(wire[at:cut])
            at = cut
            if random.random() < 0.3:
                server.journal.commit()
            heard += peer.hear()
        if ends:
            peer.protocol.readConnectionLost()
        for _ in frames:
            server.journal.commit()
            heard += peer.hear()
        acks = [event.number for event in heard if isinstance(event, Ack)]
        assert (acks, acks[-1:]) == (sorted({*acks}), [expected.last] if expected.last else [])
        assert [event for event in heard if isinstance(event, Attached | Pong)] == [
            said for said, _ in expected.answers
        ]
        acked, behind = 0, [number for _, number in expected.answers]
        for event in heard:
            acked = event.number if isinstance(event, Ack) else acked
            if isinstance(event, Attached | Pong):
                assert behind.pop(0) <= acked, "ATTACHED came before the PUBLISHes in front of it were durable"
        assert {topic: server.stored(topic) for topic in expected.stored} == expected.stored
        assert peer.transport.disconnecting == (expected.refused or bool(violation) or ends)
        counted = sum(map(server.count, ("Forbidden", "PayloadTooLarge")))
        assert counted == expected.refused, "a refusal is counted once, although parts are published again"
        assert not violation or server.count(cause) == (not expected.refused)
        peer.leave()
        assert server.broker.budget.used == 0


class TestProtocolViolations:
    def test_threat_4_gib_announced_allocates_nothing(self) -> None:
        server = make()
        peer = server.connect()
        peer.protocol.dataReceived(pack(">HHI", 5, 1, 0xFFFFFFFF))
        assert peer.transport.disconnecting
        assert server.broker.budget.used == 0


class TestOthers:
    """Subscribers do not affect each other."""

    def test_threat_slow_subscriber_takes_bounded_memory_and_does_not_delay_others(self) -> None:
        """A subscriber that does not read holds the deliveries of one turn in memory, however much is published."""
        server = make()
        slow, fast, writer = server.connect(), server.connect(), server.connect()
        for peer in (slow, fast):
            peer.say(Attach(topic="t"))
            peer.hear()
        got = 0
        for i in range(100):
            writer.say(publish(i + 1, bytes(100_000)))
            if len(slow.transport.value()) > 65_536:
                slow.protocol.pauseProducing()  # as a real transport does
            got += len(fast.hear())
        assert got == 100
        assert len(slow.transport.value()) <= TURN + 200_000
        server.clock.advance(60)
        assert slow.transport.aborted

    def test_damaged_journal_ends_its_subscriptions(self, logged_errors: Any) -> None:
        server = make()
        reader, writer = server.connect(), server.connect()
        reader.say(Attach(topic="t"))
        reader.hear()

        def damaged(*_: Any) -> None:
            raise JournalCorrupt("damaged")

        server.journal.before_read = damaged
        writer.say(publish(1))
        assert writer.hear() == [Ack(number=1)]
        reader.hear()
        assert reader.transport.disconnecting
        assert logged_errors.take()

    def test_deliveries_are_encoded_once(self, monkeypatch: Any) -> None:
        from fyrehose.protocols.figg import frames as module

        server = make()
        readers = [server.connect() for _ in range(16)]
        for reader in readers:
            reader.say(Attach(topic="t"))
            reader.hear()
        encoded = []
        real = module.kernel.frames
        monkeypatch.setattr(module.kernel, "frames", lambda *args: encoded.append(args) or real(*args))
        server.connect().say(publish(1, b"a"), publish(2, b"b"))
        assert all(len(reader.hear()) == 2 for reader in readers)
        assert len(encoded) == 1


def test_settings_are_parsed_and_checked() -> None:
    assert build(FiggSettings, "figg", {"max-payload": "1MiB", "max_per_host": 5}) == FiggSettings(
        max_payload=1 << 20, max_per_host=5
    )
    with pytest.raises(ConfigError, match="max-payload must be from 1 to 16MiB"):
        build(FiggSettings, "figg", {"max_payload": "17MiB"})


def test_forbidden_topic_is_not_attached() -> None:
    """Not even ATTACHED is sent, because its offset would tell the length of the stream."""
    server = make()
    server.broker.guard.change(parse({"allow": [{"network": "0.0.0.0/0", "publish": "a", "subscribe": "b"}]}))
    peer = server.connect()
    peer.say(Attach(topic="a", offset=0))
    assert peer.hear() == []
    assert peer.transport.disconnecting
    peer = server.connect()
    peer.say(Attach(topic="b", offset=0), Publish(topic="b", number=1, data=b"x"))
    assert peer.hear() == [Attached(topic="b", offset=0)]
    assert peer.transport.disconnecting
    assert server.count("Forbidden") == 2


class TestDeadLetters:
    """With ``refused=dead-letter`` a message that would be refused is kept, and what is behind it goes on."""

    def server(self, refused: str = "dead-letter", auto: bool = True) -> Server:
        server = make(auto=auto, refused=refused)
        server.broker.guard.change(LOOPBACK)
        server.broker.restrict("small", 1)
        return server

    def test_message_that_is_too_large_is_kept_and_acknowledged_when_it_is_durable(self) -> None:
        server = self.server(auto=False)
        peer = server.connect()
        peer.say(publish(1, b"one"), publish(2, b"no", topic="small"), publish(3, b"three"))
        assert peer.hear() == []
        server.journal.commit()
        assert peer.hear() == [Ack(number=3)]
        assert not peer.transport.disconnecting
        assert (server.stored(), server.stored("dead.figg"), server.count("dead-letters")) == (
            [b"one", b"three"],
            [b"no"],
            1,
        )
        (run,) = server.journal.read("dead.figg", 1, 100)
        assert (run.producer, run.producer_seq, run.topic) == ("127.0.0.1:5000", 2, "PayloadTooLarge 2 small")
        assert "small" not in server.journal.ends()
        peer.leave()
        assert server.broker.budget.used == 0

    def test_client_that_resends_a_refused_message_first_continues_only_with_dead_letters(self) -> None:
        """The Go SDK sends everything without an ACK again, in order, on each new connection."""
        window = [publish(1, b"no", topic="small"), publish(2, b"behind it")]
        for refused, acknowledged in (("close", 0), ("dead-letter", 2)):
            server = self.server(refused)
            unacknowledged = list(window)
            for attempt in range(3):
                peer = server.connect(port=5000 + attempt)
                peer.say(*unacknowledged)
                last = max((ack.number for ack in peer.hear()), default=0)
                unacknowledged = [frame for frame in unacknowledged if frame.number > last]
                peer.leave()
            assert len(unacknowledged) == 2 - acknowledged
            assert server.stored() == ([b"behind it"] if acknowledged else [])

    def test_dead_letters_are_stored_even_if_the_limit_of_streams_is_reached(self) -> None:
        server = self.server()
        server.broker.max_streams = 1
        peer = server.connect()
        peer.say(publish(1), publish(2, b"no", topic="new"), publish(3))
        assert peer.hear()[-1] == Ack(number=3)
        assert server.stored("dead.figg") == [b"no"]

    @pytest.mark.parametrize(("refused", "kept"), [("dead-letter", []), ("dead-letter+policy", [b"no"])])
    def test_messages_that_the_policy_refuses_are_kept_only_if_the_option_says_so(
        self, refused: str, kept: list[bytes]
    ) -> None:
        server = self.server(refused)
        peer = server.connect()
        peer.say(publish(1, b"no", topic=".dot"), publish(2))
        peer.hear()
        assert server.stored("dead.figg") == kept
        assert peer.transport.disconnecting is not bool(kept)

    def test_message_is_refused_if_its_dead_letter_cannot_be_stored(self) -> None:
        server = self.server()
        server.broker.restrict("dead.figg", 1)
        peer = server.connect()
        peer.say(publish(1, b"no", topic="small"))
        assert peer.hear() == []
        assert peer.transport.disconnecting
