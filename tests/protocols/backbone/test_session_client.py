"""The client's session: rules 1 to 6 of the client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.backbone.frames import (
    MAX_DATA,
    Address,
    Deliver,
    Flags,
    Forward,
    Frame,
    KeepAlive,
    KeepAliveAck,
    Push,
    Request,
    decode,
)
from fyrehose.protocols.backbone.gso_batches import Train
from fyrehose.protocols.backbone.session import (
    SENDER,
    BackboneClientSession,
    BackboneLost,
    BackboneOptions,
    ClientEvent,
    Dropped,
    Found,
    JournalReplaced,
    PushConfirmed,
    PushTimedOut,
)
from fyrehose.records import LAST_SEQ, Run

SERVER = ("10.0.0.1", 2323)
SELF = ("10.0.0.2", 4000)
PEER = ("10.0.0.3", 4000)


def causes(events: list[ClientEvent]) -> list[str]:
    """Return why datagrams were dropped, which is all that *events* say."""
    return [event.cause if isinstance(event, Dropped) else repr(event) for event in events]


class Bench:
    def __init__(self, after: int | None = None, silence: float = 5.0, **options: object) -> None:
        self.now = 100.0
        known: Any = BackboneOptions(**options)  # type: ignore[arg-type]
        self.session = BackboneClientSession(SERVER, SELF, known, Random(1), self.now, after, silence)
        self._trains: list[tuple[Train, Address]] = []
        self._unsent = 0  #: bytes of the pushes that waited after the last call

    def receive(self, *frames: Frame | bytes, source: Address = SERVER) -> list[ClientEvent]:
        events: list[ClientEvent] = []
        for frame in frames:
            datagram = frame if isinstance(frame, bytes) else frame.serialize()
            events += self.session.receive_datagrams(datagram, max(len(datagram), 1), source, self.now)
        self._unsent = self.session.pushes.unsent
        return events

    def tick(self, seconds: float = 0.0) -> list[ClientEvent]:
        """Let that time pass; nothing may happen before it is due, except that new pushes are sent."""
        due, pushing = self.session.next_due(self.now), self.session.pushes.unsent > self._unsent
        self.now += seconds
        self._trains += self.session.data_to_send()
        events = self.session.tick(self.now)
        new = self.session.data_to_send()
        assert pushing or self.now >= due or not (events or new), f"due at {due:g}, and done at {self.now:g}"
        assert self.session.next_due(self.now) > self.now, "the owner's timer would loop"
        self._trains += new
        self._unsent = self.session.pushes.unsent
        return events

    def sent(self) -> list[tuple[Frame, Address]]:
        frames = []
        trains, self._trains = [*self._trains, *self.session.data_to_send()], []
        for train, destination in trains:
            data = bytes(train.data)
            for at in range(0, len(data), train.segment):
                frames.append((decode(data[at : at + train.segment]), destination))
        return frames

    def join(self) -> list[ClientEvent]:
        """Exchange the first KEEPALIVE and its ACK."""
        self.tick()
        keep_alive = next(frame for frame, _ in self.sent() if isinstance(frame, KeepAlive))
        return self.receive(KeepAliveAck(token=keep_alive.token))


def joined(after: int | None = None, **options: object) -> Bench:
    bench = Bench(after, **options)
    assert Found() in bench.join()
    bench.sent()
    return bench


def delivered(events: list[ClientEvent]) -> list[tuple[int, bytes]]:
    return [
        (event.first_seq + i, bytes(payload))
        for event in events
        if isinstance(event, Run)
        for i, payload in enumerate(event.payloads())
    ]


# Rule 1: KEEPALIVE.


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({}, Flags.NOJOURNAL),
        ({"store": 100}, Flags.NONE),
        ({"subscribe": False}, Flags.NOSUBSCRIBE | Flags.NOJOURNAL),
        ({"subscribe": False, "store": 100}, Flags.NOSUBSCRIBE),
    ],
)
def test_keepalive_has_the_flags_of_the_options(options: dict[str, object], flags: Flags) -> None:
    bench = Bench(**options)
    bench.tick()
    [(frame, destination)] = bench.sent()
    assert isinstance(frame, KeepAlive)
    assert (frame.address, frame.flags, destination) == (SENDER, flags, SERVER)


def test_keepalive_is_sent_every_second_with_a_new_token() -> None:
    bench = joined()
    tokens = set()
    for _ in range(10):
        assert bench.session.next_due(bench.now) <= bench.now + 1.0
        assert bench.tick(0.999) == []
        assert bench.sent() == []
        bench.tick(0.001)
        for frame, _ in bench.sent():
            if isinstance(frame, KeepAlive):
                tokens.add(frame.token)
                bench.receive(KeepAliveAck(token=frame.token))
    assert len(tokens) == 10


def test_ack_counts_once_per_token() -> None:
    bench = Bench()
    bench.tick()
    [(frame, _)] = bench.sent()
    assert isinstance(frame, KeepAlive)
    ack = KeepAliveAck(token=frame.token)
    assert causes(bench.receive(KeepAliveAck(token=bytes(16)))) == ["unknown-token"]
    assert causes(bench.receive(ack, source=PEER)) == ["not-the-backbone"]
    assert bench.receive(ack) == [Found()]
    assert causes(bench.receive(ack)) == ["unknown-token"]


def test_ack_may_repeat_the_token_of_one_of_the_last_ten_keepalives() -> None:
    bench, tokens = Bench(), list[bytes]()
    while len(tokens) < 11:
        bench.tick(0.5)
        tokens += [frame.token for frame, _ in bench.sent() if isinstance(frame, KeepAlive)]
    assert causes(bench.receive(KeepAliveAck(token=tokens[0]))) == ["unknown-token"]
    assert bench.receive(KeepAliveAck(token=tokens[1])) == [Found()]


def test_backbone_is_lost_after_five_seconds_without_ack() -> None:
    bench = joined()
    events = [event for _ in range(39) for event in bench.tick(0.125)]
    assert events == []
    assert bench.tick(0.125) == [BackboneLost()]
    assert bench.tick(60) == []  # said once
    keep_alive = bench.sent()[-1][0]
    assert isinstance(keep_alive, KeepAlive)  # and it goes on asking
    assert bench.receive(KeepAliveAck(token=keep_alive.token)) == [Found()]
    assert bench.tick(4.75) == []
    assert bench.tick(0.25) == [BackboneLost()]


def test_time_until_a_backbone_is_lost_is_an_argument() -> None:
    bench = Bench(silence=20.0)
    bench.join()
    assert bench.tick(19.0) == []
    assert bench.tick(1.0) == [BackboneLost()]


def keep_alives(bench: Bench) -> list[KeepAlive]:
    return [frame for frame, _ in bench.sent() if isinstance(frame, KeepAlive)]


def test_own_address_is_tried_in_turn_with_zeros_until_the_backbone_answers() -> None:
    bench = Bench()
    tried: list[KeepAlive] = []
    for _ in range(5):
        bench.tick()
        tried += keep_alives(bench)
        bench.now = bench.session.next_due(bench.now)
    assert [frame.address for frame in tried] == [SENDER, SELF, SENDER, SELF, SENDER]


@pytest.mark.parametrize("answered", [SENDER, SELF])
def test_acknowledged_address_is_used_from_then_on(answered: Address) -> None:
    """A backbone that knows only the text answers the KEEPALIVE that has the client's own address, and no other."""
    bench = Bench(after=0)
    tried: list[KeepAlive] = []
    while not tried or tried[-1].address != answered:
        bench.tick(bench.session.next_due(bench.now) - bench.now)
        tried += keep_alives(bench)
    assert Found() in bench.receive(KeepAliveAck(token=tried[-1].token))
    for _ in range(3):
        bench.tick(1.0)
        for frame, _ in bench.sent():
            assert isinstance(frame, (KeepAlive, Request))
            assert frame.address == answered
            if isinstance(frame, KeepAlive):
                bench.receive(KeepAliveAck(token=frame.token))


