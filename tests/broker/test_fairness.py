"""A full table takes from the largest holder, the oldest member first."""

from __future__ import annotations

from collections import Counter
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fyrehose.broker import fairness
from fyrehose.broker.fairness import FairShare
from tests.doubles.references import references

HOLDERS = st.sampled_from("abcdef")


def filled(*members: tuple[str, str], capacity: int | None = None) -> FairShare[str]:
    table: FairShare[str] = FairShare(capacity)
    for member, holder in members:
        table.add(member, holder)
    return table


def admit(table: FairShare[tuple[str, int]], holder: str, number: int) -> None:
    """Add a member as owners of tables do."""
    if not table.fits():
        out = table.first_out(holder)
        assert out is not None
        table.discard(out)
    table.add((holder, number), holder)


def test_an_empty_table_has_no_member_to_remove() -> None:
    table = filled(("1", "x"))
    table.discard("1")
    assert (table.first_out("x"), list(table.largest()), list(table.of("x")), table.used) == (None, [], [], 0)


def test_a_holder_below_its_share_loses_nothing_to_a_flood() -> None:
    table: FairShare[tuple[str, int]] = FairShare(100)
    for number in range(50):
        admit(table, "honest", number)
    for number in range(1_000):
        admit(table, "flood", number)
    assert list(table.of("honest")) == [("honest", number) for number in range(50)]
    assert list(table.of("flood")) == [("flood", number) for number in range(950, 1_000)]


def test_sums_of_former_holders_take_no_memory() -> None:
    table: FairShare[int] = FairShare()
    table.add(-1, "top", 1_000_000)
    before = references(table)
    for number in range(10_000):
        table.add(number, "x", 1 + number % 5_000)
        table.discard(number)
    assert references(table) < before + 2 * fairness.LEAST_LEVELS


def test_make_room_removes_members_of_the_largest_holder_until_the_new_one_fits() -> None:
    table: FairShare[str] = FairShare(10)
    for member, holder, size in (("1", "x", 4), ("2", "x", 2), ("3", "y", 3)):
        table.add(member, holder, size)
    assert table.make_room("z", 1) == []
    assert table.make_room("z", 4) == ["1"]
    assert table.make_room("z", 10) == ["3", "2"]
    assert (len(table), table.make_room("z", 11)) == (0, []), "there is nothing left to remove"


def test_one_holder_has_at_most_its_share_and_leaves_room_for_others() -> None:
    table: FairShare[str] = FairShare(10, each=6)
    table.add("1", "x", 4)
    table.take("x", 1)
    assert (table.fits(1, "x"), table.fits(2, "x"), table.fits(5, "y"), table.fits(6, "y")) == (
        True,
        False,
        True,
        False,
    )
    assert (table.fits(5), table.fits(6), table.room("x"), table.room("y"), table.room()) == (True, False, 1, 5, 5)
    assert FairShare[str]().room("x") == inf


def test_holders_that_have_nothing_any_more_are_forgotten() -> None:
    table: FairShare[str] = FairShare(10)
    before = references(table)
    for number in range(1_000):
        table.take(f"x{number}", 8)
        table.add("1", f"y{number}", 2)
        table.discard("1")
        table.give(f"x{number}", 8)
    assert references(table) < before + 2 * fairness.LEAST_LEVELS


def test_a_renewed_member_and_its_holder_are_displaced_last() -> None:
    table = filled(("1", "x"), ("2", "x"), ("3", "y"), ("4", "y"))
    table.renew("1")
    assert list(table.of("x")) == ["2", "1"]
    assert table.first_out() == "3"


class Tables(RuleBasedStateMachine):
    """FairShare beside a list of members in the order of their age."""

    def __init__(self) -> None:
        super().__init__()
        self.table: FairShare[int] = FairShare(30)
        self.plain: list[tuple[int, str, int]] = []
        self.taken: Counter[str] = Counter()
        self.number = 0

    def sums(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for _, holder, size in self.plain:
            found[holder] = found.get(holder, 0) + size
        return found

    @rule(holder=HOLDERS, size=st.integers(1, 9))
    def add(self, holder: str, size: int) -> None:
        self.number += 1
        self.table.add(self.number, holder, size)
        self.plain.append((self.number, holder, size))

    @precondition(lambda self: self.plain)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.plain))
        self.plain.remove(entry)
        self.table.discard(entry[0])
        assert entry[0] not in self.table

    def lose(self, out: int | None, holder: str) -> None:
        """Check that member *out* is the one to give way to *holder*, and remove it from the list."""
        sums = self.sums()
        (loser,) = [each for number, each, _ in self.plain if number == out]
        assert sums[loser] == max(sums.values())
        assert loser == holder or sums.get(holder) != sums[loser], "of several largest, the one that needs the room"
        assert out == next(number for number, each, _ in self.plain if each == loser), "the oldest"
        self.plain = [each for each in self.plain if each[0] != out]

    @precondition(lambda self: self.plain)
    @rule(holder=HOLDERS)
    def displace(self, holder: str) -> None:
        out = self.table.first_out(holder)
        self.lose(out, holder)
        self.table.discard(self.number + 1)  # which is no member
        assert out is not None
        self.table.discard(out)

    @precondition(lambda self: self.plain)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.plain))
        self.plain.remove(entry)
        self.plain.append(entry)
        self.table.renew(entry[0])

    @rule(holder=HOLDERS, size=st.integers(0, 9))
    def take(self, holder: str, size: int) -> None:
        self.table.take(holder, size)
        self.taken[holder] += size

    @rule(holder=HOLDERS)
    def give(self, holder: str) -> None:
        self.table.give(holder, self.taken.pop(holder, 0))

    @rule(holder=HOLDERS, size=st.integers(1, 30))
    def make_room(self, holder: str, size: int) -> None:
        for out in self.table.make_room(holder, size):
            assert sum(self.sums().values()) + self.taken.total() + size > 30, "there was room without this one"
            self.lose(out, holder)
        assert not self.plain or self.table.fits(size)

    @invariant()
    def agrees_with_the_list(self) -> None:
        sums = self.sums()
        assert len(self.table) == len(self.plain)
        assert self.table.used == sum(sums.values()) + self.taken.total()
        assert self.table.fits(3) == (self.table.used + 3 <= 30)
        assert all(number in self.table for number, *_ in self.plain)
        for holder in "abcdef":
            assert self.table.used_by(holder) == sums.get(holder, 0) + self.taken[holder]
            assert dict(self.table.of(holder)) == {n: size for n, each, size in self.plain if each == holder}
            assert list(self.table.of(holder)) == [n for n, each, _ in self.plain if each == holder]


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
