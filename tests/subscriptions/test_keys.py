"""Keys of records: a label, or a member of the JSON object at the beginning of a payload."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.records import Run
from fyrehose.subscriptions.keys import KEY_BYTES, LONGEST, keys_of, member
from fyrehose.subscriptions.table import RunReader
from fyrehose.testing import MemoryJournal
from tests.doubles.awkward import NAMES, SURROGATES


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        (b'{"k": 1}', "1"),
        (b' { "a" : [1, {"k": 2}] , "k" : "x" } ', '"x"'),
        (b'{"k": {"b": 1}}', '{"b": 1}'),
        (b'{"k": null}', None),
        (b'{"a": 1}', None),
        (b'{"k"=1}', None),
        (b'{"a", "k": 1}', None),
        (b"{}", None),
        (b"[1]", None),
        (b"k", None),
        (b"", None),
        (b"\xff", None),
        (b'{"a": ' + b"[" * 10_000, None),
    ],
)
def test_the_key_is_a_member_of_the_object(payload: bytes, key: str | None) -> None:
    assert member(payload, "k") == key


@pytest.mark.parametrize("filler", ["x", "\u00fc", "\u20ac", "\U0001f600"])
def test_only_the_beginning_of_a_payload_is_searched_wherever_it_cuts_a_character(filler: str) -> None:
    for space in range(4):
        rest = b'"a": "' + b" " * space + filler.encode() * (KEY_BYTES // len(filler.encode())) + b'"'
        assert member(b'{"k": 1, ' + rest + b"}", "k") == "1"
        assert member(b"{" + rest + b', "k": 1}', "k") is None


@pytest.mark.parametrize("seed", range(10))
def test_records_have_the_same_key_if_they_have_the_same_value(seed: int) -> None:
    """Whatever the values are, how long, and where the journal has gaps: portions together have each record's key."""
    dice, journal = Random(seed), MemoryJournal()
    broker = Broker(Clock(), journal, Sequencer())
    broker.open()
    begins = ["", "x" * (LONGEST - 3), "x" * LONGEST, "\u00fc" * LONGEST]
    ends = [*NAMES, *(each.encode("utf-16", "surrogatepass").hex() for each in SURROGATES)]
    texts = [begin + end for begin in begins for end in dice.sample(ends, 4)]
    values: list[Any] = [*texts, *SURROGATES, 1, 1.5, True, None, {"a": [1]}, {"a": [2]}]
    present: dict[int, Any] = {}
    for _ in range(60):
        value = dice.choice(values)
        broker.publish([Run.of("s", [json.dumps({"other": 0, "k": value}).encode()], source="test")])
        last = journal.bounds("s")[1]
        present[last] = value
        if dice.random() < 0.03:
            journal.empty("s")
            present = {}
    keys, reader = dict[int, str](), RunReader(journal)
    first, last = 1, journal.bounds("s")[1]
    while first <= last:
        found, end = keys_of(reader, "s", "k", first, min(last, first + dice.randint(0, 20)))
        assert end >= first
        keys |= found
        first = end + 1
    assert keys.keys() == present.keys(), "each record that the journal has is in one portion"
    assert max(map(len, keys.values()), default=0) <= LONGEST + 1
    names: dict[str, str] = {}
    for seq, key in keys.items():
        value = f"no key: {seq}" if present[seq] is None else json.dumps(present[seq])
        assert len(value) > LONGEST or key in (f"={value}", f"#{seq}"), "only longer keys are replaced by a digest"
        assert names.setdefault(key, value) == value, f"records with {names[key]} and {value} have one key"
    assert len({*names.values()}) == len(names), "records of one value have several keys"


@pytest.mark.parametrize("key", ["topic", "producer"])
def test_label_is_the_key_and_a_portion_ends_where_it_is_asked_to(key: str) -> None:
    journal = MemoryJournal()
    broker = Broker(Clock(), journal, Sequencer())
    broker.open()
    broker.publish([Run.of("s", [b"x"] * 3, source="test", **{key: "t"})])
    assert keys_of(RunReader(journal), "s", key, 2, 2) == ({2: "=t"}, 2)
    journal.empty("s")
    assert keys_of(RunReader(journal), "s", key, 1, 1) == ({}, 3), "all that the journal lacks"