def test_backbone_that_answered_the_own_address_is_asked_with_zeros_too_once_it_is_lost() -> None:
    """Another program may run at its address since then, or a router that translates addresses."""
    bench = Bench()
    bench.tick()
    bench.tick(0.5)
    bench.receive(KeepAliveAck(token=keep_alives(bench)[-1].token))
    assert [BackboneLost()] == bench.tick(5.0)
    bench.sent()
    for _ in range(2):
        bench.tick(1.0)
    assert {frame.address for frame in keep_alives(bench)} == {SENDER, SELF}


def test_session_continues_behind_its_position_at_another_address_of_the_backbone() -> None:
    bench = joined()
    elsewhere, own = ("10.0.9.9", 2323), ("10.0.0.7", 4001)
    assert delivered(bench.receive(Deliver(seq=7, data=b"seven"))) == [(7, b"seven")]
    bench.session.push(b"mine", "handle")
    bench.tick(6.0)
    bench.session.move(elsewhere, own, bench.now)
    bench.sent()
    bench.tick()
    [(keep_alive, destination)] = bench.sent()
    assert isinstance(keep_alive, KeepAlive)
    assert (keep_alive.address, destination) == (SENDER, elsewhere)
    ack = KeepAliveAck(token=keep_alive.token)
    assert causes(bench.receive(ack)) == ["not-the-backbone"]
    assert Found() in bench.receive(ack, source=elsewhere)
    assert (Request(address=SENDER, first=8, last=LAST_SEQ), elsewhere) in bench.sent()
    answer = [Deliver(seq=seq, data=data) for seq, data in ((7, b"seven"), (8, b"eight"))]
    assert delivered(bench.receive(*answer, source=elsewhere)) == [(8, b"eight")]
    bench.tick(1.0)
    assert (Push(data=b"mine"), elsewhere) in bench.sent()
    assert PushConfirmed(handle="handle", seq=9) in bench.receive(Deliver(seq=9, data=b"mine"), source=elsewhere)


