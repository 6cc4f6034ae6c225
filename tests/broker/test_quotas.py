"""Quotas of peers: the streams that one peer creates, and the subscriptions that one address has."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from fyrehose.broker.quotas import MOST_PEERS, STREAMS, SUBSCRIPTION, NamedRoom, NewStreams, PeerLimits, Subscriptions
from fyrehose.errors import TooManyNamedSubscriptions, TooManyStreams, TooManyStreamsFromPeer, TooManySubscriptions
from fyrehose.identity import Identity
from fyrehose.net.inflight import InFlight
from tests.doubles.references import references

HERE, THERE = Identity(host="10.0.0.1"), Identity(host="10.0.0.2")


class Streams:
    """New streams of peers."""

    def __init__(self, most: int = STREAMS) -> None:
        self.streams = NewStreams(most)
        self.names = 0

    def make(self, count: int, peer: Identity = HERE) -> None:
        self.names += count
        self.streams.charge(peer, [f"stream {self.names - n}" for n in range(count)])


def test_one_stream_beyond_the_default_number_is_refused() -> None:
    world = Streams()
    for _ in range(200):
        world.make(50)
    with pytest.raises(TooManyStreamsFromPeer) as refusal:
        world.make(1)
    assert "address 10.0.0.1 has created 10000 since the server started, and the limit is 10000" in str(refusal.value)
    assert "raise the option server.streams-per-address" in str(refusal.value)
    assert isinstance(refusal.value, TooManyStreams)
    world.make(1, THERE)


def test_a_refused_publish_uses_no_quota() -> None:
    world = Streams(most=10)
    world.make(5)
    for _ in range(100):
        with pytest.raises(TooManyStreamsFromPeer, match="6 streams, the first of them"):
            world.make(6)
    world.make(5)


@pytest.mark.parametrize(
    "proof", [{"certificates": ("beat", "other")}, {"key": "k" * 40}, {"token": "t" * 64}], ids=str
)
def test_an_identity_is_limited_from_every_address(proof: dict[str, Any]) -> None:
    world = Streams(most=3)
    for n in range(3):
        world.make(1, Identity(host=f"10.0.0.{n}", **proof))
    with pytest.raises(TooManyStreamsFromPeer) as refusal:
        world.make(1, Identity(host="10.0.0.9", **proof))
    assert "t" * 64 not in str(refusal.value)
    world.make(1, Identity(host="10.0.0.9"))


def test_many_identities_do_not_raise_the_limit_of_one_address() -> None:
    world = Streams(most=3)
    for n in range(3):
        world.make(1, Identity(host="10.0.0.1", token=f"{n}" * 64))
    for n in range(100):
        with pytest.raises(TooManyStreamsFromPeer, match=r"address 10\.0\.0\.1"):
            world.make(1, Identity(host="10.0.0.1", token=f"new {n}"))
    assert len(world.streams.creators) == 4


def test_a_whole_ipv6_network_is_one_address() -> None:
    world = Streams(most=2)
    for n in range(2):
        world.make(1, Identity(host=f"2001:db8::{n + 1}"))
    with pytest.raises(TooManyStreamsFromPeer, match="2001:db8::/64"):
        world.make(1, Identity(host="2001:db8::99"))


def test_the_number_of_counted_peers_is_bounded() -> None:
    world = Streams(most=2)
    world.make(2, Identity(host="late"))
    for n in range(MOST_PEERS + 10):
        world.make(1, Identity(host=f"host {n}"))
        if n == MOST_PEERS // 2:
            world.make(1, Identity(host="host 0"))
    assert len(world.streams.creators) == MOST_PEERS
    assert ("address", "late") not in world.streams.creators
    with pytest.raises(TooManyStreamsFromPeer):
        world.make(1, Identity(host="host 0"))


def test_the_default_number_of_subscriptions_is_allowed_and_one_more_is_refused() -> None:
    most = PeerLimits().subscriptions
    subscriptions = Subscriptions(InFlight(), most)
    for _ in range(most):
        subscriptions.take("10.0.0.1")
    with pytest.raises(TooManySubscriptions) as refusal:
        subscriptions.take("10.0.0.1")
    assert "address 10.0.0.1 has reached its limit of 50000 subscriptions" in str(refusal.value)
    assert "server.subscriptions-per-address" in str(refusal.value)
    subscriptions.take("10.0.0.2")
    subscriptions.release("10.0.0.1")
    subscriptions.take("10.0.0.1")


@pytest.mark.parametrize("most", [0, 1, 2, 9, 10, 12])
def test_one_creator_of_named_subscriptions_has_half_of_a_limit_that_has_changed(most: int) -> None:
    room, created = NamedRoom(InFlight(), 10), Counter[str]()
    room.change(most)
    for creator in ("10.0.0.1", "10.0.0.2", ""):
        with suppress(TooManyNamedSubscriptions):
            while True:
                room.check("n", creator, 1)
                room.count(creator, 1, 0)
                created[creator] += 1
    half = (most + 1) // 2
    assert created == +Counter({"10.0.0.1": half, "10.0.0.2": most - half})
    room.change(2 * most + 2)
    assert room.left("10.0.0.1") == most + 1 - half


def test_subscriptions_of_one_address_use_less_than_a_tenth_of_the_budget() -> None:
    assert PeerLimits().subscriptions * SUBSCRIPTION < InFlight().limit / 10


def test_subscriptions_are_charged_to_the_budget_and_never_take_more_than_half_of_it() -> None:
    budget = InFlight(limit=10 * SUBSCRIPTION)
    subscriptions = Subscriptions(budget, 1_000)
    before = references(subscriptions)
    for n in range(5):
        subscriptions.take(f"10.0.0.{n}")
    assert budget.kept == 5 * SUBSCRIPTION
    with pytest.raises(TooManySubscriptions, match=r"no room for another.*server\.memory"):
        subscriptions.take("10.0.0.9")
    for n in range(5):
        subscriptions.release(f"10.0.0.{n}")
    assert budget.kept == 0
    assert references(subscriptions) <= before + 5, "addresses without subscriptions are forgotten"


def test_address_with_subscriptions_keeps_its_count_when_the_budget_refuses_another() -> None:
    subscriptions = Subscriptions(InFlight(limit=4 * SUBSCRIPTION), 3)
    for _ in range(2):
        subscriptions.take("10.0.0.1")
    with pytest.raises(TooManySubscriptions, match="no room for another"):
        subscriptions.take("10.0.0.1")
    subscriptions.budget.limit = 100 * SUBSCRIPTION
    subscriptions.take("10.0.0.1")
    with pytest.raises(TooManySubscriptions, match="has reached its limit of 3 subscriptions"):
        subscriptions.take("10.0.0.1")
