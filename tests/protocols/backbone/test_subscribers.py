"""Who is there, and whose turn it is."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from fyrehose.protocols.backbone.frames import Address, Flags
from fyrehose.protocols.backbone.subscribers import Rotation, Subscribers


def client(n: int) -> Address:
    return ("10.0.0.1", n)


def test_five_seconds_inclusive() -> None:
    table = Subscribers(9)
    assert table.seen(client(1), Flags.NONE, 10.0)
    assert table.listening(15.0) == [client(1)]
    assert table.journals(15.0) == [client(1)]
    assert table.listening(15.001) == []
    assert table.journals(15.001) == []
    assert len(table) == 0


def test_a_keepalive_makes_it_five_more() -> None:
    table = Subscribers(9)
    table.seen(client(1), Flags.NONE, 0.0)
    table.seen(client(2), Flags.NONE, 3.0)
    table.seen(client(1), Flags.NONE, 4.0)
    assert set(table.listening(8.5)) == {client(1)}
    assert table.listening(9.5) == []


def test_the_latest_flags_win() -> None:
    table = Subscribers(9)
    table.seen(client(1), Flags.NONE, 0.0)
    table.seen(client(1), Flags.NOSUBSCRIBE, 1.0)
    assert (table.listening(1.0), table.journals(1.0)) == ([], [client(1)])
    table.seen(client(1), Flags.NOJOURNAL, 2.0)
    assert (table.listening(2.0), table.journals(2.0)) == ([client(1)], [])
    table.seen(client(1), Flags.NOSUBSCRIBE | Flags.NOJOURNAL, 3.0)
    assert (table.listening(3.0), table.journals(3.0)) == ([], [])
    table.seen(client(1), Flags.NONE, 4.0)
    assert (table.listening(4.0), table.journals(4.0)) == ([client(1)], [client(1)])


def test_the_table_is_bounded_and_those_in_it_stay() -> None:
    table = Subscribers(2)
    assert table.seen(client(1), Flags.NONE, 0.0)
    assert table.seen(client(2), Flags.NONE, 0.0)
    assert not table.seen(client(3), Flags.NONE, 0.0)
    assert table.seen(client(1), Flags.NONE, 1.0)
    assert table.seen(client(4), Flags.NOSUBSCRIBE | Flags.NOJOURNAL, 1.0)  # wants nothing, needs no place
    assert not table.seen(client(3), Flags.NONE, 5.0)
    assert table.seen(client(3), Flags.NONE, 5.1)  # client 2 has gone
    assert len(table) == 2


def test_a_rotation_is_fair_random_and_never_asks_who_asks() -> None:
    rotation = Rotation(Random(1))
    members = [None, client(1), client(2), client(3)]
    rounds = [[rotation.next(members, client(9)) for _ in range(4)] for _ in range(50)]
    assert all(set(turns) == set(members) for turns in rounds)
    assert len({tuple(turns) for turns in rounds}) > 10
    for _ in range(50):
        assert rotation.next(members, client(2)) != client(2)


def test_a_requester_keeps_its_turn() -> None:
    for seed in range(20):
        rotation = Rotation(Random(seed))
        members = [client(1), client(2)]
        turns = Counter(rotation.next(members, client(1)) for _ in range(3))
        assert turns == {client(2): 3}
        assert rotation.next(members, client(9)) == client(1)


def test_who_comes_and_goes_while_turns_go_round() -> None:
    rotation = Rotation(Random(2))
    assert rotation.next([None], client(1)) is None
    assert {rotation.next([None, client(2)], client(1)) for _ in range(2)} == {None, client(2)}
    rotation.next([None, client(2), client(3)], client(1))
    assert {rotation.next([None], client(1)) for _ in range(5)} == {None}


def test_a_seed_tells_all() -> None:
    def turns(seed: int) -> list[Address | None]:
        rotation = Rotation(Random(seed))
        return [rotation.next([None, *map(client, range(9))], client(99)) for _ in range(30)]

    assert turns(5) == turns(5) != turns(6)


def test_nobody_to_ask() -> None:
    with pytest.raises(ValueError, match="besides the requester"):
        Rotation(Random(1)).next([client(1)], client(1))
