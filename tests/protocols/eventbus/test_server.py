"""The server: guarantees to publishers, subscribers and clients of snapshots; the threats of docs/security.md."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from twisted.logger import formatEvent

from fyrehose.broker.policy import parse
from fyrehose.errors import JournalCorrupt
from fyrehose.interfaces import JournalState
from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.protocols.eventbus.server import (
    SUBSCRIPTION,
    CollectorProtocol,
    PortFactory,
    PublisherProtocol,
    SnapshotProtocol,
)
from fyrehose.protocols.eventbus.session import DealerSession, SubscriberSession
from fyrehose.protocols.eventbus.zmtp import command
from fyrehose.records import Run
from fyrehose.sessions import PIECE
from fyrehose.testing import Transport
from tests.protocols.eventbus.world import Peer, event, make_world


def binary(seq: int) -> bytes:
    return seq.to_bytes(8, "big")


def sequences(messages: list[list[bytes]], at: int = 1) -> list[int]:
    return [int.from_bytes(frames[at], "big") for frames in messages]


class TestPublishing:
    def test_pub_is_broadcast_only_when_durable(self) -> None:
        world = make_world(auto=False)
        subscriber, collector = world.subscriber(b"/a/"), world.collector()
        collector.say(event(1), event(2, b"/b/"))
        assert subscriber.hear() == []
        world.journal.commit()
        assert subscriber.hear() == [[b"/a/", binary(1), *event(1)[2:]]]

    def test_messages_of_one_read_are_one_publish(self) -> None:
        world = make_world(auto=False)
        world.collector().say(*(event(n) for n in range(100)))
        world.journal.commit()
        (run,) = world.broker.read("eventbus", 1, 1 << 20)
        assert (len(run), run.topic, run.producer) == (100, "/a/", "me")

    def test_invalid_messages_are_counted_and_the_connection_stays(self, log_lines: list[str]) -> None:
        world = make_world(max_payload=100)
        collector = world.collector()
        collector.say([b"x"], event(1, b"\xff"), event(2, data=bytes(101)), event(3))
        assert world.stored() == [b"3"]
        assert [world.count(cause) for cause in ("wrong-frame-count", "bad-topic", "data-too-large")] == [1, 1, 1]
        assert not collector.transport.disconnecting
        assert "wrong-frame-count from 127.0.0.1 at COLLECTOR (port" in log_lines[-3]

    def test_event_that_is_refused_takes_no_other_with_it(self) -> None:
        world = make_world()
        world.broker.restrict("eventbus", 10)
        world.collector().say(*(event(n, data=bytes(11 if n == 3 else n)) for n in range(1, 6)))
        assert world.stored() == [bytes(n) for n in (1, 2, 4, 5)]
        assert world.count("PayloadTooLarge") == 1

    def test_sequence_of_a_publisher_is_ignored(self) -> None:
        world = make_world()
        subscriber = world.subscriber(b"")
        world.collector().say(event(1, sequence=b"\x80" + bytes(7)))
        assert sequences(subscriber.hear()) == [1]

    def test_duplicates_are_dropped_by_option(self) -> None:
        world = make_world(dedup=True)
        first, second = world.collector(), world.collector()
        first.say(event(1), event(2), event(1), event(3, uuid=b"odd"))
        second.say(event(2), event(3, uuid=b"odd"), event(4))
        assert world.stored() == [b"1", b"2", b"3", b"4"]
        assert world.count("duplicate") == 3

    @pytest.mark.parametrize(("size", "rights"), [(11, "publish"), (1, "subscribe")], ids=["too large", "forbidden"])
    def test_event_that_was_not_published_is_no_duplicate(self, size: int, rights: str) -> None:
        world = make_world(dedup=True)
        world.broker.restrict("eventbus", 10)
        for allowed, data in ((rights, bytes(size)), ("publish", b"again")):
            world.broker.guard.change(parse({"allow": [{"network": "127.0.0.1", "publish": "*"}]}))
            collector = world.collector()
            world.broker.guard.change(parse({"allow": [{"network": "127.0.0.1", allowed: "*"}]}))
            collector.say(event(1, data=data))
        assert world.stored() == [b"again"]

    def test_full_disk_loses_no_event_that_was_read(self, log_lines: list[str]) -> None:
        """The events wait in order, and nothing is read behind them; those that wait at the end are logged."""
        seen: Counter[str] = Counter()
        for seed in range(60):
            random, world, said = Random(seed), make_world(), 0
            collector, others = world.collector(), random.randint(1, 5)

            def event_of(n: int, topics: int = others) -> list[bytes]:
                return event(n, b"/%d/" % (n % topics))

            for _ in range(12):
                step = random.choice(("say", "say", "full", "room", "time"))
                seen[step] += 1
                if step == "say":  # although nothing is read: it was on its way
                    count = random.randint(1, 4)
                    collector.say(*map(event_of, range(said, said + count)))
                    said += count
                elif step == "time":
                    world.clock.advance(5)
                else:
                    full = step == "full"
                    world.journal.enter(JournalState.READ_ONLY if full else JournalState.WRITABLE, "the disk")
                stored = world.stored()
                assert stored == [b"%d" % n for n in range(len(stored))], "events are missing, or not in order"
                waits = len(stored) < said
                assert collector.transport.reads != waits, f"{said - len(stored)} events wait"
                assert (world.broker.budget.used > 0) == waits, "the memory of the events that wait"
            log_lines.clear()
            waiting = said - len(world.stored())
            world.factory.drain()
            collector.transport.loseConnection()
            world.clock.advance(5)
            lost = said - len(world.stored())
            seen["lost at the stop"] += lost > 0
            assert any(f"{lost} events" in line for line in log_lines) == (lost > 0), f"{waiting} waited, {log_lines}"
            assert world.broker.budget.used == 0, "their memory is free again"
        assert set(seen) == {"say", "full", "room", "time", "lost at the stop"}, seen

    def test_busy_collector_is_not_closed_for_another_connection(self) -> None:
        world = make_world(auto=False, max_connections=1)
        collector = world.collector()
        collector.say(event(1))
        assert not collector.protocol.is_idle()

    def test_clients_with_one_identity_do_not_meet(self) -> None:
        world = make_world()
        for _ in range(2):
            world.connect(CollectorProtocol, Named()).say(event(1))
        assert world.stored() == [b"1", b"1"]


class Named(DealerSession):
    """A session that gives itself an identity."""

    def __init__(self) -> None:
        super().__init__()
        self._metadata = b"\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x02id"


class TestBroadcasting:
    def test_only_subscribed_topics_are_sent_from_the_first_subscription_on(self) -> None:
        world = make_world()
        collector = world.collector()
        subscriber = world.subscriber()
        collector.say(event(1))
        subscriber.subscribe(b"/a/", b"/c")
        collector.say(event(2), event(3, b"/b/"), event(4, b"/c"))
        assert [frames[5] for frames in subscriber.hear()] == [b"2", b"4"]

    def test_broadcast_that_fails_by_a_bug_ends_its_connection_and_no_other(self, logged_errors: Any) -> None:
        class Buggy(Transport):
            failing = False

            def write(self, data: bytes) -> None:
                if self.failing:
                    raise RuntimeError("bug")
                super().write(data)

        world, transport = make_world(), Buggy()
        failing, other = world.subscriber(b"/a/", transport=transport), world.subscriber(b"/a/")
        transport.failing = True
        world.collector().say(event(1), event(2))
        assert sequences(other.hear()) == [1, 2]
        assert failing.transport.disconnecting
        (logged,) = logged_errors.take()
        assert formatEvent(logged) == (
            "the subscription of eventbus 127.0.0.1:54321 to stream 'eventbus' ends: its sink failed; please report "
            "this bug"
        )

    def test_nothing_is_sent_after_the_last_subscription_has_ended(self) -> None:
        world = make_world()
        subscriber, collector = world.subscriber(b"/a/", b"/b/"), world.collector()
        subscriber.send(command(b"CANCEL", b"/a/"))
        collector.say(event(1), event(2, b"/b/"))
        assert sequences(subscriber.hear()) == [2]
        subscriber.send(command(b"CANCEL", b"/b/"))
        collector.say(event(3), event(4, b"/b/"))
        assert subscriber.hear() == []
        assert world.broker.fanout.subscribers("eventbus") == 0
        subscriber.subscribe(b"/a/")
        collector.say(event(5))
        assert sequences(subscriber.hear()) == [5]

    def test_both_dialects_are_sent_at_once(self) -> None:
        world = make_world()
        text, reference = world.subscriber(b"/a/"), world.subscriber(b"/a")
        world.collector().say(event(1))
        assert [text.hear()[0][1], reference.hear()[0][1]] == [binary(1), b"1"]

    def test_records_of_other_protocols_are_broadcast(self) -> None:
        world = make_world()
        subscriber = world.subscriber(b"")
        world.broker.publish([Run.of("eventbus", [b"hi"], source="figg")])
        (frames,) = subscriber.hear()
        assert (frames[0], frames[2], frames[5]) == (b"", b"figg", b"\xc4\x02hi")

    def test_subscriber_that_does_not_read_costs_a_piece_and_loses_nothing(self) -> None:
        world = make_world()
        transport = Transport()
        slow, other = world.subscriber(b"/a/", transport=transport), world.subscriber(b"/a/")
        slow.protocol.pauseProducing()
        collector = world.collector()
        for n in range(200):
            collector.say(event(n, data=bytes(10_000)))
        assert len(other.hear()) == 200
        assert len(transport.value()) == 0
        slow.protocol.resumeProducing()
        assert sequences(slow.hear()) == list(range(1, 201))

    def test_events_larger_than_a_piece_are_sent_whole(self) -> None:
        world = make_world()
        subscriber = world.subscriber(b"")
        large = bytes(range(256)) * 4_096
        world.collector().say(event(1, data=large), event(2))
        world.broker.publish([Run.of("eventbus", [large], source="figg")])
        assert [frames[5] for frames in subscriber.hear()] == [large, b"2", b"\xc6\0\x10\0\0" + large]

    def test_skipped_records_are_counted(self) -> None:
        world = make_world()
        world.subscriber(b"").protocol.skipped(3, 5)
        assert world.count("skipped") == 3

    def test_end_of_the_subscription_closes_the_connection(self) -> None:
        world = make_world()
        subscriber = world.subscriber(b"")
        subscriber.protocol.ended(JournalCorrupt("damaged"))
        assert subscriber.transport.disconnecting

    def test_subscriptions_of_one_network_take_at_most_half_of_the_memory(self) -> None:
        world = make_world()
        first = world.subscriber(b"/a/")
        world.factory.subscriptions.take("127.0.0.1", (128 << 20) - 300)
        first.subscribe(b"/b/")
        assert first.transport.disconnecting
        assert world.count("too-many-subscriptions") == 1
        other = world.subscriber(b"/b/", host="10.0.0.2")
        assert not other.transport.disconnecting

    def test_memory_of_subscriptions_is_that_of_the_prefixes_that_connections_have(self) -> None:
        world, random = make_world(), Random(1)
        held: list[tuple[Peer, str, set[bytes]]] = []
        for _ in range(300):
            if not held or random.random() < 0.1:
                host = random.choice(("10.0.0.1", "10.0.0.2"))
                held.append((world.subscriber(host=host), host, set()))
            peer, _, prefixes = random.choice(held)
            prefix, on = random.choice((b"", b"/a/", b"/b/" * 900)), random.random() < 0.6
            peer.session.send([b"\1" + prefix if on else b"\0" + prefix])
            peer.flush()
            (prefixes.add if on else prefixes.discard)(prefix)
            if random.random() < 0.1:
                peer.leave()
                held = [each for each in held if each[0] is not peer]
            for host in ("10.0.0.1", "10.0.0.2"):
                each = [SUBSCRIPTION + len(one) for _, at, own in held if at == host for one in own]
                assert world.factory.subscriptions.used_by(host) == sum(each), host


class TestSnapshots:
    def test_syncs_precede_syncend(self) -> None:
        world = make_world()
        world.publish(3)
        asking = world.snapshot()
        asking.say([b"SYNCSTART", b"/a/", binary(1)])
        assert asking.hear() == [
            [b"SYNC", b"/a/", binary(2), *event(2)[2:5], b"000002"],
            [b"SYNC", b"/a/", binary(3), *event(3)[2:5], b"000003"],
            [b"SYNCEND", b"/a/", binary(3)],
        ]
        asking.say([b"SYNCSTART", b"/a/", b"2"])
        assert [frames[-1] for frames in asking.hear()] == [b"000003", b"3"]

    @pytest.mark.parametrize(
        ("since", "spec", "end"),
        [(0, b"/z/", 0), (2, b"/z/", 2), (3, b"", 3), (4, b"", 3), (1 << 47, b"/z/", 3)],
    )
    def test_syncend_without_a_sync_has_the_number_of_the_request_up_to_the_end(
        self, since: int, spec: bytes, end: int
    ) -> None:
        world = make_world()
        world.publish(3)
        asking = world.snapshot()
        asking.say([b"SYNCSTART", spec, binary(since)])
        assert asking.hear() == [[b"SYNCEND", spec, binary(end)]]

    def test_stream_whose_records_are_all_deleted_is_answered(self) -> None:
        world = make_world()
        world.publish(3)
        world.journal.forget("eventbus", 4)
        asking = world.snapshot()
        asking.say([b"SYNCSTART", b"", binary(1)])
        assert asking.hear() == [[b"SYNCEND", b"", binary(1)]]

    def test_delimiter_is_returned(self) -> None:
        world = make_world()
        asking = world.snapshot()
        asking.say([b"", b"SYNCSTART", b"", b"0"])
        assert asking.hear() == [[b"", b"SYNCEND", b"", b"0"]]

    def test_second_request_replaces_the_first(self) -> None:
        world = make_world()
        world.publish(3)
        asking = world.snapshot()
        asking.say([b"SYNCSTART", b"", binary(0)], [b"SYNCSTART", b"", binary(2)])
        assert [frames[0] for frames in asking.hear()] == [b"SYNC", b"SYNCEND"]
        assert world.count("snapshot-replaced") == 1
        asking.protocol.pauseProducing()  # the answer has begun, and waits for the client
        asking.say([b"SYNCSTART", b"", binary(0)])
        world.clock.advance(0)
        assert world.broker.fanout.subscribers("eventbus") == 1
        asking.say([b"SYNCSTART", b"", binary(2)])
        asking.protocol.resumeProducing()
        world.clock.advance(0)
        assert [frames[0] for frames in asking.hear()] == [b"SYNC", b"SYNCEND"]
        assert world.broker.fanout.subscribers("eventbus") == 0

    def test_subscription_that_arrived_earlier_begins_before_the_end_of_the_snapshot(self) -> None:
        """The server may read the connection to SNAPSHOT first, although the subscription was sent before."""
        world = make_world()
        subscriber, asking, collector = world.subscriber(), world.snapshot(), world.collector()
        asking.say([b"SYNCSTART", b"", b"0"])
        collector.say(event(1))
        subscriber.subscribe(b"")
        collector.say(event(2))
        syncs = [int(frames[2]) for frames in asking.hear()]
        assert syncs[-1] >= sequences(subscriber.hear())[0] - 1, "no event is in neither of them"

    def test_every_event_is_sent_once_in_pieces_with_other_events_between(self) -> None:
        world = make_world()
        world.publish(500, size=1_000)
        world.publish(1, size=PIECE)  # the last one in a piece of its own
        asking = world.snapshot()
        asking.say([b"SYNCSTART", b"/a/", b"0"])
        found = asking.hear()
        assert [frames[6][:6] for frames in found[:-1]] == [b"%06d" % n for n in (*range(1, 501), 1)]
        assert found[-1] == [b"SYNCEND", b"/a/", b"501"]

    def test_clients_that_do_not_read_delay_nobody_and_are_disconnected(self) -> None:
        world = make_world()
        world.publish(500, size=1_000)
        stopped = [world.snapshot(transport=Transport()) for _ in range(20)]
        for peer in stopped:
            peer.protocol.pauseProducing()
            peer.say([b"SYNCSTART", b"", b"0"])
        asking = world.snapshot()
        asking.say([b"SYNCSTART", b"", b"0"])
        assert len(asking.hear()) == 501
        assert max(len(peer.transport.value()) for peer in stopped) <= PIECE
        world.clock.advance(33)
        assert all(peer.transport.aborted for peer in stopped)
        assert world.count("stalled-peer") == 20

    def test_client_that_leaves_ends_its_snapshot(self) -> None:
        world = make_world()
        world.publish(500, size=1_000)
        asking = world.snapshot()
        asking.say([b"SYNCSTART", b"", b"0"])
        world.clock.advance(0)
        asking.leave()
        assert world.broker.fanout.subscribers("eventbus") == 0

    def test_dialect_that_subscriptions_do_not_tell_is_logged_once(self, log_lines: list[str]) -> None:
        world = make_world()
        for _ in range(2):
            world.snapshot().say([b"SYNCSTART", b"/a/", b"0"])
        assert world.count("decimal-requests") == 2
        assert len([line for line in log_lines if "pass --option eventbus.dialect=decimal" in line]) == 1
        decimal = make_world(dialect=Dialect.DECIMAL)
        decimal.snapshot().say([b"SYNCSTART", b"/a/", b"0"])
        world.snapshot().say([b"SYNCSTART", b"/a,/b", b"0"])
        assert (decimal.count("decimal-requests"), world.count("decimal-requests")) == (0, 2)


class TestConnections:
    def test_greeting_is_sent_first(self) -> None:
        world = make_world()
        peer = Peer.connect(PortFactory(world.factory, SnapshotProtocol), world.clock, session=DealerSession())
        assert peer.received()[:10] == b"\xff" + bytes(8) + b"\x7f"

    def test_handshake_has_a_time_limit(self, log_lines: list[str]) -> None:
        world = make_world(timeout=30.0)
        peer = Peer.connect(PortFactory(world.factory, SnapshotProtocol), world.clock, session=DealerSession())
        peer.send(b"\xff")
        world.clock.advance(10)
        assert peer.transport.disconnecting
        assert "handshake-timeout" in log_lines[-1]

    def test_silent_peer_of_zmtp_3_1_is_pinged_and_dropped(self) -> None:
        world = make_world(timeout=30.0)
        subscriber = world.subscriber(b"/a/")
        world.clock.advance(15)
        assert subscriber.transport.value() == command(b"PING", (450).to_bytes(2, "big"))
        subscriber.hear()
        for _ in range(2):
            world.clock.advance(15)
        assert not subscriber.transport.aborted, "it answered the first PING"
        world.clock.advance(15)
        assert subscriber.transport.aborted
        assert world.count("silent") == 1

    def test_wrong_port_is_named_with_the_sockets_that_fit(self, log_lines: list[str]) -> None:
        world = make_world()
        peer = world.connect(CollectorProtocol, SubscriberSession())
        assert peer.transport.disconnecting
        assert "a socket of type 'SUB'; expected DEALER or ROUTER" in log_lines[-1]

    def test_policy_is_checked_for_the_action_of_the_port(self) -> None:
        world = make_world()
        world.broker.guard.change(parse({"allow": [{"network": "10.0.0.1", "subscribe": "*"}]}))
        assert not world.subscriber(b"", host="10.0.0.1").transport.disconnecting
        assert not world.snapshot(host="10.0.0.1").transport.disconnecting
        assert world.connect(CollectorProtocol, DealerSession(), host="10.0.0.1").transport.disconnecting
        assert world.count("Forbidden") == 1

    def test_connections_that_a_new_policy_does_not_allow_are_closed(self) -> None:
        world = make_world()
        peers = {"subscriber": world.subscriber(b""), "snapshot": world.snapshot(), "collector": world.collector()}
        for rights, gone in (({"publish": "*"}, {"subscriber", "snapshot"}), ({"subscribe": "*"}, {*peers})):
            world.broker.guard.change(parse({"allow": [{"network": "127.0.0.1", **rights}]}))
            world.factory.end_forbidden()
            assert {name for name, peer in peers.items() if peer.transport.disconnecting} == gone, rights

    def test_all_ports_share_the_limit_of_connections(self) -> None:
        world = make_world(max_connections=3)
        peers = [world.subscriber(b""), world.collector(), world.snapshot(), world.snapshot()]
        assert [peer.transport.disconnecting for peer in peers].count(True) == 1
        assert world.count("made-room") == 1


def test_unknown_peers_are_refused_without_an_exception(log_lines: list[Any]) -> None:
    world = make_world()
    for kind in (SnapshotProtocol, PublisherProtocol, CollectorProtocol):
        peer = Peer.connect(PortFactory(world.factory, kind), world.clock, session=DealerSession())
        peer.send(b"GET / HTTP/1.1\r\n\r\n")
        assert peer.transport.disconnecting
        assert "HTTP: connect it to the port of the http or the admin listener" in log_lines[-1]