def test_ack_of_a_keepalive_from_before_a_move_is_dropped() -> None:
    """It would decide which address the client claims, by a KEEPALIVE with an address that the client has lost."""
    bench = Bench()
    bench.tick()
    [keep_alive] = keep_alives(bench)
    bench.session.move(SERVER, PEER, bench.now)
    assert causes(bench.receive(KeepAliveAck(token=keep_alive.token))) == ["unknown-token"]


# Rules 2 and 3: gaps and duplicates.


def test_a_gap_is_requested_from_the_backbone() -> None:
    bench = joined()
    bench.receive(Deliver(seq=1, data=b"1"), Deliver(seq=5, data=b"5"))
    assert bench.session.repair.missing == [(2, 4)]
    bench.tick(0.01)
    assert bench.sent() == []
    assert bench.session.next_due(bench.now) == pytest.approx(bench.now + 0.01)
    bench.tick(0.011)
    assert bench.sent() == [(Request(address=SENDER, first=2, last=4), SERVER)]
    # A peer or the server may answer.
    events = bench.receive(*(Deliver(seq=seq, data=b"%d" % seq) for seq in (2, 3)), source=PEER)
    events += bench.receive(Deliver(seq=4, data=b"4"))
    assert delivered(events) == [(2, b"2"), (3, b"3"), (4, b"4"), (5, b"5")]


def test_records_from_other_peers_are_accepted_only_if_they_were_requested() -> None:
    bench = joined()
    assert causes(bench.receive(Deliver(seq=1, data=b"forged"), source=PEER)) == ["not-requested"]
    bench.receive(Deliver(seq=1, data=b"1"), Deliver(seq=3, data=b"3"))
    for seq in (1, 2, 3, 4):
        assert causes(bench.receive(Deliver(seq=seq, data=b"forged"), source=PEER)) == ["not-requested"]
    bench.tick(0.03)
    train = b"".join(Deliver(seq=seq, data=b"%d" % seq).serialize() for seq in (2, 3))
    assert delivered(bench.session.receive_datagrams(train, 10, PEER, bench.now)) == [(2, b"2"), (3, b"3")]


def test_request_rate_is_bounded() -> None:
    bench = joined()
    times = []
    for seq in range(2, 4_000, 2):
        bench.receive(Deliver(seq=seq, data=b""))
        bench.now += 0.005
        bench.session.tick(bench.now)  # which may be early: a request that is overdue waits for the rate
        times += [bench.now for frame, _ in bench.sent() if isinstance(frame, Request)]
    for begin in times:
        assert sum(begin <= time < begin + 1 for time in times) <= 12
    assert len(times) > 20
    assert bench.session.next_due(bench.now) > bench.now


