"""Random schedules for exclusive subscriptions: consumers that attach, take over, poll and acknowledge, and restarts.

    python tests/verification/consumers/exclusives.py --schedules 20000 --seed 1     check the rules
    python tests/verification/consumers/exclusives.py --without generation           remove a rule: it must be noticed
    python tests/verification/consumers/exclusives.py --rules                        remove each rule in turn

A complete broker runs on a journal in memory (kept.py).  The positions are read from the journal alone.  A model says
who may attach, which generation that begins, who is displaced, and which acknowledgements are refused.
"""

from __future__ import annotations

import random
import sys
from collections import Counter

import attrs
import kept
from kept import NAME, STREAMS, changes
from searching import Search, check
from twisted.internet.defer import succeed

from fyrehose.errors import InvalidPosition, NoSuchSubscription, SubscriptionInUse
from fyrehose.interfaces import JournalState
from fyrehose.subscriptions import exclusive
from fyrehose.subscriptions.exclusive import ExclusiveSubscription
from fyrehose.subscriptions.progress import STREAM
from fyrehose.subscriptions.table import SubscriptionTable

LEASE = 5

#: The events of a schedule and their weights, which the phases of a schedule change.
EVENTS = {"attach": 10, "detach": 2, "poll": 8, "acknowledge": 40, "publish": 10, "commit": 25, "time": 4, "kill": 0.7}
EVENTS |= {"full": 0.6, "rewind": 1, "delete": 0.5, "retire": 1, "checkpoint": 1, "stop": 0.5, "retention": 1}


@attrs.define
class Known:
    """The subscription as a journal says: its positions by stream, its generation, and its owner.

    :ivar sets: how often it was created or deleted
    """

    sets: int = 0
    positions: Counter[str] = attrs.field(factory=Counter)
    epoch: int = 0
    owner: str = ""

    def apply(self, change):
        if "state" in change:
            self.epoch, self.owner = change["state"]["epoch"], change["state"]["owner"]
        for stream, part in change.get("streams", {}).items():
            self.positions[stream] = part["floor"]
        if "set" in change:
            self.sets, self.positions, self.owner = self.sets + 1, Counter(change.get("floors", {})), ""
        self.epoch, self.owner = change.get("epoch", self.epoch), change.get("owner", self.owner)
        if "rewind" in change:
            self.positions[change["stream"]] = change["rewind"]
        for first, last in map(kept.both, change.get("final", ())):
            begins = self.positions[change["stream"]] + 1
            check(
                first == begins, f"records {first} to {last} of {change['stream']} were acknowledged, not from {begins}"
            )
            self.positions[change["stream"]] = last


def recovered(journal):
    """Return the subscription as its records say from the last complete checkpoint on."""
    stored = [change for run in journal.read(STREAM, 1, 1 << 20) for change in kept.parsed(run)]
    known = Known()
    for change in stored[max(0, stored[-1]["since"] - 1) :] if stored else ():
        known.apply(change)
    return known


