"""The table of writers: who sends, how fast, and what was refused; bounded in number."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from fyrehose.observe.writers import MOST_TEXT, MOST_WRITERS, WriterTable, agent_of

BEAT = {"agent": {"name": "web-1", "type": "filebeat", "version": "8.19.0"}}


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (BEAT, ("web-1", "filebeat 8.19.0")),
        ({"@metadata": {"beat": "winlogbeat", "version": "7"}, "agent": {"name": "pc"}}, ("pc", "winlogbeat 7")),
        ({"@metadata": {"beat": "journalbeat"}}, ("", "journalbeat")),
        ({"agent": "web-1"}, ("", "")),
        ({"agent": {"name": 7, "type": ["x"]}}, ("", "")),
        ([1], ("", "")),
        ({"agent": {"name": "\ud800", "type": "x" * 2 * MOST_TEXT}}, ("?", "x" * MOST_TEXT)),
    ],
)
def test_an_event_names_its_agent(event: Any, found: tuple[str, str]) -> None:
    assert agent_of(json.dumps(event).encode()) == found


JSON = st.recursive(st.none() | st.text(), st.lists).map(json.dumps).map(str.encode)


@given(st.one_of(st.binary(), st.just(b"[" * 60_000), JSON))
def test_no_event_breaks_the_search_for_its_agent(payload: bytes) -> None:
    name, about = agent_of(payload)
    assert not name + about


def test_a_writer_keeps_its_row_over_connections() -> None:
    clock = Clock()
    writers = WriterTable(clock.seconds)
    first = writers.connected("web-1", "filebeat 8.19.0", "10.0.0.1:5000")
    first.add(10, clock.seconds())
    first.connections -= 1
    again = writers.connected("web-1", "", "10.0.0.1:5001")
    assert again is first
    again.acknowledged_at = clock.seconds()
    again.refused, again.missed = 2, 3
    clock.advance(2)
    assert writers.listed() == [
        {
            "name": "web-1",
            "agent": "filebeat 8.19.0",
            "address": "10.0.0.1:5001",
            "connections": 1,
            "events": 10,
            "rate": 0.0,
            "acknowledged_ago": 2.0,
            "refused": 2,
            "missed": 3,
        }
    ]


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    writers = WriterTable(clock.seconds)
    writer = writers.connected("web-1", "", "10.0.0.1:5000")
    for _ in range(10):
        clock.advance(1)
        writer.add(20, clock.seconds())
    assert writers.listed()[0]["rate"] == 20.0
    clock.advance(10)
    assert writers.listed()[0]["rate"] == 0.0


def test_the_row_of_the_writer_that_left_first_is_forgotten() -> None:
    writers = WriterTable(Clock().seconds)
    rows = [writers.connected(f"web-{number}", "", "?") for number in range(MOST_WRITERS)]
    rows[7].connections -= 1
    writers.connected("another", "", "?")
    names = {each["name"] for each in writers.listed()}
    assert len(writers) == MOST_WRITERS
    assert "web-7" not in names
    writers.connected("one more", "", "?")
    assert "web-0" not in {each["name"] for each in writers.listed()}
