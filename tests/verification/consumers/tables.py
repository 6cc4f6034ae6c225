"""Random schedules for the table of shared subscriptions: patterns, rewind, delete, redrive, and restarts between them.

    python tests/verification/consumers/tables.py --schedules 20000 --seed 1     check the rules
    python tests/verification/consumers/tables.py --without mark                 remove a rule: it must be noticed
    python tests/verification/consumers/tables.py --rules                        remove each rule in turn

A complete broker runs on a journal in memory (kept.py).  The
truth is read from the journal alone (truth.py), append by append: how each record ended, in which generation, and what
was published for it.

    worker -> net (late, lost, repeated) -> Consuming, SubscriptionTable -> append -> durable -> answer -> net -> worker

The subscription has the pattern ``logs.*``; its dead letters go to ``logs.dead``, which matches it and is not shared.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from contextlib import ExitStack
from itertools import count
from unittest.mock import patch

import attrs
import kept
from kept import NAME, RECORDS, STREAMS, changes
from searching import Search, check
from truth import Truth, agrees, ended_by, numbers
from twisted.internet.defer import succeed

from fyrehose.errors import Forbidden, ReadOnly
from fyrehose.interfaces import JournalState
from fyrehose.records import Run
from fyrehose.standing import Standing
from fyrehose.subscriptions import lane as lanes
from fyrehose.subscriptions import pool, progress, shared
from fyrehose.subscriptions.description import describe
from fyrehose.subscriptions.lane import Draft, Lane, Leased, Waiting
from fyrehose.subscriptions.pool import Item, LeasePool
from fyrehose.subscriptions.progress import SOURCE, SubscriptionOptions
from fyrehose.subscriptions.table import MOST_REDRIVEN, SubscriptionTable

LEASE, LIMIT, WINDOW, MOST, WORKERS = 6, 2, 4, 3, 3
DEAD = "logs.dead"
#: How many steps a schedule has to drain; a failed record is delivered again after up to some minutes.
DRAIN = 400

#: The events of a schedule and their weights, which the phases of a schedule change.
EVENTS = {"worker": 25, "net": 60, "time": 8, "commit": 20, "publish": 8, "kill": 0.6, "full": 0.4, "retention": 0.5}
EVENTS |= {"checkpoint": 1, "rewind": 0.3, "delete": 0.3, "create": 1, "redrive": 1, "crash": 0.4, "doubt": 0.5}
EVENTS |= {"stop": 0.3, "retire": 0.6, "pause": 0.5, "release": 0.5, "forbid": 0.5}

#: Bounds of one turn, one request and one answer that some schedules make so small that work is left for later.
BOUNDS = {
    (lanes, "LOOKS"): 2,
    (lanes, "MOST_ENDS"): 1,
    (pool, "TURN"): 3,
    (pool, "SPARE"): 1,
    (pool, "MOST_CONSUMERS"): 1,
}
BOUNDS |= {
    (shared, "MOST_LETTERS"): 1,
    (shared, "MOST_ANSWERS"): 1,
    (shared, "ANSWER_BYTES"): 1,
    (shared, "LETTER_BYTES"): 1,
}


def records(publish):
    for run in publish.runs:
        yield from run.records()


class World(kept.World):
    """Servers on one journal, workers, and the truth about the records."""

    def __init__(self, rng):
        super().__init__(rng)
        self.key = rng.choice((None, "topic"))
        self.poison = {rng.randint(1, RECORDS) for _ in range(2)}  # numbers in each stream that always fail
        self.truth = Truth(NAME, check, self.begun, self.retired)
        self.letters, self.redriven, self.results = Counter(), Counter(), Counter()
        self.deliveries, self.untried, self.high = Counter(), Counter(), Counter()
        self.net, self.given, self.released, self.refusals = [], set(), set(), set()
        self.number, self.lost, self.paused, self.refusal = 0, 0, False, None
        self.again = 0  # how many records have expired twice
        self.workers = [Worker(self, f"w{number}") for number in range(WORKERS)]
        self.start()
        self.create()
        self.journal.next()

    # The truth:

    def durable(self, publish):
        """Record what *publish* has made durable, and check it."""
        ended, lost = set(), 0
        for change in changes(publish):
            if "set" in change:
                self.paused, self.lost, self.again = False, 0, 0
                self.seen["deleted" if change["set"] is None else "created"] += 1
            # If a server ends between the first record of a stream that is created again and the first change in it,
            # the next one finds again that the records are gone that were forgotten.
            stream, gone = change.get("stream"), numbers(change.get("expired", ()))
            again = {seq for seq in gone if seq <= self.retired[stream] and (stream, seq) in self.final}
            self.again += len(again)
            if again:
                change["expired"] = [seq for seq in numbers(change["expired"]) if seq not in again]
            found = self.truth.apply(change)
            whys = {why for _, _, why, _ in change.get("letters", ())}
            check(not whys & self.refusals, f"a request was refused, and has made dead letters: {whys}")
            self.seen.update(how for _, _, how in found)
            ended |= found
            self.paused = change.get("paused", self.paused)
            lost += change.get("lost", 0)
        self.check_letters(publish, ended, lost)
        for record in records(publish):
            place = record.producer, record.producer_seq
            if record.stream == "results":
                self.published(record.payload.decode(), ended)
            elif record.stream == DEAD:
                self.letters[place] += 1
                check((*place, "dead") in ended, f"dead letter of {place} without its record's end")
            elif record.source == SOURCE and record.stream in STREAMS:
                self.redriven[place] += 1
                self.seen["redriven"] += 1
                twice = self.redriven[place] > self.letters[place]
                check(not twice, f"dead letter of {place} was published again twice")

    def check_letters(self, publish, ended, lost):
        """Check that each record that dies has a dead letter, or counts as lost, unless retention has deleted it."""
        letters = {(record.producer, record.producer_seq) for record in records(publish) if record.stream == DEAD}
        without = {(stream, seq) for stream, seq, how in ended if how == "dead"} - letters
        kept = {(stream, seq) for stream, seq in without if seq >= self.journal.bounds(stream)[0]}
        check(len(kept) <= lost <= len(without), f"{lost} dead letters are lost, of {sorted(without)} without one")
        self.seen["lost"] += lost
        self.lost += lost

    @property
    def final(self):
        """Return how each record that has ended did so, by stream and number."""
        return self.truth.final

    def generation(self, stream):
        return self.truth.generation(stream)

    def begun(self, rewound):
        """Record that a new generation of the stream *rewound* begins, or of every stream if it is None."""
        for stream in STREAMS if rewound is None else (rewound,):
            self.seen["rewound"] += 1
            self.high[stream] = 0
            for worker in self.workers:
                worker.forget(stream)

    def published(self, result, ended):
        """Check a result, which names its record and the generation in which the worker leased it."""
        stream, seq, generation = result.split()
        self.results[result] += 1
        check(self.results[result] == 1, f"result {result!r} was published twice")
        now = self.generation(stream)
        check(int(generation) == now, f"result {result!r} from before a rewind was stored in generation {now}")
        check((stream, int(seq), "settled") in ended, f"result {result!r} without its record's end")

    def leased(self, stream, run, tokens):
        """Check the records of *run*, leased with *tokens*, except leases that were returned before."""
        check(stream in STREAMS, f"a record of {stream} was leased")
        fresh = False  # whether no worker can have leased one of them before
        for record, token in zip(run.records(), tokens, strict=True):
            at = stream, record.seq, self.generation(stream)
            if (at, token) in self.given:
                continue
            check(not self.paused_at_all(), f"{at} was leased, although the subscription is paused")
            check(self.journal.cluster.leads_alone, f"{at} was leased, although another server may lead")
            self.given.add((at, token))
            fresh |= record.seq > max(self.high[stream], self.held_to(stream))
            self.deliveries[at] += 1
            most = LIMIT + self.starts - 1 + self.untried[at]
            check(self.deliveries[at] <= most, f"{at} was delivered {self.deliveries[at]} times, {most} are allowed")
            self.high[stream] = max(self.high[stream], record.seq)
            earlier = [each for each in self.topics(stream, record.seq) if self.key and each[1] == record.topic]
            late = [seq for seq, _ in earlier if (stream, seq) not in self.final]
            check(not late, f"record {record.seq} of {stream} was leased before the end of {late}")
        final = self.appended()
        places = ((each, seq) for each in STREAMS for seq in range(self.retired[each] + 1, self.high[each] + 1))
        open_ = [at for at in places if at not in final]
        check(len(open_) <= WINDOW or not fresh, f"{len(open_)} records are open in a window of {WINDOW}: {open_}")

    def held_to(self, stream):
        """Return the number up to which the server before may have leased records of *stream*."""
        return self.holds.get(stream, 0)

    def answered(self, outcome, item, generation):
        """Check that what a worker is told about *item* is on disk."""
        at = item.stream, item.first
        if not outcome.refused and generation == self.generation(item.stream):
            check(at in self.final or at in self.truth.ends, f"{item.kind} of {at} was answered, and is not on disk")
        return outcome

    def refused(self, failure, why):
        self.refusals |= {why} if why else set()
        return failure

    def paused_at_all(self):
        """Return whether the subscription is paused once all waiting appends are durable."""
        waiting = (change for publish in self.journal.waiting() for change in changes(publish))
        return (
            [self.paused]
            + [False if "set" in each else each["paused"] for each in waiting if {"set", "paused"} & each.keys()]
        )[-1]

    def topics(self, stream, before):
        found = (record for run in self.journal.read(stream, 1, 1 << 20) for record in run.records())
        return [(record.seq, record.topic) for record in found if record.seq < before]

    def appended(self):
        """Return which records are final once all waiting appends are durable."""
        final = set(self.final)
        for publish in self.journal.waiting():
            for change in changes(publish):
                final |= {(stream, seq) for stream, seq, _ in ended_by(change)}
        return final

    def believes(self, worker, at):
        for other in self.workers:
            until = other.held[at][1] if at in other.held else 0
            check(other is worker or until <= self.now, f"two workers hold {at}")
        # A server knows only the leases that it has given itself.
        mine = [
            token for each, (token, until) in worker.held.items() if until > self.now and (each, token) in self.given
        ]
        count = max(Counter(epoch for epoch, _ in mine).values(), default=0)
        check(count <= MOST, f"worker {worker.name} holds {count} records, {MOST} are allowed")

    # Events:

    def start(self):
        super().start()
        self.deleted, self.broker.table.most_redriven = None, self.rng.choice((1, MOST_REDRIVEN))
        self.admit, self.broker.table.admit = self.broker.table.admit, self.admitted
        self.holds = {} if self.named is None else {stream: lane.seen for stream, lane in self.named.pool.lanes.items()}

    def stop(self):
        """Stop the server in order, and start another one, where only what has been leased waits."""
        exact = self.journal.cluster.leads_alone and self.journal.state is JournalState.WRITABLE
        exact = exact and self.named is not None and not self.named.pool.in_grace()
        super().stop()
        for stream, lane in self.named.pool.lanes.items() if exact and self.named is not None else ():
            for span in lane.spans:
                for seq in range(span.first, span.last + 1) if span.state.held else ():
                    check(self.deliveries[stream, seq, self.generation(stream)], f"{seq} waits, and was never leased")

    def admitted(self, creator, run):
        """Refuse dead letters for good, or for some time, or none."""
        if self.refusal is not None:
            raise self.refusal
        return self.admit(creator, run)

    def release(self):
        """Return what a worker has, as somebody who looks at the subscription may do."""
        worker = self.rng.choice(self.workers)
        held = [
            (stream, seq)
            for lane in self.named.pool.lanes.values()
            for stream, seq, name, *_ in lane.leases()
            if name == worker.name
        ]
        places = {(stream, seq, self.generation(stream)) for stream, seq in held}
        self.untried.update(places)
        self.released |= {(at, token) for at, token in self.given if at in places}
        worker.drop(lambda at: at in places)
        self.ask(lambda: self.named.release(worker.name))

    @property
    def sharing(self):
        return self.broker.named

    def create(self):
        options = SubscriptionOptions(
            stream="logs.*", pattern=True, lease=LEASE, limit=LIMIT, window=WINDOW, most=MOST, dead=DEAD, key=self.key
        )
        self.ask(lambda: self.sharing.create(NAME, options, self.rng.choice((1, 1, 3))))

    def rewind(self, shared):
        places = {stream: self.rng.randint(0, self.journal.bounds(stream)[1]) for stream in shared.pool.lanes}
        self.ask(lambda: self.sharing.rewind(shared, places))

    def step(self):
        """Let one random event happen."""
        rng, journal, shared = self.rng, self.journal, self.named
        event = self.event(EVENTS)
        if event == "worker":
            rng.choice(self.workers).act()
        elif event == "net" and self.net:
            self.deliver(rng)
        elif event == "time":
            self.advance(rng.choice((0.5, 1, 2, 4)))
        elif event == "commit" and journal.state is JournalState.WRITABLE:
            journal.next()
        elif event == "kill":
            self.kill()
        elif event == "retention":
            self.forget()
        elif event == "retire":
            self.ask(lambda: self.broker.retire_as("the test", [rng.choice(STREAMS)]))
        elif event == "checkpoint" and self.broker.table.entries:
            self.broker.table.stream.maintain(True)
        elif event == "crash":
            rng.choice(self.workers).crash()
        elif event == "doubt":
            journal.cluster = Standing(leads_alone=False)
        elif event in ("publish", "create", "full", "stop"):
            getattr(self, event)()
        elif shared is not None and event == "rewind":
            self.rewind(shared)
        elif shared is not None and event == "pause":
            self.ask(lambda: shared.pause(rng.random() < 0.5))
        elif shared is not None and event == "release":
            self.release()
        elif event == "forbid":
            self.refusal = rng.choice((None, ReadOnly("for some time"), Forbidden("not any more")))
        elif shared is not None and event == "delete":
            self.deleted = shared
            self.ask(lambda: self.sharing.delete(shared))
        elif shared is not None and event == "redrive":
            self.ask(lambda: self.sharing.redrive(shared))
        if (shared := self.named) is not None:
            agrees(shared.pool, event)
        if self.left % 5 == 0:
            self.compare_stored()
            self.compare_durable()

    def compare_durable(self):
        """Check that retention keeps all records that are not final, durably, and that people see the true counts."""
        shared = self.named
        if shared is None or any("set" in change for publish in self.journal.waiting() for change in changes(publish)):
            return
        kept = {each.stream: each.seq for each in self.broker.table.unread() if not each.pinned}
        for stream in shared.tracks.keys() - self.journal.retiring():
            retired = self.retired[stream]
            first = next(seq for seq in count(retired + 1) if (stream, seq) not in self.final)
            floor = max(kept.get(stream, 0), retired)
            check(floor == first - 1, f"retention keeps {stream} behind {floor}, and {first} is not final")
        self.compare_shown(shared)

    def compare_shown(self, shared):
        """Check that people see the records as their states are, and the counts of the truth."""
        shown, states, new = describe(shared), Counter(), 0
        for lane in shared.pool.lanes.values():
            known = {seq: span.state for span in lane.spans for seq in range(span.first, span.last + 1)}
            states.update("leased" if isinstance(each, Leased) else each.delayed for each in known.values())
            new += sum(seq not in known and seq not in lane.progress.final for seq in range(1, lane.last + 1))
        wanted = {"in_flight": states["leased"], "delayed": states[True], "waiting": states[False]}
        wanted |= {"streams": len(shared.tracks), "window_full": states.total() >= WINDOW}
        wanted |= {"requests_waiting": len(shared.waiting), "paused": self.paused_at_all()}
        ended = Counter(how for _, how in self.truth.counts.elements()) + Counter(expired=self.again)
        for publish in self.journal.waiting():
            ended.update(how for change in changes(publish) for *_, how in ended_by(change))
        wanted |= {f"{how}_total": ended[how] for how in ("settled", "dead", "expired")}
        # A start does not skip the records that have expired behind the last one that may have been leased.
        check(new <= shown["lag"] <= new + wanted["expired_total"], f"the lag is {shown['lag']}, not {new}")
        wrong = {name: (shown[name], value) for name, value in wanted.items() if shown[name] != value}
        check(not wrong, f"people see other values than the true ones: {wrong}")

    def deliver(self, rng):
        at, fate = rng.randrange(len(self.net)) if rng.random() < 0.4 else 0, rng.random()
        message = self.net[at]
        if fate > 0.1:
            del self.net[at]  # otherwise the message is delivered again
        if fate < 0.93:
            message()

    def drain(self):
        """Stop all faults and failures, and check that every record ends."""
        self.poison, self.refusal = set(), None
        journal = self.journal
        if journal.state is not JournalState.WRITABLE:
            self.full()
        for stream in STREAMS:
            self.publish(stream)
        for turn in range(DRAIN):
            self.advance(1 if turn < DRAIN // 2 else 10)
            shared = self.named
            while journal.waiting():
                journal.next()
            if shared is None:
                self.create()
            elif self.paused:
                self.ask(lambda shared=shared: shared.pause(False))
            elif turn % 8 == 0:
                self.ask(lambda shared=shared: self.sharing.redrive(shared))
            for worker in self.workers:
                worker.act(patient=True)
            messages, self.net = self.net, []
            for message in messages:
                message()
            if turn > 20 and not self.unfinished():
                break
        check(not self.unfinished(), f"never settled: {self.unfinished()}")
        self.count()

    def unfinished(self):
        if self.journal.waiting() or not self.truth.exists:
            return ["appends"]
        ends = {stream: self.journal.bounds(stream)[1] for stream in STREAMS}
        places = ((stream, seq) for stream in STREAMS for seq in range(self.retired[stream] + 1, ends[stream] + 1))
        left = [at for at in places if at not in self.final]
        redriven = self.named is not None and self.named.saved.redriven >= self.journal.bounds(DEAD)[1]
        return left + ([] if redriven else [DEAD])

    def count(self):
        """Compare the state of the server with the truth, now and after a restart."""
        for _ in range(2):
            shared = self.named
            lost = shared.saved.total("lost")
            check(lost == self.lost, f"{lost} dead letters count as lost, not {self.lost}")
            for stream, lane in shared.pool.lanes.items():
                missing = lane.progress.final.gaps(self.retired[stream] + 1, self.journal.bounds(stream)[1])
                check(not missing, f"the records {missing} of {stream} are not final")
            check(
                set(shared.pool.lanes) == set(STREAMS), f"the subscription has the streams {sorted(shared.pool.lanes)}"
            )
            self.kill()


class Worker:
    """A worker that leases records, and settles or returns them.

    :ivar held: token and end of each lease that it believes to have
    :ivar stale: earlier leases, whose tokens it sometimes still uses
    """

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.held, self.stale, self.said, self.number = {}, [], set(), 0

    def crash(self):
        self.held, self.stale = {}, []

    def forget(self, stream):
        self.drop(lambda at: at[0] == stream)

    def drop(self, ended):
        """Move the leases that have *ended* to the stale ones; the worker does not know that they have."""
        self.stale += [(at, token) for at, (token, _) in self.held.items() if ended(at)]
        self.held = {at: held for at, held in self.held.items() if not ended(at)}

    def act(self, patient=False):
        rng = self.world.rng
        self.held = {at: held for at, held in self.held.items() if held[1] > self.world.now}
        if not self.held or rng.random() < 0.3:
            self.number += rng.random() < 0.8
            self.lease(self.number, 2 * MOST if rng.random() < 0.3 else 2)
            return
        if self.stale and rng.random() < 0.2:
            at, token = rng.choice(self.stale)
        else:
            at = rng.choice(sorted(self.held))
            token = self.held[at][0]
        what = rng.random()
        if at[1] in self.world.poison and what < 0.7:
            self.say("failed", at, token)
        elif what < 0.6 or patient:
            self.say("done", at, token)
        elif what < 0.7:
            self.world.untried[at] += 1
            self.say("untried", at, token)
        elif what < 0.75:
            self.say("reject", at, token)
        else:
            self.extend(at, token, with_done=rng.random() < 0.3)

    def send(self, call, then):
        """Send a request to the server; both it and its answer may be lost."""
        world = self.world

        def request():
            late = world.deleted is not None and world.deleted.gone and world.rng.random() < 0.1
            shared = world.deleted if late else world.named
            if shared is not None:
                world.ask(lambda: call(shared), lambda answer: world.net.append(lambda: then(answer)))

        world.net.append(request)

    def lease(self, number, most):
        world, sent = self.world, self.world.now

        def note(found):
            for part in found:
                world.leased(part.run.stream, part.run, [part.lease.token] * len(part.lease))
            # the request may be delivered twice, and answered in two generations
            return {stream: world.generation(stream) for stream in STREAMS}, found

        def call(shared):
            return world.sharing.lease(shared, self.name, number, most, world.rng.choice((0, 0, 2))).addCallback(note)

        def then(answer):
            generation, found = answer
            for part in found:
                stream = part.run.stream
                for seq in range(part.lease.first, part.lease.last + 1):
                    self.take(stream, seq, generation[stream], part.lease.token, sent + LEASE)

        self.send(call, then)

    def take(self, stream, seq, generation, token, until):
        at = stream, seq, generation
        released = (at, token) in self.world.released
        if generation != self.world.generation(stream) or until <= self.world.now or released:
            self.stale.append((at, token))
        elif (stream, seq) not in self.world.final and (at, token) not in self.said:  # an answer may be delivered twice
            self.held[at] = token, until
            self.world.believes(self, at)

    def say(self, kind, at, token):
        stream, seq, generation = at
        self.held.pop(at, None)
        self.said.add((at, token))
        world, why = self.world, f"no {world_number(self.world)}" if kind == "reject" else ""
        last, after = seq, (stream, seq + 1, generation)
        if after in self.held and self.held[after][0] == token and kind != "failed":
            last = seq + 1
            self.held.pop(after)
            self.said.add((after, token))
            world.untried[after] += kind == "untried"
        items = [Item(kind, seq, last, token, stream, delay=0 if kind != "reject" else None, why=why)]
        items *= 1 if world.rng.random() < 0.9 else 2
        results = [f"{stream} {each} {generation}".encode() for each in range(seq, last + 1)]
        runs = [Run.of("results", results, source="w")] if kind == "done" else []
        if kind == "reject" and world.rng.random() < 0.5:
            runs = [Run.of("", [b"?"], source="w")]  # it is refused, and with it the whole request

        def call(shared):
            asked = world.sharing.act(shared, items, self.name, runs)
            return asked.addCallbacks(world.answered, world.refused, (items[0], generation), errbackArgs=(why,))

        self.send(call, lambda answer: None)

    def extend(self, at, token, with_done):
        """Extend a lease and, if *with_done*, settle another record in the same request."""
        stream, seq, generation = at
        sent, world = self.world.now, self.world
        items = [Item("extend", seq, seq, token, stream)]
        others = [each for each in self.held if each != at]
        if with_done and others:
            other = world.rng.choice(sorted(others))
            settled, _ = self.held.pop(other)
            self.said.add((other, settled))
            items.append(Item("done", other[1], other[1], settled, other[0]))

        def then(answer):
            for _, extended in answer.extended:
                if at in self.held and self.held[at][0] in (token, extended):
                    self.take(stream, seq, generation, extended, max(sent + LEASE, self.held[at][1]))

        self.send(lambda shared: world.sharing.act(shared, items, self.name), then)


def world_number(world):
    """Return another number at each call."""
    world.number += 1
    return world.number


def schedule(seed):
    """Run one schedule, and return what happened."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        for (module, name), bound in BOUNDS.items() if rng.random() < 0.3 else ():
            stack.enter_context(patch.object(module, name, bound))
        return kept.run(World(rng))


