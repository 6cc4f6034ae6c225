"""Servers on one journal in memory, which makes one append durable at a time, or loses those that wait.

    World -> broker on the journal -> append -> durable -> World.durable(publish), the truth

:mod:`tables` and :mod:`exclusives` add the requests, and the rules that they check.
"""

from __future__ import annotations

import json
from collections import Counter

import attrs
from searching import Violation, check
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import FyrehoseError
from fyrehose.interfaces import JournalState
from fyrehose.records import Run
from fyrehose.standing import Standing
from fyrehose.subscriptions.progress import STREAM, SavedSubscription, SavedSubscriptions, StreamProgress
from fyrehose.testing import MemoryJournal

NAME, STREAMS, RECORDS = "n", ("logs.a", "logs.b", "logs.c"), 5
#: More turns than a server of a schedule needs for what happens at one time.
MOST_TURNS = 5_000


class Journal(MemoryJournal):
    """A journal that makes one append durable at a time, and lets the world check it."""

    world = None
    behind = ()  #: what waits behind the append that becomes durable

    def next(self):
        """Make the oldest append durable."""
        self.behind = self.pending[1:]
        del self.pending[1:]
        if self.pending:
            self.world.durable(self.pending[0][0])
            self.cluster = Standing()  # the append has confirmed that this server leads
            self.commit()
        self.pending, self.behind = [*self.behind, *self.pending], ()

    def commit(self):
        for _, streams in self.pending:
            for stream in streams:
                self.world.retired[stream] = self.bounds(stream)[1]
                self.world.retirements.add((stream, self.bounds(stream)[1]))
                self.world.seen["retired"] += 1
        super().commit()

    def lose(self, durable):
        """Kill the server: the first *durable* of its waiting appends are on disk, and nobody is told."""
        waiting, self.pending = self.pending, []
        for publish, streams in waiting[:durable]:
            self.world.durable(publish)
            self.pending = [(attrs.evolve(publish, owner=Nobody()), streams)]
            observer, self._observer = self._observer, Nobody()
            self.commit()
            self._observer = observer

    def waiting(self):
        return [publish for publish, _ in (*self.behind, *self.pending)]

    def retiring(self):
        """Return the streams that will be retired by what waits."""
        return {stream for _, streams in (*self.behind, *self.pending) for stream in streams}


class BoundedClock(Clock):
    """A clock that notices a server that always has more to do."""

    turns = 0  #: how many calls came for the present time

    def callLater(self, delay, *call, **options):
        self.turns = 0 if delay else self.turns + 1
        check(self.turns < MOST_TURNS, "the server is busy for ever")
        return super().callLater(delay, *call, **options)


class Nobody:
    """The owner of appends, and the observer of a journal, whose server has died: it ignores all calls."""

    def durable(self, ends):
        pass

    def settle(self, items):
        pass


def changes(publish):
    """Yield the changes of subscriptions in *publish*."""
    for run in publish.runs:
        if run.stream == STREAM:
            yield from parsed(run)


def parsed(run):
    """Yield the changes of subscriptions in *run*."""
    yield from (json.loads(bytes(payload)) for payload in run.payloads())


def both(each):
    """Return the first and the last number of a range, as the server writes it."""
    return (each, each) if isinstance(each, int) else tuple(each)


def fields_of(progress: StreamProgress) -> dict[str, object]:
    """Return all that is stored about the progress in one stream."""
    final, ends = progress.final, [(span.first, span.last, span.state) for span in progress.ends]
    return attrs.asdict(progress, recurse=False) | {"final": (final.floor, final.above()), "ends": ends}


