"""Test each limit of the event bus at its default: one below it, at it, one above it."""

from __future__ import annotations

import pytest
from twisted.internet.address import IPv4Address

from fyrehose.protocols.eventbus.frames import MAX_LABEL
from fyrehose.protocols.eventbus.server import CollectorProtocol, PortFactory, SnapshotProtocol
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.testing import ClientSide
from tests.protocols.eventbus.world import event, make_world

LARGEST = EventBusSettings().max_payload


def refused(*frames: bytes) -> list[str]:
    """Return the causes for which a message is refused."""
    world = make_world()
    world.collector().say([*frames])
    known = world.broker.counters.known
    return [cause for (_, cause), refuses in known.items() if refuses and world.count(cause)]


@pytest.mark.parametrize(("size", "causes"), [(LARGEST - 1, []), (LARGEST, []), (LARGEST + 1, ["data-too-large"])])
def test_an_event_may_be_as_large_as_the_limit(size: int, causes: list[str]) -> None:
    assert refused(*event(1, data=bytes(size))) == causes


@pytest.mark.parametrize("size", [MAX_LABEL - 1, MAX_LABEL, MAX_LABEL + 1])
@pytest.mark.parametrize("place", [2, 3, 4])
def test_a_label_may_be_as_long_as_the_limit(place: int, size: int) -> None:
    frames = event(1)
    frames[place] = b"x" * size
    assert (not refused(*frames)) is (size <= MAX_LABEL)


@pytest.mark.parametrize("more", [0, 1])
def test_all_ports_together_admit_as_many_connections_as_the_limit_says(more: int) -> None:
    world = make_world()
    limit = EventBusSettings().max_connections
    for n in range(limit + more):
        kind = (SnapshotProtocol, CollectorProtocol)[n % 2]
        factory = PortFactory(world.factory, kind)
        if n:
            factory.buildProtocol(IPv4Address("TCP", f"10.0.0.{n % 3}", 5_000))
        else:
            ClientSide.connect(factory, world.clock, host="10.0.0.0")  # the one that is idle longest
    assert len(world.factory.connections) <= limit
    refused_now = world.count("too-many-connections") + world.count("made-room")
    assert refused_now == more


def test_a_client_that_does_not_read_is_disconnected_after_the_time_out() -> None:
    world = make_world()
    world.publish(300, size=1_000)
    asking = world.snapshot()
    asking.protocol.pauseProducing()
    timeout = EventBusSettings().timeout
    world.clock.advance(timeout - 0.1)
    assert not asking.transport.aborted
    world.clock.advance(1.2)
    assert asking.transport.aborted
