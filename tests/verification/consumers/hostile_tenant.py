"""Random requests of a hostile tenant about subscriptions, beside a tenant whose subscription they must not change.

    python tests/verification/consumers/hostile_tenant.py --schedules 1000 --seed 1   check the rules
    python tests/verification/consumers/hostile_tenant.py --without rights   remove a rule: it must be noticed
    python tests/verification/consumers/hostile_tenant.py --rules   remove each rule in turn

A whole broker with the HTTP listener in front of it, on a journal in memory.  The hostile tenant has all rights to the
streams ``evil*``, and none to others.  It sends valid requests, valid ones with one odd value, and rubbish: to any path
below ``/subscriptions``, with tokens that it has got, repeats or invents.  After each request:

- it is answered, with no status above 499 but 503 and 507, and nothing is logged as a failure;
- the subscription of the other tenant, and its streams, are as they were; no stream is created that is not ``evil*``;
- the counts of each pool are those of its spans, and a final record has no state;
- now and then, another server reads the same state from the journal.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import attrs
from searching import Search, check
from truth import agrees
from twisted.internet.task import Clock
from twisted.logger import LogLevel, globalLogPublisher

sys.path.insert(0, str(Path(__file__).parents[3]))

from fyrehose.broker.broker import Broker
from fyrehose.broker.guard import Guard, PeerRights
from fyrehose.broker.policy import parse
from fyrehose.broker.sequencer import Sequencer
from fyrehose.protocols.http import server
from fyrehose.protocols.http.managing import KINDS
from fyrehose.protocols.http.server import HttpFactory, HttpSettings
from fyrehose.records import Run
from fyrehose.subscriptions.lane import Lane
from fyrehose.subscriptions.pool import LeasePool
from fyrehose.subscriptions.progress import SavedSubscription, SubscriptionOptions, pack_whole
from fyrehose.testing import ClientSide, MemoryJournal

STREAMS, DEAD = ("evil.a", "evil.b"), "evil.dead"
#: Values that are odd somewhere.
ODD = (
    None,
    True,
    0,
    1,
    -1,
    (1 << 48) - 1,
    1 << 48,
    1 << 64,
    0.5,
    1e308,
    "",
    "1.1",
    "999999999999999.1",
    "\u00e9" * 128,
)
ODD += ("\u2028", "\ud800", "x\0", ".", ".subscriptions", "dead.http", "evil", "orders", "*", "[", [], [[]], {}, [1])
ODD += ([1, "1.1"], {"delay": 1e9}, {"why": ""}, "start", "-1h", "2026-11-28T12:00", "a" * 256)
ACTIONS = ("", "", "lease", "lease", "lease", "settle", "settle", "settle", "settle", "ack", "rewind", "release")
ACTIONS += ("pause", "redrive", "report", "S", "x", "ack/y")
CREATION = {"lease": (1, 5), "limit": (0, 1, 3), "window": (1, 3, 1000), "most": (1, 100), "key": ("topic", "k")}
CREATION |= {"dead": (DEAD, "orders", ".x", "evil.a"), "from": (0, 1, 5, "-1h", "start")}
REWINDS = ({"seq": 0}, {"seq": "latest"}, {"since": "-1h"}, {"positions": {"evil.a": 3}}, {"positions": {"orders": 1}})


class World:
    def __init__(self, rng):
        self.rng, self.journal, self.clock = rng, MemoryJournal(), Clock()
        rules = {"network": "127.0.0.1", "publish": "evil*", "subscribe": "evil*", "consume": "evil*"}
        self.broker = Broker(self.clock, self.journal, Sequencer(), guard=Guard(parse({"allow": [rules]})))
        self.broker.open()
        self.factory = HttpFactory(self.broker, HttpSettings(refusal_delay=0.0), self.clock)
        for stream in ("orders", *STREAMS):
            self.publish(stream, [json.dumps({"k": number % 3}).encode() for number in range(30)])
        options = SubscriptionOptions(stream="orders", lease=3_600)
        self.victim = self.broker.table.create("victim", options).result
        self.victim.lease("honest", None, 3, 0)
        self.before, self.tokens, self.failures, self.seen = self.state(), [], [], Counter()

    def publish(self, stream, payloads):
        self.broker.publish([Run.of(stream, payloads, source="test", content_type="application/json")])

    def state(self):
        """Return the state of the other tenant's subscription."""
        return packed(self.victim), self.victim.pool.leased

    # What the tenant sends:

    def value(self, depth=0):
        kind = self.rng.random()
        if kind < 0.6 or depth > 3:
            return self.rng.choice(ODD)
        parts = [self.value(depth + 1) for _ in range(self.rng.randrange(4))]
        return parts if kind < 0.8 else dict(zip(("seq", "stream", "delay", "why"), parts, strict=False))

    def item(self):
        rng = self.rng
        invented = rng.choice(STREAMS), rng.randint(1, 40), f"{rng.randint(0, 40)}.{rng.randint(0, 4)}"
        stream, seq, token = rng.choice(self.tokens) if self.tokens and rng.random() < 0.8 else invented
        found = [seq if rng.random() < 0.7 else [max(1, seq - rng.randint(0, 3)), seq + rng.randint(0, 3)], token]
        if rng.random() < 0.5:
            found.insert(0, stream)
        if rng.random() < 0.4:
            found.append(rng.choice(({"delay": 0}, {"delay": 5}, {"why": "w"}, {})))
        if rng.random() < 0.05:
            found[rng.randrange(len(found))] = self.value()
        return found

    def body(self, action):
        rng = self.rng
        if action == "lease":
            found = {"consumer": rng.choice("abc"), "most": rng.choice((1, 3, 10, 1000))}
            found |= {"request": rng.randint(0, 3)} if rng.random() < 0.3 else {}
        elif action == "settle":
            kinds = rng.sample(KINDS, rng.randint(1, 3))
            found = {kind: [self.item() for _ in range(rng.randint(1, 3))] for kind in kinds}
            if rng.random() < 0.2:
                found["publish"] = [{"stream": rng.choice(("evil.r", "orders", ".x", "evil.a")), "payload": "p"}]
        elif action == "":
            place = rng.choice((("stream", "evil.a"), ("stream", "evil.b"), ("match", "evil.*"), ("match", "*")))
            found = {place[0]: place[1], "shared": True}
            found |= {name: rng.choice(values) for name, values in CREATION.items() if rng.random() < 0.15}
        else:
            fixed = {"release": {"consumer": rng.choice("abc")}, "pause": {"paused": rng.random() < 0.3}, "redrive": {}}
            fixed |= {"ack": {"seq": rng.choice((0, 5, 30))}, "rewind": rng.choice(REWINDS)}
            found = dict(fixed.get(action, {}))
        if rng.random() < 0.1:
            found[rng.choice([*found, "x"])] = self.value()
        return found if rng.random() < 0.95 else self.value()

    def request(self):
        """Return the action, the method, the path and the body of a request."""
        rng = self.rng
        name = (
            rng.choice("st")
            if rng.random() < 0.9
            else rng.choice(("victim", "", "S", "x" * 65, "..", "s.new", "\u00e9"))
        )
        action, usual = rng.choice(ACTIONS), "POST"
        path = f"/subscriptions/{name}" + (f"/{action}" if action else "")
        if not action:
            usual = "PUT" if rng.random() < 0.8 else "DELETE"
        if rng.random() < 0.05:
            path = rng.choice(
                ("/subscriptions", f"/streams/evil.a{path}", f"/streams/orders{path}", f"{path}/", f"{path}?x")
            )
        method = usual if rng.random() < 0.9 else rng.choice(("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS"))
        return action, method, path, json.dumps(self.body(action)).encode() if method in ("POST", "PUT") else b""

    # What must hold:

    def step(self):
        action, method, path, body = self.request()
        peer = ClientSide.connect(self.factory, self.clock, port=5000)
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        peer.send(f"{method} {quote(path, safe='/?=')} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n".encode() + body)
        answer = peer.received()
        for _ in range(4):
            if not answer:
                self.clock.advance(0)
                answer += peer.received()
        sent = f"{method} {path} {body[:300]!r}"
        check(answer.startswith(b"HTTP/1.1 "), f"no answer to {sent}")
        status, (head, _, rest) = int(answer[9:12]), answer.partition(b"\r\n\r\n")
        self.seen[f"{action} {status}"] += 1
        check(status < 500 or status in (503, 507), f"{sent}: {head.splitlines()[0]!r}")
        check(not self.failures, f"{sent}: {self.failures}")
        if action == "lease" and b'"records"' in rest:
            found = json.loads(rest)["records"]
            self.tokens = [*self.tokens, *((each["stream"], each["seq"], each["token"]) for each in found)][-30:]
        self.check(sent)

    def check(self, sent):
        check(self.state() == self.before, f"{sent} has changed the subscription of another tenant")
        ends = self.journal.ends()
        check(ends["orders"] == 30, f"{sent} has published into another tenant's stream")
        strange = [name for name in ends if name not in ("orders", ".subscriptions") and not name.startswith("evil")]
        check(not strange, f"{sent} has created {strange}")
        for each in self.broker.table.entries.values():
            if not each.options.shared:
                continue
            agrees(each.pool, sent)
            for lane in each.pool.lanes.values():
                final = [
                    span for span in lane.spans if lane.progress.final.gaps(span.first, span.last) != [span_of(span)]
                ]
                check(not final, f"{sent}: {final} have a state, and are final")

    def check_restart(self):
        """Check that another server finds the same state in the journal."""
        other = Broker(Clock(), self.journal, Sequencer())
        other.open()
        here, there = (
            {name: packed(each) for name, each in each.table.entries.items()} for each in (self.broker, other)
        )
        check(here == there, "another server finds another state in the journal")


