"""Quotas of peers: the streams that one peer creates, and the subscriptions that one address has."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext, suppress
from random import Random

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


def test_streams_count_for_the_address_and_for_the_strongest_proof_or_not_at_all() -> None:
    dice, created, refusals = Random(52), Counter[str](), Counter[bool]()
    world = Streams(most=200)
    proofs = [{}, {"certificates": ("beat", "other"), "token": "x"}, {"key": "k" * 40}, {"token": "t" * 64}]
    networks = {f"10.0.0.{n}": f"10.0.0.{n}" for n in range(6)} | {f"2001:db8::{n}": "2001:db8::/64" for n in range(3)}
    for step in range(1_000):
        host, proof, count = dice.choice([*networks]), dice.choice(proofs), dice.randint(1, 6)
        keys = [networks[host], *(str(value) for value in [*proof.values()][:1])]
        full = [key for key in keys if created[key] + count > 200]
        refusals[bool(full)] += 1
        refused = ""
        try:
            world.make(count, Identity(host=host, **proof))
            created.update(dict.fromkeys(keys, count))
        except TooManyStreamsFromPeer as error:
            refused = str(error)
        there = [created[key] for key in keys]
        assert bool(refused) == bool(full), f"step {step}: {keys} have {there} and create {count} more: {refused!r}"
        assert "t" * 64 not in refused, "no error has a token"
    assert min(refusals.values()) > 100, "both happen often"


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


def test_subscriptions_count_for_their_address_and_never_take_more_than_half_of_the_budget() -> None:
    dice, counts, refused = Random(52), Counter[str](), Counter[str]()
    budget = InFlight(limit=20 * SUBSCRIPTION)
    subscriptions = Subscriptions(budget, 4)
    before = references(subscriptions)
    for step in range(500):
        address, why = f"10.0.0.{dice.randint(1, 5)}", ""
        if dice.random() < 0.4 and counts[address]:
            subscriptions.release(address)
            counts[address] -= 1
        else:
            why = "its limit of 4" if counts[address] == 4 else "no room for another" if counts.total() == 10 else ""
            with pytest.raises(TooManySubscriptions, match=why) if why else nullcontext():
                subscriptions.take(address)
            counts[address] += not why
        refused[why] += 1
        assert budget.kept == counts.total() * SUBSCRIPTION, f"step {step}: another charge than for {counts}"
    assert min(refused.values()) > 10, "each refusal happens"
    for address in counts.elements():
        subscriptions.release(address)
    assert (budget.kept, references(subscriptions) <= before + 5) == (0, True), "empty addresses are forgotten"
