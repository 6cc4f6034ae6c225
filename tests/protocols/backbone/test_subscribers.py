"""The table of clients, and the rotation."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from fyrehose.protocols.backbone.frames import Address, Flags
from fyrehose.protocols.backbone.subscribers import QUIET, KeepAliveResult, KnownClient, Rotation, Subscribers, Table


def client(n: int) -> Address:
    return ("10.0.0.1", n)


def joined(table: Subscribers, address: Address, flags: Flags, now: float) -> bool:
    """Return whether *address* is admitted with its first two KEEPALIVEs."""
    return all(table.keep_alive(address, flags, now, 0).admitted for _ in range(2))


def test_client_is_alive_for_five_seconds_inclusive() -> None:
    table = Subscribers(9)
    assert joined(table, client(1), Flags.NONE, 10.0)
    assert table.established(15.0) == [client(1)]
    assert table.journals(15.0) == [client(1)]
    assert table.established(15.001) == []
    assert table.journals(15.001) == []
    assert len(table) == 0


def test_a_client_expires_after_five_seconds_whichever_list_is_read_first() -> None:
    for flags in (Flags.NONE, QUIET):
        for count in (1, 2):
            for look in ("established", "newcomers", "journals", "find"):
                table = Subscribers(9)
                for _ in range(count):
                    table.keep_alive(client(1), flags, 0.0, credit=1)
                known = look == "find" or (flags is Flags.NONE and (count == 2) == (look != "newcomers"))
                for now, there in ((5.0, known), (5.001, False)):
                    found = table.find(client(1), now) if look == "find" else getattr(table, look)(now)
                    assert bool(found) is there, (flags, count, look, now)


def test_places_of_clients_that_fell_silent_are_free_for_others() -> None:
    for flags in (Flags.NONE, QUIET):
        table = Subscribers(1)
        assert table.keep_alive(client(1), flags, 0.0, 0).admitted
        assert table.keep_alive(client(2), flags, 5.001, 0).admitted
        assert table.find(client(2), 5.001) is not None


def test_newcomer_that_wants_no_deliveries_gets_none() -> None:
    table = Subscribers(9)
    table.keep_alive(client(1), Flags.NOSUBSCRIBE, 0.0, credit=1)
    table.keep_alive(client(2), Flags.NOJOURNAL, 0.0, credit=1)
    assert [at for at, _ in table.newcomers(0.0)] == [client(2)]
    assert table.journals(0.0) == table.established(0.0) == []


def test_client_that_finds_no_place_is_sent_nothing_of_what_it_asked_for() -> None:
    table = Subscribers(1)
    assert table.keep_alive(client(1), Flags.NONE, 0.0, 0).admitted
    assert table.keep_alive(client(2), QUIET, 0.0, credit=1).admitted
    found = table.find(client(2), 0.0)
    assert found is not None
    assert found.defer(1, 2)
    assert table.keep_alive(client(2), Flags.NONE, 1.0, 0) == KeepAliveResult(
        admitted=False, deferred=[], displaced=None
    )
    assert table.find(client(2), 1.0) is None


def test_keepalive_extends_life_by_five_seconds() -> None:
    table = Subscribers(9)
    joined(table, client(1), Flags.NONE, 0.0)
    joined(table, client(2), Flags.NONE, 3.0)
    joined(table, client(1), Flags.NONE, 4.0)
    assert set(table.established(8.5)) == {client(1)}
    assert table.established(9.5) == []


def test_latest_flags_count() -> None:
    table = Subscribers(9)
    joined(table, client(1), Flags.NONE, 0.0)
    joined(table, client(1), Flags.NOSUBSCRIBE, 1.0)
    assert (table.established(1.0), table.journals(1.0)) == ([], [client(1)])
    joined(table, client(1), Flags.NOJOURNAL, 2.0)
    assert (table.established(2.0), table.journals(2.0)) == ([client(1)], [])
    joined(table, client(1), Flags.NOSUBSCRIBE | Flags.NOJOURNAL, 3.0)
    assert (table.established(3.0), table.journals(3.0)) == ([], [])
    joined(table, client(1), Flags.NONE, 4.0)
    assert (table.established(4.0), table.journals(4.0)) == ([client(1)], [client(1)])


def test_table_is_bounded_and_its_clients_stay() -> None:
    table = Subscribers(2)
    assert joined(table, client(1), Flags.NONE, 0.0)
    assert joined(table, client(2), Flags.NONE, 0.0)
    assert not joined(table, client(3), Flags.NONE, 0.0)
    assert joined(table, client(1), Flags.NONE, 1.0)
    assert joined(table, client(4), Flags.NOSUBSCRIBE | Flags.NOJOURNAL, 1.0)  # wants nothing, needs no place
    assert not joined(table, client(3), Flags.NONE, 5.0)
    assert joined(table, client(3), Flags.NONE, 5.1)  # client 2 has gone
    assert len(table) == 2


def test_largest_host_is_tracked_correctly() -> None:
    """The table remembers the largest host between changes; the test counts."""
    dice = Random(4)
    table = Table(20)
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


def test_changed_flags_move_a_client_between_tables() -> None:
    table = Subscribers(9)
    assert table.keep_alive(client(1), Flags.NONE, 0.0, credit=70).deferred == []
    [(_, newcomer)] = table.newcomers(0.0)
    assert table.newcomer(client(1)) is newcomer
    assert newcomer.credit == 70
    newcomer.hold(3, 4)
    newcomer.defer(1, 2)
    assert table.keep_alive(client(1), QUIET, 1.0, 0).deferred == [(3, 4), (1, 2)]
    assert len(table) == 0
    found = table.find(client(1), 6.0)
    assert found is newcomer
    assert found.credit is None
    assert table.keep_alive(client(1), Flags.NONE, 6.0, 0).admitted
    assert table.established(6.0) == [client(1)]
    assert table.find(client(1), 11.1) is None


def test_held_range_is_bounded_by_one_answer() -> None:
    newcomer = KnownClient(0.0, Flags.NONE, 0)
    newcomer.hold(5, 5)
    newcomer.hold(6, 90_000)
    assert newcomer.confirm() == [(5, 10_004)]


def test_range_that_was_held_back_and_asked_for_is_sent_once() -> None:
    newcomer = KnownClient(0.0, Flags.NONE, 0)
    newcomer.hold(3, 4)
    assert all([newcomer.defer(3, 4), newcomer.defer(4, 5), newcomer.defer(4, 5)])
    assert newcomer.confirm() == [(3, 4), (4, 5)]
    assert newcomer.confirm() == []


@pytest.mark.parametrize(
    ("first", "last", "repeated"),
    [(1, 9, False), (1, 10, True), (12, 13, True), (19, 30, True), (20, 30, True), (21, 30, False)],
)
def test_ranges_that_have_a_number_in_common_are_repeats(first: int, last: int, repeated: bool) -> None:
    asking = KnownClient(0.0, Flags.NONE)
    assert not asking.repeats(10, 20, 0.0)
    assert asking.repeats(first, last, 1.0) is repeated


@pytest.mark.parametrize(("number", "repeated"), [(1, False), (2, True), (33, True)])
def test_the_latest_32_ranges_are_remembered(number: int, repeated: bool) -> None:
    asking = KnownClient(0.0, Flags.NONE)
    assert not any(asking.repeats(n, n, 0.0) for n in range(1, 34))
    assert asking.repeats(number, number, 0.0) is repeated


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
