"""The server's session: the rules of the specification, and the threats that need no socket."""

from __future__ import annotations

from collections import Counter
from random import Random
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.identity import Action
from fyrehose.options import networks
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
from fyrehose.protocols.backbone.gso_batches import Train, serialize_delivers
from fyrehose.protocols.backbone.session import BackboneServerSession, Dropped, Pushed, Replay, ServerEvent
from fyrehose.protocols.backbone.settings import BackboneSettings
from fyrehose.protocols.backbone.subscribers import ALLOWANCES, QUIET, KnownClient
from fyrehose.records import LAST_SEQ, Run
from tests.doubles.references import references

OWN = ("10.0.0.1", 2323)
CLIENT = ("10.0.0.2", 4000)
OTHER = ("10.0.0.3", 4000)
TOKEN = bytes(range(16))


class Bench:
    """A session with a clock and stream bounds that tests control; its clients are in a trusted network."""

    def __init__(self, oldest: int = 1, last: int = 100, permits: Any = lambda *_: True, **settings: object) -> None:
        self.now = 1_000.0
        self.bounds = (oldest, last)
        settings.setdefault("trusted", networks("10.0.0.0/8"))
        known: Any = BackboneSettings(**settings)  # type: ignore[arg-type]
        self.session = BackboneServerSession(known, lambda: self.bounds, lambda a: a == OWN, Random(7), permits)

    def receive(self, *datagrams: bytes, source: Address = CLIENT) -> list[ServerEvent]:
        """Receive *datagrams* one at a time; return the events."""
        return [e for d in datagrams for e in self.session.receive_datagrams(d, max(len(d), 1), source, self.now)]

    def causes(self, *datagrams: bytes, source: Address = CLIENT) -> list[str]:
        """Receive *datagrams*, which must all be dropped; return the causes."""
        events = self.receive(*datagrams, source=source)
        assert all(isinstance(event, Dropped) for event in events), events
        assert self.session.data_to_send() == []
        return [event.cause for event in events if isinstance(event, Dropped)]

    def sent(self) -> list[tuple[Address, bytes]]:
        """Return the destinations and the datagrams that the session has to send."""
        return [(to, bytes(datagram)) for train, to in self.session.data_to_send() for datagram in train.datagrams()]

    def join(self, *clients: Address, flags: Flags = Flags.NONE) -> None:
        """Receive a KEEPALIVE of each client."""
        for client in clients:
            assert self.receive(keep_alive(client, flags), source=client) == []
        self.session.data_to_send()

    def asking(self, *clients: Address) -> Bench:
        """Return self after KEEPALIVEs of *clients* with NOSUBSCRIBE and NOJOURNAL."""
        self.join(*clients or [CLIENT], flags=QUIET)
        return self

    def subscribers(self) -> list[Address]:
        return [address for address, _ in self.session.subscribers.receivers(self.now)]

    def client(self, address: Address = CLIENT) -> KnownClient:
        client = self.session.subscribers.find(address, self.now)
        assert client is not None
        return client

    def ration(self, *sizes: int, first: int = 1) -> list[int]:
        """Return which DELIVERs of *sizes* the ration of CLIENT covers, by their sequences from *first* on."""
        trains, last = delivery(*sizes, first=first)
        return numbers(self.session.ration(self.client(), trains, [(first, last)]))


def keep_alive(address: Address, flags: Flags = Flags.NONE, token: bytes = TOKEN) -> bytes:
    return KeepAlive(address=address, flags=flags, token=token).serialize()


def request(first: int, last: int, address: Address = CLIENT) -> bytes:
    return Request(address=address, first=first, last=last).serialize()


# PUSH: rules 3 and 5.


@pytest.mark.parametrize("data", [b"hi", b""])
def test_push_without_keepalive_is_accepted(data: bytes) -> None:
    """Threat: PUSH from strangers, which rule 5 of the backbone accepts."""
    event = Pushed(source=OTHER, lengths=pack("<I", len(data)), payload=data, large=0)
    assert Bench().receive(Push(data=data).serialize(), source=OTHER) == [event]


