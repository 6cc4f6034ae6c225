"""The server's session: every rule of the text, and every row of the threat table that needs no socket."""

from __future__ import annotations

from collections import Counter
from random import Random
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.policy import Action
from fyrehose.protocols.backbone.frames import (
    Address,
    Deliver,
    Flags,
    Forward,
    KeepAlive,
    KeepAliveAck,
    Push,
    Request,
    decode,
)
from fyrehose.protocols.backbone.session import Dropped, Event, Pushed, Replay, ServerSession
from fyrehose.protocols.backbone.settings import Settings
from fyrehose.records import LAST_SEQ

OWN = ("10.0.0.1", 2323)
CLIENT = ("10.0.0.2", 4000)
OTHER = ("10.0.0.3", 4000)
TOKEN = bytes(range(16))


class Bench:
    """A session, a clock and the ends of a stream, in the test's hands."""

    def __init__(self, oldest: int = 1, last: int = 100, permits: Any = lambda *_: True, **settings: object) -> None:
        self.now = 1_000.0
        self.bounds = (oldest, last)
        known: Any = Settings(**settings)  # type: ignore[arg-type]
        self.session = ServerSession(known, lambda: self.bounds, lambda a: a == OWN, Random(7), permits)

    def receive(self, *datagrams: bytes, source: Address = CLIENT) -> list[Event]:
        """The events of ``datagrams``, each by itself."""
        return [e for d in datagrams for e in self.session.receive_datagrams(d, max(len(d), 1), source, self.now)]

    def causes(self, *datagrams: bytes, source: Address = CLIENT) -> list[str]:
        """Why each was dropped; nothing else may have come of them."""
        events = self.receive(*datagrams, source=source)
        assert all(isinstance(event, Dropped) for event in events), events
        assert self.session.data_to_send() == []
        return [event.cause for event in events if isinstance(event, Dropped)]

    def join(self, *clients: Address, flags: Flags = Flags.NONE) -> None:
        for client in clients:
            assert self.receive(keep_alive(client, flags), source=client) == []
        self.session.data_to_send()

    def listening(self) -> list[Address]:
        return self.session.listening(self.now)


def keep_alive(address: Address, flags: Flags = Flags.NONE, token: bytes = TOKEN) -> bytes:
    return KeepAlive(address=address, flags=flags, token=token).encode()


def request(first: int, last: int, address: Address = CLIENT) -> bytes:
    return Request(address=address, first=first, last=last).encode()


# PUSH: rules 3 and 5.


def test_a_push_from_a_stranger_is_taken() -> None:
    """Threat: PUSH from strangers, which the text lets publish."""
    event = Pushed(source=OTHER, lengths=pack("<I", 2), payload=b"hi", large=0)
    assert Bench().receive(Push(data=b"hi").encode(), source=OTHER) == [event]


def test_an_empty_push_is_a_message() -> None:
    assert Bench().receive(Push(data=b"").encode()) == [
        Pushed(source=CLIENT, lengths=pack("<I", 0), payload=b"", large=0)
    ]


def test_a_train_of_pushes_is_one_event_and_other_datagrams_in_it_count() -> None:
    bench = Bench()
    push = Push(data=b"x" * 10).encode()
    train = push + push + request(1, 5) + push[:-1]
    assert len(request(1, 5)) == len(push)
    events = bench.session.receive_datagrams(train, len(push), CLIENT, bench.now)
    assert [type(event) for event in events] == [Pushed, Replay, Dropped]
    assert events[0] == Pushed(source=CLIENT, lengths=pack("<2I", 10, 10), payload=b"x" * 20, large=0)


def test_payloads_that_travel_in_fragments_are_counted() -> None:
    bench = Bench()
    events = bench.receive(Push(data=bytes(1_463)).encode(), Push(data=bytes(1_464)).encode())
    assert [event.large for event in events if isinstance(event, Pushed)] == [0, 1]