class World:
    """A server, which may be killed and started again, and what has happened."""

    def __init__(self, rng):
        self.rng, self.now, self.starts = rng, 0.0, 0
        self.journal = Journal(auto=False)
        self.journal.world = self
        self.seen, self.violation = Counter(), None
        self.retired = Counter()  # the last number of each stream when it was retired last
        self.retirements = set()  # the streams that were retired, each time with the last number
        self.left, self.weights = 0, []

    @property
    def named(self):
        """Return the subscription as the server knows it, or None."""
        return self.broker.table.entries.get(NAME)

    def stored(self):
        """Return the subscription as a start would read it, if all that waits became durable; None: there is none."""
        runs = [*self.journal.read(STREAM, 1, 1 << 20)]
        runs += [run for publish in self.journal.waiting() for run in publish.runs if run.stream == STREAM]
        found, records = SavedSubscriptions(), [record for run in runs for record in run.records()]
        for record in records[max(0, found.begin(records[-1]) - 1) :] if records else ():
            found.apply(record)
        return found.entries.get(NAME)

    def compare_stored(self):
        """Check that the next server would know what this one knows, but for streams that were retired."""
        named, stored = self.named, self.stored()
        known = None if named is None else named.saved
        check((known is None) == (stored is None), f"the server has {known}, and the journal {stored}")
        if known is None or stored is None:
            return

        def whole(saved: SavedSubscription) -> object:
            return saved.options, saved.options.creator, saved.epoch, saved.paused, saved.redriven, saved.owner

        check(whole(known) == whole(stored), f"the server has {whole(known)}, and the journal {whole(stored)}")
        for stream in known.streams.keys() - self.retired.keys() - self.journal.retiring():
            mine, others = fields_of(known.streams[stream]), fields_of(stored.streams.get(stream, StreamProgress()))
            check(mine == others, f"the server has {mine} of {stream}, and the journal {others}")

    def start(self):
        self.starts += 1
        self.clock = BoundedClock()
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        self.journal.cluster = Standing()

    def stop(self):
        """Stop the server in order, and start another one."""
        if self.journal.state is not JournalState.WRITABLE:
            self.kill()
            return
        self.broker.table.close()
        while self.journal.waiting():
            self.journal.next()
        self.start_again()

    def kill(self):
        waiting = len(self.journal.waiting())
        self.journal.lose(self.rng.choice((0, self.rng.randint(0, waiting))))
        self.start_again()

    def start_again(self):
        for call in self.clock.getDelayedCalls():
            call.cancel()
        self.journal.lose(0)
        self.start()

    def publish(self, stream=None):
        """Publish a record to *stream*, or to one that has not enough."""
        topic, chosen = self.rng.choice("xy"), stream or self.rng.choice(STREAMS)
        if stream or self.journal.bounds(chosen)[1] < RECORDS:
            self.ask(lambda: self.broker.publish([Run.of(chosen, [b"?"], source="test", topic=topic)]))

    def ask(self, call, then=None):
        """Call the server, and ignore refusals; pass a successful answer to *then*."""
        try:
            answer = call()
        except FyrehoseError:
            return
        answer.addCallbacks(then or (lambda _: None), lambda failure: failure.trap(FyrehoseError))
        answer.addErrback(self.broken)

    def broken(self, failure):
        """Remember a violation in a callback, or an unexpected error."""
        if self.violation is None:
            violated = failure.check(Violation)
            self.violation = failure.value if violated else Violation(f"an error: {failure.getTraceback()}")

    def observe(self, event):
        """Treat errors that the server has only logged as violations."""
        if "log_failure" in event:
            self.broken(event["log_failure"])

    def full(self):
        """Fill the disk, or make room on it again: what was accepted becomes durable then."""
        if self.journal.state is JournalState.WRITABLE:
            self.journal.enter(JournalState.READ_ONLY, "full")
            return
        while self.journal.waiting():
            self.journal.next()
        self.journal.enter(JournalState.WRITABLE, "room")

    def forget(self):
        """Let retention delete the oldest record of a stream."""
        stream = self.rng.choice(STREAMS)
        oldest, last = self.journal.bounds(stream)
        if oldest < last:
            self.journal.forget(stream, oldest + 1)

    def advance(self, seconds):
        self.now += seconds
        self.clock.turns = 0
        self.clock.advance(seconds)

    def event(self, events):
        """Return the next event of a schedule; phases of the schedule change how likely each of *events* is."""
        if self.left == 0:
            self.left = self.rng.choice((20, 50, 100))
            self.weights = [weight * self.rng.choice((0.03, 1, 1, 4)) for weight in events.values()]
        self.left -= 1
        return self.rng.choices(list(events), self.weights)[0]


def run(world):
    """Run one schedule in *world*, and return what happened."""
    globalLogPublisher.addObserver(world.observe)
    try:
        for _ in range(world.rng.choice((100, 200, 400))):
            world.step()
            if world.violation is not None:
                break
        else:
            world.drain()
        if world.violation is not None:
            raise world.violation
    finally:
        globalLogPublisher.removeObserver(world.observe)
        world.broker.table.close()
    return world.seen + Counter(starts=world.starts)
