"""A broker in memory whose exclusive subscriptions are tested."""

from __future__ import annotations

from typing import Any, ClassVar

from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.records import Run
from fyrehose.subscriptions.exclusive import ExclusiveSubscription
from fyrehose.testing import MemoryJournal


class World:
    """A broker with ten records in each of :attr:`streams`."""

    streams: ClassVar[tuple[str, ...]] = ("s",)

    def __init__(self, journal: MemoryJournal | None = None, **settings: Any) -> None:
        self.journal = journal or MemoryJournal()
        self.clock = Clock()
        self.broker = Broker(self.clock, self.journal, Sequencer(), **settings)
        self.broker.open()
        self.table, self.named = self.broker.table, self.broker.named
        for stream in self.streams if journal is None else ():
            self.publish(10, stream)

    def publish(self, count: int, stream: str = "s") -> None:
        self.broker.publish([Run.of(stream, [b"x"] * count, source="test")])

    def open(
        self, name: str = "n", stream: str = "s", after: int | None = 0, *, pattern: bool = False
    ) -> ExclusiveSubscription:
        opened: list[ExclusiveSubscription] = []
        self.named.open(name, stream, after, pattern=pattern).addCallback(opened.append)
        return opened[0]

    def restarted(self) -> Any:
        """Return a world with the journal of this one, which was stopped in order."""
        self.table.close()
        return type(self)(self.journal)


def refusal(call: Any) -> Exception:
    """Return the error with which the Deferred *call* has failed."""
    failures: list[Any] = []
    call.addErrback(failures.append)
    assert failures, "it should have been refused"
    error: Exception = failures[0].value
    return error
