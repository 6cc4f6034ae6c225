"""Events that are sent again: what proves that they are stored, bounds, and the listener with ``resent=drop``."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest

from fyrehose.broker.policy import parse
from fyrehose.broker.streams import StreamRule, StreamRules
from fyrehose.errors import ConfigError, JournalCorrupt
from fyrehose.interfaces import JournalState
from fyrehose.kernels import lumberjack as kernel
from fyrehose.kernels.pure.lumberjack import SLOT
from fyrehose.options import build
from fyrehose.protocols.lumberjack import resent
from fyrehose.protocols.lumberjack.frames import Json, Window
from fyrehose.protocols.lumberjack.ledger import ENTRY, PACE, Fingerprints, Ledger, identity
from fyrehose.protocols.lumberjack.resent import Repetitions, Sender
from fyrehose.protocols.lumberjack.server import LumberjackSettings
from fyrehose.records import Run, column_of
from fyrehose.routes import routes
from tests.doubles.compressed import compressed_frame

AGE = 600.0


def event(n: int, ephemeral: str = "e", **more: Any) -> bytes:
    """Return the event of line *n* of a file, as Filebeat sends it."""
    return json.dumps(
        {
            "@timestamp": "2026-01-02T03:04:05.006Z",
            "agent": {"ephemeral_id": ephemeral, "type": "filebeat"},
            "log": {"offset": 100 * n, "file": {"path": "/var/log/x", "inode": "7"}},
            "message": "ok",
            **more,
        }
    ).encode()


def frames(*events: bytes) -> bytes:
    made = b"".join(Json(sequence=n, payload=each).serialize() for n, each in enumerate(events, 1))
    return Window(number=len(events)).serialize() + made


@attrs.define
class Receiver:
    """Repetitions over records in memory, whose writers publish at once or when a test says so."""

    stored: list[bytes] = attrs.field(factory=list)
    now: float = 0.0
    capacity: int = 1000
    stretches: int = resent.STRETCHES
    damaged: bool = False
    charged: int = 0
    forgotten: int = 0
    fields: str = "filebeat"
    reads: int = 0
    repetitions: Repetitions = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.repetitions = Repetitions(
            self.read,
            lambda stream: (1, len(self.stored)),
            lambda: self.now,
            self.capacity,
            AGE,
            Fingerprints(identity(self.fields)),
            self.charge,
            self.forget,
            self.stretches,
        )

    def charge(self, size: int) -> None:
        self.charged += size

    def forget(self, count: int) -> None:
        self.forgotten += count

    def read(self, stream: str, start: int, size: int) -> tuple[Run, ...]:
        if self.damaged:
            raise JournalCorrupt("damaged")
        self.reads += 1
        return (self.run(*self.stored[start - 1 : start + 1], first=start),) if start <= len(self.stored) else ()

    @staticmethod
    def run(*events: bytes, first: int = 0, stream: str = "s") -> Run:
        column = column_of(events)
        return Run(
            stream=stream,
            source="lumberjack",
            lengths=column.lengths,
            payload=column.payload,
            producer_seq=1,
            content_type="application/json",
            first_seq=first,
        )

    def connect(self, network: str = "n") -> Writer:
        return Writer(self, self.repetitions.connected(network, lambda: None))


@attrs.define
class Writer:
    """A connection; each send is a window of its own, acknowledged when it is durable."""

    receiver: Receiver
    sender: Sender
    windows: int = 0
    acknowledged: int = 0

    def send(self, *events: bytes, durable: bool = True) -> list[bytes]:
        """Publish *events*; return those that are stored."""
        self.windows += 1
        while self.receiver.repetitions.has_unread:
            self.receiver.repetitions.read_more()
        fresh, originals = self.sender.sift([Receiver.run(*events)])
        self.sender.begin(len(events), sum(map(len, fresh)), originals)
        self.sender.publishing(fresh, self.windows, self.acknowledged)
        for run in fresh:
            run.first_seq = len(self.receiver.stored) + 1
            self.receiver.stored += map(bytes, run.payloads())
        if durable:
            self.acknowledged += 1
            assert self.sender.durable(fresh) == len(events)
        return [bytes(payload) for run in fresh for payload in run.payloads()]

    def close(self) -> None:
        """End the connection; its acknowledgements may be lost."""
        self.sender.close(self.windows, self.acknowledged)


def after_a_loss(*events: bytes) -> Receiver:
    """Return a receiver to which a connection has sent *events* in one window before it was lost."""
    receiver = Receiver()
    writer = receiver.connect()
    writer.send(*events)
    writer.close()
    return receiver


def publish(sender: Sender, *runs: Run) -> None:
    """Note that *runs* are on their way to the disk."""
    sender.begin(sum(map(len, runs)), sum(map(len, runs)), {})
    sender.publishing(runs, 1, 0)


@pytest.mark.parametrize(
    "other",
    [
        event(1, "restarted"),
        event(1, more="bytes"),
        event(2),
        b'{"message":"ok"}',
        event(1).replace(b"05.006", b"05.007"),
    ],
)
def test_event_without_a_proof_that_it_is_a_repetition_is_stored(other: bytes) -> None:
    receiver = after_a_loss(event(1), b'{"message":"ok"}')
    assert receiver.connect().send(other) == [other]


@pytest.mark.parametrize(
    ("fields", "again", "stored"),
    [
        ("filebeat", {"ephemeral": "restarted"}, True),
        ("@metadata._id", {"@metadata": {"_id": "7"}, "message": "changed"}, False),
        ("@metadata._id", {"@metadata": {"_id": "8"}}, True),
        ("agent.type, log.file.path, log.offset", {"ephemeral": "restarted"}, False),
        ("agent.type, log.file.path, log.offset, message", {"ephemeral": "restarted", "message": "changed"}, True),
    ],
)
def test_option_identity_names_what_makes_an_event_the_same(fields: str, again: dict[str, Any], stored: bool) -> None:
    receiver = Receiver(fields=fields)
    first, other = event(1, **{"@metadata": {"_id": "7"}}), event(1, **{"@metadata": {"_id": "7"}, **again})
    writer = receiver.connect()
    writer.send(first)
    writer.close()
    assert receiver.connect().send(other) == ([other] if stored else [])


@pytest.mark.parametrize("wrong", ["", "a..b", ",", "a,,b", 'a"b', ",".join("abcdefghi"), ".".join("abcdefghi")])
def test_invalid_identity_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"lumberjack\.identity: expected filebeat, or up to 8 fields"):
        build(LumberjackSettings, "lumberjack", {"identity": wrong})


def test_document_id_identifies_an_event() -> None:
    receiver, document = Receiver(), b'{"@metadata":{"beat":"filebeat","_id":"7"},"message":"ok"}'
    first = receiver.connect()
    first.send(document)
    first.close()
    assert receiver.connect().send(document) == []


def test_half_open_connections_of_a_network_find_each_others_events() -> None:
    receiver = Receiver()
    first = receiver.connect()
    first.send(event(1))
    second = receiver.connect()
    assert second.send(event(1), event(2)) == [event(2)]
    assert first.send(event(2), event(3)) == [event(3)]
    receiver.now = AGE
    assert second.send(event(3)) == [event(3)]
    assert (receiver.charged, receiver.repetitions.suspects) == (0, 0)


def test_what_was_sent_again_is_remembered_longer_and_what_was_lost_after_it_is_not() -> None:
    receiver = Receiver()
    first, second = receiver.connect(), receiver.connect()
    first.send(event(1))
    second.send(event(2))
    for each in (first, second):
        each.close()
    receiver.now = AGE - 1
    assert receiver.connect("other").send(event(1)) == []
    receiver.now = AGE + 1
    assert receiver.connect("third").send(event(2), event(1)) == [event(2)]


@pytest.mark.parametrize("seed", range(20))
def test_a_network_is_watched_for_the_age_after_its_last_connection_beside_another_one(seed: int) -> None:
    dice, receiver = Random(seed), Receiver()
    senders: list[Sender] = []
    until: dict[str, float] = {}  # of networks with two connections or more
    for _ in range(100):
        receiver.now += dice.choice((0, 1, AGE / 2, AGE - 1))
        if senders and dice.random() < 0.4:
            sender = senders.pop(dice.randrange(len(senders)))
            sender.close(0, 0)
            if sum(each.network == sender.network for each in senders) < 2:
                until.pop(sender.network, None)
        else:
            network = dice.choice("ab")
            if any(each.network == network for each in senders):
                until[network] = receiver.now + AGE
            senders.append(receiver.repetitions.connected(network, lambda: None))
        for each in senders:
            assert receiver.repetitions.is_watched(each) is (until.get(each.network, 0) > receiver.now)


def test_connections_of_other_networks_are_not_taken_for_half_open() -> None:
    receiver = Receiver()
    receiver.connect("a").send(event(1))
    assert receiver.connect("b").send(event(1)) == [event(1)]


def test_events_and_their_memory_are_released_after_resent_age() -> None:
    receiver = after_a_loss(*map(event, range(9)))
    second = receiver.connect()
    receiver.now = AGE - 1
    assert second.send(event(0)) == []
    assert receiver.charged > 9 * ENTRY
    receiver.now = 2 * AGE - 2
    assert second.send(event(1)) == []  # the repetition has renewed it
    receiver.now = 3 * AGE
    assert second.send(event(2)) == [event(2)]
    assert (receiver.charged, receiver.repetitions.suspects) == (0, 0)


def test_only_the_last_windows_of_a_connection_may_come_again() -> None:
    receiver = Receiver()
    first = receiver.connect()
    for n in range(20):
        first.send(event(n))
    first.close()
    second = receiver.connect()
    again = second.send(*map(event, range(20)))
    assert again == [event(n) for n in range(20 - resent.WINDOWS - 1)]


def test_windows_that_are_not_acknowledged_are_all_kept() -> None:
    receiver = Receiver()
    first = receiver.connect()
    for n in range(20):
        first.send(event(n), durable=False)
    first.close()
    assert receiver.connect().send(*map(event, range(20)), durable=False) == []


def test_each_connection_keeps_a_bounded_number_of_stretches() -> None:
    receiver = Receiver(stretches=100)
    for n in range(50):
        receiver.connect(str(n)).close()  # those that have ended have no share
    first = receiver.connect("a")
    others = [receiver.connect(str(n)) for n in range(2)]
    for n in range(200):
        first.send(event(n), durable=False)
    assert len(first.sender.recent) == 100 // (1 + len(others))


def test_lost_records_displace_those_of_open_connections_and_then_the_oldest_of_the_largest_network() -> None:
    receiver = Receiver(capacity=16)
    quiet, loud = receiver.connect("quiet"), receiver.connect("loud")
    quiet.send(event(0), event(1))
    for n in range(2, 22, 2):
        loud.send(event(n), event(n + 1))
    loud.close()
    quiet.close()
    third = receiver.connect("third")
    again = third.send(*map(event, range(22)))
    assert event(0) not in again
    assert event(21) not in again
    assert event(2) in again
    assert receiver.forgotten == len(again) - 2, "the first window of the loud writer may not come again"


def found_at_a_start(capacity: int, events: int) -> Receiver:
    receiver = Receiver(capacity=capacity)
    receiver.stored += [event(n) for n in range(events)]
    for n in range(events, 0, -1):
        receiver.repetitions.recover(Receiver.run(event(n - 1), first=n), "n")
    return receiver


def test_window_without_an_acknowledgement_displaces_the_oldest_that_a_start_has_found() -> None:
    receiver = found_at_a_start(capacity=16, events=14)
    lost = receiver.connect("m")
    lost.send(event(100))
    lost.close()
    assert receiver.connect("m").send(event(100), *map(event, range(14))) == [event(0)]


def test_windows_of_half_open_connections_are_found_although_a_start_has_filled_the_table() -> None:
    receiver = found_at_a_start(capacity=16, events=14)
    first, second = receiver.connect(), receiver.connect()
    for n in range(100, 110):
        first.send(event(n))
    assert second.send(event(108), event(109), *map(event, range(14))) == [event(n) for n in range(3)]


def test_what_a_start_has_found_keeps_its_share_however_many_connections_are_lost() -> None:
    receiver = found_at_a_start(capacity=16, events=14)
    for round_ in range(5):
        writers = [receiver.connect(str(n)) for n in range(3)]
        for n, writer in enumerate(writers):
            writer.send(event(100 + 10 * round_ + n), event(200 + 10 * round_ + n))
            writer.close()
    assert receiver.connect().send(*map(event, range(14))) == [event(n) for n in range(7)]


def test_what_does_not_fit_at_a_start_is_counted_and_the_newest_is_found() -> None:
    receiver = found_at_a_start(capacity=8, events=20)
    assert (receiver.reads, receiver.repetitions.suspects, receiver.forgotten) == (0, 7, 13)
    assert receiver.connect().send(*map(event, range(20))) == [event(n) for n in range(13)]


def test_older_windows_give_way_to_the_last_windows_of_connections_that_a_start_finds_later() -> None:
    receiver = Receiver(capacity=12)  # an eighth, rounded down, stays free for events that have given way
    receiver.stored += [event(n) for n in range(16)]
    for end in (16, 8):  # two connections with eight windows of one event each
        for newer in range(8):
            first = end - newer
            receiver.repetitions.recover(Receiver.run(event(first - 1), first=first), "n", newer)
    forgotten = [*range(4), 8]  # the older windows of the second connection, and the oldest of the first
    assert receiver.connect().send(*map(event, range(16))) == [event(n) for n in forgotten]
    assert receiver.forgotten == len(forgotten)


def test_event_is_stored_if_the_journal_has_its_original_no_more() -> None:
    receiver = after_a_loss(event(1), event(2))
    second = receiver.connect()
    assert second.send(event(1)) == []
    receiver.stored.clear()
    assert second.send(event(2)) == [event(2)]


def test_damaged_records_are_not_recognized() -> None:
    receiver = Receiver()
    first = receiver.connect()
    first.send(event(1))
    receiver.damaged = True
    first.close()
    assert receiver.connect().send(event(1)) == [event(1)]


def column(first: int, count: int) -> bytes:
    """Return *count* fingerprints from number *first* on, which are spread over a table."""
    numbers = range(first, first + count)
    return b"".join((n * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "little") + b"\1\0\0\0" for n in numbers)


@pytest.mark.parametrize("capacity", [1, 5, 20, 100, 300])
def test_ledger_finds_exactly_the_groups_that_it_has_not_forgotten(capacity: int) -> None:
    """Also what another group enters again, while a table with its first group is being replaced."""
    dice, charged, events = Random(capacity), list[int](), range(capacity + 60)
    ledger: Ledger[int] = Ledger(capacity, charged.append)
    group_of: dict[int, int] = {}  # by event
    refused = 0
    for number in range(600):
        groups = sorted(set(group_of.values()))
        if groups and dice.random() < 0.3:
            gone = dice.sample(groups, k=1)
            ledger.forget(gone)
            group_of = {event: group for event, group in group_of.items() if group not in gone}
        else:
            group = dice.choice((number, number, *groups[-1:]))
            free = [event for event in events if event not in group_of]
            chosen = dice.sample(free, k=min(len(free), dice.randint(1, 9)))
            if ledger.enter(group, b"".join(column(event, 1) for event in chosen)):
                group_of |= dict.fromkeys(chosen, group)
            else:
                refused += 1
                assert len(group_of) + len(chosen) > capacity, "there is room"
        assert len(ledger) == len(group_of) <= capacity
        found = ledger.find(column(0, len(events))) or [None] * len(events)
        assert {event: group for event, group in enumerate(found) if group is not None} == group_of
    assert refused, "the table was never full"
    ledger.forget(set(group_of.values()))
    assert (sum(charged), len(ledger)) == (0, 0)


def test_memory_of_a_ledger_is_given_back_at_any_moment() -> None:
    """Also while a larger table replaces the old one."""
    columns = [column(1_000 * group, 1_000) for group in range(40)]
    for count in range(1, 40):
        charged: list[int] = []
        ledger: Ledger[int] = Ledger(200_000, charged.append)
        for group in range(count):
            assert ledger.enter(group, columns[group])
        ledger.forget(range(count))
        assert sum(charged) == 0, f"{sum(charged)} bytes stay charged after {count} groups"


def test_no_step_moves_more_of_a_table_than_was_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    retain = kernel.retain
    monkeypatch.setattr(kernel, "retain", lambda slots, *rest: (moved.append(len(slots) // SLOT), retain(slots, *rest)))
    ledger: Ledger[int] = Ledger(200_000)
    for group in range(700):
        moved.append(0)
        assert ledger.enter(group, column(1_000 * group, 1_000))
        if group >= 170:
            ledger.forget([group - 170])
    assert 0 < max(moved) <= PACE * 1_000
    assert sum(moved) > 1_000_000, "the table was replaced many times"
    for group in range(700):
        expected = None if group < 530 else [group] * 1_000
        assert ledger.find(column(1_000 * group, 1_000)) in (expected, expected or [None] * 1_000)


def test_events_without_identity_are_not_watched() -> None:
    receiver = after_a_loss(b'{"message":"ok"}')
    second = receiver.connect()
    second.send(b'{"message":"ok"}')
    assert not receiver.repetitions.is_watched(second.sender)


# Through the listener.


@pytest.fixture
def dropping(server: Any) -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        made = server(**options)  # which drops repetitions by default
        made.factory.doStart()
        return made

    return make


def sending(made: Any, *events: bytes, **where: Any) -> Any:
    """Return a new connection that has sent *events* in one window, which the server has handled."""
    peer = made.connect(**where)
    peer.send(frames(*events))
    made.settle()
    return peer


def restart(made: Any, *peers: Any) -> None:
    """Close the listener and its connections, and open another one."""
    made.factory.doStop()
    for peer in peers:
        peer.lose()
    assert made.factory.repetitions.suspects == 0
    made.factory = type(made.factory)(made.broker, made.factory.settings, made.clock)
    made.factory.doStart()


@pytest.mark.parametrize("compressed", [False, True])
def test_window_whose_acknowledgement_was_lost_is_acknowledged_and_stored_once(dropping: Any, compressed: bool) -> None:
    made = dropping()
    events = [event(n) for n in range(20)]
    sent = frames(*events)
    if compressed:
        sent = sent[:6] + compressed_frame(sent[6:])
    for _ in range(3):
        peer = made.connect()
        peer.send(sent)
        made.settle()
        assert peer.acks == [(2, 20)]
        peer.lose()
    assert made.payloads == events
    assert made.count("resent-dropped") == 40


def test_window_with_some_repetitions_is_acknowledged_as_a_whole(dropping: Any) -> None:
    made = dropping(auto=False)
    first = sending(made, event(1), event(2))
    made.journal.commit()
    first.lose()
    second = sending(made, event(2), event(3), b"no JSON", event(1))
    assert second.acks == []
    made.journal.commit()
    assert second.acks == [(2, 4)]
    assert made.payloads == [event(1), event(2), event(3), b"no JSON"]
    assert [record.producer_seq for record in made.records] == [1, 2, 2, 3]


def test_repetition_is_not_acknowledged_before_its_original_is_durable(dropping: Any) -> None:
    made = dropping(auto=False)
    first = sending(made, event(1))
    first.lose()
    second = sending(made, event(1))
    assert second.acks == []
    made.journal.commit()
    assert (second.acks, made.payloads) == ([(2, 1)], [event(1)])


def test_repetition_of_what_waits_for_room_is_stored_once(dropping: Any) -> None:
    made = dropping(auto=False)
    first, second = made.connect(), made.connect()
    for peer in first, second:
        peer.send(frames(event(1)))
    made.settle()
    made.journal.enter(JournalState.READ_ONLY, "no room")
    made.broker.stuck("no room")
    assert (first.acks, second.acks, made.payloads) == ([], [], [])
    assert all(peer.transport.aborted for peer in (first, second))
    for peer in first, second:
        peer.lose()
    made.journal.enter(JournalState.WRITABLE, "room")
    third = sending(made, event(1))
    made.journal.commit()
    assert (third.acks, made.payloads) == ([(2, 1)], [event(1)])


def test_end_of_the_log_is_searched_after_a_start(dropping: Any) -> None:
    made = dropping()
    peer = sending(made, event(1), b'{"message":"ok"}')
    restart(made, peer)
    peer = sending(made, event(1), b'{"message":"ok"}', event(2), host="10.9.9.9")
    assert made.payloads == [event(1), b'{"message":"ok"}', b'{"message":"ok"}', event(2)]
    assert peer.acks == [(2, 3)]


def test_writer_that_moves_to_another_listener_repeats_nothing(dropping: Any) -> None:
    made = dropping()
    first, second = made.factory, type(made.factory)(made.broker, made.factory.settings, made.clock)
    second.doStart()
    events = [event(n) for n in range(4)]
    peer = made.connect()
    peer.send(frames(*events[:2]))
    peer.lose()
    made.factory = second
    other = made.connect()
    other.send(frames(*events[:3]))
    made.factory = first
    half_open = sending(made, *events[2:])
    assert (other.acks, half_open.acks, made.payloads) == ([(2, 3)], [(2, 2)], events)


def test_repetition_by_a_writer_that_may_not_publish_is_refused(dropping: Any) -> None:
    made = dropping(refused="close")
    sending(made, event(1))
    made.connect().lose()
    made.broker.guard.change(parse({"allow": [{"network": "0.0.0.0/0", "publish": "other"}]}))
    peer = made.connect()
    peer.protocol.dataReceived(frames(event(1)))
    made.clock.advance(0)
    assert (peer.acks, made.count("Forbidden"), made.count("resent-dropped")) == ([], 1, 0)


def test_repetitions_are_dropped_in_the_streams_of_their_routes(dropping: Any) -> None:
    made = dropping(routes=routes("{service}"))
    events = [event(n, service="ab"[n % 2]) for n in range(6)]
    for sent in (events[:4], events):
        peer = sending(made, *sent)
        assert peer.acks == [(2, len(sent))]
        peer.lose()
    assert [[record.payload for record in made.records_of(name)] for name in "ab"] == [events[::2], events[1::2]]


def test_window_with_dead_letters_and_repetitions_is_acknowledged(dropping: Any) -> None:
    rules = StreamRules((StreamRule(names=("lumberjack",), max_payload=500),))
    made = dropping(rules=rules, refused="dead-letter")
    small, large = [event(n) for n in range(3)], event(9, message="x" * 500)
    for _ in range(2):
        peer = sending(made, small[0], large, *small[1:])
        assert peer.acks == [(2, 4)]
        peer.lose()
    assert made.payloads == small[:1] + small[1:]
    assert len(made.records_of("dead.lumberjack")) == 2


def test_allowed_events_of_a_window_with_a_forbidden_one_are_stored_once(dropping: Any) -> None:
    made = dropping(routes=routes("{service}"))
    made.broker.guard.change(parse({"allow": [{"network": "0.0.0.0/0", "publish": "a"}]}))
    events = [event(n, service="b" if n == 2 else "a") for n in range(4)]
    for _ in range(3):
        peer = sending(made, *events)
        assert peer.acks == [(2, 4)]
        peer.lose()
    assert [record.payload for record in made.records_of("a")] == [events[n] for n in (0, 1, 3)]


def test_windows_of_a_whole_fleet_are_recognized_after_a_start_and_another(dropping: Any) -> None:
    """The server is lost before any acknowledgement is read, and again while some of the writers have come back."""
    made = dropping()
    fleet = [[event(n, f"agent-{number}") for n in range(40)] for number in range(60)]
    for returned in (60, 25, 60):
        peers = [made.connect(port=6000 + n) for n in range(returned)]
        for peer, events in zip(peers, fleet, strict=False):
            peer.send(frames(*events[:20]) + frames(*events[20:]))
        made.settle()
        assert all(peer.acks == [(2, 20), (2, 20)] for peer in peers)
        restart(made, *peers)
    assert len(made.payloads) == 60 * 40


def test_event_is_stored_if_only_another_stream_has_its_record(dropping: Any) -> None:
    made = dropping()
    sending(made, event(1))
    settings = attrs.evolve(made.factory.settings, stream="other")
    made.factory = type(made.factory)(made.broker, settings, made.clock)
    made.factory.doStart()
    sending(made, event(1))
    assert [len(made.records_of(name)) for name in ("lumberjack", "other")] == [1, 1]


def test_listener_that_is_closed_gives_its_memory_back_with_its_last_connection(dropping: Any) -> None:
    made = dropping()
    before = made.broker.budget.used
    first, other = made.connect(), made.connect()
    first.send(frames(event(1), event(2)))
    other.send(frames(event(3)))
    first.lose()
    other.send(frames(event(1), event(4)))
    assert made.broker.budget.used > before
    made.factory.doStop()
    other.send(frames(event(2), event(5)))
    assert made.payloads == [event(n) for n in range(1, 6)]
    other.lose()
    assert made.broker.budget.used == before


@pytest.mark.parametrize(("seconds", "copies"), [(599, 1), (600, 2)])
def test_lost_events_are_remembered_for_ten_minutes(dropping: Any, seconds: float, copies: int) -> None:
    made = dropping()
    peer = made.connect()
    peer.send(frames(event(1)))
    peer.lose()
    made.clock.advance(seconds)
    sending(made, event(1))
    assert made.payloads == [event(1)] * copies


def test_unknown_value_of_the_option_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lumberjack\.resent: expected store or drop$"):
        build(LumberjackSettings, "lumberjack", {"resent": "yes"})
