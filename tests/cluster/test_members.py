"""The list of the members of a cluster, and the changes that an operator asks for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.cluster.members import LEAST, MAX_MEMBERS, ChangeKind, MemberChange, Members
from fyrehose.errors import FyrehoseError

THREE = Members(5, ("a", "b", "c"))


def change(kind: ChangeKind, name: str = "", by: str = "", version: int = 5) -> MemberChange:
    return MemberChange("request-1", version, kind, name, by)


def test_a_log_begins_with_one_member_and_places_for_others() -> None:
    founded = Members.founded("a", 3)
    assert founded == Members(1, ("a",), 2)
    assert founded.admits("z")
    assert founded.added("b").added("c") == Members(3, ("a", "b", "c"))
    assert not founded.added("b").added("c").admits("z")


def test_each_change_has_the_next_version() -> None:
    assert change(ChangeKind.ADD, "d").apply(THREE) == Members(6, ("a", "b", "c", "d"))
    assert change(ChangeKind.REMOVE, "a").apply(THREE) == Members(6, ("b", "c"))
    assert change(ChangeKind.REPLACE, "b", "d").apply(THREE) == Members(6, ("a", "d", "c"))
    assert change(ChangeKind.CLOSE).apply(Members(5, ("a", "b"), 2)) == Members(6, ("a", "b"))


def test_a_repeated_change_changes_nothing_whatever_its_version() -> None:
    for kind, name, by in (
        (ChangeKind.ADD, "c", ""),
        (ChangeKind.REMOVE, "d", ""),
        (ChangeKind.REPLACE, "d", "c"),
        (ChangeKind.CLOSE, "", ""),
    ):
        assert change(kind, name, by, version=4).apply(THREE) == THREE


def test_a_late_repetition_does_not_change_a_later_list() -> None:
    with pytest.raises(FyrehoseError, match="were changed meanwhile, and are a, b and c now"):
        change(ChangeKind.ADD, "d", version=4).apply(THREE)


def test_two_members_have_to_be_left() -> None:
    assert LEAST == 2
    with pytest.raises(FyrehoseError, match="a cannot be removed: 2 members have to be left"):
        change(ChangeKind.REMOVE, "a").apply(Members(5, ("a", "b")))


def test_only_a_server_that_is_no_member_can_replace_a_member() -> None:
    with pytest.raises(FyrehoseError, match="x is not a member; the members are a, b and c"):
        change(ChangeKind.REPLACE, "x", "y").apply(THREE)
    for name in "ab":
        with pytest.raises(FyrehoseError, match=r"a is a member already: .* needs a name of its own"):
            change(ChangeKind.REPLACE, name, "a").apply(THREE)


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
