"""Test the limits of Figg at their defaults: one below, at, one above."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.protocols.figg.frames import Attach
from fyrehose.protocols.figg.server import FiggFactory, FiggSettings
from fyrehose.testing import ClientSide, MemoryJournal

MOST = FiggSettings().max_subscriptions


@pytest.mark.parametrize("count", [MOST - 1, MOST, MOST + 1])
def test_a_connection_may_have_as_many_subscriptions_as_the_limit(count: int) -> None:
    clock = Clock()
    broker = Broker(clock, MemoryJournal(), Sequencer())
    broker.open()
    peer = ClientSide.connect(FiggFactory(broker, FiggSettings(refusal_delay=0.0), clock), clock)
    peer.send(b"".join(Attach(topic=f"t{n}").serialize() for n in range(count)))
    peer.clock.advance(0)  # subscriptions are handled in turns of the reactor
    assert peer.transport.disconnecting is (count > MOST)
    assert broker.counters.counts["figg", "too-many-subscriptions"] == (count > MOST)