def test_batch_of_pushes_is_one_event() -> None:
    bench = Bench().asking()
    push = Push(data=b"x" * 10).serialize()
    train = push + push + request(1, 5) + push[:-1]
    assert len(request(1, 5)) == len(push)
    events = bench.session.receive_datagrams(train, len(push), CLIENT, bench.now)
    assert [type(event) for event in events] == [Pushed, Replay, Dropped]
    assert events[0] == Pushed(source=CLIENT, lengths=pack("<2I", 10, 10), payload=b"x" * 20, large=0)


def test_pushes_above_the_rate_of_an_address_are_dropped() -> None:
    """Threat: PUSH from strangers, within a rate for each address."""
    bench = Bench(push_rate=100)
    train = Push(data=b"x").serialize() * 64
    first, second, third = (bench.session.receive_datagrams(train, 10, CLIENT, bench.now) for _ in range(3))
    assert first == [Pushed(source=CLIENT, lengths=pack("<64I", *[1] * 64), payload=b"x" * 64, large=0)]
    assert second == [
        Dropped(source=CLIENT, cause="push-rate", count=28),
        Pushed(source=CLIENT, lengths=pack("<36I", *[1] * 36), payload=b"x" * 36, large=0),
    ]
    assert third == [Dropped(source=CLIENT, cause="push-rate", count=64)]
    # The rate counts the address, whatever the port.
    assert bench.causes(train[:10], source=(CLIENT[0], 9)) == ["push-rate"]
    assert isinstance(bench.receive(train[:10], source=OTHER)[0], Pushed)
    bench.now += 0.5
    events = bench.session.receive_datagrams(train, 10, CLIENT, bench.now)
    assert events[-1] == Pushed(source=CLIENT, lengths=pack("<50I", *[1] * 50), payload=b"x" * 50, large=0)


def test_length_may_include_the_header_by_option() -> None:
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
        assert bench.sent() == [(CLIENT, KeepAliveAck(token=token).serialize())]
    assert bench.subscribers() == [CLIENT]


def test_the_ack_goes_to_the_address_that_the_keepalive_names() -> None:
    bench = Bench()
    for _ in range(2):
        bench.receive(keep_alive((CLIENT[0], 999)))
        bench.receive(keep_alive(("0.0.0.0", 998)))
        assert [destination for destination, _ in bench.sent()] == [(CLIENT[0], 999), (CLIENT[0], 998)]
    assert bench.subscribers() == [(CLIENT[0], 999), (CLIENT[0], 998)]


def test_threat_keepalive_that_names_another_address_is_refused() -> None:
    bench = Bench()
    assert bench.causes(keep_alive(OTHER), request(1, 5, OTHER)) == ["foreign-address"] * 2
    assert bench.subscribers() == []


def test_threat_impossible_addresses_are_refused() -> None:
    bench = Bench()
    for host in ("224.0.0.1", "255.255.255.255", "240.1.1.1"):
        assert bench.causes(keep_alive((host, 1)), source=(host, 1)) == ["impossible-address"], host
    nowhere = (CLIENT[0], 0)
    assert bench.causes(keep_alive(nowhere), request(1, 5, nowhere), source=nowhere) == ["impossible-address"] * 2


def test_port_0_stands_for_the_source_port() -> None:
    bench = Bench()
    assert bench.receive(keep_alive(("0.0.0.0", 0))) == []
    assert bench.subscribers() == [CLIENT]
    assert bench.receive(request(1, 5, (CLIENT[0], 0))) == [Replay(destination=CLIENT, first=1, last=5)]


def test_threat_keepalive_that_names_the_server_itself_is_refused() -> None:
    bench = Bench()
    assert bench.causes(keep_alive(OWN), request(1, 5, OWN), source=OWN) == ["own-address"] * 2
    assert bench.subscribers() == []