def test_push_rate_of_an_address() -> None:
    """Threat: PUSH from strangers, within a rate for each address."""
    bench = Bench(push_rate=100)
    train = Push(data=b"x").encode() * 64
    first, second, third = (bench.session.receive_datagrams(train, 10, CLIENT, bench.now) for _ in range(3))
    assert first == [Pushed(source=CLIENT, lengths=pack("<64I", *[1] * 64), payload=b"x" * 64, large=0)]
    assert second == [
        Dropped(source=CLIENT, cause="push-rate", count=28),
        Pushed(source=CLIENT, lengths=pack("<36I", *[1] * 36), payload=b"x" * 36, large=0),
    ]
    assert third == [Dropped(source=CLIENT, cause="push-rate", count=64)]
    # Another port of the same address is the same; another address is not.
    assert bench.causes(train[:10], source=(CLIENT[0], 9)) == ["push-rate"]
    assert isinstance(bench.receive(train[:10], source=OTHER)[0], Pushed)
    bench.now += 0.5
    events = bench.session.receive_datagrams(train, 10, CLIENT, bench.now)
    assert events[-1] == Pushed(source=CLIENT, lengths=pack("<50I", *[1] * 50), payload=b"x" * 50, large=0)


def test_a_length_that_counts_the_header() -> None:
    datagram = b"\x02\0\x0b" + bytes(6) + b"hi"
    assert Bench().causes(datagram) == ["wrong-size"]
    taken = Bench(total_length=True).receive(datagram)
    assert taken == [Pushed(source=CLIENT, lengths=pack("<I", 2), payload=b"hi", large=0)]


# KEEPALIVE: rules 1 and 2.


def test_every_keepalive_is_acknowledged_with_its_token() -> None:
    bench = Bench()
    for i in range(3):
        token = bytes([i]) * 16
        assert bench.receive(keep_alive(CLIENT, token=token)) == []
        assert bench.session.data_to_send() == [(CLIENT, KeepAliveAck(token=token).encode())]
    assert bench.listening() == [CLIENT]


def test_the_ack_goes_to_the_address_that_the_keepalive_names() -> None:
    bench = Bench()
    bench.receive(keep_alive((CLIENT[0], 999)))
    bench.receive(keep_alive(("0.0.0.0", 998)))
    assert [destination for destination, _ in bench.session.data_to_send()] == [(CLIENT[0], 999), (CLIENT[0], 998)]
    assert bench.listening() == [(CLIENT[0], 999), (CLIENT[0], 998)]


def test_a_subscription_lasts_five_seconds_inclusive() -> None:
    bench = Bench()
    bench.join(CLIENT)
    bench.now += 5.0
    assert bench.listening() == [CLIENT]
    bench.now += 0.001
    assert bench.listening() == []


def test_threat_forged_address() -> None:
    bench = Bench()
    assert bench.causes(keep_alive(OTHER), request(1, 5, OTHER)) == ["foreign-address"] * 2
    assert bench.listening() == []


def test_threat_addresses_that_nobody_has() -> None:
    bench = Bench()
    for host in ("224.0.0.1", "255.255.255.255", "240.1.1.1"):
        assert bench.causes(keep_alive((host, 1)), source=(host, 1)) == ["impossible-address"], host
    assert bench.causes(keep_alive((CLIENT[0], 0)), request(1, 5, (CLIENT[0], 0))) == ["impossible-address"] * 2


def test_threat_own_address() -> None:
    bench = Bench()
    assert bench.causes(keep_alive(OWN), request(1, 5, OWN), source=OWN) == ["own-address"] * 2
    assert bench.listening() == []


def test_threat_strangers_may_neither_publish_nor_subscribe() -> None:
    asked = []

    def permits(host: str, action: Action) -> bool:
        asked.append((host, action))
        return host == CLIENT[0] or (host == OTHER[0] and action is Action.SUBSCRIBE)

    bench = Bench(permits=permits)
    stranger = ("10.9.9.9", 4000)
    assert bench.causes(Push(data=b"x").encode(), keep_alive(stranger), source=stranger) == ["Forbidden"] * 2
    assert bench.causes(request(1, 5, stranger), source=stranger) == ["Forbidden"]
    (dropped,) = bench.session.receive_datagrams(Push(data=b"x").encode() * 3, 10, OTHER, 0.0)
    assert dropped == Dropped(source=OTHER, cause="Forbidden", detail="it may not publish", count=3)
    assert bench.receive(keep_alive(OTHER), source=OTHER) == []
    assert isinstance(bench.receive(Push(data=b"x").encode())[0], Pushed)
    assert set(asked) == {
        *((stranger[0], action) for action in Action),
        *((OTHER[0], action) for action in Action),
        (CLIENT[0], Action.PUBLISH),
    }


