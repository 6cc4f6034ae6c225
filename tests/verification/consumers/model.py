"""Random schedules of a model of subscriptions, which has the rules of the server in the fewest lines.

    python tests/verification/consumers/model.py --schedules 20000 --seed 1       check the rules
    python tests/verification/consumers/model.py --without epoch-first            remove a rule: it must be noticed
    python tests/verification/consumers/model.py --rules                          remove each rule in turn

The model is a state machine without I/O.  Its journal takes batches that become durable later, in order, or are lost
with the server.  A batch that the journal has accepted is never refused later.

    worker -> net (late, lost, repeated) -> server -> draft -> batch -> durable -> answer -> net -> worker

Records are the numbers 1, 2, ...; record r has key r % KEYS; poison records fail at every worker; large records do not
fit into the stream of dead letters.  A schedule has one subscription, which is shared (``ack = "each"``) or exclusive
(``ack = "all"``), and tenants who fill the table of subscriptions.
"""

import random
import sys
from collections import Counter
from types import SimpleNamespace

from searching import Search, check

LEASE, TAKEOVER, LIMIT, WINDOW, STEP, KEYS, WORKERS, RECORDS = 6, 3, 3, 4, 2, 2, 3, 12
#: How many subscriptions the server takes, and the tenants; the first of them is honest, and never wants more than 1.
PLACES, TENANTS = 6, ("honest", "greedy", "greedier")

RULES = {
    "durable-before-answer": "a request is answered when its batch is durable",
    "appended-counts": "what is being written counts at once: its records are neither leased nor settled",
    "checkpoint-appended": "a checkpoint holds all that was appended before it, durable or not",
    "dead-letter-atomic": "a dead letter and the end of its record are one batch",
    "publish-atomic": "results and the settling are one batch",
    "all-or-nothing": "a request with results is refused whole if one of its records cannot be settled",
    "token": "only the token of the last lease settles, returns or extends",
    "old-token": "of the leases of another epoch, only the last one of the epoch before may still settle",
    "epoch-first": "an epoch is durable before its first lease",
    "ended-first": "the end of a lease (delivery, failure) is durable before the record is leased again",
    "reach-first": "a record is leased first when a durable `reach` includes it",
    "grace": "after a start, records up to `reach` wait for one lease time",
    "leader-confirmed": "a server leases and extends only while no other can have taken over",
    "from-request": "a worker counts its lease from when it sent the request",
    "monotonic": "leases end by a clock that does not step",
    "key-one": "a record is not leased while an earlier one of its key is leased",
    "key-returned": "a record is not leased while an earlier one of its key waits",
    "key-durable": "a record is not leased until the end of the earlier ones of its key is durable",
    "limit": "the LIMIT-th failure makes a record a dead letter",
    "retention-ends": "a record that retention deletes is ended as expired, and counted",
    "retention-grace": "a record that retention deletes while it waits for the grace is ended after that",
    "window": "at most WINDOW unsettled records lie at or below the highest leased one",
    # Rule 19: a request is one batch.
    "one-batch": "everything that a request changes is one batch, with its results",
    "answer-all": "an answer waits for each change of its request, also for failures and dead letters",
    # Rule 20: encode, then change.
    "encode-first": "memory changes when the journal has accepted the encoded change, and not before",
    # Rule 22: hold only what was leased.
    "exact-reach": "an orderly stop writes the exact reach",
    "reach-steps": "reach is reserved in steps that fit what is leased, not by whole windows",
    "published-after": "a record that was published after a start was never leased, and does not wait",
    # Rule 23: a dead letter is a publish of the creator.
    "letter-rights": "a dead letter is written only where the creator of the subscription may publish",
    "letter-final": "a record whose dead letter is refused for good is dead without a copy",
    "letter-mark": "a redrive believes only dead letters that the server has marked",
    "letter-stream": "the stream of dead letters is never one of the server's own",
    # Rule 25: shares.
    "tenant-share": "one tenant has at most half of the places",
    "largest-first": "in a full table the largest holder loses its oldest idle place",
    "place-in-use": "a place of another tenant is never taken while it is in use",
    # Exclusive subscriptions.
    "one-holder": "an exclusive subscription has one holder, until its lease ends or another takes over",
    "generation": "only the present generation of holders acknowledges",
    "generation-first": "the generation of a new holder is durable before the holder gets records",
    "from-one": "acknowledging a number ends all records up to it",
}
#: What can happen, and how often, before the phases of a schedule change it.
EVENTS = {"worker": 20, "net": 60, "time": 8, "commit": 14, "publish": 2, "lose": 0.4, "start": 8, "freeze": 0.6}
EVENTS |= {"old": 0.5, "pause": 1, "restart": 0.6, "deposed": 0.3, "crash": 0.4, "wall": 1, "retention": 0.8}
EVENTS |= {"checkpoint": 1, "full": 0.8, "stop": 0.6, "policy": 0.5, "forge": 0.3, "redrive": 0.6, "tenant": 4}

