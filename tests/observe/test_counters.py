"""Counters, and log lines of refusals at a limited rate."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import Logger

from fyrehose.observe.counters import DETAIL, MOST_KINDS, MOST_LINES, MOST_RECENT, Counters
from tests.doubles.references import references

log = Logger()


def test_counters_add_up() -> None:
    counters = Counters()
    counters.add("figg", "connections")
    counters.add("figg", "messages", 500)
    counters.add("figg", "messages", 20)
    assert counters.counts == {("figg", "connections"): 1, ("figg", "messages"): 520}


def test_gauges_have_a_current_value_and_a_peak() -> None:
    counters = Counters()
    for change in (1, 1, 1, -1, -2, 1):
        counters.gauge("figg", "connections", change)
    assert counters.gauges["figg", "connections"] == 1
    assert counters.peaks["figg", "connections"] == 3


@pytest.mark.parametrize("seed", range(20))
def test_every_refusal_is_counted_and_few_of_each_kind_and_cause_are_logged(seed: int, log_lines: list[str]) -> None:
    """Log one line of a kind in so many seconds, and MOST_LINES of a cause in a second."""
    dice, clock = Random(seed), Clock()
    counters, counted, left_out, lines = Counters(clock.seconds), Counter[Any](), Counter[Any](), Counter[Any]()
    last: dict[Any, float] = {}
    said: list[str] = []
    for _ in range(500):
        key = protocol, cause, kind = (
            dice.choice(("figg", "relink")),
            dice.choice("ab"),
            dice.choice(["", *"abcdefghijkl"]),
        )
        now, every, detail = clock.seconds(), 60.0 if kind else 1.0, dice.choice(("", "4 GiB"))
        counters.refuse(log, protocol, cause, "x", detail, apart=kind, **({"every": 60.0} if kind else {}))
        counted[protocol, cause] += 1
        if now - last.get(key, -every) >= every and lines[protocol, cause, int(now)] < MOST_LINES:
            last[key], lines[protocol, cause, int(now)] = now, lines[protocol, cause, int(now)] + 1
            more = f" (and {count} more in between)" if (count := left_out.pop(key, 0)) else ""
            said.append(f"{protocol}: {cause} from x{detail and f': {detail}'}{more}")
        else:
            left_out[key] += 1
        clock.advance(dice.choice((0.0,) * 30 + (0.25, 0.5, 1.0, 31.0)))
    counters.add("figg", "connections")
    assert log_lines == said
    assert (counters.counts - Counter({("figg", "connections"): 1}), counters.refusals) == (counted, counted.keys())


def test_text_from_a_peer_is_not_interpreted_as_a_format(log_lines: list[str]) -> None:
    Counters().refuse(log, "figg", "a", "{peer}", "{0} {log_source} %s")
    assert log_lines == ["figg: a from {peer}: {0} {log_source} %s"]


def test_a_flood_of_kinds_is_logged_and_remembered_within_bounds(log_lines: list[str]) -> None:
    clock = Clock()
    counters = Counters(clock.seconds)
    for number in range(MOST_KINDS + 100):
        if number == MOST_KINDS:
            before = references(counters, clock)
        counters.refuse(log, "figg", "handshake-failed", str(number), apart=str(number), every=60.0)
        if number == 4_000:
            clock.advance(1)
    assert len(log_lines) == 2 * MOST_LINES
    assert references(counters, clock) == before
    assert counters.counts["figg", "handshake-failed"] == MOST_KINDS + 100
    clock.advance(1)
    counters.refuse(log, "figg", "frame-too-large", "x")
    assert log_lines[-1] == "figg: frame-too-large from x", "another cause is not held up"
    counters.refuse(log, "figg", "handshake-failed", "x", apart=str(MOST_KINDS + 50), every=60.0)
    assert log_lines[-1] == "figg: handshake-failed from x (and 1 more in between)", "a late kind is remembered"


def test_declared_counters_begin_at_0_and_are_of_refusals_or_of_other_events() -> None:
    counters = Counters()
    counters.declare("figg", ["skipped"], ["too-large"])
    counters.refuse(log, "syslog", "rude", "x")
    of_refusals = {name for (_, name), refusal in counters.known.items() if refusal}
    assert {"too-large", "Forbidden", "ReadOnly", "PayloadTooLarge"} <= of_refusals
    assert not {"skipped", "RemoteProtocolError", "ConfigError"} & of_refusals
    asked = [("figg", "skipped"), ("figg", "too-large"), ("figg", "Forbidden"), ("syslog", "rude"), ("syslog", "other")]
    assert [counters.counts_refusals(key) for key in asked] == [False, True, True, True, False]
    assert counters.known[("figg", "skipped")] is False


def test_the_last_refusals_are_kept_by_network_and_bounded() -> None:
    clock = Clock()
    counters = Counters(clock.seconds)
    for number in range(2 * MOST_RECENT):
        counters.refuse(log, "figg", "silent", f"10.0.0.{number % 200}", "x" * 1_000)
        clock.advance(1)
    counters.refuse(log, "figg", "silent", "10.0.0.100")
    networks = [network for _, _, network in counters.recent]
    assert networks == [*(f"10.0.0.{number}" for number in range(101, 200)), "10.0.0.100"]
    last = counters.recent["figg", "silent", "10.0.0.100"]
    assert (last.at, last.count, last.detail) == (200, 2, "")
    assert counters.recent["figg", "silent", "10.0.0.101"].detail == "x" * DETAIL