# Removing rules:


def _always(value):
    return property(lambda owner: value, lambda owner, changed: None)


def _first(ignores):
    """Ignore those earlier records of a key for whose state *ignores* is true."""

    def is_first(lane, seq):
        key = lane._key_of.get(seq)
        earlier = [] if key is None else [each for each in lane._queues[key] if each < seq]
        return all(ignores(None if span is None else span.state) for span in map(lane.spans.find, earlier))

    return {(Lane, "_is_first"): is_first}


def _without_appended():
    """Let a change count when it is durable."""
    accept, durable = LeasePool.accept, LeasePool.durable

    def both(pool, draft):
        accept(pool, draft)
        durable(pool, draft)

    return {(LeasePool, "accept"): lambda pool, draft: None, (LeasePool, "durable"): both}


def _without_epoch():
    """Let a rewound subscription keep its epoch, so that earlier tokens stay valid."""
    real = SubscriptionTable.append

    def append(shares, shared, draft, runs=(), publish=None, answer=None):
        if any(change.rewind is not None for change in draft.changes.values()):
            draft.epoch = shared.pool.epoch
        return real(shares, shared, draft, runs, publish, answer)

    return {(SubscriptionTable, "append"): append}


def _without_mark():
    """Publish dead letters again without recording this in the same commit."""
    real = SubscriptionTable.append

    def append(shares, shared, draft, runs=(), publish=None, answer=None):
        if "redriven" in draft.whole:
            return (publish or shares.publish)(runs, [])
        return real(shares, shared, draft, runs, publish, answer)

    return {(SubscriptionTable, "append"): append}