def test_threat_strangers_may_neither_publish_nor_subscribe() -> None:
    asked = []

    def permits(host: str, action: Action) -> bool:
        asked.append((host, action))
        return host == CLIENT[0] or (host == OTHER[0] and action is Action.SUBSCRIBE)

    bench = Bench(permits=permits)
    stranger = ("10.9.9.9", 4000)
    assert bench.causes(Push(data=b"x").serialize(), keep_alive(stranger), source=stranger) == ["Forbidden"] * 2
    assert bench.causes(request(1, 5, stranger), source=stranger) == ["Forbidden"]
    (dropped,) = bench.session.receive_datagrams(Push(data=b"x").serialize() * 3, 10, OTHER, 0.0)
    detail = "the access policy does not permit this address to publish"
    assert dropped == Dropped(source=OTHER, cause="Forbidden", detail=detail, count=3)
    assert bench.receive(keep_alive(OTHER), source=OTHER) == []
    assert isinstance(bench.receive(Push(data=b"x").serialize())[0], Pushed)
    assert set(asked) == {
        *((host, action) for host in (stranger[0], OTHER[0]) for action in (Action.PUBLISH, Action.SUBSCRIBE)),
        (CLIENT[0], Action.PUBLISH),
    }


def test_threat_flags_sent_from_another_address_do_not_change_a_subscription() -> None:
    """A NOSUBSCRIBE that does not come from the subscriber's own address changes nothing."""
    bench = Bench()
    bench.join(CLIENT)
    assert bench.causes(keep_alive(CLIENT, Flags.NOSUBSCRIBE), source=OTHER) == ["foreign-address"]
    assert bench.subscribers() == [CLIENT]