#: The rules that are removed.
OFF = frozenset()


def on(rule):
    return rule not in OFF


class Refused(Exception):
    """The journal has no room, or a change cannot be encoded; nothing was appended."""


def batch_of(**fields):
    """Return what one append writes.

    Its fields are the ends of records, dead letters, results, ends of leases, the reach (``exact`` even if that is
    lower), an epoch, a generation, an acknowledgement of all up to a number, a checkpoint, and the request.
    """
    empty = {"final": {}, "letters": [], "results": [], "ended": {}, "reach": 0, "exact": None, "epoch": 0}
    empty |= {"generation": 0, "up_to": 0, "everything": None, "request": None, "bad": False, "by": 0}
    return SimpleNamespace(**{**empty, **fields})


class State:
    """The durable state of a subscription: the floor, what is final above it, and counters of what was returned."""

    def __init__(self):
        self.floor, self.above, self.counts = 0, set(), Counter()
        self.ends, self.reach, self.epoch, self.generation = {}, 0, 0, 1  # ends: record -> (deliveries, failures)

    def copy(self):
        new = State()
        new.__dict__ = {**self.__dict__, "above": set(self.above), "counts": Counter(self.counts)}
        new.ends = dict(self.ends)
        return new

    def apply(self, batch):
        if batch.everything is not None:
            self.__dict__ = batch.everything.copy().__dict__
        final = dict(batch.final)
        first = self.floor + 1 if on("from-one") else max(1, batch.up_to)
        final |= {r: "settled" for r in range(first, batch.up_to + 1) if not self.is_final(r)}
        for r, kind in final.items():
            self.counts[kind] += 1
            self.above.add(r)
            self.ends.pop(r, None)
        self.ends.update(batch.ended)
        self.reach, self.epoch = max(self.reach, batch.reach), max(self.epoch, batch.epoch)
        self.generation = max(self.generation, batch.generation)
        if batch.exact is not None:
            self.reach = batch.exact
        while self.floor + 1 in self.above:
            self.floor += 1
            self.above.remove(self.floor)
        return final

    def is_final(self, r):
        return r <= self.floor or r in self.above


class Journal:
    """The durable state and, for the checks only, the truth about each record."""

    def __init__(self):
        self.state, self.last, self.oldest = State(), 4, 1
        self.final, self.letters, self.results = {}, Counter(), Counter()
        self.refused, self.failures = set(), Counter()  # requests, and failures of records
        self.dead, self.redriven, self.settled_to = [], Counter(), 0  # (record, marked by the server)

    def durable(self, batch):
        if batch.everything is not None:
            found = batch.everything
            same = (found.floor, found.above, found.ends) == (self.state.floor, self.state.above, self.state.ends)
            check(same, "a checkpoint disagrees with the records before it")
        check(batch.by in (0, self.state.generation), f"generation {batch.by} acknowledged in {self.state.generation}")
        final = self.state.apply(batch)
        if batch.request is not None:
            check(batch.request not in self.refused, f"request {batch.request} was refused, and has changed something")
        for r, kind in final.items():
            check(r not in self.final, f"record {r} ended twice: {self.final.get(r)}, {kind}")
            self.final[r] = kind
        for r, (_, failures) in batch.ended.items():
            self.failures[r] = max(self.failures[r], failures)
        for r in batch.letters:
            self.letters[r] += 1
            self.dead.append((r, True))
            check(self.letters[r] == 1, f"record {r} is a dead letter twice")
            check(self.final.get(r, "dead") == "dead", f"record {r} is a dead letter, but was {self.final.get(r)}")
        for r in batch.results:
            self.results[r] += 1
            check(self.results[r] == 1, f"the results of record {r} were published twice")
        for r in range(1, self.state.floor + 1):
            check(r in self.final, f"record {r} is below the floor, but was not settled, dead-lettered or expired")
        self.settled_to = max(self.settled_to, batch.up_to)
        check(self.state.floor >= self.settled_to, f"record {self.settled_to} was acknowledged, not all before it")