def _without_one_batch():
    """Append dead letters beside the rest of a request, whatever happens to that."""
    real = SubscriptionTable.append

    def append(shares, shared, draft, runs=(), publish=None, answer=None):
        beside, changes = Draft(letters=draft.letters), draft.changes
        for lane, change in changes.items():
            if change.dead and (change.settled or change.returned or runs):
                dead = beside.of(lane)
                dead.dead, dead.letters, change.dead = change.dead, change.letters, []
        if beside.changes:
            draft.letters = []
            real(shares, shared, beside).addErrback(lambda failure: None)
        return real(shares, shared, draft, runs, publish, answer)

    return {(SubscriptionTable, "append"): append}


def _without_answers():
    """Answer a request that settles nothing before its changes are durable."""
    real = SubscriptionTable.append

    def append(shares, shared, draft, runs=(), publish=None, answer=None):
        written = real(shares, shared, draft, runs, publish, answer)
        if any(change.settled for change in draft.changes.values()) or not draft.changes or written.called:
            return written
        written.addErrback(lambda failure: None)
        return succeed(answer)

    return {(SubscriptionTable, "append"): append}


def _without(number):
    """Let a new subscription begin as if its name were new, with the first epoch (or dead letter, by *number*)."""
    real, real_add = progress.pack, SubscriptionTable._add

    def pack(name, since, fields):
        return real(name, since, {**fields, **({number: 0} if fields.get("set") else {})})

    def add(shares, name, saved, new=False):
        return real_add(shares, name, attrs.evolve(saved, **{number: 0}) if new else saved, new)

    return {(progress, "pack"): pack, (SubscriptionTable, "_add"): add}


