"""How far named subscriptions are behind, in records and in seconds."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import JournalCorrupt
from fyrehose.net.turns import SteppedWork
from fyrehose.records import Run
from fyrehose.subscriptions.description import describe
from fyrehose.subscriptions.exclusive import ExclusiveSubscription
from fyrehose.subscriptions.lags import LOOKS
from fyrehose.subscriptions.table import CHECK
from fyrehose.testing import MemoryJournal


class World:
    """A broker whose streams begin with a record at second 1, and three subscriptions of them."""

    def __init__(self, seed: int = 0, streams: int = 2) -> None:
        self.dice, self.clock = Random(seed), Clock()
        self.journal = MemoryJournal(now=self.now)
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        self.table = self.broker.table
        self.table.now = self.now
        self.streams = [f"logs.{number}" for number in range(streams)]
        for stream in self.streams:
            self.publish(stream)
        self.subscriptions = [self.open("one", "logs.0"), self.open("all", "logs.*"), self.open("some", "logs.*1")]

    def now(self) -> int:
        return 1_000_000 + int(self.clock.seconds() * 1e6)

    def publish(self, stream: str) -> None:
        self.broker.publish([Run.of(stream, [b"x"] * self.dice.randint(1, 3), source="test")])

    def open(self, name: str, stream: str) -> ExclusiveSubscription:
        opened: list[ExclusiveSubscription] = []
        self.broker.named.open(name, stream, 0, not stream.endswith("0")).addCallback(opened.append)
        return opened[0]

    def change(self) -> None:
        """Publish to some streams, acknowledge some records, or let retention delete some."""
        self.clock.advance(self.dice.choice((0.1, 1.0, 60.0)))
        for stream in self.dice.sample(self.streams, self.dice.randint(1, 3) if len(self.streams) > 2 else 1):
            oldest, last = self.journal.bounds(stream)
            match self.dice.randint(0, 3):
                case 0 if oldest <= last:
                    self.journal.forget(stream, self.dice.randint(oldest, last + 1))
                case 1:
                    self.publish(stream)
                case _:
                    for named in self.subscriptions:
                        if stream in named.tracks:
                            named.acknowledge({stream: self.dice.choice((0, last, self.dice.randint(0, last)))})
                            assert named.active == self.now(), "a subscription that acknowledges is used"

    def look(self) -> int:
        """Let checks look at all streams; return how many they read at most at a time."""
        most, reads = 0, list[str]()
        self.journal.before_read = lambda stream, start: reads.append(stream)
        for _ in range(2 * (3 * len(self.streams) // LOOKS + 1)):
            reads.clear()
            self.clock.advance(CHECK)
            most = max(most, sum(stream in self.streams for stream in reads))
        return most

    def truth(self, named: ExclusiveSubscription, stream: str) -> tuple[int, float]:
        """Return how many records of *stream* that exist are not acknowledged, and the age of the oldest."""
        runs = self.journal.read(stream, named.places[stream] + 1, 1 << 20)
        times = [record.time for run in runs for record in run.records()]
        return len(times), (self.now() - min(times)) / 1e6 if times else 0.0

    def shown(self, named: ExclusiveSubscription) -> Any:
        return SteppedWork(self.table.turns, self.broker.named.show(named)).begin().result


@pytest.mark.parametrize("streams", [1, 2, LOOKS, 3 * LOOKS + 1])
@pytest.mark.parametrize("seed", range(4))
def test_lags_are_those_of_the_records_that_exist_and_are_not_acknowledged(seed: int, streams: int) -> None:
    world = World(seed, streams)
    for _ in range(15):
        for _ in range(world.dice.randint(1, 5)):
            world.change()
        used = [named.active for named in world.subscriptions]
        assert world.look() <= LOOKS, "one check reads the oldest records of a limited number of streams"
        for named, before in zip(world.subscriptions, used, strict=True):
            each = {stream: world.truth(named, stream) for stream in named.tracks}
            whole = sum(count for count, _ in each.values()), max((age for _, age in each.values()), default=0.0)
            assert world.table.lags.of(named) == whole
            read = all(world.journal.bounds(stream)[1] <= seq for stream, seq in named.places.items())
            used_at = world.now() if read else before
            assert named.active == used_at, f"read to the end of all streams: {read}, and used at {named.active}"
            shown = world.shown(named)
            assert (shown["lag"], shown["lag_seconds"]) == whole == (describe(named)["lag"], shown["lag_seconds"])
            if named.pattern is not None:
                assert shown["positions"] == {
                    stream: {"position": named.places[stream], "lag": count, "lag_seconds": age}
                    for stream, (count, age) in each.items()
                }
        stream, named = world.dice.choice(world.streams), world.subscriptions[1]
        done = named.tracks[stream].durable_floor
        if world.journal.bounds(stream)[1] <= done:
            world.publish(stream)
            lag = world.table.lags.of_stream(named, stream, done)
            assert lag == (world.journal.bounds(stream)[1] - done, None), (
                "the age of a new record is not that of an old one"
            )


def test_age_is_unknown_until_it_was_looked_up_and_where_the_journal_is_damaged() -> None:
    world = World()
    named = world.subscriptions[1]
    assert world.table.lags.of(named) == (world.truth(named, "logs.0")[0] + world.truth(named, "logs.1")[0], None)

    def damaged(stream: str, start: int) -> None:
        if stream == "logs.1":
            raise JournalCorrupt("damaged")

    world.journal.before_read = damaged
    world.clock.advance(CHECK)
    ages = {stream: each["lag_seconds"] for stream, each in world.shown(named)["positions"].items()}
    assert ages == {"logs.0": CHECK, "logs.1": None}
    assert world.table.lags.of(named)[1] == CHECK, "the largest that is known"