class Server:
    def __init__(self, world):
        self.world, self.journal = world, world.journal
        self.stored = self.journal.state.copy()  # what is durable
        self.state = self.stored.copy()  # what was appended
        self.before, self.epoch = self.stored.epoch, self.stored.epoch + 1
        self.pending, self.closing, self.ending = [], Counter(), Counter()
        self.leases, self.not_before = {}, {}
        self.hold = min(self.stored.reach, self.journal.last) if on("published-after") else self.stored.reach
        self.high, self.redriven = self.hold, len(self.journal.dead)
        self.seen = self.hold  # all records up to this one were leased, or could not be leased yet
        self.hold_until = world.now + LEASE if on("grace") else 0
        self.frozen = self.full = False
        self.confirmed, self.began, self.may_wait = world.now, self.journal.last, world.may_wait
        self.holder = None  # of an exclusive subscription
        self.given = {}  # by generation, its holder
        self.begin()

    def begin(self):
        if self.state.epoch != self.epoch:
            self.try_append(batch_of(epoch=self.epoch))

    def append(self, batch, then=lambda: None):
        """Append *batch*; it counts from now on, and *then* is called when it is durable."""
        if not on("encode-first"):
            self.apply(batch)
        if self.full or batch.bad:
            raise Refused
        if on("encode-first"):
            self.apply(batch)
        for r in batch.letters:
            check(self.world.may_copy(r), f"the dead letter of record {r} was published without the right")
        if not on("durable-before-answer"):
            then()
            then = lambda: None  # noqa: E731
        self.pending.append((batch, then))

    def apply(self, batch):
        batch.counted = self.state.apply(batch)
        self.closing.update(batch.counted.keys())
        self.ending.update(batch.ended.keys())

    def try_append(self, batch, then=lambda: None):
        """Append a change that nobody has requested; without room it is tried again."""
        try:
            self.append(batch, then)
        except Refused:
            return False
        return True

    def committed(self):
        """Make the oldest batch durable."""
        batch, then = self.pending.pop(0)
        self.journal.durable(batch)
        self.stored.apply(batch)
        for r in batch.counted:
            self.closing[r] -= 1
            self.leases.pop(r, None)
        for r in batch.ended:
            self.ending[r] -= 1
            if on("ended-first"):
                self.leases.pop(r, None)
        then()

    def clock(self):
        return self.world.now + (0 if on("monotonic") else self.world.wall)

    def final(self, r):
        return (self.state if on("appended-counts") else self.stored).is_final(r)

    def held(self, r):
        return r <= self.hold and self.world.now < self.hold_until

    def trusted(self):
        return self.world.now - self.confirmed < TAKEOVER or not on("leader-confirmed")

    def tick(self):
        self.begin()
        due = [r for r, lease in self.leases.items() if lease.end <= self.clock()]
        for r in due:
            if not self.ending[r] and not self.final(r):
                draft = batch_of()
                self.end(r, draft, True, 0)
                self.write(draft)
        if on("retention-ends"):
            for r in range(self.stored.floor + 1, self.journal.oldest):
                kept = self.held(r) and on("retention-grace")
                if not self.final(r) and r not in self.leases and not self.ending[r] and not kept:
                    self.try_append(batch_of(final={r: "expired"}))

    def end(self, r, draft, counted, delay, worker=None, dead=False):
        """Add to *draft* the end of the lease of *r*, which *worker* has returned, or which has lasted its time."""
        self.world.alone(self, worker, r)
        lease, failures = self.leases[r], self.state.ends.get(r, (0, 0))[1] + counted
        self.not_before[r] = self.world.now + delay
        if not on("ended-first"):
            del self.leases[r]
        if r < self.journal.oldest and on("retention-ends"):
            draft.final[r] = "expired"
        elif not dead and (failures < LIMIT or not on("limit")):
            draft.ended[r] = lease.n, failures
        elif self.world.may_copy(r) or not on("letter-rights"):
            draft.final[r] = "dead"
            draft.letters.append(r)
        elif on("letter-final"):
            draft.final[r] = "dead"
        else:
            draft.bad = True  # It is refused each time that it is tried.

    def write(self, draft, then=lambda: None):
        """Append *draft*, whole unless a rule is missing; return whether it was accepted."""
        try:
            if draft.letters and not on("dead-letter-atomic"):
                self.append(batch_of(letters=draft.letters))
                draft.letters = []
            if draft.results and not on("publish-atomic"):
                self.append(batch_of(results=draft.results))
                draft.results = []
            self.append(draft, then)
        except Refused:
            return False
        return True

    # Shared subscriptions.

    def lease(self, worker, request, most):
        picked, opened, keys = [], 0, set()
        if not self.trusted() or (on("epoch-first") and self.stored.epoch != self.epoch):
            return
        self.seen = max(self.seen, self.stored.floor)
        for r in range(self.stored.floor + 1, self.journal.last + 1):
            key = r % KEYS if self.world.keyed else r
            if self.final(r):
                self.seen = max(self.seen, r)
                if self.closing[r] and on("key-durable"):
                    keys.add(key)
                continue
            opened += 1
            if r > self.high and opened > WINDOW and on("window"):
                break
            if r > self.stored.reach and on("reach-first"):
                if r > self.state.reach:
                    self.try_append(batch_of(reach=r - 1 + (STEP if on("reach-steps") else RECORDS)))
                break
            self.seen = max(self.seen, r)
            ending = self.ending[r] and on("ended-first")
            if r in self.leases and not ending:
                keys |= {key} if on("key-one") else set()
            elif ending or self.held(r) or self.not_before.get(r, 0) > self.world.now or key in keys:
                if self.held(r):
                    self.check_held(r)
                keys |= {key} if on("key-returned") else set()
            elif r >= self.journal.oldest:
                keys |= {key} if on("key-one") else set()
                self.high = max(self.high, r)
                n = self.state.ends.get(r, (0, 0))[0] + 1
                self.leases[r] = SimpleNamespace(n=n, end=self.clock() + LEASE)
                self.world.leased(r)
                picked.append((r, (self.epoch, n)))
                if len(picked) == most:
                    break
            else:  # Retention has deleted it, and its end could not be written yet.
                keys |= {key} if on("key-returned") else set()
        bound = sum(not self.state.is_final(r) for r in range(1, self.high + 1))
        check(bound <= WINDOW + STEP, f"{bound} unsettled records in a window of {WINDOW} + {STEP}")
        self.world.answer(worker, ("leased", request, picked))

    def check_held(self, r):
        """Check that record *r*, which waits after a start, may have been leased before."""
        check(r <= self.began, f"record {r} waits, but was published after the start")
        check(r <= self.may_wait, f"record {r} waits, but no record above {self.may_wait} can have been leased")

    def may_settle(self, r, token):
        epoch, n = token
        lease, ended = self.leases.get(r), self.state.ends.get(r, (0, 0))[0]
        if self.final(r):
            return False
        if not on("token"):
            return True
        if lease is not None:
            return token == (self.epoch, lease.n)
        if epoch == self.epoch:  # It has ended, and nobody has had the record since.
            return n == ended
        return not on("old-token") or (epoch == self.before and n == ended + 1)

    def holds(self, r, token):
        lease = self.leases.get(r)
        valid = lease is not None and not self.ending[r] and not self.final(r)
        return valid and (not on("token") or token == (self.epoch, lease.n))

    def settle(self, worker, request, items, results, refusal):
        """Carry out *items*: (kind, record, token, delay); with *results*, all of them or nothing.

        *refusal* is why the journal does not take the request: its text cannot be encoded (``bad``), or the worker
        may not publish its results (``forbidden``).
        """
        good = [item for item in items if self.can(*item[:3])]
        draft = batch_of(request=request, bad=refusal == "bad")
        whole = results and on("all-or-nothing")
        if not good or (whole and len(good) < len(items)):
            return self.refuse(worker, request, items)
        if refusal and (on("encode-first") or refusal == "forbidden") and on("one-batch"):
            return self.refuse(worker, request, items)
        self.world.alone(self, worker, *(r for kind, r, *_ in good if kind == "done"))
        for kind, r, _, delay in good:
            if kind == "done":
                draft.final[r] = "settled"
            else:
                self.end(r, draft, kind != "untried", delay, worker, kind == "reject")
        beside = None
        if not on("one-batch"):  # The dead letters are appended beside the rest, and whatever happens to that.
            dead = {r: how for r, how in draft.final.items() if how == "dead"}
            beside = batch_of(final=dead, letters=draft.letters, request=request)
            draft.final, draft.letters = {r: how for r, how in draft.final.items() if r not in dead}, []
            if dead and not self.write(beside):
                return self.refuse(worker, request, items)
            if refusal == "forbidden":
                return self.refuse(worker, request, items)
        draft.results = [r for _, r, *_ in good] if results else []
        ends = {r: draft.final.get(r, draft.ended.get(r)) for _, r, *_ in good}
        if beside is not None:
            ends |= beside.final
        answer = ("settled", request, ends)
        nothing_left = not draft.final and not draft.ended
        early = nothing_left or (not on("answer-all") and "settled" not in draft.final.values())
        then = (lambda: None) if early else lambda: self.world.answer(worker, answer)
        if not nothing_left and not self.write(draft, then):
            return self.refuse(worker, request, items)
        self.world.accepted.add(request)
        self.journal.refused.discard(request)  # It was repeated, after it was refused for a full disk.
        if early:
            self.world.answer(worker, answer)
        return None

    def can(self, kind, r, token):
        return self.may_settle(r, token) if kind == "done" else self.holds(r, token)

    def refuse(self, worker, request, items):
        if request not in self.world.accepted:  # A repeated request finds its own changes.
            self.world.refused(self, request)
        self.world.answer(worker, ("refused", request, [r for _, r, *_ in items if self.stored.is_final(r)]))

    def extend(self, worker, request, r, token):
        epoch, n = token
        if not self.trusted() or self.stored.epoch != self.epoch:
            return
        adopted = r not in self.leases and epoch != self.epoch and self.may_settle(r, token)
        if adopted or self.holds(r, token):  # A lease of the epoch before continues with a new token.
            self.leases[r] = SimpleNamespace(n=n, end=self.clock() + LEASE)
            self.world.answer(worker, ("extended", request, [(r, (self.epoch, n))]))

    # Exclusive subscriptions: one holder, which acknowledges all up to a number.

    def hold_all(self, worker, request, takeover):
        """Make *worker* the holder, and send it everything that is not acknowledged."""
        present = self.holder
        if not self.trusted() or (on("epoch-first") and self.stored.epoch != self.epoch):
            return
        taken = present is not None and present.worker != worker and present.end > self.clock()
        if taken and not takeover and on("one-holder"):
            return
        generation, first = self.state.generation, worker != self.given.get(self.state.generation)
        then = lambda: self.world.answer(worker, ("holds", request, [(floor, last, generation)]))  # noqa: E731
        floor, last = self.state.floor, self.journal.last
        if first:
            generation += 1
            if not self.try_append(batch_of(generation=generation), then if on("generation-first") else lambda: None):
                return
            self.given[generation] = worker
            self.world.displaced(self, worker, takeover)
        self.holder = SimpleNamespace(worker=worker, end=self.clock() + LEASE)
        if (not first and self.stored.generation == generation) or not on("generation-first"):
            then()

    def acknowledge(self, worker, request, up_to, generation):
        if (generation != self.state.generation and on("generation")) or up_to <= self.state.floor:
            return
        then = lambda: self.world.answer(worker, ("acknowledged", request, [up_to]))  # noqa: E731
        try:
            self.append(batch_of(up_to=up_to, by=generation if on("generation") else self.state.generation), then)
        except Refused:
            return
        known = self.given.get(self.state.generation) if self is self.world.server else None
        check(known in (None, worker), f"worker {worker} has acknowledged, but {known} holds the subscription")
        if self.holder is not None and self.holder.worker == worker:
            self.holder.end = self.clock() + LEASE

    # Others.

    def handle(self, message):
        kind, worker, request, *rest = message
        self.tick()
        names = {"lease": self.lease, "settle": self.settle, "extend": self.extend}
        names |= {"hold": self.hold_all, "ack": self.acknowledge}
        names[kind](worker, request, *rest)

    def redrive(self):
        """Publish dead letters again, those that the server has marked."""
        for r, marked in self.journal.dead[self.redriven :]:
            if marked or not on("letter-mark"):
                self.journal.redriven[r] += 1
                check(self.journal.redriven[r] <= self.journal.letters[r], f"a forged letter of {r} was published")
        self.redriven = len(self.journal.dead)

    def stop(self):
        """Stop in order: everything becomes durable, and the exact reach with it; return whether it did."""
        leased = [r for r in self.leases if not self.final(r)]
        reach = max([self.state.floor, *(leased if self.world.now >= self.hold_until else (self.high,))])
        if on("exact-reach") and not self.try_append(batch_of(exact=reach)):
            return False
        while self.pending:
            self.committed()
        return True