class Consumer:
    """A connection, a link that outlives its connections (it has an owner), or a consumer that polls (a holder)."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.owner, self.holder = "link" * name.startswith("link"), name * name.startswith("poll")
        self.generation = None  #: the one that it was given last

    def displaced(self, reason):
        check(self.world.ending is self, f"{self.name} was displaced, and is not the consumer: {reason}")
        self.world.ending = None


class World(kept.World):
    """Servers, consumers, and what the model knows.

    :ivar truth: what is durable
    :ivar waiting: the numbers of each acknowledgement that was accepted, and is not answered yet
    :ivar consumer: who is connected; :ivar ending: who has to be displaced by the present request
    :ivar begun: where the position in a stream begins that was created again, and whose position was forgotten
    :ivar lease: holder, end, and numbers by stream that a polling consumer has, and has not acknowledged
    """

    def __init__(self, rng):
        super().__init__(rng)
        self.pattern = rng.random() < 0.7
        self.truth = Known()
        self.consumers = [Consumer(self, name) for name in ("a", "b", "link-a", "link-b", "poll-a", "poll-b")]
        self.waiting, self.gone = [], None
        self.start()
        for stream in (*STREAMS, *STREAMS):
            self.publish(stream)
            self.journal.next()
        self.open()

    def durable(self, publish):
        for change in changes(publish):
            self.seen["deleted"] += change.get("set", 1) is None
            self.seen["rewound"] += "rewind" in change
            self.truth.apply(change)

    @property
    def appended(self):
        """Return what is true once all that waits is durable."""
        known = attrs.evolve(self.truth, positions=self.truth.positions.copy())
        for publish in self.journal.waiting():
            for change in changes(publish):
                known.apply(change)
        return known

    def last(self, stream):
        """Return up to which number *stream* was acknowledged, durable or not."""
        known = self.appended.positions[stream], self.begun[stream]
        return max(*known, *(numbers.get(stream, 0) for numbers in self.waiting))

    @property
    def writable(self):
        return self.journal.state is JournalState.WRITABLE

    def start(self):
        super().start()
        self.truth = attrs.evolve(recovered(self.journal), sets=self.truth.sets)
        self.waiting, self.consumer, self.ending, self.lease, self.begun = [], None, None, None, Counter()

    def open(self):
        begin = self.rng.choice((0, 1, None))
        self.ask(lambda: self.broker.named.open(NAME, "logs.*" if self.pattern else "logs.a", begin, self.pattern))

    def end(self):
        """Expect that the consumer is displaced, and that its lease ends."""
        self.ending, self.consumer, self.lease = self.consumer, None, None

    # Events:

    def attach(self, named, consumer, takeover):
        lease, present, before = self.lease, self.consumer, self.appended
        changed, allowed = consumer.owner != before.owner, True
        if lease is not None and lease[0] != consumer.holder:
            allowed, changed = takeover or lease[1] <= self.now, True
            self.lease = None if allowed else lease
        if present not in (None, consumer) and not (consumer.owner and consumer.owner == before.owner):
            allowed, changed = allowed and takeover, True
            if allowed:
                self.end()
        try:
            how = {"owner": consumer.owner, "holder": consumer.holder, "takeover": takeover}
            consumer.generation = self.broker.named.attach(named, consumer, **how)
        except SubscriptionInUse as refusal:
            check(not allowed, f"{consumer.name} may not attach: {refusal}")
            self.seen["in use"] += 1
            return
        check(allowed, f"{consumer.name} has attached, although {present and present.name} is connected, lease {lease}")
        wanted = before.epoch + (changed and self.writable)
        check(consumer.generation == wanted, f"{consumer.name} got generation {consumer.generation}, not {wanted}")
        self.consumer = consumer
        self.seen["attached"] += 1

    def poll(self, named, consumer):
        """Send records to a polling consumer, which then disconnects."""
        sent = {each: self.rng.randint(0, self.end_of(each)) for each in sorted(named.tracks)}
        self.hold(consumer.holder, sent)
        named.hold(consumer.holder, LEASE, sent)
        named.detach(consumer)
        self.consumer = None

    def hold(self, holder, sent):
        if any(seq > self.last(stream) for stream, seq in sent.items() if stream in self.named.tracks):
            self.lease = holder, self.now + LEASE, sent

    def end_of(self, stream):
        return self.journal.bounds(stream)[1]

    def acknowledge(self, named, consumer):
        streams = sorted(named.tracks) or ["logs.a"]
        some = self.rng.sample(streams, self.rng.randint(1, len(streams)))
        numbers = {stream: self.rng.randint(0, self.end_of(stream) + (self.rng.random() < 0.1)) for stream in some}
        numbers |= {"logs.none": 1} if self.rng.random() < 0.03 else {}
        generation, known = self.rng.choice((consumer.generation,) * 9 + (None,)), self.appended
        wrong = generation not in (None, known.epoch)
        wrong |= any(stream not in named.tracks or seq > self.end_of(stream) for stream, seq in numbers.items())
        ahead = any(seq > self.last(stream) for stream, seq in numbers.items())
        self.waiting.append(numbers)
        answer = self.broker.named.acknowledge(named, numbers, generation)
        failed = []
        answer.addErrback(lambda failure: failed.append(failure.value))
        refused = NoSuchSubscription if named.gone else InvalidPosition if wrong else None
        if refused is not None:
            self.waiting.pop()
            check(failed and type(failed[0]) is refused, f"{numbers} in {generation} got {failed}, not {refused}")
            self.seen["refused"] += 1
            return
        if failed:
            check(not self.writable, f"{numbers} was refused: {failed}")
        elif ahead and self.lease:
            (holder, _, sent), self.lease = self.lease, None
            self.hold(holder, sent)
        answer.addCallback(lambda _: self.answered(numbers, failed)).addErrback(self.broken)

    def answered(self, numbers, failed):
        """Check that what was acknowledged is durable, unless it was refused, because the disk is full."""
        if any(numbers is each for each in self.waiting):
            self.waiting = [each for each in self.waiting if each is not numbers]
            durable, needless = self.truth.positions, self.retired if self.pattern else Counter()
            behind = {each: seq for each, seq in numbers.items() if seq > max(durable[each], needless[each])}
            check(failed or not behind, f"{behind} was answered, and is not durable: {durable}")
            check(not failed or not self.writable, f"{numbers} failed: {failed}")
            self.seen["acknowledged"] += not failed

    def rewind(self, named):
        numbers = {stream: self.rng.randint(0, self.end_of(stream)) for stream in sorted(named.tracks)}
        numbers = dict(self.rng.sample(sorted(numbers.items()), self.rng.randint(0, len(numbers))))
        if self.writable:
            self.end()
            self.begun = Counter({each: seq for each, seq in self.begun.items() if each not in numbers})
            for said in self.waiting:
                for stream in numbers:
                    said.pop(stream, None)
        self.ask(lambda: self.broker.named.rewind(named, numbers))

    def delete(self, named):
        if self.writable:
            self.end()
            self.waiting, self.begun, self.gone = [], Counter(), named
        self.ask(lambda: self.broker.named.delete(named))

    def step(self):
        rng, named, event = self.rng, self.named, self.event(EVENTS)
        if event in ("publish", "kill", "stop", "full"):
            getattr(self, event)()
        elif event == "commit" and self.writable:
            self.journal.next()
        elif event == "time":
            self.advance(rng.choice((0.5, 1, 3)))
        elif event == "retention":
            self.forget()
        elif event == "retire":
            self.ask(lambda: self.broker.retire_as("the test", [rng.choice(STREAMS)]))
        elif event == "acknowledge" and self.gone is not None and rng.random() < 0.1:
            self.acknowledge(self.gone, rng.choice(self.consumers))
        elif named is None:
            self.open()
        elif event == "checkpoint":
            self.broker.table.stream.maintain(True)
        elif event == "attach":
            self.attach(named, rng.choice(self.consumers), rng.random() < 0.3)
        elif event == "detach":
            leaving = rng.choice(self.consumers)
            named.detach(leaving)
            self.consumer = None if self.consumer is leaving else self.consumer
        elif event == "poll" and self.consumer is not None and self.consumer.holder:
            self.poll(named, self.consumer)
        elif event == "acknowledge":
            self.acknowledge(named, self.consumer or rng.choice(self.consumers))
        elif event in ("rewind", "delete"):
            getattr(self, event)(named)
        self.compare()

    # Checks:

    def compare(self):
        """Compare the state of the server with the model, and sometimes with what the next one would read."""
        if self.left % 5 == 0:
            self.compare_stored()
        named, known = self.named, self.appended
        check(self.ending is None, f"{self.ending and self.ending.name} was not displaced")
        if named is None:
            return
        state = named.epoch, named.owner, named.consumer
        check(
            state == (known.epoch, known.owner, self.consumer), f"the server has {state}, not {known}, {self.consumer}"
        )
        lease = named.lease and (named.lease.holder, named.lease.until, named.lease.sent)
        check(lease == self.leased(), f"the server has the lease {lease}, not {self.leased()}")
        for stream in named.tracks:
            if self.compare_position(stream, named.last(stream), self.last(stream)):
                self.begun[stream] = named.last(stream)
            if known.sets == self.truth.sets:
                self.compare_position(stream, named.places[stream], self.truth.positions[stream])

    def leased(self):
        """Return the lease on the clock of the present server."""
        return self.lease and (self.lease[0], self.lease[1] - self.now + self.clock.seconds(), self.lease[2])

    def compare_position(self, stream, found, expected):
        """Compare two positions; return whether *found* is where the stream was retired, because it was forgotten."""
        forgotten = self.pattern and (stream, found) in self.retirements
        check(found == expected or forgotten, f"the position in {stream} is {found}, not {expected}")
        return found != expected

    def drain(self):
        """Acknowledge everything, and compare the positions with the ends, now and after a restart."""
        if not self.writable:
            self.full()
        for _ in range(2):
            while self.journal.waiting():
                self.journal.next()
            if self.named is None:
                self.open()
        for stream in STREAMS:
            self.publish(stream)
        while self.journal.waiting():
            self.journal.next()
        self.attach(self.named, self.consumers[0], True)
        streams = STREAMS if self.pattern else STREAMS[:1]
        check(set(self.named.tracks) == set(streams), f"the subscription has the streams {sorted(self.named.tracks)}")
        self.ask(lambda: self.broker.named.acknowledge(self.named, {each: self.end_of(each) for each in streams}))
        for _ in range(2):
            while self.journal.waiting():
                self.journal.next()
            ends = {stream: self.end_of(stream) for stream in streams}
            check(self.named.places == ends, f"the positions are {self.named.places}, the ends are {ends}")
            self.kill()


def schedule(seed):
    """Run one schedule, and return what happened."""
    return kept.run(World(random.Random(seed)))


# Removing rules:


def _acknowledge(named, seq, generation=None, real=ExclusiveSubscription.acknowledge):
    """Accept acknowledgements of any generation."""
    return real(named, seq)


def _stream_created(table, stream, real=SubscriptionTable._add_stream):
    """Let streams begin with number 1."""
    for subscription in table._patterns.covering(stream):
        real(table, subscription, stream, 1)


#: By rule: the replacements that remove it.
MISSING = {
    "generation": lambda: {(ExclusiveSubscription, "acknowledge"): _acknowledge},
    "answer-durable": lambda: {(ExclusiveSubscription, "when_durable"): lambda named, change=None: succeed(None)},
    "wanted": lambda: {(ExclusiveSubscription, "_with_wanted"): lambda named, draft: draft},
    "lease": lambda: {(ExclusiveSubscription, "hold"): lambda named, holder, seconds, sent: None},
    "lease-renewed": lambda: {(ExclusiveSubscription, "_renew_lease"): lambda named: None},
    "lease-kept": lambda: {(ExclusiveSubscription, "_end_lease"): lambda named, lease, takeover: None},
    "displaced": lambda: {(ExclusiveSubscription, "end"): lambda named, reason: None},
    "retired": lambda: {(SubscriptionTable, "stream_created"): _stream_created},
    "late-streams": lambda: {(SubscriptionTable, "stream_created"): lambda table, stream: None},
}


SEARCH = Search(schedule, MISSING, (exclusive,))

if __name__ == "__main__":
    sys.exit(SEARCH.main(__doc__))