def test_catch_up_without_live_messages() -> None:
    bench = Bench(after=0)
    bench.join()
    assert (Request(address=SENDER, first=1, last=LAST_SEQ), SERVER) in bench.sent()
    assert delivered(bench.receive(Deliver(seq=1, data=b"1"), source=PEER)) == [(1, b"1")]


def test_lost_backbone_receives_nothing_but_keepalives_and_nothing_else_is_due() -> None:
    bench = joined(timeout=6_000.0)
    bench.receive(Deliver(seq=1, data=b"1"), Deliver(seq=5, data=b"5"))
    assert BackboneLost() in [event for _ in range(60) for event in bench.tick(0.1)]
    bench.session.push(b"waits", "handle")
    bench.sent()
    for _ in range(100):
        assert bench.tick(bench.session.next_due(bench.now) - bench.now) == []
        assert [type(frame) for frame, _ in bench.sent()] == [KeepAlive], "the timer was due for something else"
    assert bench.session.repair.missing == [(2, 4)]


def test_client_without_subscription_ignores_delivers() -> None:
    bench = Bench(subscribe=False, after=0)
    assert bench.join() == [Found()]
    assert causes(bench.receive(Deliver(seq=1, data=b"1"))) == ["not-subscribed"]
    bench.tick(0.9)
    assert bench.sent() == []


# Rule 4: FORWARD.


def test_journal_peer_answers_forwards_directly() -> None:
    bench = joined(store=1_000)
    bench.receive(*(Deliver(seq=seq, data=b"%d" % seq) for seq in (3, 4, 5, 8)))
    assert bench.receive(Forward(address=PEER, first=4, last=9)) == []
    assert bench.sent() == [(Deliver(seq=seq, data=b"%d" % seq), PEER) for seq in (4, 5, 8)]
    bench.receive(Forward(address=PEER, first=9, last=99), Forward(address=PEER, first=0, last=2))
    assert bench.sent() == []


def test_invalid_forwards_are_ignored() -> None:
    bench = joined(store=1_000)
    bench.receive(Deliver(seq=1, data=b"1"))
    forward = Forward(address=PEER, first=1, last=1)
    assert causes(bench.receive(forward, source=PEER)) == ["not-the-backbone"]
    for address in (SELF, ("224.0.0.1", 1), ("255.255.255.255", 1), (PEER[0], 0)):
        assert causes(bench.receive(Forward(address=address, first=1, last=1))) == ["impossible-address"]
    backward = b"\x08" + bytes([10, 0, 0, 3]) + b"\x0f\xa0" + bytes(5) + b"\x02" + bytes(5) + b"\x01"
    assert causes(bench.receive(backward)) == ["backward-range"]
    assert bench.sent() == []


def test_answer_to_a_forward_is_bounded() -> None:
    bench = joined(store=10 << 20)
    train = b"".join(Deliver(seq=seq, data=b"").serialize() for seq in range(1, 12_001))
    bench.session.receive_datagrams(train, 9, SERVER, bench.now)
    bench.receive(Forward(address=PEER, first=0, last=LAST_SEQ))
    assert [frame.seq for frame, _ in bench.sent()] == list(range(1, 10_000))  # 0 to 9,999, and there is no 0


# Rule 5: PUSH.


def test_a_push_is_confirmed_by_its_deliver() -> None:
    bench = joined()
    bench.session.push(b"hello", "a")
    bench.session.push(b"hello", "b")
    bench.tick()
    assert bench.sent() == [(Push(data=b"hello"), SERVER)] * 2
    assert bench.receive(Deliver(seq=9, data=b"other")) == [bench_run(9, b"other")]
    events = bench.receive(Deliver(seq=10, data=b"hello"))
    assert PushConfirmed(handle="a", seq=10) in events
    # The record is behind a gap and not delivered yet, but it is published.
    assert bench.receive(Deliver(seq=12, data=b"hello")) == [PushConfirmed(handle="b", seq=12)]
    assert bench.session.pushes.idle


def bench_run(seq: int, data: bytes) -> object:
    [event] = joined().receive(Deliver(seq=seq, data=data))
    assert isinstance(event, Run)
    return event