class Worker:
    def __init__(self, world, name):
        self.world, self.name, self.paused = world, name, False
        self.held, self.sent, self.unanswered = {}, {}, {}  # held: record -> (token, until when, by its own clock)
        self.holds = None  # of an exclusive subscription: floor, last record, generation, until when

    def send(self, kind, *rest):
        self.world.number += 1
        request = self.world.number
        self.sent[request] = self.world.now
        self.world.net.append((kind, self.name, request, *rest))
        return self.world.net[-1]

    def act(self, rng, patient=False):
        """Do something at random; a *patient* worker does what keeps everything going."""
        if self.world.exclusive:
            return self.consume(rng, patient)
        if self.unanswered and rng.random() < 0.5:
            self.world.net.append(rng.choice(list(self.unanswered.values())))
        what = rng.random()
        if not self.held or (len(self.held) < 3 and what < 0.3):
            self.send("lease", rng.randint(1, 2))
        elif patient or what < 0.75:
            chosen = [r for r in self.held if rng.random() < (0.9 if patient else 0.7)]
            items = [self.verdict(rng, r, patient) for r in chosen]
            if items:
                results = all(kind == "done" for kind, *_ in items)
                refusal = rng.choice(("bad", "forbidden")) if not patient and rng.random() < 0.1 else ""
                message = self.send("settle", items, results or refusal == "forbidden", refusal)
                if results and not refusal:
                    self.unanswered[message[2]] = message
        elif what < 0.95:
            r = rng.choice(list(self.held))
            self.send("extend", r, self.held[r][0])
        else:
            self.held.popitem()  # It forgets the record: the lease ends by itself.
        return None

    def verdict(self, rng, r, patient):
        token = self.held.pop(r)[0]
        if r not in self.world.poison and (patient or rng.random() < 0.7):
            return "done", r, token, 0
        kind = "failed" if patient else rng.choice(("failed", "failed", "failed", "failed", "untried", "reject"))
        self.world.uncounted[r] += kind == "untried"
        return kind, r, token, 0 if patient else rng.choice((0, 0, 3, 8))

    def consume(self, rng, patient):
        """Consume an exclusive subscription."""
        if self.holds is not None and self.holds[3] <= self.world.now:
            self.holds = None
        if self.holds is None or rng.random() < 0.2:
            self.send("hold", not patient and rng.random() < 0.2)
            return
        floor, last, generation, _ = self.holds
        if floor < last:
            up_to = last if patient else rng.randint(floor + 1, last)
            self.send("ack", up_to, generation)

    def answered(self, kind, request, records):
        if request not in self.sent:
            return
        until = (self.sent[request] if on("from-request") else self.world.now) + LEASE
        if kind in ("leased", "extended"):
            del self.sent[request]  # Each answer counts once: what it leased may have been settled since.
            for r, token in records:
                known = self.held.get(r, ((0, 0), 0))
                if until > self.world.now and (kind == "leased" or known[0][1] == token[1]):
                    self.held[r] = token, max(until, known[1] if kind == "extended" else 0)
                    self.world.believes(self, r)
        elif kind == "holds":
            del self.sent[request]
            if until > self.world.now and records[0][2] >= self.world.journal.state.generation:
                self.holds = *records[0], until
        elif kind == "acknowledged":
            check(self.world.journal.state.floor >= records[0], f"record {records[0]} was acknowledged, and is lost")
        elif kind == "settled":
            self.check_answer(records)
            self.unanswered.pop(request, None)
        elif kind == "refused":
            message = self.unanswered.pop(request, None)
            rest = [item for item in message[3] if item[1] not in records] if message else []
            if records and rest:  # Settle the rest again, without the records that have ended.
                message = self.send("settle", rest, *message[4:])
                self.unanswered[message[2]] = message

    def check_answer(self, ends):
        journal = self.world.journal
        for r, end in ends.items():
            if isinstance(end, str):
                check(journal.final.get(r) == end, f"record {r} was answered as {end}, and that was lost")
            elif end is not None:
                known = journal.failures[r] >= end[1] or r in journal.final
                check(known, f"failure {end[1]} of record {r} was answered, and was lost")


