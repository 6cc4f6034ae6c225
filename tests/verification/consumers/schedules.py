"""Random schedules for shared subscriptions: the real lanes between workers, a network and a journal that fail.

    python tests/verification/consumers/schedules.py --schedules 20000 --seed 1     check the rules
    python tests/verification/consumers/schedules.py --without grace                remove a rule: it must be noticed
    python tests/verification/consumers/schedules.py --rules                        remove each rule in turn

The journal takes batches that become durable later, in order, or are lost.  The world knows the truth about each record
independently of the tested code: how often it was leased, which workers believe that they hold it, how it ended.

    worker -> net (late, lost, repeated) -> server (LeasePool, Lane) -> append -> durable -> answer -> net -> worker

Records are the numbers 1, 2, ...; record r has key r % KEYS; poison records fail at every worker.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from types import SimpleNamespace

import attrs
from searching import Search, check

from fyrehose.records import Record
from fyrehose.subscriptions.lane import Draft, Lane, Leased, Waiting
from fyrehose.subscriptions.pool import Item, LeasePool
from fyrehose.subscriptions.progress import (
    FINAL,
    SOURCE,
    STREAM,
    SavedSubscription,
    SavedSubscriptions,
    SubscriptionOptions,
    pack,
    pack_whole,
)

LEASE, TAKEOVER, LIMIT, WINDOW, KEYS, WORKERS, RECORDS = 6, 3, 3, 4, 2, 3, 12
NAME = "n"

#: The events of a schedule and their weights, which the phases of a schedule change.
EVENTS = {"worker": 20, "net": 60, "time": 8, "commit": 14, "publish": 2, "lose": 0.4, "start": 8, "freeze": 0.6}
EVENTS |= {"old": 0.5, "pause": 1, "restart": 0.6, "deposed": 0.3, "crash": 0.4, "wall": 1, "retention": 0.8}
EVENTS |= {"checkpoint": 1, "full": 0.4, "rewind": 0.1, "stop": 0.5}


def ignore(stored):
    """Do nothing: nobody waits for the append."""


def numbers(ranges):
    return [seq for first, last in ranges for seq in range(first, last + 1)]


def record_of(payload):
    return Record(
        stream=STREAM,
        seq=1,
        time=0,
        source=SOURCE,
        producer=None,
        topic=None,
        content_type=None,
        producer_seq=None,
        event_id=None,
        event_time=None,
        payload=payload,
    )


def recovered(saved):
    """Return the state *saved* as a checkpoint stores it, and a server finds it at its start."""
    found = SavedSubscriptions()
    for payload in pack_whole(NAME, 0, saved):
        found.apply(record_of(payload))
    return found.entries[NAME]


class Journal:
    """The durable records of the subscription and, for the checks only, the truth about each record."""

    def __init__(self):
        self.saved, self.last, self.oldest = SavedSubscriptions(), 4, 1
        options = attrs.asdict(SubscriptionOptions(stream="s", lease=LEASE, limit=LIMIT, window=WINDOW))
        self.write(pack(NAME, 0, {"set": options, "floors": {"s": 0}, "epoch": 0, "redriven": 0}))
        self.final, self.letters, self.results = {}, Counter(), Counter()
        # how many records ended how, like the counters of the subscription, which a rewind does not change
        self.counted = Counter()
        self.forget = lambda: None  # called after a rewind, to reset the workers
        self.rewinds = self.rewound = 0  # how often it was rewound, and the first epoch since then

    def write(self, payload):
        self.saved.apply(record_of(payload))

    def durable(self, append):
        for payload in append.payloads:
            self.write(payload)
        if getattr(append, "rewind", None) is not None:
            self.rewind(*append.rewind)
            self.forget()
        for kind, r in append.ends:
            check(append.rewinds == self.rewinds, f"record {r} was {kind} by an action from before a rewind")
            check(r not in self.final, f"record {r} ended twice: {self.final.get(r)}, {kind}")
            self.final[r] = kind
            self.counted[kind] += 1
        for r in append.letters:
            self.letters[r] += 1
            check(self.letters[r] == 1, f"record {r} is a dead letter twice")
            check(self.final.get(r, "dead") == "dead", f"record {r} is a dead letter, but was {self.final.get(r)}")
        for r in append.results:
            self.results[r] += 1
            check(self.results[r] == 1, f"the results of record {r} were published twice")
        progress = self.saved.entries[NAME].progress("s")
        for r in range(1, progress.final.floor + 1):
            check(r in self.final, f"record {r} is below the floor, but was not settled, dead-lettered or expired")

    def rewind(self, to, epoch):
        """Forget everything about the records, and continue after record *to*."""
        self.rewinds, self.rewound = self.rewinds + 1, epoch
        for r in range(1, RECORDS + 1):
            if r <= to:
                self.final.setdefault(r, "skipped")
            else:
                self.final.pop(r, None)
                self.letters[r] = self.results[r] = 0


class CheckedLane(Lane):
    """A lane that reports leases and settled records to the world."""

    server = None
    acting = None

    def lease(self, consumer, most):
        leased = super().lease(consumer, most)
        for each in leased:
            for seq in range(each.first, each.last + 1):
                self.server.world.leased(seq)
                deleted = seq < self.server.journal.oldest and not self.server.full
                check(not deleted, f"record {seq} is leased, but retention has deleted it")
                self.server.high = max(self.server.high, seq)
        self.server.check_held()
        return leased

    def due(self, *place):
        acting, self.acting = self.acting, None
        end = super().due(*place)
        self.acting = acting
        return end

    def give_back(self, draft, first, last, *state, **kwargs):
        self.server.world.alone(self.server, self.acting, *range(first, last + 1))
        return super().give_back(draft, first, last, *state, **kwargs)

    def settle(self, change, first, last):
        self.server.world.alone(self.server, self.acting, *range(first, last + 1))
        super().settle(change, first, last)


class Server:
    """Connects the tested code with the world, as the table of subscriptions connects it with the broker."""

    split_letters = split_results = early_answers = stepping = confident = partly = changes_first = False

    def __init__(self, world):
        self.world, self.journal = world, world.journal
        share = recovered(self.journal.saved.entries[NAME])
        self.pending, self.frozen, self.full, self.confirmed = [], False, False, world.now
        self.may_wait, self.known, self.began = world.may_wait, world.known, self.journal.last
        delay = lambda failures: 0  # noqa: E731
        self.pool = LeasePool(
            share.options, self.append, self.now, self.trusted, delay, copy=self.copy, before=share.epoch
        )
        keys = (lambda first, last: ({r: str(r % KEYS) for r in range(first, last + 1)}, last)) if world.keyed else None
        self.lane = CheckedLane("s", share.progress("s"), self.pool, self.bounds, keys)
        self.lane.server, self.high = self, share.progress("s").reach
        self.pool.lanes["s"] = self.lane
        self.told = self.journal.last
        self.given = {}  # by worker: the number of its last request for records, and the leases it got

    def bounds(self):
        return self.journal.oldest, self.journal.last

    def now(self):
        return self.world.now + (self.world.wall if self.stepping else 0)

    def trusted(self):
        return self.confident or self.world.now - self.confirmed < TAKEOVER

    def copy(self, draft, lane, first, last):
        """Add dead letters to *draft*, one at a time; those of large records are refused for good."""
        if draft.letters:
            return first - 1
        if first in self.world.large:
            draft.of(lane).lost += 1
        else:
            draft.letters.append(first)
        return first

    def check_held(self):
        """Check that only records wait after a start that may have been leased before."""
        for span in self.lane.spans:
            if isinstance(span.state, Waiting) and span.state.held and self.pool.in_grace():
                check(span.last <= self.began, f"record {span.last} waits, but was published after the start")
                check(span.last <= self.may_wait, f"record {span.last} waits, above {self.may_wait}")
                never = [] if self.known is None else set(range(span.first, span.last + 1)) - self.known
                check(not never, f"records {never} wait, but were never leased before the orderly stop")

    def append(self, draft, results=(), then=ignore):
        """Append *draft*, unless the disk is full."""
        if self.changes_first:
            self.pool.accept(draft)
        if self.full:
            return False
        changes = [change.fields() for change in draft.changes.values()] or [{}]
        place = {"stream": "s"} if draft.changes else {}
        epoch = {"epoch": draft.epoch} if draft.epoch else {}
        payloads = [pack(NAME, 0, {**epoch, **place, **fields}) for fields in changes]
        ends = [("settled", r) for each in draft.changes.values() for r in numbers(each.settled)]
        ends += [("expired", r) for each in draft.changes.values() for r in numbers(each.expired)]
        ends += [("dead", r) for each in draft.changes.values() for r in numbers(each.dead)]
        rewinds = [change.rewind for change in draft.changes.values() if change.rewind is not None]
        letters = list(draft.letters)
        if not self.changes_first:
            self.pool.accept(draft)
        if self.early_answers:
            then(True)
            then = ignore
        parts = {"draft": None, "payloads": [], "ends": [], "letters": letters, "results": results, "then": ignore}
        parts |= {"rewinds": 0, "rewind": None}
        if (letters and self.split_letters) or (results and self.split_results):
            self.pending.append(SimpleNamespace(**parts))
            letters, results = [], ()
        parts |= {"draft": draft, "payloads": payloads, "ends": ends, "letters": letters, "results": results}
        parts |= {"then": then, "rewinds": self.rewinds, "rewind": (rewinds[0], draft.epoch) if rewinds else None}
        self.pending.append(SimpleNamespace(**parts))
        return True

    @property
    def rewinds(self):
        """Return how often the subscription was rewound, by what was appended."""
        return self.journal.rewinds + sum(append.rewind is not None for append in self.pending)

    @property
    def saved(self):
        """Return the state that a checkpoint stores."""
        return SavedSubscription(self.pool.options, self.pool.appended_epoch, False, {"s": self.lane.progress})

    def checkpoint(self):
        nothing = {"draft": None, "ends": [], "letters": [], "results": (), "rewinds": 0, "rewind": None}
        payloads = list(pack_whole(NAME, 0, self.saved))
        self.pending.append(SimpleNamespace(payloads=payloads, then=ignore, **nothing))

    def rewind(self, to):
        """Continue after record *to*, as the table of subscriptions does it."""
        draft = Draft(epoch=max(self.pool.epoch, self.pool.appended_epoch) + 1)
        draft.of(self.lane).rewind = to
        if self.append(draft):
            self.pool.epoch, self.pool.before, self.high = draft.epoch, 0, to

    def committed(self):
        """Make the oldest append durable."""
        append = self.pending.pop(0)
        self.journal.durable(append)
        if append.draft is not None:
            self.pool.durable(append.draft)
        append.then(True)

    def stop(self):
        """Stop in order: everything becomes durable, with the exact reach."""
        draft = self.pool.stop()
        stopped = not draft.changes or self.append(draft)
        while stopped and self.pending:
            self.committed()
        return stopped

    def tick(self):
        self.pool.more = False
        self.pool.tick(look=True)
        if self.told != self.journal.last:  # as the table does when records become durable
            self.told = self.journal.last
            self.lane.arrived(self.told)

    def counts(self):
        return +Counter({how: self.lane.progress.counts[how] for how in FINAL})

    def handle(self, message):
        kind, worker, request, *rest = message
        self.lane.acting = worker
        self.tick()
        if kind == "lease":
            leased = self.lease(worker, *rest)
            bound = sum(r not in self.lane.progress.final for r in range(1, self.high + 1))
            check(bound <= WINDOW, f"{bound} unsettled records in a window of {WINDOW}")
            self.world.answer(
                worker,
                ("leased", request, [(r, each.token) for each in leased for r in range(each.first, each.last + 1)]),
            )
        elif kind == "settle":
            self.settle(worker, request, rest[0])
        elif kind == "return":
            r, token, delay, counted = rest
            item = Item("failed" if counted else "untried", r, r, token, "s", delay)
            self.do([item], worker)
        elif kind == "extend":
            r, token = rest
            for _, extended in self.do([Item("extend", r, r, token, "s")], worker).extended:
                self.world.answer(worker, ("extended", request, [(r, extended)]))
        self.lane.acting = None

    def lease(self, worker, most, number):
        """Lease records; check that a repeated request gets the same leases, as far as they still last."""
        before, got = self.given.get(worker, (0, []))
        ready = self.trusted() and self.pool.stored_epoch == self.pool.epoch
        kept = [(r, token) for r, token in got if ready and before == number and self.holds(r, token)]
        leased = self.pool.lease(str(worker), number, most)
        got = [(r, each.token) for each in leased for r in range(each.first, each.last + 1)]
        check(not kept or got == kept, f"a repeated request got {got}, but its leases are {kept}")
        if got:
            self.given[worker] = number, got
        return leased

    def holds(self, r, token):
        return all(not why for *_, why in self.lane.judge(Item("repeat", r, r, token)))

    def do(self, items, worker):
        outcome = self.pool.act(items, str(worker))
        if outcome.draft.changes:
            self.append(outcome.draft)
        else:
            self.pool.accept(outcome.draft)
        return outcome

    def settle(self, worker, request, records):
        items = [Item("done", *one, token, "s") for one, token in in_ranges(records)]
        outcome = self.pool.act(items, str(worker), whole=not self.partly)
        good = [r for change in outcome.draft.changes.values() for r in numbers(change.settled)]
        old = [r for r, token in records if r in good and token[0] < self.journal.rewound]
        # A server may not know that it was deposed, but its appends are refused.
        check(not old or self is not self.world.server, f"records {old} were settled with tokens from before a rewind")

        def done(stored):
            self.world.answer(worker, ("settled" if stored else "again", request, good))

        if (outcome.refused and not self.partly) or not good:
            ended = [r for r, _ in records if r in self.lane.progress.final]
            self.answer_when_durable(worker, ("refused", request, ended))
        elif not self.append(outcome.draft, [r for r, _ in records], done):
            done(False)

    def answer_when_durable(self, worker, answer):
        """Answer when all is durable that the answer may be about."""
        if not self.pending:
            self.world.answer(worker, answer)
            return
        last, before = self.pending[-1], self.pending[-1].then

        def then(stored):
            before(stored)
            self.world.answer(worker, answer)

        last.then = then


def in_ranges(records):
    """Return *records* as a worker settles them: ranges with one token each."""
    found = []
    for r, token in sorted(records):
        if found and found[-1] == ((found[-1][0][0], r - 1), token):
            found[-1] = ((found[-1][0][0], r), token)
        else:
            found.append(((r, r), token))
    return found


class Worker:
    def __init__(self, world, name):
        self.world, self.name, self.paused = world, name, False
        # held: record -> (token, end of the lease by the worker's own clock)
        self.held, self.sent, self.unanswered = {}, {}, {}
        # the number of the last request for records, and its message while it has no answer
        self.number, self.asked = 0, None

    def send(self, kind, *rest):
        self.world.number += 1
        request = self.world.number
        self.sent[request] = self.world.now
        self.world.net.append((kind, self.name, request, *rest))
        return self.world.net[-1]

    def act(self, rng, patient=False):
        """Do something at random; a *patient* worker settles all good records."""
        if self.unanswered and rng.random() < 0.5:
            self.world.net.append(rng.choice(list(self.unanswered.values())))
        done = [r for r in self.held if r not in self.world.poison and rng.random() < (0.9 if patient else 0.7)]
        what = rng.random()
        if not self.held or (len(self.held) < 3 and what < 0.3):
            if self.asked is None or rng.random() < 0.5:
                self.number += 1
                self.asked = self.send("lease", rng.randint(1, 2), self.number)
            else:  # the answer may be lost; from now on an answer to the earlier message is ignored
                self.sent.pop(self.asked[2], None)
                self.asked = self.send(*self.asked[:1], *self.asked[3:])
        elif done and (patient or what < 0.6):
            message = self.send("settle", [(r, self.held.pop(r)[0]) for r in done])
            self.unanswered[message[2]] = message
        elif patient or what < 0.75:
            r = rng.choice(list(self.held))
            token, counted = self.held.pop(r)[0], patient or rng.random() < 0.8
            self.world.uncounted[r] += not counted
            self.send("return", r, token, 0 if patient else rng.choice((0, 0, 3, 8)), counted)
        elif what < 0.95:
            r = rng.choice(list(self.held))
            self.send("extend", r, self.held[r][0])
        else:
            self.held.popitem()  # the worker forgets the record, and its lease ends by itself

    def answered(self, kind, request, records):
        if request not in self.sent:
            return
        until = self.sent[request] + LEASE
        if kind == "leased" and self.asked is not None and self.asked[2] == request:
            self.asked = None
        if kind in ("leased", "extended"):
            del self.sent[request]  # each answer counts once: its records may have been settled since
            for r, token in records:
                known = self.held.get(r, ((0, 0), 0))
                if until > self.world.now and (kind == "leased" or known[0][1] == token[1]):
                    self.held[r] = token, max(until, known[1] if kind == "extended" else 0)
                    self.world.believes(self, r)
        elif kind == "settled":
            for r in records:
                check(
                    self.world.journal.final.get(r) == "settled",
                    f"record {r} was settled for a worker, but is not final in the journal",
                )
            self.unanswered.pop(request, None)
        elif kind == "refused":
            message = self.unanswered.pop(request, None)
            rest = [(r, token) for r, token in message[3] if r not in records] if message else []
            if records and rest:  # settle the others again, without the records that have ended
                message = self.send("settle", rest)
                self.unanswered[message[2]] = message


class World:
    def __init__(self, rng):
        self.rng, self.now, self.wall, self.number, self.starts = rng, 0, 0, 0, 1
        self.keyed, self.poison = rng.random() < 0.5, {r for r in range(1, RECORDS + 1) if rng.random() < 0.15}
        self.net, self.deliveries, self.uncounted = [], Counter(), Counter()
        self.left, self.weights, self.may_wait, self.known = 0, [], 0, None
        self.large = {r for r in range(1, RECORDS + 1) if rng.random() < 0.15}
        self.journal = Journal()
        self.journal.forget = self.forget
        self.server, self.old = Server(self), None
        self.workers = [Worker(self, name) for name in range(WORKERS)]

    def answer(self, worker, message):
        self.net.append(("answer", worker, *message))

    def leased(self, r):
        self.deliveries[r] += 1
        most = LIMIT + self.starts - 1 + self.uncounted[r]
        check(self.deliveries[r] <= most, f"record {r} was delivered {self.deliveries[r]} times, {most} are allowed")
        if self.keyed:
            for earlier in range(r - KEYS, 0, -KEYS):
                check(earlier in self.journal.final, f"record {r} was leased before the end of {earlier} was durable")

    def alone(self, server, worker, *records):
        for other in self.workers if server is self.server else ():  # the appends of an old server are refused
            held = [r for r in records if other.name != worker and r in other.held and other.held[r][1] > self.now]
            check(not held, f"worker {worker} has ended leases of worker {other.name} on records {held}")

    def believes(self, worker, r):
        for other in self.workers:
            for also, (_, until) in other.held.items():
                same = also == r and other is not worker
                key = self.keyed and also != r and also % KEYS == r % KEYS
                check(until <= self.now or not same, f"two workers hold record {r}")
                check(until <= self.now or not key, f"records {r} and {also} of one key are held")

    def forget(self):
        """Reset the workers after a rewind: none holds a record, and messages under way have no effect."""
        for worker in self.workers:
            worker.held, worker.sent, worker.unanswered, worker.asked = {}, {}, {}, None
        for r in range(1, RECORDS + 1):
            self.deliveries[r] = self.uncounted[r] = 0

    def deliver(self, message):
        if message[0] == "answer":
            if not self.workers[message[1]].paused:
                self.workers[message[1]].answered(*message[2:])
            return
        server = self.old if self.old is not None and self.rng.random() < 0.5 else self.server
        if server is not None and not server.frozen:
            server.handle(message)

    def stop(self):
        """Lose the server; the first of its waiting appends may have become durable."""
        for append in self.server.pending[: self.rng.choice((0, self.rng.randint(0, len(self.server.pending))))]:
            self.journal.durable(append)
        reaches = (self.server.lane.progress.reach, self.journal.saved.entries[NAME].progress("s").reach)
        self.may_wait, self.known = max(self.server.lane.seen, *reaches), None
        self.server = None

    def start(self):
        if self.server is not None:
            self.stop()
        self.starts, self.server = self.starts + 1, Server(self)

    def step(self):
        """Let one random event happen; phases of a schedule change how likely each event is."""
        if self.left == 0:
            self.left = self.rng.choice((20, 50, 100))
            self.weights = [weight * self.rng.choice((0.03, 1, 1, 4)) for weight in EVENTS.values()]
            self.speeds = [self.rng.choice((0.03, 1, 1)) for _ in self.workers]
        self.left -= 1
        rng, server, journal = self.rng, self.server, self.journal
        event, worker = rng.choices(list(EVENTS), self.weights)[0], rng.choices(self.workers, self.speeds)[0]
        alive = server is not None and not server.frozen
        if event == "worker" and not worker.paused:
            worker.act(rng)
        elif event == "net" and self.net:
            at, fate = rng.randrange(len(self.net)) if rng.random() < 0.4 else 0, rng.random()
            message = self.net[at]
            if fate > 0.1:
                del self.net[at]  # otherwise the message is delivered again
            if fate < 0.93:
                self.deliver(message)
        elif event == "time":
            self.now += rng.choice((1, 1, 1, 2, 4))
            if alive:
                server.confirmed = self.now
                server.tick()
        elif event == "commit" and alive and server.pending:
            server.committed()
        elif event == "publish":
            journal.last = min(RECORDS, journal.last + 1)
        elif event == "lose" and server is not None:
            self.stop()
        elif event == "start" and (server is None or (server.frozen and self.now - server.confirmed >= TAKEOVER)):
            self.old = server  # another server takes over, and the old one does not know it
            self.start()
        elif event in ("restart", "deposed") and alive:
            self.now += TAKEOVER if event == "deposed" else 0
            self.old = server if event == "deposed" else None
            self.start()
            self.now += rng.choice((0, LEASE, LEASE))
            self.server.confirmed = self.now
        elif event == "freeze" and server is not None:
            server.frozen = not server.frozen
        elif event == "old" and self.old is not None:
            frozen, self.old.frozen = self.old.frozen, False
            self.old = self.old if frozen else None  # its next append is refused, and it exits
        elif event == "pause":
            worker.paused = not worker.paused and rng.random() < 0.3
        elif event == "crash":
            worker.held, worker.sent, worker.unanswered, worker.asked = {}, {}, {}, None
        elif event == "wall":
            self.wall += rng.choice((-50, -5, 5, 50))
        elif event == "retention" and journal.oldest < journal.last:
            journal.oldest += 1
        elif event == "checkpoint" and alive:
            server.checkpoint()
        elif event == "full" and alive:
            server.full = not server.full
        elif event == "stop" and alive and self.old is None:
            before = self.may_wait if server.pool.in_grace() else 0
            if server.stop():
                self.known = None if before else set(self.deliveries)
                self.server, self.may_wait = None, max(before, *(self.deliveries or {0: 0}), 0)
            else:
                self.stop()
        elif event == "rewind" and alive:
            server.rewind(rng.randint(0, journal.last))

    def drain(self):
        """Stop all faults, and check that every record becomes final."""
        self.old, self.journal.last = None, RECORDS
        if self.server is None:
            self.start()
        self.server.frozen = self.server.full = False
        for _ in range(60 * RECORDS):
            self.now += 1
            self.server.confirmed = self.now
            self.server.tick()
            for worker in self.workers:
                worker.paused = False
                worker.held = {r: held for r, held in worker.held.items() if held[1] > self.now}
                worker.act(self.rng, patient=True)
            messages, self.net = self.net, []
            for message in messages:
                self.deliver(message)
            while self.server.pending:
                self.server.committed()
            if len(self.journal.final) == RECORDS:
                break
        journal = self.journal
        open_ = [r for r in range(1, RECORDS + 1) if r not in journal.final]
        check(not open_, f"records {open_} are never settled")
        check(self.server.counts() == +journal.counted, "the counters are wrong")
        for r, kind in journal.final.items():
            wanted = kind == "dead" and r not in self.large
            check(journal.letters[r] == wanted, f"record {r} is {kind}, {journal.letters[r]} dead letters")
            check(journal.results[r] == (kind == "settled"), f"record {r} is {kind}, {journal.results[r]} results")
        return journal.final


def schedule(seed):
    """Run one schedule, and return what happened."""
    world = World(random.Random(seed))
    for _ in range(world.rng.choice((80, 200, 400))):
        world.step()
    return Counter(world.drain().values()) + Counter(deliveries=world.deliveries.total(), starts=world.starts)


# Removing rules:


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


def _without_ended():
    """Let records be leased again before the end of their last lease is durable."""
    real = Lane.accept

    def accept(lane, change):
        real(lane, change)
        for first, last, state in change.returned:
            lane._wait(first, last, Waiting(state.ended, state.until))

    return {(Lane, "accept"): accept}


def _without_epoch():
    real = LeasePool.may_lease
    return {(LeasePool, "may_lease"): lambda pool: real(pool) or pool.trusted()}


def _always(value):
    return property(lambda owner: value, lambda owner, changed: None)


def _any_old(lane, state, token, late):
    """Take any token of the servers before for a lease that has ended, instead of the last one of the last server."""
    epoch, number = token
    if isinstance(state, Leased):
        return token == (lane.pool.epoch, state.ended[0] + 1)
    old = isinstance(state, Waiting) and epoch != lane.pool.epoch
    return late and (old or (epoch == lane.pool.epoch and number == state.ended[0] > 0))


def _rewind_keeping_the_epoch(server, to):
    draft = Draft()
    draft.of(server.lane).rewind = to
    server.append(draft)


#: By rule: the replacements that remove it.
MISSING = {
    "durable-before-answer": lambda: {(Server, "early_answers"): True},
    "appended-counts": _without_appended,
    "encode-first": lambda: {(Server, "changes_first"): True},
    "checkpoint-appended": lambda: {(Server, "saved"): property(lambda server: server.journal.saved.entries[NAME])},
    "dead-letter-atomic": lambda: {(Server, "split_letters"): True},
    "publish-atomic": lambda: {(Server, "split_results"): True},
    "all-or-nothing": lambda: {(Server, "partly"): True},
    "token": lambda: {(Lane, "_may"): lambda lane, state, token, late: late or isinstance(state, Leased)},
    "old-token": lambda: {(Lane, "_may"): _any_old},
    "epoch-first": _without_epoch,
    "ended-first": _without_ended,
    "reach-first": lambda: {(Lane, "durable_reach"): _always(RECORDS)},
    "grace": lambda: {(LeasePool, "hold_until"): _always(0)},
    "leader-confirmed": lambda: {(Server, "confident"): True},
    "monotonic": lambda: {(Server, "stepping"): True},
    "key-one": lambda: _first(lambda state: isinstance(state, Leased)),
    "key-returned": lambda: _first(lambda state: isinstance(state, Waiting)),
    "key-durable": lambda: _first(lambda state: state is None),
    "limit": lambda: {(Lane, "_is_too_many"): lambda lane, failures: False},
    "retention-ends": lambda: {(Lane, "expire"): lambda lane, draft: None},
    "retention-grace": lambda: {(LeasePool, "in_grace"): lambda pool: False},
    "request-number": lambda: {(LeasePool, "_repeated"): lambda pool, consumer: []},
    "rewind-epoch": lambda: {(Server, "rewind"): _rewind_keeping_the_epoch},
    "window": lambda: {(LeasePool, "room"): lambda pool: 1_000},
    "exact-reach": lambda: {(LeasePool, "stop"): lambda pool: Draft()},
}


SEARCH = Search(schedule, MISSING)

if __name__ == "__main__":
    sys.exit(SEARCH.main(__doc__))