def _repeated(pool, consumer):
    """Return the leases of the last request again, whatever has become of them, but those of deleted records."""
    return [each for each in pool._requests[consumer][1] if each.first >= each.lane.bounds()[0]]


#: By rule: the replacements that remove it.
MISSING = {
    "appended-counts": _without_appended,
    "token": lambda: {(Lane, "_may"): lambda lane, state, token, late: late or isinstance(state, Leased)},
    "epoch-first": lambda: {(LeasePool, "may_lease"): lambda pool: pool.trusted()},
    "leader-confirmed": lambda: {(LeasePool, "may_lease"): lambda pool: pool.stored_epoch == pool.epoch},
    "reach-first": lambda: {(Lane, "durable_reach"): _always(RECORDS)},
    "grace": lambda: {(LeasePool, "hold_until"): _always(0)},
    "key-one": lambda: _first(lambda state: isinstance(state, Leased)),
    "key-returned": lambda: _first(lambda state: isinstance(state, Waiting)),
    "key-durable": lambda: _first(lambda state: state is None),
    "limit": lambda: {(Lane, "_is_too_many"): lambda lane, failures: False},
    "retention-ends": lambda: {(Lane, "expire"): lambda lane, draft: None},
    "retention-grace": lambda: {(LeasePool, "in_grace"): lambda pool: False},
    "window": lambda: {(LeasePool, "room"): lambda pool: 1_000},
    "rewind-epoch": _without_epoch,
    "one-batch": _without_one_batch,
    "answer-all": _without_answers,
    "name-epoch": lambda: _without("epoch"),
    "name-letters": lambda: _without("redriven"),
    "mark": _without_mark,
    "letters-apart": lambda: {(SubscriptionOptions, "may_have"): lambda options, stream: stream[0] != "."},
    "late-streams": lambda: {(SubscriptionTable, "stream_created"): lambda shares, stream: None},
    "window-of-all": lambda: {(LeasePool, "room"): lambda pool: pool.options.window},
    "share-of-a-worker": lambda: {(LeasePool, "held"): _always(Counter())},
    "request-number": lambda: {(LeasePool, "_repeated"): _repeated},
    "exact-reach": lambda: {(LeasePool, "stop"): lambda pool: Draft()},
}


SEARCH = Search(schedule, MISSING, (lanes, pool, shared))

if __name__ == "__main__":
    sys.exit(SEARCH.main(__doc__))