class Tenants:
    """The table of subscriptions, which tenants share."""

    def __init__(self):
        self.places = []  # (tenant, whether it is in use), the oldest first

    def count(self, tenant):
        return sum(each[0] == tenant for each in self.places)

    def create(self, tenant, rng):
        before = list(self.places)
        made = self.make(tenant)
        if made and rng.random() < 0.5:
            self.places[-1][1] = True
        gone = [place for place in before if not any(place is each for each in self.places)]
        for other, used in gone:
            check(other == tenant or not used, f"tenant {tenant} took a place of {other} that is in use")
            counts = Counter(each for each, _ in before)
            larger = max((n for each, n in counts.items() if any(p[0] == each and not p[1] for p in before)), default=0)
            check(counts[other] == larger, f"a place of {other} was taken, who is not the largest")
        most = PLACES // 2
        check(self.count(tenant) <= most, f"tenant {tenant} has {self.count(tenant)} of {PLACES} places")
        if tenant == "honest" and not self.count(tenant):
            idle = [place for place in before if not place[1]]
            check(len(before) >= PLACES and not idle, "the honest tenant found no place, but some are idle or free")

    def make(self, tenant):
        if self.count(tenant) >= PLACES // 2 and on("tenant-share"):
            return False
        if len(self.places) >= PLACES:
            usable = [each for each in self.places if not each[1] or not on("place-in-use")]
            if not usable:
                return False
            oldest = max(usable, key=lambda each: self.count(each[0])) if on("largest-first") else usable[0]
            self.places = [each for each in self.places if each is not oldest]
        self.places.append([tenant, False])
        return True

    def step(self, rng):
        tenant = rng.choice((*TENANTS, *TENANTS[1:], *TENANTS[1:]))
        own = [place for place in self.places if place[0] == tenant]
        if tenant != "honest" or not own:
            self.create(tenant, rng)
        elif rng.random() < 0.3:
            self.places = [each for each in self.places if each is not own[0]]
        if self.places and rng.random() < 0.3:
            place = rng.choice(self.places)
            place[1] = not place[1]


