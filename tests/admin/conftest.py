"""A server with its sampler and status, whose clock the test controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock
from zope.interface import implementer

from fyrehose.admin.sampling import Sampler, StreamRates
from fyrehose.admin.status import Status
from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.interfaces import IConnectedSink
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal, RecordingSink


@implementer(IConnectedSink)
class Subscriber(RecordingSink):
    """A sink that names its protocol and peer."""

    def __init__(self, protocol: str) -> None:
        super().__init__()
        self.connection = SimpleNamespace(subscriber=(protocol, "10.0.0.1:5"), closes_in=None)


@attrs.define(eq=False)
class Watched:
    """A broker with its sampler and status."""

    clock: Clock = attrs.field(factory=Clock)
    journal: MemoryJournal = attrs.field(factory=MemoryJournal)
    broker: Broker = attrs.field(init=False)
    sampler: Sampler = attrs.field(init=False)
    status: Status = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        self.sampler = Sampler(self.clock, self.broker, lambda: 1_000.0 + self.clock.seconds())
        self.status = Status(self.broker, self.sampler, 1_000.0, StreamRates(self.clock.seconds, self.broker))

    def publish(self, *payloads: bytes, stream: str = "s", source: str = "http") -> None:
        self.broker.publish([Run.of(stream, payloads, source=source)])

    def subscribe(self, stream: str = "s", after: int = 0, resumed: bool = True, protocol: str = "figg") -> Any:
        subscription = self.broker.subscribe(stream, after, Subscriber(protocol))
        if resumed:
            subscription.resumeProducing()
            self.clock.advance(0)
        return subscription

    def pass_time(self, seconds: float) -> None:
        """Advance the clock in steps shorter than the interval of the sampler's timer."""
        for _ in range(round(seconds * 20)):
            self.clock.advance(0.05)


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    made.sampler.start()
    yield made
    made.sampler.stop()
    made.broker.table.close()
    assert not [call for call in made.clock.getDelayedCalls() if call.active()]


@pytest.fixture
def make_watched() -> Callable[..., Watched]:
    return Watched
