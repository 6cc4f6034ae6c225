"""The list of the members of a cluster, and the changes that an operator asks for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.cluster.members import MAX_MEMBERS, ChangeKind, MemberChange, Members
from fyrehose.errors import FyrehoseError

THREE = Members(5, ("a", "b", "c"))


def change(kind: ChangeKind, name: str = "", by: str = "", version: int = 5) -> MemberChange:
    return MemberChange("request-1", version, kind, name, by)


def expected(members: Members, asked: MemberChange) -> Members | str:
    """Return the list after a change, or why it is refused: the rules, one after the other."""
    names, places, here, there = (
        [*members.names],
        members.places,
        asked.name in members.names,
        asked.by in members.names,
    )
    if asked.kind is ChangeKind.ADD and not here:
        names, places = [*names, asked.name], max(0, places - 1)
    elif asked.kind is ChangeKind.REMOVE and here:
        if len(names) == 2:
            return f"{asked.name} cannot be removed: 2 members have to be left"
        names.remove(asked.name)
    elif asked.kind is ChangeKind.REPLACE and here != there:
        names = [asked.by if each == asked.name else each for each in names]
    elif asked.kind is ChangeKind.REPLACE:
        return "a name of its own" if here else "is not a member; the members are"
    elif asked.kind is ChangeKind.CLOSE:
        places = 0
    if (names, places) == ([*members.names], members.places):
        return members  # a repeated change changes nothing, whatever its version
    if asked.version != members.version:
        return "were changed meanwhile"
    return Members(members.version + 1, tuple(names), places)


KINDS = (ChangeKind.ADD, ChangeKind.REMOVE, ChangeKind.REPLACE, ChangeKind.CLOSE)
LETTERS = st.sampled_from("abcdef")


@given(st.integers(1, 5), st.lists(st.tuples(st.sampled_from(KINDS), LETTERS, LETTERS, st.booleans()), max_size=20))
def test_random_changes_follow_the_rules(size: int, changes: list[tuple[ChangeKind, str, str, bool]]) -> None:
    members = Members.founded("a", size)
    assert members == Members(1, ("a",), size - 1)
    members = members.added("b")
    for kind, name, by, late in changes:
        asked = change(kind, name, by, members.version - late)
        after = expected(members, asked)
        if isinstance(after, str):
            with pytest.raises(FyrehoseError, match=after):
                asked.apply(members)
        else:
            assert asked.apply(members) == after
            members = after
        admitted = {each for each in "abcdef" if members.admits(each)}
        assert admitted == ({*"abcdef"} if members.places else {*members.names}), f"{members} admits {admitted}"


def test_the_number_of_members_is_bounded() -> None:
    full = Members(5, tuple(f"n{number}" for number in range(MAX_MEMBERS)))
    assert Members.unpack(full.pack()) == full
    with pytest.raises(FyrehoseError, match="has 64 members already"):
        change(ChangeKind.ADD, "one-more").apply(full)


def test_a_list_of_members_is_shown_in_words() -> None:
    assert str(Members(1, ("a",))) == "a"
    assert str(Members(1, ("a", "b"))) == "a and b"
    assert str(THREE) == "a, b and c"
    assert str(Members(1, ("a",), 1)) == "a (1 place is free)"
    assert str(Members(1, ("a",), 2)) == "a (2 places are free)"


NAMES = st.lists(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True), min_size=1, max_size=8, unique=True)


@given(NAMES, st.integers(0, 10**9 - 1), st.integers(0, 999))
def test_every_list_survives_a_round_trip(names: list[str], version: int, places: int) -> None:
    members = Members(version, tuple(names), places)
    assert Members.unpack(members.pack()) == members


@pytest.mark.parametrize("kind", list(ChangeKind))
def test_a_request_survives_a_round_trip(kind: ChangeKind) -> None:
    asked = change(kind, "b", "d")
    assert MemberChange.unpack(asked.pack()) == asked


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"change": "add", "id": "1", "version": 1},
        {"change": "add", "id": "1", "version": 1, "name": "a b"},
        {"change": "add", "id": "1", "version": 1, "name": "x" * 65},
        {"change": "add", "id": "", "version": 1, "name": "a"},
        {"change": "add", "id": "1", "version": None, "name": "a"},
        {"change": "add", "id": "1", "version": float("inf"), "name": "a"},
        {"change": "replace", "id": "1", "version": 1, "name": "a"},
        {"change": ["add"], "id": "1", "version": 1, "name": "a"},
    ],
)
def test_a_message_that_is_no_request_is_ignored(said: object) -> None:
    assert MemberChange.unpack(json.dumps(said).encode()) is None


@given(st.binary(max_size=80))
def test_random_messages_are_ignored(message: bytes) -> None:
    assert MemberChange.unpack(message) is None


def test_a_request_that_is_too_long_is_not_parsed() -> None:
    assert MemberChange.unpack(b"[" * 100_000) is None
    assert MemberChange.unpack(change(ChangeKind.ADD, "d").pack() + b" " * 2000) is None