class World:
    def __init__(self, rng):
        self.rng, self.now, self.wall, self.number, self.starts = rng, 0, 0, 0, 1
        self.keyed, self.poison = rng.random() < 0.5, {r for r in range(1, RECORDS + 1) if rng.random() < 0.15}
        self.large = {r for r in range(1, RECORDS + 1) if rng.random() < 0.3}
        self.exclusive, self.allowed, self.may_wait = rng.random() < 0.25, True, 0
        wanted = rng.choice((".subscriptions", "dead", "dead", "dead"))
        self.dead = "dead" if wanted[0] == "." and on("letter-stream") else wanted
        self.net, self.deliveries, self.uncounted, self.accepted = [], Counter(), Counter(), set()
        self.left, self.weights = 0, []
        self.journal, self.tenants = Journal(), Tenants()
        self.server, self.old = Server(self), None
        self.workers = [Worker(self, name) for name in range(WORKERS)]

    def may_copy(self, r):
        """Return whether the creator may publish the dead letter of *r* now."""
        check(self.dead[0] != ".", "dead letters go to one of the server's own streams")
        return self.allowed and r not in self.large

    def answer(self, worker, message):
        self.net.append(("answer", worker, *message))

    def refused(self, server, request):
        if server is self.server:  # What an old server answers may contradict the present one.
            self.journal.refused.add(request)

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
            check(not held, f"worker {worker} has ended leases of worker {other.name}, of records {held}")

    def believes(self, worker, r):
        for other in self.workers:
            for also, (_, until) in other.held.items():
                same = also == r and other is not worker
                key = self.keyed and also != r and also % KEYS == r % KEYS
                check(until <= self.now or not same, f"two workers hold record {r}")
                check(until <= self.now or not key, f"records {r} and {also} of one key are held")

    def displaced(self, server, worker, takeover):
        """Tell the holders that *worker* has displaced; without *takeover* there must be none that *server* knows."""
        for other in self.workers:
            if other.name != worker and other.holds is not None and server is self.server:
                *_, generation, until = other.holds
                alone = takeover or until <= self.now or generation not in server.given
                check(alone, f"workers {worker} and {other.name} hold the subscription")
                other.holds = None

    def deliver(self, message):
        if message[0] == "answer":
            if not self.workers[message[1]].paused:
                self.workers[message[1]].answered(*message[2:])
            return
        server = self.old if self.old is not None and self.rng.random() < 0.5 else self.server
        if server is not None and not server.frozen:
            server.handle(message)

    def stop(self):
        """Lose the server; the first of its waiting batches may have become durable."""
        for batch, _ in self.server.pending[: self.rng.choice((0, self.rng.randint(0, len(self.server.pending))))]:
            self.journal.durable(batch)
        self.may_wait = self.server.seen + STEP
        self.server = None

    def start(self):
        if self.server is not None:
            self.stop()
        self.starts, self.server = self.starts + 1, Server(self)

    def step(self):
        """Let one thing happen; how often which thing happens differs between phases of a schedule."""
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
            self.old = server  # Another server takes over; the old one does not know it.
            self.start()
        elif event in ("restart", "deposed") and alive:
            self.now += TAKEOVER if event == "deposed" else 0
            self.old = server if event == "deposed" else None
            self.start()
            self.now += rng.choice((0, LEASE, LEASE))
            self.server.confirmed = self.now
        elif event == "stop" and alive and self.old is None:
            before = self.may_wait if self.now < server.hold_until else 0
            if server.stop():
                self.server, self.may_wait = None, max([before, *self.deliveries])
            else:
                self.stop()
        elif event == "freeze" and server is not None:
            server.frozen = not server.frozen
        elif event == "old" and self.old is not None:
            frozen, self.old.frozen = self.old.frozen, False
            self.old = self.old if frozen else None  # Its next append is refused, and it exits.
        elif event == "pause":
            worker.paused = not worker.paused and rng.random() < 0.3
        elif event == "crash":
            worker.held, worker.sent, worker.unanswered, worker.holds = {}, {}, {}, None
        elif event == "wall":
            self.wall += rng.choice((-50, -5, 5, 50))
        elif event == "retention" and journal.oldest < journal.last:
            journal.oldest += 1
        elif event == "checkpoint" and alive:
            everything = server.state if on("checkpoint-appended") else server.stored
            server.try_append(batch_of(everything=everything.copy()))
        elif event == "full" and alive:
            server.full = not server.full
        elif event == "policy":
            self.allowed = not self.allowed
        elif event == "forge":
            journal.dead.append((rng.randint(1, RECORDS), False))
        elif event == "redrive" and alive and self.old is None:
            server.redrive()
        elif event == "tenant":
            self.tenants.step(rng)

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
        check(self.server.stored.counts == Counter(journal.final.values()), "the counters are wrong")
        for r, kind in journal.final.items():
            check(journal.letters[r] <= (kind == "dead"), f"record {r} is {kind}, {journal.letters[r]} dead letters")
            check(journal.results[r] <= (kind == "settled"), f"record {r} is {kind}, {journal.results[r]} results")
        return journal.final


def schedule(seed):
    """Run one schedule, and return what happened."""
    world = World(random.Random(seed))
    for _ in range(world.rng.choice((80, 200, 400))):
        world.step()
    found = Counter(world.drain().values())
    found += Counter(deliveries=world.deliveries.total(), starts=world.starts, letters=world.journal.letters.total())
    return found + Counter(acknowledged=world.journal.settled_to, redriven=world.journal.redriven.total())


def without(rule):
    return lambda: {(sys.modules[__name__], "OFF"): frozenset({rule})}


SEARCH = Search(schedule, {rule: without(rule) for rule in RULES})

if __name__ == "__main__":
    sys.exit(SEARCH.main(__doc__))