def test_threat_token_or_flags_of_another() -> None:
    """A NOSUBSCRIBE that does not come from the subscriber's own address changes nothing."""
    bench = Bench()
    bench.join(CLIENT)
    assert bench.causes(keep_alive(CLIENT, Flags.NOSUBSCRIBE), source=OTHER) == ["foreign-address"]
    assert bench.listening() == [CLIENT]


def test_threat_flood_of_keepalives() -> None:
    bench = Bench()
    acked = 0
    for i in range(100_000):
        bench.receive(keep_alive(("0.0.0.0", 1)), source=(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}", 1))
        acked += len(bench.session.data_to_send())
    assert acked == 1_024
    assert len(bench.listening()) == 1_024
    # Those that were there first are not pushed out, and go on being acknowledged.
    bench.receive(keep_alive(("0.0.0.0", 1)), source=("10.0.0.0", 1))
    assert len(bench.session.data_to_send()) == 1
    assert bench.causes(keep_alive(CLIENT)) == ["too-many-subscribers"]


# REQUEST: rule 4.


def test_the_journal_answers_when_nobody_else_can() -> None:
    bench = Bench()
    bench.join(CLIENT)  # the requester itself
    bench.join(OTHER, flags=Flags.NOJOURNAL)
    for i in range(5):
        assert bench.receive(request(3 + i, 9)) == [Replay(destination=CLIENT, first=3 + i, last=9)]
    assert bench.session.data_to_send() == []


def test_a_request_is_forwarded_in_turn_and_never_to_the_requester() -> None:
    bench = Bench(request_rate=10_000, forward_rate=10_000)
    third = ("10.0.0.4", 4000)
    bench.join(CLIENT, OTHER)
    bench.join(third, flags=Flags.NOSUBSCRIBE)  # answers without listening
    turns: Counter[Address | None] = Counter()
    for i in range(300):
        events = bench.receive(request(1, 1 + i % 90))
        bench.now += 0.01
        sent = bench.session.data_to_send()
        assert len(events) + len(sent) == 1
        for peer, datagram in sent:
            assert decode(datagram) == Forward(address=CLIENT, first=1, last=1 + i % 90)
            turns[peer] += 1
        turns[None] += len(events)
        bench.join(CLIENT, OTHER)
        bench.join(third, flags=Flags.NOSUBSCRIBE)
    assert turns == {None: 100, OTHER: 100, third: 100}


def test_no_forward_to_a_client_that_fell_silent() -> None:
    bench = Bench()
    bench.join(OTHER)
    bench.now += 5.001
    for i in range(4):
        assert bench.receive(request(1, 2 + i)) == [Replay(destination=CLIENT, first=1, last=2 + i)]


def test_threat_a_request_for_everything() -> None:
    bench = Bench(oldest=500, last=90_000)
    assert bench.receive(request(0, LAST_SEQ)) == [Replay(destination=CLIENT, first=500, last=10_499)]
    bench.bounds = (500, 600)
    assert bench.receive(request(0, LAST_SEQ - 1)) == [Replay(destination=CLIENT, first=500, last=600)]
    bench.join(OTHER)
    sent = []
    for i in range(4):
        bench.receive(request(i, LAST_SEQ))
        sent += bench.session.data_to_send()
    assert sent
    assert {(peer, datagram) for peer, datagram in sent} == {
        (OTHER, Forward(address=CLIENT, first=500, last=600).encode())
    }


def test_the_edges_of_what_is_kept() -> None:
    bench = Bench(oldest=10, last=20, request_rate=100)
    assert bench.receive(request(20, 20)) == [Replay(destination=CLIENT, first=20, last=20)]
    assert bench.receive(request(0, 10)) == [Replay(destination=CLIENT, first=10, last=10)]
    assert bench.causes(request(0, 9), request(21, 30)) == ["request-of-nothing"] * 2
    bench.bounds = (1, 0)
    assert bench.causes(request(0, 5)) == ["request-of-nothing"]


def test_threat_from_above_to() -> None:
    backward = b"\x04" + bytes([10, 0, 0, 2]) + (4000).to_bytes(2, "big") + bytes(5) + b"\x02" + bytes(5) + b"\x01"
    assert Bench().causes(backward) == ["backward-range"]


def test_threat_requests_without_end() -> None:
    bench = Bench()
    answered = sum(isinstance(bench.receive(request(1, 1 + i))[0], Replay) for i in range(50))
    assert answered == 10
    # Another client of the same host has its own rate.
    assert isinstance(bench.receive(request(1, 5, (CLIENT[0], 5)))[0], Replay)
    bench.now += 0.5
    assert sum(isinstance(bench.receive(request(2, 3 + i))[0], Replay) for i in range(50)) == 5


def test_the_same_request_within_a_tenth_of_a_second_is_one() -> None:
    """Threat: REQUEST [0, 2^48), again and again."""
    bench = Bench()
    assert isinstance(bench.receive(request(1, 5))[0], Replay)
    bench.now += 0.09
    assert bench.causes(request(1, 5), request(1, 5, ("0.0.0.0", CLIENT[1]))) == ["request-repeated"] * 2
    assert isinstance(bench.receive(request(1, 6))[0], Replay)
    bench.now += 0.02
    assert isinstance(bench.receive(request(1, 5))[0], Replay)


def test_requests_to_be_merged_are_remembered_within_bounds() -> None:
    bench = Bench()
    for port in range(1, 10_000):
        bench.receive(request(1, 5, (CLIENT[0], port)))
    assert len(bench.session._asked) <= 4_096


def test_threat_forwards_as_an_attack_on_peers() -> None:
    bench = Bench(request_rate=10_000)
    bench.join(OTHER)
    counts: Counter[str] = Counter()
    for port in range(1, 5_001):
        for event in bench.receive(request(1, 5, (CLIENT[0], port))):
            counts[event.cause if isinstance(event, Dropped) else "replay"] += 1
    forwards = bench.session.data_to_send()
    assert len(forwards) == 1_000
    assert {peer for peer, _ in forwards} == {OTHER}
    assert all(decode(datagram).address != OTHER for _, datagram in forwards)  # type: ignore[union-attr]
    assert counts == {"replay": 2_500, "forward-rate": 1_500}


# All else.


def test_threat_datagrams_that_are_not_for_servers() -> None:
    bench = Bench()
    for frame in (
        Deliver(seq=1, data=b"x"),
        Forward(address=CLIENT, first=1, last=2),
        KeepAliveAck(token=TOKEN),
    ):
        assert bench.causes(frame.encode()) == ["not-for-servers"], frame


def test_threat_every_type_and_length_is_dropped_in_silence() -> None:
    bench = Bench()
    for kind in range(256):
        for size in (*range(64), 1_000, 65_507):
            datagram = (bytes([kind]) + b"\xff" * 65_506)[:size]
            if len(datagram) in (19, 29) and kind in (4, 16):
                continue  # those are frames, and forged
            assert len(bench.causes(datagram)) == 1, (kind, size)
    assert bench.listening() == []


@given(datagram=st.binary(max_size=80), segment=st.integers(1, 40), kind=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_any_bytes_at_all(datagram: bytes, segment: int, kind: int) -> None:
    bench = Bench()
    data = bytes([kind]) + datagram
    events = bench.session.receive_datagrams(data, segment, CLIENT, bench.now)
    accounted = sum(len(e.lengths) // 4 if isinstance(e, Pushed) else getattr(e, "count", 1) for e in events)
    assert accounted + len(bench.session.data_to_send()) == -(-len(data) // segment)


# What goes out.


def test_threat_bytes_to_one_host() -> None:
    bench = Bench(destination_rate=1_600_000)  # 100,000 at once
    sent = 0
    for _ in range(1_000):
        if bench.session.ready(CLIENT, bench.now):
            bench.session.charge(CLIENT, 60_000, bench.now)
            sent += 60_000
        bench.now += 0.001
    assert 1_600_000 <= sent <= 1_600_000 + 100_000 + 60_000
    # The host counts, whatever the port: a thousand subscriptions of one victim are one.
    bench.session.charge(CLIENT, 1_000_000, bench.now)
    assert not bench.session.ready((CLIENT[0], 1), bench.now)
    assert bench.session.ready(OTHER, bench.now)


def test_limits_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="push_rate has to be 1"):
        Settings(push_rate=0)