def packed(subscription):
    saved = subscription.saved
    return [*pack_whole("any", 0, attrs.evolve(saved, time=0, streams=dict(sorted(saved.streams.items()))))]


def span_of(span):
    return span.first, span.last


def schedule(seed):
    """Let the tenant send 300 requests, and return how they were answered."""
    rng = random.Random(seed)
    world = World(rng)

    def logged(event):
        if event["log_level"] in (LogLevel.error, LogLevel.critical):
            world.failures.append(str(event.get("log_failure") or event["log_format"]))

    globalLogPublisher.addObserver(logged)
    try:
        for _ in range(300):
            world.step()
            if rng.random() < 0.2:
                world.clock.advance(rng.choice((0, 0.5, 1, 6)))
            if rng.random() < 0.05:
                world.publish(rng.choice((*STREAMS, "evil.c")), [b"{}"] * rng.randint(1, 5))
            if rng.random() < 0.03:
                world.check_restart()
    finally:
        globalLogPublisher.removeObserver(logged)
    return world.seen


def _failing(real):
    """Let the last action end in an error that nobody expects."""
    return lambda event, named, peer: 1 / 0 if event.action == "redrive" else real(event, named, peer)


#: By rule: the replacements that remove it.
MISSING = {
    "rights": lambda: {(PeerRights, "permits"): lambda rights, action, stream: True},
    "counts": lambda: {(LeasePool, "count"): lambda pool, state, change: None},
    "final": lambda: {(Lane, "put"): lambda lane, first, last, state: state and _put(lane, first, last, state)},
    "errors": lambda: {(server, "carry_out"): _failing(server.carry_out)},
    "replayed": lambda: {(SavedSubscription, "apply"): lambda saved, change: None},
}

_put = Lane.put
SEARCH = Search(schedule, MISSING)

if __name__ == "__main__":
    sys.exit(SEARCH.main(__doc__))