def test_nothing_is_pushed_before_the_backbone_is_found() -> None:
    bench = Bench()
    bench.session.push(b"early", "a")
    bench.tick()
    [(frame, _)] = bench.sent()
    assert isinstance(frame, KeepAlive)
    bench.receive(KeepAliveAck(token=frame.token))
    assert bench.sent() == [(Push(data=b"early"), SERVER)]


def test_lost_deliver_of_a_push_is_requested() -> None:
    bench = joined()
    bench.receive(Deliver(seq=1, data=b"1"))
    bench.session.push(b"mine", "a")
    bench.tick()
    bench.sent()
    bench.tick(1.0)
    assert (Request(address=SENDER, first=2, last=LAST_SEQ), SERVER) in bench.sent()
    assert PushConfirmed(handle="a", seq=2) in bench.receive(Deliver(seq=2, data=b"mine"), source=PEER)


def test_window_opens_as_pushes_are_confirmed() -> None:
    bench = joined(window=2)
    for i in range(3):
        bench.session.push(b"%d" % i, i)
    bench.tick()
    assert [frame for frame, _ in bench.sent()] == [Push(data=b"0"), Push(data=b"1")]
    assert not bench.session.pushes.has_room
    bench.receive(Deliver(seq=1, data=b"0"))
    assert [frame for frame, _ in bench.sent()] == [Push(data=b"2")]


def test_pushes_keep_to_the_pace_after_a_burst() -> None:
    bench = joined(pace=1_000, window=10_000, window_bytes=1 << 20)
    for handle in range(5_000):
        bench.session.push(b"%d" % handle, handle)
    sent = []
    for seconds in (0.0, 1.0, 1.0):
        for _ in range(round(seconds / 0.01) or 1):
            bench.tick(min(seconds, 0.01))
        sent.append(sum(isinstance(frame, Push) for frame, _ in bench.sent()))
    assert sent[0] == 64, "the burst"
    assert sent[1:] == pytest.approx([1_000, 1_000], abs=2)


def test_pushes_wait_for_missed_records_after_a_loss() -> None:
    """A new push waits for missed records, because one with the same bytes would confirm it."""
    bench = joined(timeout=60.0)
    bench.receive(Deliver(seq=1, data=b"1"))
    assert BackboneLost() in [event for _ in range(60) for event in bench.tick(0.1)]
    bench.session.push(b"same", "new")
    keep_alive = [frame for frame, _ in bench.sent() if isinstance(frame, KeepAlive)][-1]
    assert bench.receive(KeepAliveAck(token=keep_alive.token)) == [Found()]
    for seq in range(2, 12):
        bench.tick(0.125)
        assert PushConfirmed(handle="new", seq=seq) not in bench.receive(Deliver(seq=seq, data=b"same"), source=PEER)
    assert bench.session.next_due(bench.now) <= bench.now + 0.25
    assert Push(data=b"same") not in [frame for frame, _ in bench.sent()]
    bench.tick(0.25)
    assert Push(data=b"same") in [frame for frame, _ in bench.sent()]
    assert PushConfirmed(handle="new", seq=12) in bench.receive(Deliver(seq=12, data=b"same"))


def test_pushes_wait_a_bounded_time_after_a_loss() -> None:
    bench = joined(timeout=60.0)
    bench.receive(Deliver(seq=1, data=b"1"))
    for _ in range(60):
        bench.tick(0.1)
    bench.session.push(b"x", "x")
    keep_alive = [frame for frame, _ in bench.sent() if isinstance(frame, KeepAlive)][-1]
    bench.receive(KeepAliveAck(token=keep_alive.token))
    for seq in range(2, 18):
        assert Push(data=b"x") not in [frame for frame, _ in bench.sent()]
        bench.tick(0.125)
        bench.receive(Deliver(seq=seq, data=b"busy"))
    assert Push(data=b"x") in [frame for frame, _ in bench.sent()]


def test_invalid_pushes_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="old records would confirm"):
        joined(after=0).session.push(b"a", "a")
    with pytest.raises(LocalProtocolError, match="65499 bytes do not fit"):
        joined().session.push(bytes(MAX_DATA + 1), "a")
    with pytest.raises(LocalProtocolError, match=r"without BackboneOptions\.subscribe"):
        joined(subscribe=False).session.push(b"a", "a")


