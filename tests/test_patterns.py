"""Test patterns: what they match, that matching never goes back, and the index that finds patterns by a name."""

from __future__ import annotations

import pickle
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fyrehose.errors import InvalidPattern
from fyrehose.patterns import MAX_BYTES, MAX_STARS, Pattern, PatternIndex, compiled
from tests.doubles.references import references

#: Few characters, so that names match often.
NAMES = st.text("ab.\n", max_size=12)
PATTERNS = st.text("ab.*\n", max_size=12)


def reference(pattern: str, name: str) -> bool:
    """Match by a table: row i says which prefixes of *name* the first i characters of *pattern* match."""
    row = [True] + [False] * len(name)
    for character in pattern:
        if character == "*":
            row = [any(row[: at + 1]) for at in range(len(row))]
        else:
            row = [False, *(before and character == each for before, each in zip(row, name, strict=False))]
    return row[-1]


def test_matching_agrees_with_a_table_of_all_beginnings() -> None:
    """Compare all short patterns with all short names: texts between stars may overlap each other and both ends."""
    patterns = ["".join(each) for size in range(6) for each in product("ab*", repeat=size)]
    names = ["".join(each) for size in range(5) for each in product("ab", repeat=size)]
    for text, name in product(patterns, names):
        matches = reference(text, name)
        assert Pattern(text).matches(name) is matches, f"{text!r} {'does not match' if matches else 'matches'} {name!r}"


@given(pattern=PATTERNS, name=NAMES)
def test_streams_of_the_server_are_covered_by_patterns_that_begin_with_a_dot_only(pattern: str, name: str) -> None:
    allowed = not name.startswith(".") or pattern.startswith(".")
    assert Pattern(pattern).covers(name) is (allowed and reference(pattern, name))


@pytest.mark.parametrize("pattern", ["a?", "[ab]", "a\\*", "(a|b)", "^a$", "a+"])
def test_characters_other_than_the_star_match_only_themselves(pattern: str) -> None:
    assert [name for name in ("ab", "a", "b", "aa", "a\\", pattern) if Pattern(pattern).matches(name)] == (
        ["a\\", pattern] if pattern == "a\\*" else [pattern]
    )


class Watched(str):
    """A name that records where each search of it begins."""

    begins: list[int]

    def find(self, text: str, begin: Any = 0, end: Any = None, /) -> int:
        self.begins.append(begin)
        return super().find(text, begin, end)


EVIL = [
    "*" * 1_000 + "!",
    "*a" * 8 + "b",
    "a*" * 8 + "b",
    "*a" * 127 + "b",
    "*ab" * 80 + "*!",
    "*a*b" * 50 + "!",
    "*" + "a" * 120 + "b" + "a" * 120 + "*",
]


@pytest.mark.parametrize("text", EVIL, ids=lambda text: text[:12])
def test_matching_searches_once_for_each_star_and_never_goes_back(text: str) -> None:
    pattern, searches = Pattern(text), 0
    names = ["logs.web", "a" * 255, "ab" * 127, "ba" * 127, "a" * 127 + "b" + "a" * 127]
    for number in range(100_000 // len(names)):
        for name in names:
            watched = Watched(f"{name[:250]}{number}")
            watched.begins = []
            pattern.matches(watched)
            searches += len(watched.begins)
            assert len(watched.begins) <= text.count("*")
            assert watched.begins == sorted(set(watched.begins))
    assert searches <= 100_000 * text.count("*")


@pytest.mark.parametrize("text", ["*", "a" * MAX_BYTES, "é" * (MAX_BYTES // 2), "*a" * MAX_STARS, "*" * MAX_STARS])
def test_a_peer_may_use_patterns_within_the_bounds(text: str) -> None:
    assert Pattern.of_peer(text) == Pattern(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 bytes and 0 stars; expected 1 to 255 bytes and at most 8 stars"),
        ("a" * (MAX_BYTES + 1), "256 bytes and 0 stars"),
        ("é" * (MAX_BYTES // 2 + 1), "256 bytes and 0 stars"),
        ("*a" * (MAX_STARS + 1), "18 bytes and 9 stars"),
        ("*" * (MAX_STARS + 1), "9 bytes and 9 stars"),
        ("\udc80" * 86, "258 bytes and 0 stars"),
    ],
)
def test_a_pattern_of_a_peer_beyond_the_bounds_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidPattern, match=said) as raised:
        Pattern.of_peer(text)
    assert len(str(raised.value)) < 1_000


def test_patterns_compare_by_their_text_and_can_be_pickled() -> None:
    found = compiled(["a*", Pattern("b")])
    assert found == (Pattern("a*"), Pattern("b")) == compiled(found)
    assert pickle.loads(pickle.dumps(found[0])).matches("ab")
    assert [Pattern(text).everything for text in ("*", "**", ".*", "a")] == [True, False, False, False]
    assert [Pattern(text).exact for text in ("a", "a*", "")] == [True, False, True]


@given(patterns=st.lists(PATTERNS, max_size=8), removed=st.integers(0, 8), names=st.lists(NAMES, max_size=8))
@example(patterns=["abc", "abcd"], removed=0, names=["abc"])
def test_the_index_finds_what_covers_a_name(patterns: list[str], removed: int, names: list[str]) -> None:
    index: PatternIndex[int] = PatternIndex()
    empty = references(index)
    there = dict(enumerate(map(Pattern, patterns)))
    for number, pattern in there.items():
        index.add(pattern, number)
    for number in list(there)[:removed]:
        index.remove(there.pop(number), number)
        index.remove(Pattern("unknown*"), number)
    for name in names:
        assert sorted(index.covering(name)) == [n for n, pattern in there.items() if pattern.covers(name)]
    for number, pattern in there.items():
        index.remove(pattern, number)
    assert references(index) == empty


def test_the_index_compares_a_name_once_with_patterns_of_its_beginning_only(monkeypatch: pytest.MonkeyPatch) -> None:
    index: PatternIndex[int] = PatternIndex()
    for number in range(1_000):
        index.add(Pattern(f"logs-{number}.*"), number)
        index.add(Pattern("x*"), number)
    compared: list[str] = []
    covers = Pattern.covers

    def counted(self: Pattern, stream: str) -> bool:
        compared.append(self.text)
        return covers(self, stream)

    monkeypatch.setattr(Pattern, "covers", counted)

    assert list(index.covering("logs-7.web")) == [7]
    assert len(list(index.covering("x.1"))) == 1_000
    assert list(index.covering("orders")) == []
    assert compared == ["logs-7.*", "x*"]
