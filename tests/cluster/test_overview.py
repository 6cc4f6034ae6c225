"""The table of what each server of a cluster lacks: the leader makes it, and followers get it in messages."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.members import Members
from fyrehose.cluster.overview import MOST_SAMPLES, Growth, packed, parsed, seen_by_follower, seen_by_leader
from fyrehose.cluster.peers import MOST_PEERS, Peers
from fyrehose.cluster.role import Role, State
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.observe.meters import MemberStatus
from tests.doubles.references import references

A = EntryWriter("a", 1)


def peers(name: str) -> Peers:
    return Peers(ReplicationSettings(name=name, address=f"{name}:1"), 1)


def role(name: str, position: int = 0, state: State = State.FOLLOWER) -> Role:
    made = Role(EntryWriter(name, 1), position)
    made.state = state
    return made


class TestGrowth:
    @given(st.lists(st.tuples(st.integers(-1, 40), st.integers(0, 9), st.integers(0, 9)), max_size=8))
    def test_lag_counts_from_the_first_later_sample_and_records_between_two_are_estimated(
        self, steps: list[tuple[int, int, int]]
    ) -> None:
        """At least one record is lacking if a byte is."""
        growth, samples, position, records, now = Growth(), list[tuple[int, int, float]](), 100, 0, 1.0
        for size, count, seconds in steps:
            position, records, now = position + size, records + count, now + seconds
            growth.note(position, records, now)
            if size > 0 or not samples:
                samples.append((position, records, now))
            position = samples[-1][0]
        for at in range(95, position + 2):
            later = [sample for sample in samples if sample[0] > at]
            before = [sample for sample in samples if sample[0] <= at]
            expected: Any = (None, None) if not before else (0, 0.0)
            if before and later:
                (end, after, time), (begin, until, _) = later[0], before[-1]
                lacking = samples[-1][1] - after + ceil(Fraction((after - until) * (end - at), end - begin))
                expected = lacking, now + 5.0 - time
            assert growth.since(at, now + 5.0) == expected, f"at {at} of {samples}"

    def test_a_long_history_is_thinned_and_keeps_its_first_and_its_last_samples(self) -> None:
        growth = Growth()
        empty = references(growth)
        growth.note(0, 0, 0.0)
        each = references(growth) - empty
        for position in range(100_000):
            growth.note(position, position * 3, position / 4)
        assert references(growth) <= empty + MOST_SAMPLES * each
        assert growth.since(0, 25_000.0)[0] == 99_999 * 3
        assert growth.since(99_998, 25_000.0) == (3, 25_000.0 - 99_999 / 4)


def heard(here: Peers, name: str, position: int, now: float, members: Any = ()) -> None:
    state = State.LEADER if members else State.FOLLOWER
    assert here.hear(peers(name).pack(role(name, position, state), False, "", members, now=0.0), now) is not None


def test_the_leader_says_what_each_server_lacks_also_one_that_is_silent() -> None:
    here, growth = peers("a"), Growth()
    growth.note(100, 0, 1.0)
    growth.note(300, 20, 60.0)
    heard(here, "c", 100, 61.0)
    heard(here, "b", 300, 62.86)
    found = seen_by_leader(role("a", 300, State.LEADER), here, growth, 63.0)
    assert found == [
        MemberStatus(name="a", role="leader", address="a:1", behind=0, records=0, seconds=0.0),
        MemberStatus(name="b", role="follower", address="b:1", heard=0.1, behind=0, records=0, seconds=0.0),
        MemberStatus(
            name="c", role="follower", address="c:1", alive=False, heard=2.0, behind=200, records=20, seconds=3.0
        ),
    ]
    assert parsed(packed(found)) == found


def test_members_that_were_never_heard_are_listed_and_servers_that_were_removed_are_not() -> None:
    here, leader = peers("a"), role("a", 300, State.LEADER)
    heard(here, "b", 300, 2.0)
    heard(here, "c", 300, 2.0)
    leader.validity.members = Members(4, ("a", "b", "d"))
    found = seen_by_leader(leader, here, Growth(), 3.0)
    assert [(each.name, each.role, each.alive, each.heard) for each in found] == [
        ("a", "leader", True, 0.0),
        ("b", "follower", True, 1.0),
        ("d", "not heard", False, None),
    ]
    assert parsed(packed(found)) == found


def following(name: str, leader: EntryWriter) -> Role:
    made = role(name)
    made.read(1, LogEntry(EntryKind.TAKEOVER, 1, leader, 0))
    return made


def test_a_follower_shows_the_leaders_table_while_it_gets_messages() -> None:
    here = peers("b")
    said = [MemberStatus(name="a", role="leader", behind=0), MemberStatus(name="c", role="follower", behind=7)]
    heard(here, "a", 300, 1.0, packed(said))
    heard(here, "c", 293, 4.0)
    assert seen_by_follower(following("b", A), here, 1.5) == said
    without = seen_by_follower(following("b", A), here, 4.5)
    assert [(each.name, each.role, each.alive, each.behind) for each in without] == [
        ("a", "leader", False, None),
        ("b", "follower", True, None),
        ("c", "follower", True, None),
    ]


@pytest.mark.parametrize("listed", [None, 7, "x", [7], [{}], [{"name": "b"}]])
def test_an_invalid_table_of_a_leader_is_empty(listed: Any) -> None:
    assert parsed(listed) == []


def test_only_valid_printable_and_bounded_rows_of_a_leaders_table_are_used() -> None:
    valid = packed([MemberStatus(name="b\x1b[2J", role="follower" * 99, behind=1)])
    invalid = {**valid[0], "behind": "much"}
    (found,) = parsed([invalid, *valid])
    assert (found.name, len(found.role)) == ("b?[2J", 200)
    assert len(parsed(valid * 1000)) == MOST_PEERS