def test_threat_flood_of_keepalives_takes_a_bounded_number_of_places() -> None:
    bench = Bench()
    acked = 0
    for i in range(3_000):
        bench.receive(keep_alive(("0.0.0.0", 1)), source=(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}", 1))
        acked += len(bench.sent())
    assert acked == 1_024
    assert len(bench.subscribers()) == 1_024
    # Earlier clients keep their places and are acknowledged.
    bench.receive(keep_alive(("0.0.0.0", 1)), source=("10.0.0.0", 1))
    assert len(bench.sent()) == 1
    assert bench.subscribers()[-1] == ("10.0.0.0", 1)
    assert bench.causes(keep_alive(CLIENT)) == ["too-many-subscribers"]


def flood(bench: Bench, host: str, count: int) -> int:
    """Receive KEEPALIVEs from *count* ports of *host*; return the number of ACKs."""
    for port in range(1, count + 1):
        bench.receive(keep_alive((host, port)), source=(host, port))
    return len(bench.sent())


@pytest.mark.parametrize(("crowd", "admitted"), [(1_023, 1_023), (1_024, 1_024), (1_025, 1_024), (1_100, 1_024)])
def test_clients_behind_one_address_may_have_all_places(crowd: int, admitted: int) -> None:
    bench = Bench()
    assert flood(bench, CLIENT[0], crowd) == admitted
    assert bench.causes(keep_alive(CLIENT), source=CLIENT) == ["too-many-subscribers"] if crowd > 1_023 else True


def test_threat_host_that_takes_all_places_is_displaced_by_other_hosts() -> None:
    bench = Bench()
    flood(bench, CLIENT[0], 1_100)
    # Other hosts get places, up to as many as the flooding host keeps.
    for n in range(512):
        (dropped,) = bench.receive(keep_alive((OTHER[0], n + 1)), source=(OTHER[0], n + 1))
        assert dropped == Dropped(
            source=(CLIENT[0], n + 1),  # the one that has been silent for the longest
            cause="subscriber-displaced",
            detail="all 1024 places are taken, and its address holds the most: 10.0.0.3 gets the place; "
            "raise backbone.subscribers",
        )
        assert [to for to, _ in bench.sent()] == [(OTHER[0], n + 1)]
    assert bench.causes(keep_alive((OTHER[0], 600)), source=(OTHER[0], 600)) == ["too-many-subscribers"]
    # A third host displaces clients of both, and the flood regains nothing.
    third = "10.0.0.4"
    assert flood(bench, third, 400) == 341
    assert 341 <= flood(bench, CLIENT[0], 1_100) <= 342
    hosts = Counter(host for host, _ in bench.subscribers())
    assert sorted(hosts.values()) == [341, 341, 342]


def test_displaced_client_gets_the_next_free_place() -> None:
    bench = Bench(subscribers=2)
    bench.join((CLIENT[0], 1), (CLIENT[0], 2))
    bench.receive(*[keep_alive(OTHER)] * 2, source=OTHER)
    bench.sent()
    assert bench.subscribers() == [(CLIENT[0], 2), OTHER]
    for _ in range(5):
        bench.now += 1.0
        assert bench.causes(keep_alive((CLIENT[0], 1)), source=(CLIENT[0], 1)) == ["too-many-subscribers"]
        bench.receive(keep_alive((CLIENT[0], 2)), source=(CLIENT[0], 2))
        bench.sent()
    bench.now += 0.001  # OTHER has been silent for more than 5 s
    bench.join((CLIENT[0], 1))
    assert bench.subscribers() == [(CLIENT[0], 2), (CLIENT[0], 1)]


def test_quiet_clients_are_acknowledged_without_a_place() -> None:
    bench = Bench(subscribers=4)
    for port in range(1, 10):
        bench.receive(keep_alive((CLIENT[0], port), QUIET), source=(CLIENT[0], port))
    assert len(bench.sent()) == 9
    assert flood(bench, CLIENT[0], 4) == 4, "quiet clients take no place of a subscriber"


# Rations: the sources of datagrams are not proved.


def strangers(**settings: object) -> Bench:
    """Return a bench that trusts no network."""
    return Bench(trusted=(), **settings)  # type: ignore[arg-type]


def delivery(*sizes: int, first: int = 1) -> tuple[tuple[Train, ...], int]:
    """Return DELIVERs of the given sizes, headers included, and the last sequence."""
    run = Run.of("backbone", [bytes(size - 9) for size in sizes], source="x").numbered(first, 0)
    return serialize_delivers((run,)).trains, run.last_seq


def numbers(trains: tuple[Train, ...]) -> list[int]:
    frames = [decode(bytes(t.data[at : at + t.segment])) for t in trains for at in range(0, t.size, t.segment)]
    return [frame.seq for frame in frames if isinstance(frame, Deliver)]


def test_client_of_a_trusted_network_has_no_ration() -> None:
    """Rules 2 to 4 of the backbone."""
    bench = Bench()
    bench.receive(keep_alive(CLIENT))
    assert bench.subscribers() == [CLIENT]
    assert bench.ration(*[60_000] * 9) == list(range(1, 10))
    assert bench.receive(request(1, 5)) == [Replay(destination=CLIENT, first=1, last=5)]
    assert bench.session.subscribers.journals(bench.now) == [CLIENT]


def test_a_network_is_trusted_only_if_it_is_named() -> None:
    bench = Bench(trusted=networks("10.0.0.0/31"))
    neighbour = ("10.0.0.1", 9)
    bench.receive(keep_alive(neighbour), source=neighbour)
    bench.receive(keep_alive(CLIENT))
    assert bench.client(neighbour).credit is None
    assert bench.client().credit == 70


@pytest.mark.parametrize(("size", "sent"), [(69, [1]), (70, [1]), (71, [])])
def test_threat_one_keepalive_is_answered_with_at_most_three_times_its_size(size: int, sent: list[int]) -> None:
    """29 bytes were received, and the ACK of 17 bytes was sent."""
    bench = strangers()
    bench.receive(keep_alive(CLIENT))
    assert bench.ration(size) == sent
    assert bench.ration(70, first=2) == ([] if sent else [2])


def test_threat_burst_of_keepalives_is_answered_with_at_most_three_times_its_size() -> None:
    """What two KEEPALIVEs and a REQUEST of 77 bytes bring in all does not depend on the REQUEST."""
    bench = strangers()
    for _ in range(10):
        bench.receive(keep_alive(CLIENT))
        bench.now += 0.049
    assert bench.client().credit == 10 * (3 * 29 - 17)
    assert bench.receive(request(1, 100)) == [Replay(destination=CLIENT, first=1, last=100)]
    assert len(bench.ration(*[100] * 100)) == 7


def test_allowance_grows_with_each_second_of_keepalives() -> None:
    bench = strangers()
    bench.receive(keep_alive(CLIENT))
    allowances = []
    for _ in range(5):
        bench.now += 0.999
        bench.receive(keep_alive(CLIENT), keep_alive(CLIENT))
        allowances.append(bench.client().credit)
    assert allowances == [*(allowance + 70 for allowance in ALLOWANCES), None]
    assert ALLOWANCES == (64 << 10, 512 << 10, 4 << 20, 32 << 20)
    bench.now += 5.001
    bench.receive(keep_alive(CLIENT))
    assert bench.client().credit == 70, "after 5 s of silence it is another client"


def test_allowance_is_not_saved_for_later() -> None:
    bench = strangers()
    bench.receive(keep_alive(CLIENT))
    for second in (1, 2):
        bench.now += 1
        bench.receive(keep_alive(CLIENT))
        assert bench.client().credit == ALLOWANCES[second - 1]


def test_client_with_a_ration_receives_its_own_pushes() -> None:
    bench = strangers()
    bench.receive(keep_alive(CLIENT), *[Push(data=bytes(91)).serialize()] * 2)
    assert bench.client().credit == 70 + 3 * 200
    assert bench.ration(*[100] * 9) == [1, 2, 3, 4, 5, 6]
    assert bench.client().credit == 70


def test_records_after_a_held_back_record_are_held_back_too() -> None:
    bench = strangers()
    bench.receive(keep_alive(CLIENT))
    assert bench.ration(71, 20, 20) == []
    assert list(bench.client().held) == [(1, 3)]


def test_held_back_records_are_sent_after_the_next_keepalive() -> None:
    bench = strangers()
    bench.receive(keep_alive(CLIENT))
    assert bench.ration(*[30] * 5, first=11) == [11, 12]
    assert bench.ration(*[30] * 5, first=16) == []
    assert bench.receive(keep_alive(CLIENT)) == [Replay(destination=CLIENT, first=13, last=20)]
    assert bench.receive(keep_alive(CLIENT)) == []


def test_requests_of_a_client_with_a_ration_are_not_forwarded_and_it_receives_no_forwards() -> None:
    """A client that answers a FORWARD knows no rations; and a FORWARD to a forged address is an attack."""
    bench = strangers()
    bench.receive(keep_alive(OTHER), source=OTHER)
    bench.receive(keep_alive(CLIENT))
    bench.sent()
    for seq in range(1, 9):
        assert bench.receive(request(seq, seq)) == [Replay(destination=CLIENT, first=seq, last=seq)]
    for _ in range(5):
        bench.now += 1
        bench.receive(keep_alive(OTHER), source=OTHER)
        bench.receive(keep_alive(CLIENT))
    bench.sent()
    assert sum(len(bench.receive(request(seq, seq))) for seq in range(10, 20)) == 5
    assert {peer for peer, _ in bench.sent()} == {OTHER}
    newcomer = ("10.0.0.77", 7)
    bench.receive(keep_alive(newcomer), source=newcomer)
    bench.sent()
    for seq in range(20, 28):
        found = bench.receive(request(seq, seq, newcomer), source=newcomer)
        assert found == [Replay(destination=newcomer, first=seq, last=seq)], "forwarded to clients without a ration"


def test_threat_request_without_a_keepalive_is_not_answered() -> None:
    bench = Bench()
    before = references(bench.session)
    assert bench.causes(request(1, 100)) == ["request-without-keepalive"]
    assert references(bench.session) == before, "strangers use no memory"
    bench.asking()
    bench.now += 5.001
    before = references(bench.session)
    assert bench.causes(request(1, 100)) == ["request-without-keepalive"]
    assert references(bench.session) <= before


# REQUEST: rule 4.


@pytest.mark.slow
def test_the_journal_answers_a_repeated_request() -> None:
    """300 clients with FLAGS=0 never answer; the server answers the second REQUEST, even of a slightly other range."""
    bench = Bench(last=2_000)
    bench.join(*((OTHER[0], port) for port in range(1, 301)))
    for port in range(1, 51):
        asker = (CLIENT[0], port)
        bench.asking(asker)
        if bench.receive(request(1, 1_900, asker)):
            continue  # it was the journal's turn
        bench.now += 0.15
        bench.join(*((OTHER[0], port) for port in range(1, 301)))
        bench.asking(asker)
        assert bench.receive(request(2, 2_000, asker)) == [Replay(destination=asker, first=2, last=2_000)]
        # The next ranges of the requester do not wait for such peers either.
        assert bench.receive(request(2_000, 2_000, asker)) == [Replay(destination=asker, first=2_000, last=2_000)]


def test_requests_are_forwarded_again_ten_seconds_after_a_repeated_request() -> None:
    bench = Bench()
    asked = 0

    def forwarded() -> bool:
        nonlocal asked
        asked += 1
        bench.join(*((OTHER[0], port) for port in range(1, 31)))
        bench.asking()
        return not bench.receive(request(asked, asked))

    assert any(forwarded() for _ in range(3))
    asked -= 1
    bench.now += 0.15
    assert not forwarded()
    for _ in range(2):
        bench.now += 4.9
        assert not any(forwarded() for _ in range(9))
    bench.now += 0.3
    assert any(forwarded() for _ in range(3))


def test_journal_answers_without_other_peers() -> None:
    bench = Bench()
    bench.join(CLIENT)  # the requester itself
    bench.join(OTHER, flags=Flags.NOJOURNAL)
    for i in range(3):
        assert bench.receive(request(3 + i, 9)) == [Replay(destination=CLIENT, first=3 + i, last=9)]
    assert bench.sent() == []


def test_a_request_is_forwarded_in_turn_and_never_to_the_requester() -> None:
    bench = Bench(last=300, push_rate=5_000, forward_rate=10_000)
    third = ("10.0.0.4", 4000)
    bench.join(CLIENT, OTHER)
    bench.join(third, flags=Flags.NOSUBSCRIBE)  # answers without subscribing
    turns: Counter[Address | None] = Counter()
    for i in range(300):
        events = bench.receive(request(1 + i, 1 + i))
        bench.now += 0.01
        sent = bench.sent()
        assert len(events) + len(sent) == 1
        for peer, datagram in sent:
            assert decode(datagram) == Forward(address=CLIENT, first=1 + i, last=1 + i)
            turns[peer] += 1
        turns[None] += len(events)
        bench.join(CLIENT, OTHER)
        bench.join(third, flags=Flags.NOSUBSCRIBE)
    assert turns == {None: 100, OTHER: 100, third: 100}


def test_threat_request_for_all_records_is_limited_to_the_records_of_one_answer() -> None:
    bench = Bench(oldest=500, last=90_000).asking()
    assert bench.receive(request(0, LAST_SEQ)) == [Replay(destination=CLIENT, first=500, last=10_499)]
    bench.bounds = (500, 600)
    assert bench.receive(request(0, LAST_SEQ - 1)) == [Replay(destination=CLIENT, first=500, last=600)]
    bench.join(OTHER)
    sent = []
    for port in range(1, 5):
        bench.asking((CLIENT[0], port)).receive(request(0, LAST_SEQ, (CLIENT[0], port)))
        sent += [decode(datagram) for _, datagram in bench.sent()]
    assert sent
    assert all(isinstance(each, Forward) and (each.first, each.last) == (500, 600) for each in sent)


def test_request_is_clamped_to_kept_records() -> None:
    bench = Bench(oldest=10, last=20, push_rate=50).asking()
    assert bench.receive(request(20, 20)) == [Replay(destination=CLIENT, first=20, last=20)]
    assert bench.receive(request(0, 10)) == [Replay(destination=CLIENT, first=10, last=10)]
    assert bench.causes(request(0, 9), request(21, 30)) == ["request-of-nothing"] * 2
    bench.bounds = (1, 0)
    assert bench.causes(request(0, 5)) == ["request-of-nothing"]


def test_threat_request_for_a_backward_range_is_dropped() -> None:
    backward = b"\x04" + bytes([10, 0, 0, 2]) + (4000).to_bytes(2, "big") + bytes(5) + b"\x02" + bytes(5) + b"\x01"
    assert Bench().causes(backward) == ["backward-range"]


def answered(bench: Bench, requests: list[bytes], source: Address = CLIENT) -> int:
    return sum(isinstance(bench.receive(each, source=source)[0], Replay) for each in requests)


def test_threat_requests_above_the_rate_of_a_client_are_dropped() -> None:
    """The answers are limited by the number of records: ten whole ones, or a thousand of a few."""
    bench = Bench(last=20_000).asking(CLIENT, (CLIENT[0], 5))
    assert answered(bench, [request(1 + i, 10_000 + i) for i in range(50)]) == 10
    # Another client of the same host has its own rate.
    other = (CLIENT[0], 5)
    assert answered(bench, [request(2 * i, 2 * i + 4, other) for i in range(1, 5_000)], other) == 4_000
    bench.now += 0.5
    assert answered(bench, [request(1_000 + i, 10_999 + i) for i in range(50)]) == 5
    assert bench.causes(request(20_001, 20_002)) == ["request-rate"], "a REQUEST of nothing has its price, too"


def test_equal_requests_within_a_tenth_of_a_second_are_merged() -> None:
    """Threat: REQUEST [0, 2^48), again and again."""
    bench = Bench()
    bench.now = 0.0
    bench.asking()
    assert isinstance(bench.receive(request(1, 5))[0], Replay)
    bench.now = 0.0999
    assert bench.causes(request(1, 5), request(1, 5, ("0.0.0.0", CLIENT[1]))) == ["request-repeated"] * 2
    assert isinstance(bench.receive(request(1, 6))[0], Replay)
    bench.now = 0.1
    assert isinstance(bench.receive(request(1, 5))[0], Replay)


@pytest.mark.slow
def test_requests_to_be_merged_are_remembered_within_bounds() -> None:
    bench = Bench()
    held = []
    for port in range(10_000):
        if port in (4_096, 8_192):
            held.append(references(bench.session))
        bench.asking((CLIENT[0], port % 1_000 + 1)).receive(
            request(1, 1 + port // 1_000, (CLIENT[0], port % 1_000 + 1))
        )
        bench.sent()
    assert held[1] < held[0] + 4_096, "the second 4,096 requests are not remembered besides the first"


@pytest.mark.slow
def test_threat_requests_cannot_flood_a_client_with_forwards() -> None:
    bench = Bench(push_rate=5_000, subscribers=6_000)
    bench.join(OTHER)
    counts: Counter[str] = Counter()
    forwards = bench.sent()
    for port in range(1, 5_001):
        bench.receive(keep_alive((CLIENT[0], port), QUIET))
        bench.sent()
        for event in bench.receive(request(1, 5, (CLIENT[0], port))):
            counts[event.cause if isinstance(event, Dropped) else "replay"] += 1
        forwards += bench.sent()
    assert len(forwards) == 500, "of 1,000 turns in a second each other one is the journal's"
    assert {peer for peer, _ in forwards} == {OTHER}
    assert all(decode(datagram).address != OTHER for _, datagram in forwards)  # type: ignore[union-attr]
    assert counts == {"replay": 4_500}, "the journal answers the others"


# Other datagrams.


def test_threat_frames_that_only_servers_send_are_dropped() -> None:
    bench = Bench()
    for frame in (
        Deliver(seq=1, data=b"x"),
        Forward(address=CLIENT, first=1, last=2),
        KeepAliveAck(token=TOKEN),
    ):
        assert bench.causes(frame.serialize()) == ["not-for-servers"], frame


def test_threat_every_type_and_length_is_dropped_without_answer() -> None:
    bench = Bench()
    for kind in range(256):
        for size in (*range(64), 1_000, 65_507):
            datagram = (bytes([kind]) + b"\xff" * 65_506)[:size]
            if len(datagram) in (19, 29) and kind in (4, 16):
                continue  # those are frames, and forged
            assert len(bench.causes(datagram)) == 1, (kind, size)
    assert bench.subscribers() == []


@given(datagram=st.binary(max_size=80), segment=st.integers(1, 40), kind=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_any_bytes_are_events_or_dropped(datagram: bytes, segment: int, kind: int) -> None:
    bench = Bench()
    data = bytes([kind]) + datagram
    events = bench.session.receive_datagrams(data, segment, CLIENT, bench.now)
    accounted = sum(len(e.lengths) // 4 if isinstance(e, Pushed) else getattr(e, "count", 1) for e in events)
    assert accounted + len(bench.sent()) == -(-len(data) // segment)


# Rates.


def test_threat_bytes_sent_to_one_host_are_limited() -> None:
    bench = Bench(destination_rate=1_600_000)  # 100,000 at once
    sent = 0
    for _ in range(1_000):
        if bench.session.sent_bytes.spend(CLIENT[0], 0, bench.now):
            bench.session.sent_bytes.charge(CLIENT[0], 60_000, bench.now)
            sent += 60_000
        bench.now += 0.001
    assert 1_600_000 <= sent <= 1_600_000 + 100_000 + 60_000
    # The rate counts the host, whatever the port.
    bench.session.sent_bytes.charge(CLIENT[0], 1_000_000, bench.now)
    assert not bench.session.sent_bytes.spend(CLIENT[0], 0, bench.now)
    assert bench.session.sent_bytes.spend(OTHER[0], 0, bench.now)


def test_burst_to_one_host_is_a_sixteenth_of_its_rate_per_second() -> None:
    bench = Bench(destination_rate=1_600_000)
    bench.session.sent_bytes.charge(CLIENT[0], 99_999, bench.now)
    assert bench.session.sent_bytes.spend(CLIENT[0], 0, bench.now)
    bench.session.sent_bytes.charge(CLIENT[0], 1, bench.now)
    assert not bench.session.sent_bytes.spend(CLIENT[0], 0, bench.now)


def test_changed_settings_apply_to_later_datagrams() -> None:
    bench = Bench(push_rate=1, subscribers=2, destination_rate=1_000, trusted=())
    push = Push(data=b"x").serialize()
    with_header = push[:2] + bytes([len(push)]) + push[3:]
    assert bench.causes(with_header) == ["wrong-size"]
    assert [type(event) for event in bench.receive(push, push)] == [Pushed, Dropped]
    third, fourth = ("10.1.0.4", 4000), ("10.2.0.5", 4000)
    bench.join(CLIENT, OTHER)
    bench.session.change(BackboneSettings(push_rate=50, subscribers=1, trusted=networks("10.0.0.0/8")))
    assert bench.subscribers() == [CLIENT, OTHER], "nobody loses a place"
    assert bench.causes(keep_alive(third), source=third) == ["too-many-subscribers"]
    bench.now += 1.0
    assert [type(event) for event in bench.receive(push, push)] == [Pushed, Pushed]
    bench.session.change(BackboneSettings(subscribers=4, trusted=networks("10.2.0.0/16"), total_length=True))
    bench.join(third, fourth)
    assert bench.client(third).credit is not None
    assert bench.client(fourth).credit is None, "its network is trusted now"
    assert [type(event) for event in bench.receive(with_header)] == [Pushed]
    assert set(bench.subscribers()) == {CLIENT, OTHER, third, fourth}
    assert bench.session.sent_bytes.rate == BackboneSettings().destination_rate
