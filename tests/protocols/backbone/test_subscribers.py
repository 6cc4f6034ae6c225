"""The table of clients, and the rotation."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import attrs
import pytest

from fyrehose.protocols.backbone.frames import Address, Flags
from fyrehose.protocols.backbone.ranges import Ranges
from fyrehose.protocols.backbone.subscribers import (
    ALLOWANCES,
    INTERVAL,
    QUIET,
    KnownClient,
    Places,
    Rotation,
    Subscribers,
)


def client(n: int) -> Address:
    return ("10.0.0.1", n)


def joined(table: Subscribers, address: Address, flags: Flags, now: float) -> bool:
    """Return whether *address* is admitted."""
    return table.keep_alive(address, flags, now, None).admitted


def receivers(table: Subscribers, now: float) -> list[Address]:
    return [address for address, _ in table.receivers(now)]


@attrs.define
class Known:
    """A client of the model; the clients are in the order of their last KEEPALIVE."""

    last: float
    flags: Flags
    credit: int | None
    raised: float
    allowances: list[int] = attrs.field(factory=lambda: [64 << 10, 512 << 10, 4 << 20, 32 << 20])
    held: set[int] = attrs.field(factory=set)

    def renew(self, now: float, flags: Flags) -> None:
        self.last, self.flags, self.held = now, flags, set()
        if self.credit is not None:
            self.credit += 70
            if now - self.raised >= 0.5:
                self.credit = max(self.credit, self.allowances.pop(0)) if self.allowances else None
                self.raised = now


def test_table_agrees_with_a_model_of_its_clients() -> None:
    """A client lives 5 s after a KEEPALIVE, whose flags apply; each second with a KEEPALIVE raises its ration."""
    for seed in range(100):
        random, table, now = Random(seed), Subscribers(9), 0.0
        clients: dict[Address, Known] = {}
        for _ in range(60):
            now += random.choice((0.0, 0.25, 0.5, 1.0, 1.0, 5.0, 5.125))
            clients = {at: known for at, known in clients.items() if now - known.last <= 5.0}
            address = client(random.randrange(4))
            known = clients.get(address)
            if random.random() < 0.7:
                flags, credit = Flags(random.randrange(4)), 70 if address[1] % 2 else None
                result = table.keep_alive(address, flags, now, credit)
                assert (result.admitted, result.displaced) == (True, None)
                assert numbers(result.held) == sorted(known.held if known else ())
                clients.pop(address, None)
                if known is None:
                    known = Known(now, flags, credit, now)
                else:
                    known.renew(now, flags)
                clients[address] = known
            elif known is not None:
                first = random.randrange(1, 20)
                last = first + random.randrange(3)
                found = table.find(address, now)
                assert found is not None, "the client is alive"
                found.hold(first, last)
                known.held |= {*range(first, last + 1)}
            assert receivers(table, now) == [at for at, each in clients.items() if not each.flags & Flags.NOSUBSCRIBE]
            assert table.journals(now) == [
                at for at, each in clients.items() if not each.flags & Flags.NOJOURNAL and each.credit is None
            ]
            assert len(table) == sum(each.flags != QUIET for each in clients.values())
            found_clients = {at: table.find(at, now) for at in map(client, range(4))}
            assert {at: (each.flags, each.credit, each.trusted) for at, each in found_clients.items() if each} == {
                at: (each.flags, each.credit, at[1] % 2 == 0) for at, each in clients.items()
            }


def numbers(ranges: Ranges) -> list[int]:
    return [number for first, last in ranges for number in range(first, last + 1)]


def test_places_of_silent_clients_become_free_for_others() -> None:
    for flags in (Flags.NONE, QUIET):
        table = Subscribers(1)
        assert table.keep_alive(client(1), flags, 0.0, 0).admitted
        assert table.keep_alive(client(2), flags, 5.001, 0).admitted
        assert table.find(client(2), 5.001) is not None


@pytest.mark.parametrize("pause", [0.1, 0.4, 0.5, 1.0])
def test_ration_grows_with_time_however_often_a_client_sends_a_keepalive(pause: float) -> None:
    known, times = KnownClient(0.0, Flags.NONE, credit=0), dict[int | None, float]()
    for number in range(1, int(6 / pause)):
        known.renew(number * pause, 0)
        times.setdefault(known.credit, number * pause)
    assert [each for each in times if each != 0] == [*ALLOWANCES, None]
    rises = [times[each] for each in (*ALLOWANCES, None)]
    assert all(INTERVAL <= later - sooner < INTERVAL + pause for sooner, later in pairwise([0.0, *rises]))


def test_client_without_a_place_is_sent_no_held_back_records() -> None:
    table = Subscribers(1)
    assert table.keep_alive(client(1), Flags.NONE, 0.0, 0).admitted
    assert table.keep_alive(client(2), QUIET, 0.0, credit=1).admitted
    found = table.find(client(2), 0.0)
    assert found is not None
    found.hold(1, 2)
    result = table.keep_alive(client(2), Flags.NONE, 1.0, 0)
    assert (result.admitted, list(result.held), result.displaced) == (False, [], None)
    assert table.find(client(2), 1.0) is None


def test_full_table_refuses_new_clients_and_keeps_its_own() -> None:
    table = Subscribers(2)
    assert joined(table, client(1), Flags.NONE, 0.0)
    assert joined(table, client(2), Flags.NONE, 0.0)
    assert not joined(table, client(3), Flags.NONE, 0.0)
    assert joined(table, client(1), Flags.NONE, 1.0)
    assert all(joined(table, client(number), QUIET, 1.0) for number in (4, 7, 8)), "they need no place"
    assert not joined(table, client(3), Flags.NONE, 5.0)
    assert joined(table, client(3), Flags.NONE, 5.1)  # client 2 has gone
    assert len(table) == 2
    table.change(3)
    assert [joined(table, client(number), Flags.NONE, 5.2) for number in (5, 6)] == [True, False]


def test_largest_host_is_tracked_correctly() -> None:
    """The table remembers the largest host between changes; the test counts."""
    dice = Random(4)
    table = Places(20)
    for turn in range(5_000):
        address = (f"10.0.0.{dice.choice((1, 1, 1, 2, 3, 4, 5))}", dice.randint(1, 30))
        counts = Counter(host for host, _ in table.clients)
        largest = max(counts.values(), default=0)
        if address in table.clients:
            dice.choice((table.renew, table.remove))(address)
        else:
            full = len(table.clients) == 20
            admitted, displaced = table.add(address, KnownClient(float(turn), Flags.NONE))
            assert admitted == (not full or largest > counts[address[0]] + 1)
            assert (displaced is not None) == (full and admitted)
            if displaced is not None:
                assert counts[displaced[0]] == largest
                assert displaced not in table.clients
        assert len(table.clients) <= 20
    table.expire(1e9)
    assert len(table.clients) == 0


def test_held_records_are_bounded_by_one_answer() -> None:
    known = KnownClient(0.0, Flags.NONE, 0)
    known.hold(5, 5)
    known.hold(6, 90_000)
    known.hold(99_000, 99_000)
    assert list(known.renew(0.1, 0)) == [(5, 10_004)]


@pytest.mark.parametrize(
    ("first", "last", "repeated"),
    [(1, 9, True), (12, 13, True), (20, 30, True), (21, 30, False), (31, 40, False)],
)
def test_range_that_begins_below_the_end_of_an_earlier_one_is_a_repeat(first: int, last: int, repeated: bool) -> None:
    asking = KnownClient(0.0, Flags.NONE)
    assert not asking.repeats(10, 20, 0.0)
    assert asking.repeats(first, last, 1.0) is repeated


@pytest.mark.parametrize("number", [1, 2, 500, 999])
def test_request_is_recognized_as_repeated_among_many_requests(number: int) -> None:
    asking = KnownClient(0.0, Flags.NONE)
    assert not any(asking.repeats(n, n, 0.0) for n in range(1, 1_000))
    assert asking.repeats(number, number, 0.0)


def test_repetition_counts_for_ten_seconds() -> None:
    asking = KnownClient(0.0, Flags.NONE)
    assert not asking.repeats(1, 5, 0.0)
    assert asking.repeats(5, 9, 1.0)
    assert asking.repeats(20, 29, 10.5)
    assert not asking.repeats(30, 39, 11.0)
    assert asking.repeats(1, 1, 12.0)


def test_rotation_is_fair_and_random_and_excludes_the_requester() -> None:
    rotation = Rotation(Random(1))
    members = [None, client(1), client(2), client(3)]
    rounds = [[rotation.next(members, client(9)) for _ in range(4)] for _ in range(50)]
    assert all(set(turns) == set(members) for turns in rounds)
    assert len({tuple(turns) for turns in rounds}) > 10
    for _ in range(50):
        assert rotation.next(members, client(2)) != client(2)


def test_requester_keeps_its_turn() -> None:
    for seed in range(20):
        rotation = Rotation(Random(seed))
        members = [client(1), client(2)]
        turns = Counter(rotation.next(members, client(1)) for _ in range(3))
        assert turns == {client(2): 3}
        assert rotation.next(members, client(9)) == client(1)


def test_the_turn_that_a_requester_kept_comes_before_those_of_the_next_round() -> None:
    for seed in range(20):
        rotation = Rotation(Random(seed))
        members = [client(1), client(2), client(3)]
        assert {rotation.next(members, client(1)) for _ in range(2)} == {client(2), client(3)}
        assert rotation.next(members, client(1)) != client(1), "another round has begun"
        assert rotation.next(members, client(9)) == client(1)


def test_members_may_join_and_leave_during_a_rotation() -> None:
    rotation = Rotation(Random(2))
    assert rotation.next([None], client(1)) is None
    assert {rotation.next([None, client(2)], client(1)) for _ in range(2)} == {None, client(2)}
    rotation.next([None, client(2), client(3)], client(1))
    assert {rotation.next([None], client(1)) for _ in range(5)} == {None}


def test_seed_determines_the_rotation() -> None:
    def turns(seed: int) -> list[Address | None]:
        rotation = Rotation(Random(seed))
        return [rotation.next([None, *map(client, range(9))], client(99)) for _ in range(30)]

    assert turns(5) == turns(5) != turns(6)


def test_rotation_without_other_members_raises() -> None:
    with pytest.raises(ValueError, match="besides the requester"):
        Rotation(Random(1)).next([client(1)], client(1))
