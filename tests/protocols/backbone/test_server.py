"""The server between a network in memory and a real broker."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from twisted.logger import formatEvent

from fyrehose.broker.guard import PeerRights
from fyrehose.broker.policy import parse
from fyrehose.errors import JournalCorrupt
from fyrehose.interfaces import JournalState
from fyrehose.net import udp_server
from fyrehose.net.inflight import InFlight
from fyrehose.options import networks
from fyrehose.protocols.backbone import server
from fyrehose.protocols.backbone.frames import (
    MAX_DATA,
    Deliver,
    Flags,
    KeepAlive,
    KeepAliveAck,
    Push,
    Request,
)
from fyrehose.records import LAST_SEQ, Run

CLIENT = ("10.0.0.2", 4000)
OTHER = ("10.0.0.3", 4000)
Make = Callable[..., Any]


def keep_alive(flags: Flags = Flags.NONE) -> KeepAlive:
    return KeepAlive(address=("0.0.0.0", 4000), flags=flags, token=bytes(16))


def ask(world: Any, *clients: Any) -> None:
    """Send a KEEPALIVE of each client, without which a REQUEST is not answered."""
    for client in clients or [CLIENT]:
        world.send(keep_alive(Flags.NOSUBSCRIBE | Flags.NOJOURNAL), source=client)


def delivers(frames: list[object]) -> list[tuple[int, bytes]]:
    return [(frame.seq, frame.data) for frame in frames if isinstance(frame, Deliver)]


def test_push_is_delivered_to_every_subscriber_and_its_publisher(make_world: Make) -> None:
    world = make_world()
    world.send(keep_alive())
    world.send(keep_alive(), source=OTHER)
    world.send(keep_alive(Flags.NOSUBSCRIBE), source=("10.0.0.4", 4000))
    world.send(Push(data=b"one"), Push(data=b""), Push(data=b"three"))
    for destination in (CLIENT, OTHER):
        assert delivers(world.network.sent_to(destination)) == [(1, b"one"), (2, b""), (3, b"three")]
    assert delivers(world.network.sent_to(("10.0.0.4", 4000))) == []
    assert world.count("pushes") == 3
    assert world.count("delivers") == 6


def test_datagrams_to_clients_count_as_delivered(make_world: Make) -> None:
    world = make_world()
    world.send(Push(data=b"abc"))
    tally = world.broker.fanout.tallies["backbone"]
    assert (tally.subscribers, tally.delivered) == (0, (0, 0)), "there is no client"
    world.send(keep_alive(), keep_alive())
    world.send(keep_alive(), keep_alive(), source=OTHER)
    world.send(Push(data=b"abcd"), Push(data=b""))
    assert (tally.subscribers, tally.delivered) == (2, (4, 8))
    [cursor] = world.broker.fanout.cursors
    assert cursor.subscriber == ("backbone", "2 clients")


def test_push_is_recorded_with_its_source(make_world: Make) -> None:
    world = make_world(stream="news")
    world.send(Push(data=b"one"), Push(data=b"two"))
    [run] = world.broker.read("news", 1, 1 << 20)
    assert (run.source, run.producer, run.topic, run.producer_seq) == ("backbone", "10.0.0.2:4000", None, None)
    assert len(run) == 2  # one read of one source is one run


def test_sources_of_one_turn_are_one_batch_of_runs(make_world: Make) -> None:
    world = make_world()
    for i in range(6):
        source = (CLIENT, OTHER)[i % 2]
        datagram = Push(data=b"%d" % i).serialize()
        world.server.datagrams_received(memoryview(datagram), len(datagram), source)
    world.server.turn_over()
    runs = world.broker.read("backbone", 1, 1 << 20)
    assert [(run.producer, [bytes(p) for p in run.payloads()]) for run in runs] == [
        ("10.0.0.2:4000", [b"0", b"2", b"4"]),
        ("10.0.0.3:4000", [b"1", b"3", b"5"]),
    ]


def test_only_durable_records_are_delivered(make_world: Make) -> None:
    world = make_world(auto=False)
    world.send(keep_alive())
    world.send(Push(data=b"one"))
    assert delivers(world.network.sent_to(CLIENT)) == []
    world.journal.commit()
    assert delivers(world.network.sent_to(CLIENT)) == [(1, b"one")]


def test_records_of_other_protocols_are_delivered(make_world: Make) -> None:
    world = make_world()
    world.send(keep_alive())
    world.broker.publish([Run.of("backbone", [b"a", b"b"], source="figg"), Run.of("else", [b"c"], source="figg")])
    assert delivers(world.network.sent_to(CLIENT)) == [(1, b"a"), (2, b"b")]


def test_threat_own_address_makes_no_loop(make_world: Make) -> None:
    world = make_world()
    world.send(KeepAlive(address=world.address, flags=Flags.NONE, token=bytes(16)), source=world.address)
    world.send(Push(data=b"x"))
    world.run(1)
    assert world.broker.bounds("backbone") == (1, 1)
    assert world.network.sent_to(world.address) == []


# Answers from the journal.


def test_a_request_is_answered_by_the_journal(make_world: Make) -> None:
    world = make_world()
    ask(world)
    world.send(*(Push(data=b"%d" % i) for i in range(1, 10)))
    world.send(Request(address=CLIENT, first=3, last=5))
    world.run(0.1)
    assert delivers(world.network.sent_to(CLIENT)) == [(3, b"3"), (4, b"4"), (5, b"5")]
    assert world.count("replayed") == 3


def test_replays_keep_to_the_rate_of_their_destination_and_take_turns(make_world: Make) -> None:
    world = make_world(destination_rate=1 << 20)
    ask(world, CLIENT, OTHER)
    for _ in range(40):
        world.send(*[Push(data=bytes(1_000))] * 100)
    world.send(Request(address=CLIENT, first=1, last=10_000))
    world.send(Request(address=OTHER, first=1, last=3), source=OTHER)
    world.run(0.05)
    assert len(delivers(world.network.sent_to(OTHER))) == 3  # at once, whatever the other is owed
    world.run(1.95)
    size = 1_009 * len(delivers(world.network.sent_to(CLIENT)))
    assert 2 << 20 <= size <= (2 << 20) + (1 << 16) * 3
    for _ in range(5):
        ask(world)
        world.run(1)
    assert len(delivers(world.network.sent_to(CLIENT))) == 4_000


def test_requests_beyond_the_replay_queue_are_dropped(make_world: Make) -> None:
    world = make_world(destination_rate=1)
    for _ in range(21):
        world.send(*[Push(data=b"x")] * 100)
    ask(world)
    world.send(*(Request(address=CLIENT, first=seq, last=seq) for seq in range(1, 2_060, 2)))
    assert world.count("replays-behind") == 1_030 - 1_024
    world.send(Request(address=CLIENT, first=1, last=2_100))
    assert world.count("replays-behind") == 1_030 - 1_024, "it is one range, and all others are in it"


def test_a_client_that_has_left_gets_no_more_answers(make_world: Make) -> None:
    world = make_world(destination_rate=1 << 20)
    ask(world)
    for _ in range(80):
        world.send(*[Push(data=bytes(1_000))] * 100)
    ask(world)
    world.send(Request(address=CLIENT, first=1, last=10_000))
    world.run(5.1)
    sent = len(world.network.sent_to(CLIENT))
    world.run(2)
    assert len(world.network.sent_to(CLIENT)) == sent < 8_000
    assert world.clock.getDelayedCalls() == []


def test_one_slice_of_the_journal_answers_many_requests(make_world: Make) -> None:
    world = make_world()
    for _ in range(10):
        world.send(*[Push(data=b"x")] * 100)
    ask(world)
    reads: list[int] = []
    world.journal.before_read = lambda stream, start: reads.append(start)
    world.send(*(Request(address=CLIENT, first=seq, last=seq) for seq in range(1, 1_000, 2)))
    world.run(0.1)
    assert [seq for seq, _ in delivers(world.network.sent_to(CLIENT))] == list(range(1, 1_000, 2))
    assert len(reads) == -(-500 // 64)


def test_records_beyond_the_ration_are_sent_after_the_next_keepalives(make_world: Make) -> None:
    """No REQUEST makes the server send the rest before the next KEEPALIVE."""
    world = make_world(trusted=())
    world.send(keep_alive())
    for _ in range(4):
        world.send(*[Push(data=bytes(991))] * 100, source=OTHER)
    world.send(Request(address=CLIENT, first=1, last=400))
    world.run(0.9)
    assert world.count("held-back") >= 400
    received = []
    for _ in range(3):
        world.send(keep_alive())
        world.run(1)
        received.append(sum(1_000 * isinstance(frame, Deliver) for frame in world.network.sent_to(CLIENT)))
    assert received == [65_000, 400_000, 400_000]
    assert [seq for seq, _ in delivers(world.network.sent_to(CLIENT))] == list(range(1, 401))


def test_each_of_many_requested_ranges_beyond_the_ration_is_sent_after_the_next_keepalive(make_world: Make) -> None:
    world = make_world(trusted=())
    quiet = keep_alive(Flags.NOSUBSCRIBE)
    for _ in range(160):
        world.send(Push(data=bytes(2_991)), source=OTHER)
    for _ in range(2):
        world.send(quiet)
        world.run(1)
    asked = list(range(1, 161, 2))
    world.send(*(Request(address=CLIENT, first=seq, last=seq) for seq in asked))
    world.run(0.9)
    sent = [seq for seq, _ in delivers(world.network.sent_to(CLIENT))]
    assert 0 < len(sent) < 64, "the ration allows some of the ranges that are read at once"
    world.send(quiet)
    world.run(1)
    assert [seq for seq, _ in delivers(world.network.sent_to(CLIENT))] == asked


def test_a_replay_of_a_damaged_journal_is_dropped(make_world: Make) -> None:
    world = make_world()
    ask(world)
    world.send(Push(data=b"x"))

    def damaged(stream: str, start: int) -> None:
        raise JournalCorrupt("a bit flipped")

    world.journal.before_read = damaged
    world.send(Request(address=CLIENT, first=1, last=1))
    world.run(0.1)
    assert world.count("journal-corrupt") == 1
    assert delivers(world.network.sent_to(CLIENT)) == []


def test_replay_that_fails_by_a_bug_is_dropped_and_the_others_go_on(make_world: Make, logged_errors: Any) -> None:
    world = make_world()
    ask(world, CLIENT, OTHER)
    world.send(Push(data=b"x"), Push(data=b"y"))

    def bug(stream: str, start: int) -> None:
        if start == 1:
            raise RuntimeError("bug")

    world.journal.before_read = bug
    world.send(Request(address=CLIENT, first=1, last=1))
    world.send(Request(address=OTHER, first=2, last=2), source=OTHER)
    world.run(0.1)
    assert delivers(world.network.sent_to(CLIENT)) == []
    assert delivers(world.network.sent_to(OTHER)) == [(2, b"y")]
    (event,) = logged_errors.take()
    assert formatEvent(event) == "backbone: answering a REQUEST failed; please report this bug"


def test_replay_ends_at_removed_records(make_world: Make) -> None:
    world = make_world()
    ask(world)
    for i in range(1, 7):
        world.send(Push(data=b"%d" % i))
    request = Request(address=CLIENT, first=1, last=3).serialize()
    world.server.datagrams_received(memoryview(request), len(request), CLIENT)
    world.journal.forget("backbone", 5)  # before its turn comes
    world.run(0.1)
    assert delivers(world.network.sent_to(CLIENT)) == []
    assert world.clock.getDelayedCalls() == []


# Refused messages.


#: What makes the journal refuse every push, by the counter of the pushes that were dropped.
REFUSALS: dict[str, Callable[[Any], object]] = {
    "ReadOnly": lambda world: world.journal.enter(JournalState.READ_ONLY, "full"),
    "Following": lambda world: (world.journal.follow(), world.broker.open()),
    "StreamFull": lambda world: world.broker.sequencer.restore({"backbone": LAST_SEQ - 1}),
}


@pytest.mark.parametrize("cause", REFUSALS)
def test_refused_pushes_are_dropped_and_counted(make_world: Make, cause: str) -> None:
    world = make_world()
    REFUSALS[cause](world)
    world.send(keep_alive())
    world.send(Push(data=b"lost"), Push(data=b"lost"))
    assert (world.count(cause), world.journal.ends()) == (2, {})
    if cause == "ReadOnly":
        world.journal.enter(JournalState.WRITABLE, "room")
        world.send(Push(data=b"kept"))
        assert delivers(world.network.sent_to(CLIENT)) == [(1, b"kept")]


def test_journal_behind_drops_only_pushes(make_world: Make) -> None:
    world = make_world(auto=False, broker={"budget": InFlight(each=100_000)})
    for _ in range(20):
        world.send(Push(data=bytes(20_000)))
    dropped = world.count("journal-behind")
    assert 10 <= dropped < 20
    world.send(keep_alive())
    assert world.network.sent_to(CLIENT) == [KeepAliveAck(token=bytes(16))]
    world.journal.commit()
    world.send(Push(data=b"again"))
    world.journal.commit()
    assert world.payloads()[-1] == b"again"
    assert len(world.payloads()) == 21 - dropped
    assert world.broker.budget.used == 0


def test_payloads_that_ip_has_to_fragment_are_counted(make_world: Make) -> None:
    world = make_world()
    world.send(Push(data=bytes(1_463)), Push(data=bytes(1_464)), Push(data=bytes(MAX_DATA)))
    assert world.count("fragmented-pushes") == 2


def test_records_too_large_for_a_datagram_are_left_out(make_world: Make) -> None:
    """Records that were stored before the stream had a limit may be too large for a datagram."""
    world = make_world()
    world.send(keep_alive())
    world.broker.restrict("backbone", 1 << 20)
    world.broker.publish([Run.of("backbone", [b"a", bytes(MAX_DATA + 1), b"c"], source="figg")])
    assert delivers(world.network.sent_to(CLIENT)) == [(1, b"a"), (3, b"c")]
    assert world.count("too-large-for-a-datagram") == 1


@pytest.mark.parametrize(("trusted", "lost"), [("10.0.0.2/32", 1), ("10.0.0.0/8", 0)])
def test_delivers_above_the_rate_of_a_destination_are_dropped_unless_it_is_trusted(
    make_world: Make, trusted: str, lost: int
) -> None:
    world = make_world(destination_rate=160_000, trusted=networks(trusted))
    for _ in range(6):  # after these even a stranger has no ration
        world.send(keep_alive())
        world.send(keep_alive(), source=OTHER)
        world.run(1)
    world.server._session.sent_bytes.charge(OTHER[0], 1 << 20, world.clock.seconds())
    world.send(Push(data=bytes(1_000)))
    assert len(delivers(world.network.sent_to(CLIENT))) == 1
    assert len(delivers(world.network.sent_to(OTHER))) == 1 - lost
    assert world.count("destination-rate") == lost
    assert world.count("delivers") == 2 - lost


# Back-pressure of the port.


def test_congested_port_pauses_subscription_and_replays_without_losing_records(make_world: Make) -> None:
    world = make_world()
    world.send(keep_alive())
    world.port.full = True
    for i in range(1, 6):
        world.send(Push(data=b"%d" % i))
    world.send(Request(address=CLIENT, first=1, last=2))
    world.run(1)
    assert delivers(world.network.sent_to(CLIENT)) == []
    assert world.port.waiting <= 3  # one delivery, one ACK and no more
    world.port.relieve()
    world.run(0.1)
    assert sorted(delivers(world.network.sent_to(CLIENT))) == sorted(
        [(i, b"%d" % i) for i in range(1, 6)] + [(1, b"1"), (2, b"2")]
    )


def test_answers_are_dropped_when_many_batches_of_datagrams_wait(make_world: Make) -> None:
    world = make_world()
    world.port.full = True
    for _ in range(server.MOST_WAITING + 2):
        world.send(keep_alive())
    assert world.port.waiting == server.MOST_WAITING
    assert world.count("answers-dropped") == 2


def test_replays_stop_as_soon_as_the_port_is_congested(make_world: Make) -> None:
    world = make_world()
    ask(world, CLIENT, OTHER)
    world.send(Push(data=b"1"), Push(data=b"2"))
    for client in (CLIENT, OTHER):
        request = Request(address=client, first=1, last=2).serialize()
        world.server.datagrams_received(memoryview(request), len(request), client)
    world.port.full = True
    world.run(0.1)
    assert world.port.waiting == 1
    world.port.relieve()
    world.run(0.1)
    for client in (CLIENT, OTHER):
        assert delivers(world.network.sent_to(client)) == [(1, b"1"), (2, b"2")]


# Stopping.


def left_to_do(world: Any, accepted: list[bytes], listens: bool) -> list[str]:
    """Return what a stop has to wait for."""
    undelivered = listens and len(delivers(world.network.sent_to(CLIENT))) < len(accepted)
    return [
        *(["commits"] if world.payloads() != accepted else []),
        *(["DELIVERs"] if undelivered and (world.port.queue or world.server.subscribers) else []),
    ]


def test_stop_ends_as_soon_as_all_that_was_accepted_is_durable_delivered_and_sent(make_world: Make) -> None:
    """It ends after 10 s at the latest, and when the port is closed; a PUSH that arrives during it is dropped."""
    seen: Counter[str] = Counter()
    for seed in range(120):
        random = Random(seed)
        world, accepted, step = make_world(auto=False), list[bytes](), "stop"
        port, listens = world.port, random.random() < 0.7
        if listens:
            world.send(keep_alive())

        for at in range(random.randint(1, 4)):
            accepted.append(b"%d" % at)
            world.send(Push(data=accepted[-1]))
            if random.random() < 0.4:
                port.full = listens and random.random() < 0.5
                world.journal.commit()
                world.clock.advance(0)
        if random.random() < 0.3:
            accepted.append(b"of a turn that has not ended")
            world.server.datagramReceived(Push(data=accepted[-1]).serialize(), OTHER)
        stopped, began = world.stop(), world.clock.seconds()
        world.send(Push(data=b"too late"))
        while not stopped.called:
            assert left_to_do(world, accepted, listens), f"seed {seed}: nothing is left to do, and the stop waits"
            assert world.clock.seconds() - began < 10.0, "the stop lasts too long"
            step = random.choice(("commit", "relieve", "time", "close" if seed % 10 == 0 else "time"))
            {"commit": world.journal.commit, "close": port.stopListening, "time": list}.get(step, port.relieve)()
            world.clock.advance(0.5 if step == "time" else 0)
            seen[f"ended by {step}"] += stopped.called
        if step != "close" and world.clock.seconds() - began < 10.0:
            assert left_to_do(world, accepted, listens) == [], f"seed {seed}: the stop ends too early"
        world.journal.commit()
        world.clock.advance(0)
        assert world.clock.getDelayedCalls() == []
        assert b"too late" not in world.payloads()
    assert seen.keys() >= {f"ended by {step}" for step in ("commit", "relieve", "time", "close")}, seen


def test_server_serves_again_after_its_port_was_closed(make_world: Make) -> None:
    world = make_world()
    world.send(Push(data=b"one"))
    assert world.stop().called
    world.port = world.network.open(2323, world.server, "10.0.0.1")
    world.port.startListening()
    world.send(keep_alive())
    world.send(Push(data=b"two"))
    assert delivers(world.network.sent_to(CLIENT)) == [(2, b"two")]


def test_stop_is_immediate_when_idle_and_drops_replays(make_world: Make) -> None:
    world = make_world(destination_rate=1)
    world.send(*[Push(data=b"x")] * 10)
    world.send(Request(address=CLIENT, first=1, last=5), Request(address=CLIENT, first=1, last=6))
    assert world.stop().called
    assert world.clock.getDelayedCalls() == []


def test_a_server_that_is_stopping_begins_no_replay(make_world: Make) -> None:
    world = make_world(auto=False)
    world.send(Push(data=b"x"))
    world.journal.commit()
    world.send(Push(data=b"y"))
    world.stop()
    world.send(Request(address=CLIENT, first=1, last=1))
    world.journal.commit()
    assert delivers(world.network.sent_to(CLIENT)) == []
    world.clock.advance(0)
    assert world.clock.getDelayedCalls() == []


def test_pushes_are_accepted_after_the_subscription_ended(make_world: Make, logged_errors: Any) -> None:
    world = make_world()
    world.server.ended(JournalCorrupt("a bit flipped"))
    assert "delivery has ended" in logged_errors.take()[0]["log_format"]
    world.server.congested()
    world.server.relieved()
    world.send(Push(data=b"x"))
    assert world.payloads() == [b"x"]
    assert world.stop().called


def test_removed_records_are_counted(make_world: Make) -> None:
    world = make_world()
    world.server.skipped(3, 7)
    assert world.count("skipped") == 5


def test_threat_policy_change_applies_at_once(make_world: Make) -> None:
    world = make_world()
    world.broker.guard.change(
        parse({"allow": [{"network": CLIENT[0], "publish": "backbone", "subscribe": "backbone"}]})
    )
    world.send(keep_alive(), source=OTHER)
    world.send(Push(data=b"x"), source=OTHER)
    assert world.network.sent_to(OTHER) == []
    assert world.broker.bounds("backbone") == (1, 0)
    assert world.count("Forbidden") == 2
    world.send(keep_alive())
    world.send(Push(data=b"x"))
    assert delivers(world.network.sent_to(CLIENT)) == [(1, b"x")]
    world.broker.guard.change(parse({"allow": [{"network": OTHER[0], "publish": "backbone"}]}))
    world.send(Push(data=b"x"))
    assert world.broker.bounds("backbone") == (1, 1)
    world.send(Push(data=b"x"), source=OTHER)
    assert world.broker.bounds("backbone") == (1, 2)


def test_permission_cache_is_bounded(make_world: Make) -> None:
    world = make_world()
    for n in range(udp_server.HOSTS + 50):
        world.send(Push(data=b"x"), source=(f"10.1.{n // 256}.{n % 256}", 1))
    gc.collect()
    kept = {
        each.identity.host
        for each in gc.get_objects()
        if isinstance(each, PeerRights) and each.guard is world.broker.guard
    }
    assert len({host for host in kept if host.startswith("10.1.")}) <= udp_server.HOSTS
    assert len(world.payloads()) == udp_server.HOSTS + 50
