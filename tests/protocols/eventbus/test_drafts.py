"""Drafts: few runs, and the order of each client."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from struct import unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.drafts import Drafts
from fyrehose.records import Run

TIME = b"2024-05-01T10:20:30.123Z"


def event(topic: bytes, producer: bytes, data: bytes, timestamp: bytes = TIME, n: int = 0) -> list[bytes]:
    return [topic, b"null", producer, timestamp, b"7d444840-9dc0-41d1-b245-%012x" % n, data]


def taken(drafts: Drafts) -> list[Run]:
    batch = drafts.take()
    return [] if batch is None else batch.runs


def test_equal_labels_share_a_run() -> None:
    drafts = Drafts("bus", "eventbus")
    for n in range(100):
        drafts.add(b"client", event(b"/a/", b"me", b"%d" % n, n=n))
    batch = drafts.take()
    assert batch is not None
    assert batch.count == 100
    (run,) = batch.runs
    assert (run.stream, run.source, run.topic, run.producer) == ("bus", "eventbus", "/a/", "me")
    assert run.content_type == "application/msgpack"
    assert [bytes(payload) for payload in run.payloads()] == [b"%d" % n for n in range(100)]
    assert run.event_ids is not None
    assert len(run.event_ids) == 1600
    assert run.event_times is not None
    assert unpack("<100q", run.event_times) == (1_714_558_830_123_000,) * 100
    assert run.producer_seq is None, "sequences from clients are ignored"
    assert drafts.take() is None


def test_interleaved_producers_make_one_run_each() -> None:
    drafts = Drafts("bus", "eventbus")
    for n in range(1_000):
        client = b"%d" % (n % 10)
        drafts.add(client, event(b"/a/", client, b"%d" % n))
    assert len(taken(drafts)) == 10


def test_client_with_two_topics_keeps_its_order() -> None:
    drafts = Drafts("bus", "eventbus")
    for n in range(4):
        drafts.add(b"client", event(b"/%d/" % (n % 2), b"me", b"%d" % n))
    assert [bytes(payload) for run in taken(drafts) for payload in run.payloads()] == [b"0", b"1", b"2", b"3"]


def test_other_label_forms_get_their_own_runs() -> None:
    drafts = Drafts("bus", "eventbus")
    for n, timestamp in enumerate([TIME, b"2024-05-01T10:20:30Z", b"2024-05-01T10:20:31Z", b"now", TIME]):
        drafts.add(b"%d" % n, event(b"/a/", b"me", b"x", timestamp))
    runs = taken(drafts)
    assert [(run.content_type, len(run), run.event_times is None) for run in runs] == [
        ("application/msgpack", 2, False),
        ("application/msgpack; time=0Z", 2, False),
        ('application/msgpack; timestamp="now"', 1, True),
    ]


def test_refused_event_leaves_nothing_behind() -> None:
    drafts = Drafts("bus", "eventbus")
    with pytest.raises(RemoteProtocolError):
        drafts.add(b"client", event(b"\xff", b"me", b"x"))
    assert drafts.take() is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), max_size=60))
def test_order_of_each_client_is_kept_and_nothing_is_lost(sent: list[tuple[int, int, int]]) -> None:
    drafts = Drafts("bus", "eventbus")
    for n, (client, topic, producer) in enumerate(sent):
        drafts.add(b"%d" % client, event(b"/%d/" % topic, b"%d" % producer, b"%d" % n, n=n))
    runs = taken(drafts)
    order = [int(bytes(payload)) for run in runs for payload in run.payloads()]
    assert sorted(order) == list(range(len(sent)))
    by_client: dict[int, list[int]] = defaultdict(list)
    for n in order:
        by_client[sent[n][0]].append(n)
    assert all(numbers == sorted(numbers) for numbers in by_client.values())
    for run in runs:
        check(run, sent)
    assert len(runs) <= max(1, sum(1 for a, b in pairwise(sent) if a[1:] != b[1:]) + 1)


def check(run: Run, sent: list[tuple[int, int, int]]) -> None:
    """Check that the columns of each run belong to its events."""
    ids = bytes(run.event_ids or b"")
    for row, payload in enumerate(run.payloads()):
        n = int(bytes(payload))
        _, topic, producer = sent[n]
        assert (run.topic, run.producer) == (f"/{topic}/", str(producer))
        assert int.from_bytes(ids[16 * row + 10 : 16 * row + 16], "big") == n
