"""Random schedules for repeated events: the real code between agents that send again and a server that is killed.

    python tests/verification/resent/resent_schedules.py --schedules 20000 --seed 1     check the rules
    python tests/verification/resent/resent_schedules.py --without bytes                remove a rule
    python tests/verification/resent/resent_schedules.py --rules                        remove each rule in turn

The agents behave like Beats: each has two connections with up to two batches on each, and sends a batch as one or two
windows; events that are not acknowledged when a connection is lost are sent again, on any connection, in other windows.
The server notices the loss of a connection late, and still reads what it has received.  It is killed, stopped and
replaced, and its disk fills up.  Some events have an identity; others are equal but are different messages.

    agent -> runs of a connection -> Sender.sift -> journal -> durable, out of order -> ACK, which may be lost -> agent

The world knows the truth independently of the tested code: for which message (``uid``) each record was stored.  A
record may stand for one acknowledged message only, and an event with an identity is stored once.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace

from fyrehose.kernels import lumberjack as kernel
from fyrehose.kernels.pure.lumberjack import FINGERPRINT
from fyrehose.protocols.lumberjack import resent
from fyrehose.protocols.lumberjack.ledger import Fingerprints
from fyrehose.protocols.lumberjack.resent import Repetitions, Sender
from fyrehose.records import Run, column_of

sys.path.insert(0, str(Path(__file__).parents[1] / "consumers"))

from searching import Search, Violation

STREAM, FOREVER = "s", 10**9
#: The kinds of events: with an identity; the same, with keys in a random order each time; equal ones without an
#: identity; different ones without; and different ones whose fields wrongly give them one identity.
STYLES = ("id", "order", "ok", "u", "clash")


def document(style, uid, process):
    """Return the fields of an event."""
    if style in ("ok", "u"):
        return {"message": "ok" if style == "ok" else f"m{uid}"}
    offset, message = (0, f"{uid:09}") if style == "clash" else (uid, "ok")
    log = {"offset": offset, "file": {"path": "/x"}}
    return {"@timestamp": "t", "agent": {"ephemeral_id": process}, "log": log, "message": message}


class Rec:
    def __init__(self, uid, payload):
        self.uid, self.payload, self.holder = uid, payload, None


class Conn:
    def __init__(self, agent, sender):
        self.agent, self.sender = agent, sender
        self.out, self.back, self.up, self.open = [], [], True, True
        self.entries, self.ends, self.durable, self.acked = [], [], 0, 0


class Agent:
    """An agent with two connections; it sends a failed batch again from the first event without an acknowledgement."""

    def __init__(self, world, style, network):
        self.world, self.style, self.network = world, style, network
        self.begin()

    def begin(self):
        self.process = f"p{self.world.r.getrandbits(40)}"
        self.conns, self.retry, self.flight = [None, None], [], []

    def step(self):
        w, i = self.world, self.world.r.randrange(2)
        conn = self.conns[i]
        if conn is None or not conn.up:
            self.conns[i] = w.connect(self)
            return
        if sum(1 for each in self.flight if each.conn is conn) >= 2:
            return
        if self.retry and w.r.random() < 0.7:
            events = self.retry.pop(w.r.randrange(len(self.retry)))
        elif w.left > 0:
            events = [w.message(self) for _ in range(w.r.randint(1, 4))]
            w.batches.append(events)
        else:
            return
        self.flight.append(SimpleNamespace(conn=conn, events=events, acked=0))
        cut = w.r.choice([len(events), w.r.randint(1, len(events))])
        for part in (events[:cut], events[cut:]):
            if part:  # a window arrives in one or two reads
                k = w.r.randint(1, len(part))
                conn.out.append((len(part), part[:k]))
                if part[k:]:
                    conn.out.append((0, part[k:]))

    def ack(self, conn, upto):
        got = dict(conn.entries[:upto])
        for batch in [each for each in self.flight if each.conn is conn]:
            for uid in batch.events[batch.acked :]:
                if uid not in got:
                    break
                self.world.received(uid, got[uid])
                batch.acked += 1
            if batch.acked == len(batch.events):
                self.flight.remove(batch)

    def lost(self, conn):
        for batch in [each for each in self.flight if each.conn is conn]:
            self.flight.remove(batch)
            if batch.events[batch.acked :]:
                self.retry.append(batch.events)  # a partial acknowledgement is forgotten with the connection

    def die(self):
        for conn in filter(None, self.conns):
            self.world.cut(conn)
        self.begin()


class World:
    def __init__(self, seed):
        r = self.r = random.Random(seed)
        self.uid, self.left, self.now, self.stat = 0, r.randint(8, 40), 0, Counter()
        self.acked, self.batches, self.payloads = set(), [], {}
        self.journal, self.durable, self.pending, self.conns = [], 0, [], []
        self.full = False  #: whether the next publish is refused
        #: whether the server forgets no identity, so that an event with one must not be stored twice
        self.strict = r.random() < 0.75
        self.capacity, self.age = (FOREVER, FOREVER) if self.strict else (r.randint(1, 12), r.choice([20, FOREVER]))
        networks = r.choice([["nat"] * 3, ["a", "b", "c"]])
        self.agents = [Agent(self, r.choice(STYLES), networks[n]) for n in range(r.randint(1, 3))]
        self.start()

    # Agents:

    def message(self, agent):
        self.uid += 1
        self.left -= 1
        self.payloads[self.uid] = agent.style, document(agent.style, self.uid, agent.process)
        return self.uid

    def bytes_of(self, uid):
        """Return the JSON of the event *uid*, which may have another order of keys each time."""
        style, fields = self.payloads[uid]
        items = list(fields.items())
        if style == "order":
            self.r.shuffle(items)
        return json.dumps(dict(items)).encode()

    def connect(self, agent):
        conn = Conn(agent, None)
        conn.sender = self.repetitions.connected(agent.network, lambda: self.settled(conn))
        self.conns.append(conn)
        return conn

    def cut(self, conn):
        """Let the agent lose *conn*; the server reads on until it notices."""
        if conn.up:
            conn.up = False
            conn.back.clear()
            if self.r.random() < 0.5:
                del conn.out[self.r.randint(0, len(conn.out)) :]
            conn.agent.lost(conn)

    def received(self, uid, rec):
        if uid in self.acked:
            return
        self.acked.add(uid)
        if rec not in self.journal[: self.durable]:
            raise Violation("an acknowledged message is not in the journal")
        if rec.holder not in (None, uid):
            raise Violation("one record stands for two acknowledged messages")
        rec.holder = uid

    # The server:

    def start(self):
        self.repetitions = Repetitions(
            self.read_journal, lambda stream: (1, self.durable), lambda: self.now, self.capacity, self.age
        )
        end = self.durable
        while end:
            begin = max(0, end - 1 - end % 4)  # in runs of 1 to 4 records
            self.repetitions.recover(self.run(self.journal[begin:end], begin + 1), "nat")
            end = begin

    @staticmethod
    def run(records, first):
        column = column_of([rec.payload for rec in records])
        fields = {"source": "lumberjack", "content_type": "application/json", "producer_seq": 1}
        return Run(stream=STREAM, lengths=column.lengths, payload=column.payload, first_seq=first, **fields)

    def read_journal(self, stream, start, size):
        stop = min(self.durable, start - 1 + self.r.randint(1, 4))
        return (self.run(self.journal[start - 1 : stop], start),) if start <= self.durable else ()

    def read(self, conn):
        if not conn.open or not conn.out:
            return
        size, uids = conn.out.pop(0)
        while self.repetitions.has_unread:
            self.repetitions.read_more()
        if size:
            conn.ends.append(len(conn.entries) + size)
        events = [(uid, self.bytes_of(uid)) for uid in uids]
        runs = [self.run([Rec(uid, payload) for uid, payload in events], 0)]
        fresh, originals = conn.sender.sift(runs)
        if fresh and self.full:  # the journal refuses the next publish at once
            self.full = False
            conn.sender.begin(len(events), sum(map(len, fresh)), originals)
            conn.sender.publishing(fresh, len(conn.ends), 0)
            conn.sender.refused(fresh)
            self.close(conn)
            return
        left = [bytes(payload) for run in fresh for payload in run.payloads()]
        for uid, payload in events:
            if payload in left:
                left.remove(payload)
                self.check_double(uid)
                self.journal.append(Rec(uid, payload))
                conn.entries.append((uid, self.journal[-1]))
            else:
                self.stat["dropped"] += 1
                conn.entries.append((uid, self.original(payload)))
        acknowledged = sum(1 for end in conn.ends if end <= conn.acked)
        conn.sender.begin(len(events), sum(map(len, fresh)), originals)
        conn.sender.publishing(fresh, len(conn.ends), acknowledged)
        for run in fresh:
            run.first_seq = len(self.journal) - len(run) + 1
            self.pending.append((conn, run))
        conn.durable += conn.sender.take_durable()

    def original(self, payload):
        fields = json.loads(payload)
        return next((rec for rec in self.journal if json.loads(rec.payload) == fields), None)

    def check_double(self, uid):
        if any(rec.uid == uid for rec in self.journal):
            style = self.payloads[uid][0]
            self.stat["doubled " + style] += 1
            if self.strict and style in ("id", "order"):
                raise Violation("an event with an identity is stored twice")

    def settled(self, conn):
        conn.durable += conn.sender.take_durable()

    def commit(self):
        """Make everything durable, and settle each connection once, in any order."""
        self.durable = len(self.journal)
        pending, self.pending = self.pending, []
        owners = list({conn: None for conn, _ in pending})
        self.r.shuffle(owners)
        for owner in owners:
            owner.durable += owner.sender.durable([run for conn, run in pending if conn is owner])
            self.acknowledge(owner)

    def acknowledge(self, conn):
        n = conn.durable
        if self.r.random() < 0.5 and n > conn.acked:
            n = self.r.randint(conn.acked + 1, n)
        if n > conn.acked and conn.open:
            conn.acked = n
            if conn.up:
                conn.back.append(n)

    def deliver(self, conn, count):
        for _ in range(count):
            conn.agent.ack(conn, conn.back.pop(0))

    def close(self, conn):
        if conn.open:
            conn.open = False
            conn.sender.close(len(conn.ends), sum(1 for end in conn.ends if end <= conn.acked))
            if conn.up:
                self.cut(conn)

    def stop(self, how):
        if how == "term":
            self.commit()
            for conn in self.conns:
                self.acknowledge(conn)
        for conn in self.conns:
            if conn.up and self.r.random() < 0.5:  # the kernel still delivers some acknowledgements
                self.deliver(conn, self.r.randint(0, len(conn.back)))
            if conn.up:
                self.cut(conn)
        del self.journal[self.durable :]
        self.pending, self.conns = [], []
        self.start()

    def run_schedule(self, steps):
        r = self.r
        for i in range(steps + 150):
            calm = i >= steps
            if calm:
                self.left = 0
            self.now += 1
            x, conn = r.random(), r.choice(self.conns) if self.conns else None
            if x < 0.25 or conn is None:
                r.choice(self.agents).step()
            elif x < 0.50:
                self.read(conn)
            elif x < 0.62:
                self.commit()
            elif x < 0.80:
                self.acknowledge(conn)
            elif x < 0.92:
                self.deliver(conn, min(1, len(conn.back)))
            elif x < 0.95:
                if not conn.up:
                    self.close(conn)
            elif not calm:
                if x < 0.97:
                    self.cut(conn)
                elif x < 0.985:
                    self.stop(r.choice(["kill", "kill", "term"]))
                elif x < 0.990:
                    self.full = True
                elif x < 0.994:
                    r.choice(self.agents).die()
        first = {rec.uid: at for at, rec in reversed(list(enumerate(self.journal[: self.durable])))}
        for batch in self.batches:
            places = [first[uid] for uid in batch if uid in self.acked and uid in first]
            if places != sorted(places):
                raise Violation("messages of a batch are stored out of order")
        self.stat.update(stored=len(self.journal), acked=len(self.acked))


def schedule(name):
    """Run the schedule *name*, "SEED-NUMBER"; return what happened."""
    seed, number = map(int, name.split("-"))
    world = World(seed * 1_000_003 + number)
    world.run_schedule(150)
    return world.stat


def _not_waiting(self, records, stored, originals):
    return _BEGIN(self, records, stored, ())


def _any_order(self):
    ready = [turn for turn in self._turns if not turn.stored and not turn.originals]
    for turn in ready:
        self._turns.remove(turn)
    return sum(turn.records for turn in ready)


def _forgetful(self, sender, acknowledged):
    sender.recent.clear()
    return _DISCONNECTED(self, sender, acknowledged)


def _of_everything(self, run):
    """Return fingerprints also of events without an identity."""
    documents = (json.dumps(json.loads(bytes(each)), sort_keys=True).encode() for each in run.payloads())
    return b"".join(blake2b(each, digest_size=FINGERPRINT).digest() for each in documents)


def _of_the_fields(self, run):
    return kernel.fingerprints(run.lengths, run.payload, self.identity.alternatives, False, bytes(32))


def _of_the_bytes(self, run):
    """Return fingerprints that the order of members changes."""
    column = _of_the_fields(self, run)
    found = (column[at : at + FINGERPRINT] for at in range(0, len(column), FINGERPRINT))
    made = (blake2b(bytes(each), digest_size=FINGERPRINT).digest() for each in run.payloads())
    return b"".join(one if any(each) else each for each, one in zip(found, made, strict=True))


def _only_durable(self, column):
    found = _ORIGINALS(self, column)
    return None if found is None else [each if each is None or each.run is None else None for each in found]


_BEGIN, _DISCONNECTED, _ORIGINALS = Sender.begin, Repetitions.disconnected, Repetitions.originals

#: By rule: the replacements that remove the rule from the code.
MISSING = {
    "identity": lambda: {(Fingerprints, "of"): _of_everything},
    "whole-event": lambda: {(Fingerprints, "of"): _of_the_fields},
    "members-in-any-order": lambda: {(Fingerprints, "of"): _of_the_bytes},
    "in-flight": lambda: {(Repetitions, "originals"): _only_durable},
    "durable": lambda: {(Sender, "begin"): _not_waiting},
    "turns-in-order": lambda: {(Sender, "take_durable"): _any_order},
    "refused-forgotten": lambda: {(Sender, "refused"): lambda self, runs: None},
    "lost": lambda: {(Repetitions, "disconnected"): _forgetful},
    "acknowledged-windows": lambda: {(resent, "WINDOWS"): 0},
    "half-open": lambda: {(Repetitions, "watch"): lambda self, stretch, found=None: None},
    "start": lambda: {(Repetitions, "recover"): lambda self, run, network: None},
}


SEARCH = Search(schedule, MISSING, (resent,))

if __name__ == "__main__":
    sys.exit(SEARCH.main(__doc__))
