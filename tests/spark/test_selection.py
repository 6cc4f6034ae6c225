"""Parse the options that select records."""

from __future__ import annotations

import pytest

from fyrehose.errors import ConfigError
from fyrehose.records import LAST_SEQ
from fyrehose.spark.selection import Bounds, Selection, bounds, patterns, selection


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("", None),
        ("log.*", ("log.*",)),
        ("[ab]*", ("[ab]*",)),
        ('["log.*", "audit"]', ("log.*", "audit")),
    ],
)
def test_option_streams_is_parsed_into_patterns(text: str | None, expected: tuple[str, ...] | None) -> None:
    assert patterns(text) == expected


@pytest.mark.parametrize("text", ["[]", "[1]"])
def test_invalid_patterns_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid option streams"):
        patterns(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, Bounds()),
        ("earliest", Bounds()),
        ("latest", Bounds()),
        ("7", Bounds({"*": 7})),
        ('{"a": 3, "*": 5}', Bounds({"a": 3, "*": 5})),
        ("1970-01-01T00:00:01", Bounds(time=1_000_000)),
        ("1970-01-01T01:00:01+01:00", Bounds(time=1_000_000)),
        ("1970-01-02", Bounds(time=86_400_000_000)),
    ],
)
def test_bounds_are_parsed(text: str | None, expected: Bounds) -> None:
    assert bounds(text, "start") == expected


@pytest.mark.parametrize(
    "text", ["yesterday", "-3", "{", '{"a": "x"}', "{1}", "9" * 5000, '{"a": 1e400}', '{"a": 1.5}', '{"a": ' * 9999]
)
def test_invalid_bounds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid start"):
        bounds(text, "start")


def test_numbers_include_their_end_and_times_do_not() -> None:
    chosen = selection("s*", '{"s1": 4}', "1970-01-01T00:00:01")
    assert chosen.seqs("s1") == (4, LAST_SEQ)
    assert chosen.seqs("s2") == (1, LAST_SEQ)
    assert chosen.accepts(999_999)
    assert not chosen.accepts(1_000_000)
    assert chosen.timed


def test_selected_stream_must_match_a_pattern_and_be_named() -> None:
    chosen = Selection(patterns=("a*", "b"), streams=frozenset({"ab", "c"}))
    assert [name for name in ("ab", "b", "c", "ac") if chosen.wants(name)] == ["ab"]
    assert Selection(patterns=("x*",)).wants("x\ny")
    assert not Selection(patterns=("[x]",)).wants("x")


def test_server_streams_are_selected_without_patterns_but_not_by_a_general_pattern() -> None:
    for chosen, wanted in ((selection(None, None, None), True), (selection("*", None, None), False)):
        assert (chosen.wants(".own"), chosen.wants("x")) == (wanted, True)
    assert selection('["a", ".*"]', None, None).wants(".own")
