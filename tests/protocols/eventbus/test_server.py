"""The server between fake ports and a real broker."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import formatEvent

from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import JournalCorrupt
from fyrehose.interfaces import JournalState
from fyrehose.protocols.eventbus import slow_subscribers
from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal

World = Any


@pytest.fixture
def world(make_world: Any) -> World:
    return make_world()


def stop(world: World) -> list[None]:
    """Stop the server; the returned list is not empty when it has stopped."""
    done: list[None] = []
    stopped: Deferred[None] = world.server.stop()
    stopped.addCallback(done.append)
    return done


class TestPublishing:
    def test_pub_is_broadcast_only_when_durable(self, world: World, make_event: Any) -> None:
        world.journal.auto = False
        frames = make_event(7)
        world.publish(*frames)
        assert world.publisher.take() == []
        world.journal.commit()
        world.run()
        assert world.publisher.take() == [[frames[0], b"\0\0\0\0\0\0\0\x01", *frames[2:]]]

    def test_turn_is_one_publish_of_few_runs(self, world: World, make_event: Any) -> None:
        world.publish_all([make_event(n) for n in range(200)])
        (run,) = world.broker.read("eventbus", 1, 1 << 20)
        assert len(run) == 200
        assert world.sequences() == list(range(1, 201))
        assert (world.count("pubs"), world.count("broadcasts")) == (200, 200)

    def test_broadcasts_count_as_delivered_to_each_connected_subscriber(self, world: World, make_event: Any) -> None:
        world.publish(*make_event(1, data=b"abc"))
        tally = world.broker.fanout.tallies["eventbus"]
        assert (tally.subscribers, tally.delivered) == (0, (0, 0))
        world.subscribers = [("10.0.0.1", 7), ("10.0.0.2", 8)]
        world.publish(*make_event(2, data=b"abcd"))
        assert (tally.subscribers, tally.delivered) == (2, (2, 8))
        [cursor] = world.broker.fanout.cursors
        assert cursor.subscriber == ("eventbus", "2 clients")

    def test_option_sends_sequences_as_decimal_digits(self, make_world: Any, make_event: Any) -> None:
        world = make_world(dialect=Dialect.DECIMAL)
        world.publish(*make_event())
        assert world.publisher.take()[0][1] == b"1"

    def test_each_dialect_is_sent_while_it_has_subscribers(self, world: World, make_event: Any) -> None:
        world.subscribers = [("10.0.0.1", 7), ("10.0.0.2", 8)]
        world.subscribe(7, b"/a/")
        world.publish(*make_event(1))
        assert [frames[1] for frames in world.publisher.take()] == [b"\0\0\0\0\0\0\0\1"]
        world.subscribe(8, b"/a")
        assert world.publisher.subscribed == [([b"/a/"], []), ([b"\xffa"], [])]
        world.publish(*make_event(2))
        assert [frames[1] for frames in world.publisher.take()] == [b"\0\0\0\0\0\0\0\2", b"2"]
        assert world.publisher.keys == [b"\xffa/"]
        assert (world.count("decimal-subscribers"), world.count("binary-subscribers")) == (1, 0)
        world.leave(8)
        world.publish(*make_event(3))
        assert world.sequences() == [3]

    def test_event_without_topic_is_sent_once(self, world: World, make_event: Any) -> None:
        world.subscribers = [("10.0.0.1", 7)]
        world.subscribe(7, b"/a")
        world.publish(*make_event(1, topic=b""))
        assert world.sequences() == [1]
        assert world.publisher.keys == [b""], "the key of no bytes stands for all subscribers"

    def test_subscription_of_a_connection_that_has_ended_is_ignored(self, world: World) -> None:
        world.subscribe(7, b"/a")
        assert world.publisher.subscribed == []

    def test_subscriber_with_too_many_subscriptions_is_closed(
        self, world: World, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
    ) -> None:
        monkeypatch.setattr("fyrehose.protocols.eventbus.recognition.MOST", 2)
        world.subscribers = [("10.0.0.1", 7)]
        world.subscribe(7, b"/a/", b"/b/", b"/c/")
        assert world.ended == [("10.0.0.1", 7)]
        assert "too-many-subscriptions from 10.0.0.1 at PORT" in log_lines[-1]

    def test_invalid_pubs_are_counted(self, world: World, make_event: Any, log_lines: list[str]) -> None:
        world.publish_all([[b"x"] * n for n in range(65) if n != 6] + [make_event()])
        assert world.count("wrong-frame-count") == 64
        assert world.sequences() == [1]
        assert len([line for line in log_lines if "wrong-frame-count" in line]) == 1

    def test_invalid_utf8_is_refused_and_sequences_of_publishers_are_ignored(
        self, world: World, make_event: Any
    ) -> None:
        """Threat: bad UTF-8, and a sequence that the client supplies."""
        forged = make_event(1)
        forged[1] = b"\x80" + bytes(7)
        world.publish_all([make_event(0, topic=b"\xff\xfe"), forged])
        assert world.count("bad-topic") == 1
        assert world.sequences() == [1]

    def test_oversized_event_does_not_affect_others(self, world: World, make_event: Any) -> None:
        world.broker.restrict("eventbus", 100)
        events = [make_event(n, data=b"x" * (50 + 100 * (n == 3))) for n in range(6)]
        world.publish_all([*events, make_event(9, topic=b"/b/", data=b"y" * 200)])
        assert len(world.publisher.take()) == 5
        assert world.count("PayloadTooLarge") == 2
        assert world.broker.budget.used == 0

    def test_undurable_events_count_against_the_budget(self, world: World, make_event: Any) -> None:
        world.broker.budget.each = 10_000
        world.journal.auto = False
        world.publish(*make_event(0, data=bytes(20_000)))
        assert not world.collector.reading
        world.journal.commit()
        world.run()
        assert world.collector.reading
        assert world.broker.budget.used == 0

    def test_full_disk_loses_no_event(self, world: World, make_event: Any) -> None:
        world.journal.auto = False
        world.publish(*make_event(1))
        world.journal.enter(JournalState.READ_ONLY, "no room")
        assert not world.collector.reading
        world.publish(*make_event(2))
        world.pass_time(6)
        assert not world.collector.reading
        world.journal.enter(JournalState.WRITABLE, "room again")
        world.journal.auto = True
        world.pass_time(6)
        assert world.collector.reading
        assert [frames[5] for frames in world.publisher.take()] == [b"1", b"2"]
        assert world.broker.budget.used == 0

    def test_records_of_other_protocols_are_broadcast(self, world: World) -> None:
        world.broker.publish([Run.of("eventbus", [b"{}"], source="figg")])
        world.run()
        (frames,) = world.publisher.take()
        assert frames[0] == b""
        assert frames[2] == b"figg"
        assert frames[5] == b"\xc4\x02{}"

    def test_journal_gap_is_counted(self, world: World) -> None:
        world.server.skipped(3, 7)
        assert world.count("skipped") == 5

    def test_duplicates_are_dropped_by_option(self, make_world: Any, make_event: Any) -> None:
        world = make_world(dedup=True)
        world.publish_all([make_event(1), make_event(1), make_event(2)])
        assert len(world.publisher.take()) == 2
        assert world.count("duplicate") == 1

    def test_unpublished_event_is_no_duplicate(self, make_world: Any, make_event: Any, logged_errors: Any) -> None:
        world = make_world(dedup=True)
        world.broker.restrict("eventbus", 3)
        world.publish(*make_event(1, data=b"long"))
        world.broker.restrict("eventbus", 4)
        world.publish(*make_event(1, data=b"long"))
        assert len(world.publisher.take()) == 1


class TestBroadcasting:
    @pytest.mark.parametrize("audience", [0, 1, 250, 5_000])
    def test_turn_of_broadcasts_takes_10_ms_at_the_most(
        self, world: World, audience: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """ZeroMQ takes about 0.5 us for each subscriber that an event passes to, and 10 us for the event."""
        world.subscribers = [("10.0.0.1", n) for n in range(audience)]
        longest, events = 0.0, 2_000 if audience < 5_000 else 40

        def lend(port: Any, frames: Any) -> None:
            world.clock.rightNow += 10e-6 + audience * 0.5e-6
            port.sent.append(list(frames))

        monkeypatch.setattr(type(world.publisher), "lend", lend)
        world.broker.publish([Run.of("eventbus", [b"x"] * events, source="figg")])
        for _ in range(events):  # turns
            began = world.clock.seconds()
            world.clock.advance(0)
            longest = max(longest, world.clock.seconds() - began)
        assert 0.004 < longest < 0.010
        assert world.sequences() == list(range(1, events + 1))

    def test_subscriptions_are_processed_before_broadcasts_and_snapshots(self, world: World) -> None:
        before = world.publisher.processed
        world.ask(b"SYNCSTART", b"", b"0")
        assert world.publisher.processed == before + 1
        world.broker.publish([Run.of("eventbus", [b"x"], source="figg")])
        assert world.publisher.processed == before + 2

    def test_slow_subscriber_is_disconnected_and_others_miss_nothing(
        self, world: World, make_event: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(world.server._memory, "limit", 42_000)
        world.subscribers = [("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.3", 3)]
        unsent = {1: 0, 2: 5_000, 3: 5_000}
        monkeypatch.setattr(slow_subscribers, "_queued", unsent.__getitem__)
        monkeypatch.setattr(slow_subscribers, "_acknowledged", lambda descriptor: 0)
        world.publisher.done = False
        for n in range(4):
            world.publish(*make_event(n, data=bytes(20_000)))
        assert world.sequences() == [1, 2]
        unsent[3] = 0  # it has taken everything since
        world.pass_time(0.9, 0.1)
        assert world.ended == []
        world.pass_time(0.5, 0.1)
        assert world.ended == [("10.0.0.2", 2)]
        assert world.count("subscriber-too-slow") == 1
        world.subscribers.pop(1)
        world.publisher.done = True
        world.pass_time(0.2, 0.1)
        assert world.sequences() == [3, 4], "in order, without a gap"
        assert world.count("broadcast-memory-full") == 0

    def test_small_events_for_250_subscribers_that_do_not_read_take_little_memory(
        self, world: World, make_event: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """ZeroMQ queues 64 bytes for each of the six frames of an event and each subscriber."""
        world.subscribers = [("10.0.0.1", n) for n in range(250)]
        monkeypatch.setattr(slow_subscribers, "_queued", lambda descriptor: 5_000)
        monkeypatch.setattr(slow_subscribers, "_acknowledged", lambda descriptor: 0)
        world.publisher.done = False
        for first in range(0, 5_000, 500):
            world.publish_all([make_event(n, data=bytes(100)) for n in range(first, first + 500)])
        world.pass_time(0.9, 0.02)
        assert 300 < len(world.publisher.sent) <= (48 << 20) // (250 * 6 * 64)
        world.pass_time(0.4, 0.02)
        assert world.ended == world.subscribers
        world.subscribers = []
        world.publisher.done = True
        world.pass_time(0.5, 0.02)
        assert world.sequences() == list(range(1, 5_001)), "others miss nothing"
        assert world.count("broadcast-memory-full") == 0

    def test_unread_events_are_dropped_only_when_memory_is_used_up(
        self, world: World, make_event: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(world.server._memory, "limit", 42_000)
        world.publisher.done = False
        for n in range(10):
            world.publish(*make_event(n, data=bytes(20_000)))
            world.publish(*make_event(n, data=b"small"))
        world.pass_time(9, 0.02)
        assert len([frames for frames in world.publisher.sent if len(frames[5]) > 5]) == 2
        assert len(world.publisher.take()) == 12
        assert world.count("broadcast-memory-full") == 8
        world.publisher.done = True
        world.publish(*make_event(11, data=bytes(20_000)))
        assert world.sequences() == [21]


class TestSnapshots:
    def fill(self, world: World, count: int, topic: str = "/a/") -> None:
        world.broker.publish([Run.of("eventbus", [b"%d" % n for n in range(count)], source="figg", topic=topic)])
        world.run(count // 500 + 5)
        world.publisher.take()

    def test_syncs_precede_syncend(self, world: World, make_event: Any) -> None:
        frames = make_event(7)
        world.publish(*frames)
        world.ask(b"SYNCSTART", b"/a/", b"0")
        world.run()
        assert world.snapshot.take() == [
            [b"c", b"SYNC", frames[0], b"1", *frames[2:]],
            [b"c", b"SYNCEND", b"/a/", b"1"],
        ]

    def test_delimiter_is_returned(self, world: World) -> None:
        world.ask(b"", b"SYNCSTART", b"", b"0")
        world.run()
        assert world.snapshot.take() == [[b"c", b"", b"SYNCEND", b"", b"0"]]

    def test_500_events_of_a_snapshot_are_sent_in_a_turn_and_live_events_do_not_wait(
        self, world: World, make_event: Any
    ) -> None:
        """Threat: a storm of snapshots from 0."""
        self.fill(world, 3_000)
        world.ask(b"SYNCSTART", b"", b"0")
        world.clock.advance(0)
        assert len(world.snapshot.sent) == 500
        world.server.pub_received([b"p", *make_event()], 7)
        world.server.publish_turn()
        world.clock.advance(0)
        assert world.sequences() == [3_001], "broadcasts do not wait for the snapshot"
        world.run()
        sent = world.snapshot.take()
        assert len(sent) == 3_001, "it ends where the stream ended at its start"
        assert world.count("syncs") == 3_000
        assert sent[-1] == [b"c", b"SYNCEND", b"", b"3000"]

    def test_snapshots_take_turns(self, make_world: Any) -> None:
        world = make_world(snapshots=2)
        self.fill(world, 1_500)
        for identity in (b"1", b"2", b"3"):
            world.ask(b"SYNCSTART", b"", b"0", identity=identity)
        order = []
        for _ in range(12):
            world.clock.advance(0)
            order += sorted({frames[0] for frames in world.snapshot.take()})
        assert order[:4] == [b"1", b"2", b"1", b"2"]
        assert order.index(b"3") > 4

    def test_snapshot_that_fails_by_a_bug_ends_and_the_others_go_on(self, world: World, logged_errors: Any) -> None:
        self.fill(world, 10)
        errors = [RuntimeError("bug")]

        def bug(stream: str, start: int) -> None:
            if errors:
                raise errors.pop()

        world.journal.before_read = bug
        for identity in (b"1", b"2"):
            world.ask(b"SYNCSTART", b"", b"0", identity=identity)
        world.clock.pump([0.0] * 12)
        assert {frames[0] for frames in world.snapshot.take()} == {b"2"}
        assert world.broker.counters.counts["eventbus", "snapshot-failed"] == 1
        (event,) = logged_errors.take()
        assert formatEvent(event) == "eventbus: sending a snapshot failed; please report this bug"

    def test_snapshot_waits_for_a_client_that_stops_reading(self, world: World) -> None:
        self.fill(world, 2_000)
        world.snapshot.room[b"c"] = 700
        world.ask(b"SYNCSTART", b"", b"0")
        world.run()
        assert len(world.snapshot.sent) == 700
        world.pass_time(4)
        world.snapshot.room.clear()
        world.server.serve_snapshots()
        world.run()
        sent = world.snapshot.take()
        assert [int(frames[3]) for frames in sent[:-1]] == list(range(1, 2_001))
        assert sent[-1] == [b"c", b"SYNCEND", b"", b"2000"]

    def test_a_snapshot_client_that_stops_reading_for_30_s_is_cancelled(self, world: World) -> None:
        """Threat: a snapshot's client stops reading."""
        self.fill(world, 1_000)
        world.snapshot.room[b"c"] = 10
        world.ask(b"SYNCSTART", b"", b"0")
        world.pass_time(29)
        assert world.count("snapshot-stalled") == 0
        world.pass_time(3)
        assert world.count("snapshot-stalled") == 1
        world.ask(b"SYNCSTART", b"", b"990", identity=b"d")
        world.pass_time(1)
        assert world.snapshot.take()[-1] == [b"d", b"SYNCEND", b"", b"1000"]
        assert not [call for call in world.clock.getDelayedCalls() if call.active()]

    def test_large_snapshot_events_wait_for_memory(self, world: World, make_event: Any) -> None:
        for n in range(20):
            world.publish(*make_event(n, data=bytes(1 << 20)))
        world.snapshot.done = False
        world.ask(b"SYNCSTART", b"", b"0")
        world.pass_time(2, 0.05)
        assert len(world.snapshot.take()) == 1, "2 MiB with all frames"
        world.snapshot.done = True
        world.pass_time(2, 0.05)
        assert world.snapshot.take()[-1] == [b"c", b"SYNCEND", b"", b"20"]

    def test_stalled_client_does_not_delay_others(self, make_world: Any) -> None:
        world = make_world(snapshots=2)
        self.fill(world, 10)
        world.snapshot.room[b"slow"] = 3
        world.ask(b"SYNCSTART", b"", b"0", identity=b"slow")
        world.run()
        world.ask(b"SYNCSTART", b"/z/", b"5", identity=b"quick")
        world.run(2)
        assert [b"quick", b"SYNCEND", b"/z/", b"5"] in world.snapshot.sent

    def test_snapshot_of_a_departed_client_is_cancelled(self, world: World) -> None:
        self.fill(world, 1_000)
        world.snapshot.gone = {b"c"}
        world.ask(b"SYNCSTART", b"", b"0")
        world.run()
        assert world.count("snapshot-left") == 1
        assert not world.clock.getDelayedCalls()

    def test_every_snapshot_ends_when_many_clients_request_one_at_once(self, world: World, make_event: Any) -> None:
        """Threat: a storm of snapshots from 0."""
        self.fill(world, 100)
        for n in range(1_000):
            world.server.request_received([b"%d" % n, b"SYNCSTART", b"", b"0"], 4)
        world.server.serve_snapshots()
        world.run(500)
        sent = world.snapshot.take()
        assert sum(frames[1] == b"SYNCEND" for frames in sent) == 1_000, "specification: the server MUST respond"
        assert len(sent) == 1_000 * 101
        world.server._session.pool.settle()
        assert world.server._session.pool.memory.used == 0

    def test_snapshot_clients_that_do_not_read_do_not_delay_others(self, world: World) -> None:
        self.fill(world, 200)
        stopped = [b"stopped %d" % n for n in range(50)]
        for identity in stopped:
            world.snapshot.room[identity] = 100
            world.ask(b"SYNCSTART", b"", b"0", identity=identity)
        world.run(40)
        world.ask(b"SYNCSTART", b"", b"0", identity=b"reader")
        world.run(20)
        assert world.snapshot.sent[-1] == [b"reader", b"SYNCEND", b"", b"200"]
        snapshots = world.server._session.snapshots
        assert len(snapshots.parked) >= 50 - world.settings.snapshots
        assert all(each._peeked is None for each in snapshots.parked.values()), (
            "parked snapshots hold nothing of the journal"
        )
        for identity in stopped[:10]:
            del world.snapshot.room[identity]
        world.snapshot.take()
        world.pass_time(2)
        ends = [frames[0] for frames in world.snapshot.take() if frames[1] == b"SYNCEND"]
        assert sorted(ends) == sorted(stopped[:10]), "clients that read again get the rest"
        world.pass_time(33)
        assert world.count("snapshot-stalled") == 40
        assert len(world.ended) == 40
        for identity in stopped:
            world.snapshot.room.pop(identity, None)
        world.server._session.pool.settle()
        assert world.server._session.pool.memory.used == 0

    def test_snapshot_starved_by_others_is_not_cancelled(self, world: World, make_event: Any) -> None:
        world.publish(*make_event(1, data=bytes(1 << 20)))
        pool = world.server._session.pool
        hog = pool.account(b"hog", "10.0.0.1")
        world.snapshot.done = False
        hog.add(world.snapshot, pool.limit // 2 - 1_000)
        world.ask(b"SYNCSTART", b"", b"0")
        world.pass_time(60)
        assert world.snapshot.take() == []
        assert world.count("snapshot-stalled") == 0
        world.snapshot.origin = ("10.0.0.2", 8, 1)
        world.ask(b"SYNCSTART", b"", b"0", identity=b"other")
        world.pass_time(1)
        assert [frames[0] for frames in world.snapshot.take()] == [b"other", b"other"], "one network has half"
        world.snapshot.done = True
        world.pass_time(1)
        assert [frames[0] for frames in world.snapshot.take()] == [b"c", b"c"]

    def test_dialect_mismatch_is_logged_once_for_each_client(self, make_world: Any, log_lines: list[str]) -> None:
        world = make_world()
        world.ask(b"SYNCSTART", b"", bytes(8))
        world.ask(b"SYNCSTART", b"", b"")
        assert world.count("decimal-requests") == 0
        for _ in range(2):
            for host in ("10.0.0.1", "10.0.0.2"):
                world.snapshot.origin = (host, 7, 1)
                world.ask(b"SYNCSTART", b"", b"0")
        assert world.count("decimal-requests") == 4
        lines = [line for line in log_lines if "decimal" in line]
        for line, host in zip(lines, ("10.0.0.1", "10.0.0.2"), strict=True):
            assert f"{host} at PORT sends sequences as decimal text" in line
            assert "--option eventbus.dialect=decimal" in line
        for number in range(2 * 1_000):
            world.snapshot.origin = (f"10.1.{number // 250}.{number % 250}", 7, 1)
            world.ask(b"SYNCSTART", b"", b"0")
        assert len([line for line in log_lines if "decimal" in line]) == 1_000, "the log has a limit, too"
        decimal = make_world(dialect=Dialect.DECIMAL)
        decimal.ask(b"SYNCSTART", b"", b"0")
        assert decimal.count("decimal-requests") == 0

    def test_refused_subtree_is_logged_with_the_option_that_helps(self, make_world: Any, log_lines: list[str]) -> None:
        world = make_world()
        world.ask(b"SYNCSTART", b"sensor,/a/", b"")
        assert "bad-subtree from 10.0.0.1 at PORT (client 63): 'sensor,/a/' does not begin and end" in log_lines[-1]
        assert log_lines[-1].endswith("pass --option eventbus.dialect=decimal")
        make_world().ask(b"SYNCSTART", b"sensor", bytes(8))
        assert "bad-subtree" in log_lines[-1]
        assert "--option" not in log_lines[-1], "no option lets a client of the specification ask for it"

    def test_dialect_that_subscriptions_do_not_tell_is_logged(self, world: World, log_lines: list[str]) -> None:
        world.ask(b"SYNCSTART", b"/a", b"0")
        assert world.count("decimal-requests") == 0, "its subscriptions tell it"
        world.ask(b"SYNCSTART", b"/a/,/b/", b"0")
        assert world.count("decimal-requests") == 1
        assert "pass --option eventbus.dialect=decimal, or" in log_lines[-1]

    def test_a_refused_message_is_logged_with_its_address_and_port(self, world: World, log_lines: list[str]) -> None:
        world.publish(b"x")
        assert "wrong-frame-count from 10.0.0.1 at PORT (client 70): 1 frames, expected 6 for an event" in log_lines[-1]

    def test_repeated_request_is_counted(self, world: World) -> None:
        world.ask(b"SYNCSTART", b"", b"0")
        world.ask(b"SYNCSTART", b"", b"0")
        assert world.count("snapshot-replaced") == 1
        world.run()
        assert world.snapshot.take() == [[b"c", b"SYNCEND", b"", b"0"]]

    def test_records_without_matches_are_read_in_small_pieces(self, world: World) -> None:
        for _ in range(20):
            world.broker.publish([Run.of("eventbus", [bytes(60_000)], source="figg", topic="/b/")])
        world.run(40)
        world.ask(b"SYNCSTART", b"/a/", b"0")
        world.clock.advance(0)
        assert world.snapshot.sent == [], "ten pieces are a turn"
        world.run()
        assert world.snapshot.take() == [[b"c", b"SYNCEND", b"/a/", b"0"]]

    def test_damaged_journal_cancels_the_snapshot(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fill(world, 10)

        def damaged(*_: object) -> None:
            raise JournalCorrupt("a bit")

        monkeypatch.setattr(MemoryJournal, "read", damaged)
        world.ask(b"SYNCSTART", b"", b"0")
        world.run()
        assert world.snapshot.take() == []
        assert world.count("journal-corrupt") == 1

    @pytest.mark.parametrize(
        "frames", [[], [b""], [b"SYNCSTART"], [b"HELLO", b"", b""], [b"SYNCSTART", b"x", bytes(8)]]
    )
    def test_invalid_request_is_counted(self, world: World, frames: list[bytes]) -> None:
        world.ask(*frames)
        world.run()
        assert world.snapshot.take() == []
        assert world.broker.counters.counts.total() == 1


class TestStopping:
    def test_stop_is_immediate_when_idle(self, world: World) -> None:
        assert stop(world) == [None]
        assert not world.collector.reading
        assert not world.snapshot.reading
        assert not world.clock.getDelayedCalls()

    def test_stop_publishes_and_broadcasts_arrived_events(self, world: World, make_event: Any) -> None:
        world.journal.auto = False
        world.collector.empty = False
        world.publish(*make_event(1))
        done = stop(world)
        assert world.collector.reading
        world.publish(*make_event(2))
        world.collector.empty = True
        world.server.publish_turn()
        assert not world.collector.reading
        assert done == []
        world.journal.commit()
        world.run()
        assert done == [None]
        assert world.sequences() == [1, 2]
        assert not world.clock.getDelayedCalls()

    def test_stop_waits_until_everything_is_broadcast(self, world: World, make_event: Any) -> None:
        world.journal.auto = False
        world.publish_all([make_event(n, data=bytes(100_000)) for n in range(12)])
        done = stop(world)
        world.journal.commit()
        assert done == []
        world.run()
        assert done == [None]
        assert world.sequences() == list(range(1, 13))

    def test_stop_does_not_wait_for_busy_publishers(self, world: World) -> None:
        world.collector.empty = False
        done = stop(world)
        world.pass_time(1.5)
        assert done == [None]

    def test_stop_does_not_wait_for_a_stuck_journal(self, world: World, make_event: Any) -> None:
        world.journal.auto = False
        world.publish(*make_event(1))
        done = stop(world)
        world.pass_time(11)
        assert done == [None]
        assert not world.clock.getDelayedCalls()
        world.journal.enter(JournalState.READ_ONLY, "late")
        assert not world.clock.getDelayedCalls(), "a later failure schedules nothing"

    def test_stop_cancels_snapshots(self, world: World) -> None:
        world.broker.publish([Run.of("eventbus", [b"x"] * 3_000, source="figg")])
        world.run()
        world.ask(b"SYNCSTART", b"", b"0")
        world.clock.advance(0)
        assert stop(world) == [None]
        assert not world.clock.getDelayedCalls()

    def test_stop_does_not_wait_for_a_publish_that_failed_unexpectedly(
        self, world: World, make_event: Any, monkeypatch: pytest.MonkeyPatch, logged_errors: Any
    ) -> None:
        monkeypatch.setattr(Sequencer, "reserve", Mock(side_effect=RuntimeError("a bug")))
        world.publish(*make_event(1))
        (error,) = logged_errors.take()
        assert "please report this bug" in error["log_format"]
        assert world.broker.budget.used == 0
        assert stop(world) == [None]

    def test_stop_logs_unpublished_events(self, world: World, make_event: Any, log_lines: list[str]) -> None:
        world.journal.enter(JournalState.READ_ONLY, "no room")
        world.publish(*make_event(1))
        assert stop(world) == [None]
        assert world.count("not-published-at-stop") == 1

    def test_ended_subscription_is_logged(self, world: World, logged_errors: Any) -> None:
        world.broker.close()
        assert stop(world) == [None]
        assert logged_errors.take()
