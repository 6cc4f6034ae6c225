"""Test each limit of the event bus at its default: one below it, at it, one above it."""

from __future__ import annotations

import pytest

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.frames import MAX_LABEL, Dialect, Subtrees, SyncStart
from fyrehose.protocols.eventbus.queued_memory import Pool
from fyrehose.protocols.eventbus.session import EventBusServerSession
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.snapshots import COST, SnapshotAnswer, Snapshots

TIME = b"2024-05-01T10:20:30.123Z"
UUID = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"
LARGEST = EventBusSettings().max_payload


def refused(*frames: bytes) -> str | None:
    found = EventBusServerSession(EventBusSettings()).receive_pub([b"c", *frames], 1 + len(frames), 0.0)
    return None if found is None else found.cause


@pytest.mark.parametrize(("size", "cause"), [(LARGEST - 1, None), (LARGEST, None), (LARGEST + 1, "data-too-large")])
def test_an_event_may_be_as_large_as_the_limit(size: int, cause: str | None) -> None:
    assert refused(b"/a/", b"null", b"me", TIME, UUID, bytes(size)) == cause


@pytest.mark.parametrize("size", [MAX_LABEL - 1, MAX_LABEL, MAX_LABEL + 1])
@pytest.mark.parametrize("place", [2, 3, 4])
def test_a_label_may_be_as_long_as_the_limit(place: int, size: int) -> None:
    frames = [b"/a/", b"null", b"me", TIME, UUID, b"\x01"]
    frames[place] = b"x" * size
    assert (refused(*frames) is None) is (size <= MAX_LABEL)


def ask(snapshots: Snapshots, number: int, network: str) -> None:
    """Let a client of *network* request a snapshot."""
    identity = b"%s %d" % (network.encode(), number)
    request = SyncStart(subtrees=Subtrees.parse(b""), sequence=0, dialect=Dialect.BINARY)
    snapshots.add(SnapshotAnswer(identity, request, False, Dialect.BINARY, Pool(1 << 30).account(identity, network)))


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_exactly_as_many_snapshots_are_sent_at_once_as_the_limit_says(more: int) -> None:
    limit = EventBusSettings().snapshots
    snapshots = Snapshots(limit, EventBusSettings().snapshots_memory)
    for number in range(limit + more):
        ask(snapshots, number, "10.0.0.1")
    snapshots.admit(9, 0.0)
    assert len(snapshots.active) == min(limit, limit + more)


@pytest.mark.slow
def test_requests_for_snapshots_take_at_most_the_memory_of_the_limit() -> None:
    limit = EventBusSettings().snapshots_memory
    snapshots = Snapshots(1, limit)
    for network in ("10.0.0.1", "10.0.0.2"):
        for number in range(limit // 2 // COST):
            assert snapshots.memory.used < limit
            ask(snapshots, number, network)
        with pytest.raises(RemoteProtocolError):
            ask(snapshots, -1, network)
    assert snapshots.memory.used == limit
    with pytest.raises(RemoteProtocolError):
        ask(snapshots, 0, "10.0.0.3")
