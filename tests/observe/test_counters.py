"""Counters, and log lines of refusals at a limited rate."""

from __future__ import annotations

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


def test_refusals_are_distinguished_from_other_counters() -> None:
    counters = Counters(Clock().seconds)
    counters.add("figg", "connections")
    counters.refuse(log, "figg", "frame-too-large", "x")
    assert counters.refusals == {("figg", "frame-too-large")}


def test_every_refusal_is_counted_and_one_per_second_is_logged(log_lines: list[str]) -> None:
    clock = Clock()
    counters = Counters(clock.seconds)
    for _ in range(1000):
        counters.refuse(log, "figg", "frame-too-large", "10.0.0.1", "4 GiB")
        clock.advance(0.0005)
    assert counters.counts["figg", "frame-too-large"] == 1000
    assert log_lines == ["figg: frame-too-large from 10.0.0.1: 4 GiB"]
    clock.advance(1)
    counters.refuse(log, "figg", "frame-too-large", "10.0.0.2")
    assert log_lines[1:] == ["figg: frame-too-large from 10.0.0.2 (and 999 more in between)"]


def test_each_cause_and_protocol_is_logged_separately(log_lines: list[str]) -> None:
    counters = Counters(Clock().seconds)
    counters.refuse(log, "figg", "a", "x")
    counters.refuse(log, "figg", "b", "x")
    counters.refuse(log, "relink", "a", "x")
    counters.refuse(log, "figg", "a", "x")
    assert log_lines == ["figg: a from x", "figg: b from x", "relink: a from x"]


def test_a_refusal_after_a_second_is_logged_again(log_lines: list[str]) -> None:
    clock = Clock()
    counters = Counters(clock.seconds)
    for _ in range(3):
        counters.refuse(log, "figg", "a", "x")
        clock.advance(2)
    assert log_lines == ["figg: a from x"] * 3


def test_text_from_a_peer_is_not_interpreted_as_a_format(log_lines: list[str]) -> None:
    Counters().refuse(log, "figg", "a", "{peer}", "{0} {log_source} %s")
    assert log_lines == ["figg: a from {peer}: {0} {log_source} %s"]


def test_kinds_of_one_cause_are_logged_apart_and_as_rarely_as_the_caller_says(log_lines: list[str]) -> None:
    clock = Clock()
    counters = Counters(clock.seconds)
    for _ in range(119):
        for network in "ab":
            counters.refuse(log, "figg", "handshake-failed", network, "why", apart=network, every=60.0)
        clock.advance(1)
    assert log_lines == [
        *[f"figg: handshake-failed from {network}: why" for network in "ab"],
        *[f"figg: handshake-failed from {network}: why (and 59 more in between)" for network in "ab"],
    ]


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
