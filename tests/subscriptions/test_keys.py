"""Keys of records: a label, or a member of the JSON object at the beginning of a payload."""

from __future__ import annotations

import json

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.records import Run
from fyrehose.subscriptions.keys import KEY_BYTES, LONGEST, keys_of, member
from fyrehose.testing import MemoryJournal


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        (b'{"k": 1}', "1"),
        (b' { "a" : [1, {"k": 2}] , "k" : "x" } ', '"x"'),
        (b'{"k": {"b": 1}}', '{"b": 1}'),
        (b'{"k": null}', None),
        (b'{"a": 1}', None),
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


def test_only_the_beginning_of_a_payload_is_searched() -> None:
    rest = b'"a": "' + b"x" * KEY_BYTES + b'"'
    assert member(b'{"k": 1, ' + rest + b"}", "k") == "1"
    assert member(b"{" + rest + b', "k": 1}', "k") is None


def test_keys_are_read_in_portions_and_long_ones_are_replaced_by_a_digest() -> None:
    journal = MemoryJournal()
    broker = Broker(Clock(), journal, Sequencer())
    broker.open()
    long = json.dumps({"k": "x" * 1_000}).encode()
    broker.publish([Run.of("s", [b'{"k": 1}', b"no key", long], source="test", topic="t")])
    found, end = keys_of(journal, "s", "k", 1, 2)
    assert (found, end) == ({1: "=1", 2: "#2"}, 2)
    found, end = keys_of(journal, "s", "k", 3, 9)
    assert (len(found[3]) <= LONGEST, end) == (True, 3)
    assert keys_of(journal, "s", "topic", 1, 1) == ({1: "=t"}, 1)
