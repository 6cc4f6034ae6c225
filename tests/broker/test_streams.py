"""Limits of streams by patterns of their names."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.broker.streams import MAX_RULES, UNLIMITED, StreamRule, StreamRules, limits
from fyrehose.records import MAX_PAYLOAD
from fyrehose.toml_files import Mistake, structured


def parse(tables: object) -> StreamRules:
    return limits(structured(list[StreamRule], tables))


def limits_of(rules: StreamRules, stream: str) -> tuple[float, int, bool]:
    return rules.keep_age(stream), rules.max_payload(stream), rules.new_streams(stream)


def test_without_tables_a_stream_has_the_limits_of_the_server() -> None:
    assert limits_of(UNLIMITED, "s") == (0, MAX_PAYLOAD, True)
    assert not UNLIMITED.expire
    assert parse([]) == UNLIMITED


def test_a_table_limits_the_streams_that_match() -> None:
    rules = parse([{"name": ["debug.*", "trace"], "keep-age": "1d", "max-payload": "64KiB", "new-streams": False}])
    assert rules == StreamRules(
        (StreamRule(names=("debug.*", "trace"), keep_age=86400.0, max_payload=65536, new_streams=False),)
    )
    for stream in ("debug.", "debug.a.b", "trace"):
        assert limits_of(rules, stream) == (86400, 65536, False)
    for stream in ("debug", "a.debug.b", "traces", ".debug.a"):
        assert limits_of(rules, stream) == (0, MAX_PAYLOAD, True)
    assert rules.expire


def test_the_first_table_that_has_a_setting_wins_for_that_setting() -> None:
    rules = parse(
        [
            {"name": "orders.*", "new-streams": True, "keep-age": 0},
            {"name": "*.eu", "max-payload": 10},
            {"name": "*", "new-streams": False, "max-payload": 20, "keep-age": "30s"},
        ]
    )
    assert limits_of(rules, "orders.eu") == (0, 10, True)
    assert limits_of(rules, "logs.eu") == (30, 10, False)
    assert (rules.max_payload("orders.us"), rules.max_payload("x")) == (20, 20)


def test_the_streams_of_the_server_itself_have_no_limits() -> None:
    rules = parse([{"name": "*", "new-streams": False, "max-payload": 1, "keep-age": 1}])
    assert limits_of(rules, ".links") == (0, MAX_PAYLOAD, True)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ([5], "number 1 is 5; expected a table"),
        ([{"name": "a", "deep": 1}], "unknown key 'deep'; expected name, keep-age, max-payload, new-streams"),
        (
            [{"name": "a", "keep-age": 1}, {"name": "b"}],
            "table 2: it sets no limit; expected at least one of keep-age",
        ),
        ([{"keep-age": 1}], 'name is missing; expected a pattern such as "debug.*", or a list of patterns'),
        ([{"name": [], "keep-age": 1}], "name is []; expected a pattern"),
        ([{"name": ["a", ""], "keep-age": 1}], "or a list of patterns"),
        (
            [{"name": ["a", ".b"], "keep-age": 1}],
            "name is '.b', but names that begin with a dot are",
        ),
        ([{"name": "a", "keep-age": "soon"}], "keep-age is 'soon'; expected a duration"),
        ([{"name": "a", "keep-age": True}], "keep-age is true; expected text in quotes, or a number"),
        ([{"name": "a", "keep-age": "99999d"}], "at most 36500 days"),
        ([{"name": "a", "max-payload": "big"}], "max-payload is 'big'; expected a size"),
        ([{"name": "a", "max-payload": 0}], f"expected 1 to {MAX_PAYLOAD} bytes"),
        ([{"name": "a", "max-payload": MAX_PAYLOAD + 1}], f"expected 1 to {MAX_PAYLOAD} bytes"),
        ([{"name": "a", "new-streams": "no"}], "new-streams is 'no'; expected true or false"),
        ([{"name": "a", "keep-age": 1}] * (MAX_RULES + 1), f"exceed the limit of {MAX_RULES}"),
    ],
)
def test_invalid_tables_are_refused_with_the_reason(tables: Any, said: str) -> None:
    with pytest.raises(Mistake) as raised:
        parse(tables)
    assert said in str(raised.value)