# Other datagrams.


def test_push_times_out_when_it_is_due_or_is_abandoned() -> None:
    bench = joined(timeout=0.5)
    bench.session.push(b"a", "a")
    bench.tick()
    assert bench.session.next_due(bench.now) == bench.now + 0.5
    assert bench.tick(0.5) == [PushTimedOut(handle="a")]
    bench.session.push(b"b", "b")
    assert bench.session.abandon() == [PushTimedOut(handle="b")]
    assert bench.session.pushes.idle


def test_server_datagrams_are_ignored_by_clients() -> None:
    bench = joined()
    for frame in (Push(data=b"x"), Request(address=SELF, first=1, last=2), Deliver(seq=0, data=b"zero")):
        assert causes(bench.receive(frame)) == ["not-for-clients"]
    keep_alive = KeepAlive(address=SELF, flags=Flags.NONE, token=bytes(16))
    assert causes(bench.receive(keep_alive)) == ["not-for-clients"]
    assert causes(bench.receive(b"\x40")) == ["unknown-type"]
    assert causes(bench.receive(Deliver(seq=1, data=b"abc").serialize()[:-1])) == ["wrong-size"]


def test_batch_of_delivers_is_one_run() -> None:
    bench = joined()
    train = b"".join(Deliver(seq=seq, data=b"%03d" % seq).serialize() for seq in range(1, 65))
    [event] = bench.session.receive_datagrams(train, 12, SERVER, bench.now)
    assert isinstance(event, Run)
    assert (event.first_seq, len(event)) == (1, 64)


# Another journal.


def test_record_that_comes_again_is_suspicious_once_it_was_known_six_keepalives_ago() -> None:
    """Before that, a datagram may have come twice."""
    bench, asked = joined(), list[bool]()
    bench.receive(Deliver(seq=1, data=b"1"), Deliver(seq=2, data=b"2"))
    for _ in range(8):
        bench.receive(Deliver(seq=1, data=b"1"))
        bench.tick()
        asked.append((Request(address=SENDER, first=2, last=2), SERVER) in bench.sent())
        bench.tick(1.0)
        bench.receive(*(KeepAliveAck(token=frame.token) for frame in keep_alives(bench)))
    assert asked.index(True) == 6


class Backbone:
    """A server that answers the KEEPALIVEs and REQUESTs of a client from its records 1 to *end*."""

    def __init__(self, bench: Bench, end: int, oldest: int = 1, answers: bool = True) -> None:
        self.bench, self.end, self.oldest, self.answers = bench, end, oldest, answers
        self.data = b""  #: the data of each record that was not pushed; empty: its number
        self.stored: dict[int, bytes] = {}
        self.pushed: list[bytes] = []
        self.events: list[ClientEvent] = []

    def record(self, seq: int) -> Deliver:
        return Deliver(seq=seq, data=self.stored.get(seq, self.data or b"new %d" % seq))

    def publish(self, *seqs: int) -> None:
        """Deliver the records *seqs*, the last of which is then the end."""
        for self.end in seqs:
            self.events += self.bench.receive(self.record(self.end))

    def run(self, seconds: float) -> None:
        """Let that time pass in steps of 0.05 s."""
        for _ in range(round(seconds / 0.05)):
            self.events += self.bench.tick(0.05)
            for frame, _ in self.bench.sent():
                if isinstance(frame, KeepAlive):
                    self.events += self.bench.receive(KeepAliveAck(token=frame.token))
                elif isinstance(frame, Push):
                    self.pushed.append(frame.data)
                    self.end += 1
                    self.stored[self.end] = frame.data
                    self.events += self.bench.receive(self.record(self.end))
                elif isinstance(frame, Request) and self.answers:
                    found = range(max(self.oldest, frame.first), min(self.end, frame.last) + 1)
                    self.events += self.bench.receive(*map(self.record, found))

    @property
    def restarts(self) -> list[JournalReplaced]:
        return [event for event in self.events if isinstance(event, JournalReplaced)]


def with_twenty_records(**options: object) -> Bench:
    """Return a client that has received records 1 to 20."""
    bench = joined(**options)
    bench.receive(*(Deliver(seq=seq, data=b"old %d" % seq) for seq in range(1, 21)))
    return bench


def behind_twenty_records(**options: object) -> Bench:
    """Return a client that has received records 1 to 20, and whose server was lost."""
    bench = with_twenty_records(**options)
    assert BackboneLost() in [event for _ in range(60) for event in bench.tick(0.1)]
    bench.sent()
    return bench


@pytest.mark.parametrize(
    ("make", "end", "seconds", "published"),
    [
        (behind_twenty_records, 5, 3.0, [6]),
        (behind_twenty_records, 0, 20.0, [1, 2, 3]),
        (with_twenty_records, 20, 8.0, [5]),
        (partial(joined, 20), 5, 1.0, [5]),
    ],
    ids=[
        "after a loss",
        "empty, long after the reconnection",
        "so soon that no KEEPALIVE was missed",
        "beyond the end",
    ],
)
def test_client_is_told_of_another_journal_and_reads_it_from_its_start(
    make: Callable[..., Bench], end: int, seconds: float, published: list[int]
) -> None:
    server = Backbone(make(store=1 << 20), end=end)
    server.run(seconds)
    assert server.restarts == []
    server.publish(*published)
    server.run(3.0)
    last = published[-1]
    assert server.restarts == [JournalReplaced(end=last, highest=20)]
    server.publish(last + 1, last + 2)
    records = [(seq, b"new %d" % seq) for seq in range(1, last + 3)]
    assert delivered(server.events) == records
    server.bench.receive(Forward(address=PEER, first=1, last=99))
    stored = [(frame.seq, frame.data) for frame, _ in server.bench.sent() if isinstance(frame, Deliver)]
    assert stored == records, "other clients get no record of the old journal"


@pytest.mark.parametrize(("end", "oldest"), [(20, 1), (25, 1), (20, 21), (25, 23)])
def test_same_journal_is_no_restart(end: int, oldest: int) -> None:
    server = Backbone(behind_twenty_records(), end=end, oldest=oldest)
    server.run(12.0)
    assert server.restarts == []


def test_restored_backup_that_skips_numbers_is_no_restart() -> None:
    """It answers with earlier records, and has lost the latest; but it sends no old number again."""
    server = Backbone(behind_twenty_records(), end=10)
    server.run(5.0)
    server.events += server.bench.receive(Deliver(seq=5_000, data=b"first behind the skipped numbers"))
    server.run(12.0)
    assert server.restarts == []
    assert [seq for seq, _ in delivered(server.events)] == [5_000]


def test_follower_that_only_delivers_older_records_is_no_restart() -> None:
    """A follower that lags does not answer REQUESTs that end beyond its end; it delivers what it copies."""
    server = Backbone(behind_twenty_records(), end=20, answers=False)
    for seq in range(10, 20):
        server.run(0.3)
        server.events += server.bench.receive(server.record(seq))
    assert server.restarts == []


@pytest.mark.parametrize("lost", [True, False])
def test_pushes_to_another_journal_are_sent_once_and_confirmed_by_their_own_records(lost: bool) -> None:
    """Other publishers' records have the same bytes: those that the journal had before it got the pushes."""
    sent_before = 0
    for seed in range(30):
        random = Random(seed)
        server = Backbone((behind_twenty_records if lost else with_twenty_records)(timeout=60.0), end=0)
        server.end, server.data = random.randint(0, 9), b"same"
        server.run(random.choice((0.1, 3.0, 8.0)) if lost else 8.0)
        if seed % 2:
            server.publish(*range(server.end + 1, server.end + random.randint(2, 9)))
        handles = list(range(random.randint(1, 3)))
        for handle in handles:
            server.bench.session.push(b"same", handle)
            server.run(random.choice((0.05, 0.5, 7.0)))
            sent_before += bool(server.pushed) and not server.restarts
        server.run(20.0)
        confirmed = [(event.handle, event.seq) for event in server.events if isinstance(event, PushConfirmed)]
        assert confirmed == list(zip(handles, server.stored, strict=True)), f"seed {seed}"
        assert [event.highest for event in server.restarts] == [20]
        assert [seq for seq, _ in delivered(server.events)] == list(range(1, server.end + 1))
    assert sent_before, "no push was sent before the other journal was noticed"
