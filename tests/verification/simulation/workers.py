"""Workers that share a subscription by HTTP: they lease, settle with results, return, extend, repeat, and crash.

    publishers -> jobs -> leases -> workers -> settle with a result in ``done``, fail, reject, or let the lease end

each job is settled once, with its result in the same commit, or is a dead letter once; nothing else is published
while a lease lasts nobody else gets its job, whatever becomes of the server
limit, window and share of a worker are kept; of a key each job is leased when the end of the one before is durable
a checkpoint of the subscription says what its changes before it say

The clients are written from docs/protocols/http.md alone.  A :class:`Tap` sees each request when the server gets it,
and each answer when it leaves the server; the :class:`Book` reads the truth from the journal.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any

import attrs
from history import History, Sent
from links import Endpoint
from server import Server
from twisted.internet.protocol import Factory, Protocol
from world import Host, World

from fyrehose.protocols.http.plugin import plugin
from fyrehose.protocols.http.server import HttpSettings

PORT = 8117
NAME, JOBS, RESULTS, DEAD = "workers", "jobs", "done", "jobs.dead"
#: Where the server keeps the subscription, and the keys of publishes.
STATE, KEYS = ".shared", ".published"
#: Refusals that may pass by themselves.
TEMPORARY = (429, 503)
#: What a worker does with a job that can be done, and how often; what is dropped comes again when its lease ends.
KINDS = (("done", 12), ("failed", 2), ("untried", 1), ("reject", 1), ("extend", 3), ("drop", 2))
#: How long a worker waits for an answer beside the time that it lets the server wait, in seconds.
PATIENCE = 5.0
#: So many jobs are published and no more: with a window of 1 some networks let two of them be settled a second.
MOST_JOBS = 200
#: How often the connection of a request breaks before its answer comes.
LOSSES = 0.1
#: The end of the head of a message.
END = b"\r\n\r\n"


def messages(buffer: bytearray) -> Iterator[tuple[str, bytes]]:
    """Take the whole messages of HTTP from *buffer*, and yield the first line and the body of each."""
    while (end := buffer.find(END)) >= 0:
        first, *headers = bytes(buffer[:end]).decode().split("\r\n")
        sizes = [int(line.split(":")[1]) for line in headers if line.lower().startswith("content-length:")]
        end += len(END) + sum(sizes)
        if len(buffer) < end:
            return
        body = bytes(buffer[end - sum(sizes) : end])
        del buffer[:end]
        yield first, body


def numbers(ranges: Any) -> Iterator[int]:
    """Yield the numbers of *ranges*, as the server writes them."""
    for each in ranges:
        first, last = (each, each) if isinstance(each, int) else each
        yield from range(first, last + 1)


@attrs.define
class Given:
    """A lease, as an answer had it: whose it is, and until when it lasts at least."""

    consumer: str
    token: str
    until: float


@attrs.define(eq=False)
class Book:
    """The truth about the jobs: how each ended, by the journal, and who had it, by the answers.

    :ivar alone: whether there is one server
    :ivar final: how each job ended that has: ``settled`` or ``dead``
    :ivar ends: the deliveries of a job that have ended, and how many of them failed
    :ivar given: who got a job with a token
    :ivar busy: the last lease of each job, unless its worker has returned it
    :ivar closing: jobs about which the server has got a request that may end them
    :ivar requests: by worker, the number of its last request for jobs, what it got, and in which life of the server
    :ivar lives: how often a server was started
    """

    history: History
    now: Callable[[], float]
    options: dict[str, Any]
    alone: bool
    final: dict[int, str] = attrs.field(factory=dict)
    ends: dict[int, list[int]] = attrs.field(factory=dict)
    epochs: set[int] = attrs.field(factory=set)
    results: set[int] = attrs.field(factory=set)
    letters: set[int] = attrs.field(factory=set)
    jobs: dict[bytes, int] = attrs.field(factory=dict)
    seen: Counter[str] = attrs.field(factory=Counter)
    given: dict[tuple[int, str], str] = attrs.field(factory=dict)
    busy: dict[int, Given] = attrs.field(factory=dict)
    closing: set[int] = attrs.field(factory=set)
    deliveries: Counter[int] = attrs.field(factory=Counter)
    untried: Counter[int] = attrs.field(factory=Counter)
    requests: dict[str, tuple[int, int, dict[int, str]]] = attrs.field(factory=dict)
    lives: int = 0

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why a job may be refused; a leader that may be deposed extends nothing."""
        return ("final", "being-settled", "lease-lost", *(() if self.alone else ("not-leading",)))

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.history.wrong(what)

    # What is durable.

    def look(self) -> None:
        """Take in what became durable, and check that results and dead letters agree with how jobs ended."""
        self.history.look()
        if all(len(self.history.truth.get(stream, ())) == self.seen[stream] for stream in (STATE, JOBS, RESULTS, DEAD)):
            return
        for seq, payload in self._new(JOBS):
            self.jobs[payload] = seq
        for _, payload in self._new(STATE):
            self._changed(json.loads(payload))
        for _, payload in self._new(RESULTS):
            seq = json.loads(payload)["of"]
            self.check(seq not in self.results, f"the result of job {seq} is published twice")
            self.results.add(seq)
        for _, payload in self._new(DEAD):
            self.letters.add(self.jobs[payload])
        for how, found in (("settled", self.results), ("dead", self.letters)):
            ended = {seq for seq, end in self.final.items() if end == how}
            self.check(ended == found, f"jobs {sorted(ended)} are {how}, and {sorted(found)} were published for them")

    def _new(self, stream: str) -> Iterator[tuple[int, bytes]]:
        truth = self.history.truth.get(stream, ())
        for seq in range(self.seen[stream] + 1, len(truth) + 1):
            payload = truth[seq - 1]
            self.seen[stream] = seq
            if payload is not None:
                yield seq, payload

    def _changed(self, change: dict[str, Any]) -> None:
        if "all" in change:
            self._check_checkpoint(change["shared"][NAME])
            return
        if "epoch" in change:
            self.epochs.add(change["epoch"])
        for seq, end in change.get("ends", {}).items():
            self.ends[int(seq)] = end
        for how, field in (("settled", "final"), ("dead", "dead"), ("expired", "expired")):
            for seq in numbers(change.get(field, ())):
                self.check(seq not in self.final, f"job {seq} is {how}, and was {self.final.get(seq)}")
                self.check(how != "expired", f"job {seq} expired, and nothing is deleted")
                self.final[seq] = how
                self.ends.pop(seq, None)
        for seq, failures, why, _ in change.get("letters", ()):
            limit = self.options["limit"]
            self.check(why != "limit" or failures == limit, f"job {seq} is dead with {failures} failures of {limit}")

    def _check_checkpoint(self, share: dict[str, Any]) -> None:
        progress = share["streams"][JOBS]
        final = {*range(1, progress["floor"] + 1), *numbers(progress["above"])}
        self.check(final == self.final.keys(), f"by a checkpoint {sorted(final)} are final, not {sorted(self.final)}")
        ends = {int(seq): end for seq, end in progress["ends"].items()}
        self.check(ends == self.ends, f"a checkpoint has the failures {ends}, not {self.ends}")

    # What the server gets and says.

    def asked(self, body: dict[str, Any]) -> dict[int, tuple[str, Given]]:
        """Take in a request to settle that the server gets; return its tokens, and the leases that jobs have."""
        self.look()
        about = {}
        for kind in ("done", "failed", "untried", "reject", "extend"):
            for seq, token, *_ in body.get(kind, ()):
                lease = self.busy.get(seq)
                if lease is not None and lease.until > self.now():
                    about[seq] = token, lease
                    if kind in ("failed", "untried", "reject") and token == lease.token:
                        del self.busy[seq]
                if kind in ("done", "reject", "failed"):
                    self.closing.add(seq)
                self.untried[seq] += kind == "untried"
        return about

    def leased(self, consumer: str, request: int, records: list[dict[str, Any]]) -> None:
        """Check the jobs that leave the server for *consumer*."""
        self.look()
        self._check_repeated(consumer, request, {record["seq"]: record["token"] for record in records})
        for record in records:
            seq, token, payload = record["seq"], record["token"], record["payload"].encode()
            self.history.release(JOBS, seq, payload)
            self.check(seq not in self.final, f"job {seq} is leased, and was {self.final.get(seq)}")
            if self.options["key"] is not None:
                self._check_key(seq, payload)
            self._give(seq, token, consumer)
            self.check(record["failures"] == self.ends.get(seq, [0, 0])[1], f"the failures of {record} are wrong")
        lasting = {seq: each for seq, each in self.busy.items() if each.until > self.now() and seq not in self.final}
        mine = [each for each in lasting.values() if each.consumer == consumer]
        held = Counter(each.token.partition(".")[0] for each in mine)
        most = self.options["most"]
        self.check(max(held.values(), default=0) <= most, f"{consumer} has {held} jobs, {most} are allowed")

    def _check_repeated(self, consumer: str, request: int, tokens: dict[int, str]) -> None:
        """Check that a request with the number of the last one gets the same leases, if no server has started since.

        Another server of a cluster does not know of that one.
        """
        number, life, got = self.requests.get(consumer, (0, 0, {}))
        if number == request and life == self.lives and self.alone:
            for seq, token in got.items():
                lease = self.busy.get(seq)
                lasts = lease is not None and lease.token == token and lease.until > self.now()
                ends = seq in self.final or seq in self.closing
                self.check(not lasts or ends or tokens.get(seq) == token, f"{consumer} lacks {lease} of job {seq}")
        if tokens:
            self.requests[consumer] = request, self.lives, tokens

    def _give(self, seq: int, token: str, consumer: str) -> None:
        until = self.now() + self.options["lease"]
        holder, last = self.given.get((seq, token)), self.busy.get(seq)
        if holder is None:
            ended = last is None or last.until <= self.now() + 1e-6
            self.check(ended, f"job {seq} goes to {consumer} with token {token}, while it is leased: {last}")
            self._check_window(seq)
            self.given[seq, token] = consumer
            self.deliveries[seq] += 1
            most = self.options["limit"] + len(self.epochs) - 1 + self.untried[seq]
            self.check(self.deliveries[seq] <= most, f"job {seq} is delivered {self.deliveries[seq]} times of {most}")
        else:
            self.check(holder == consumer, f"job {seq} with token {token} goes to {consumer}, and {holder} had it")
        self.busy[seq] = Given(consumer, token, until)

    def _check_window(self, seq: int) -> None:
        """Check a job that may be leased for the first time: what may be ending counts for nothing."""
        before = [each for each in range(1, seq) if each not in self.final and each not in self.closing]
        limit = self.options["limit"]
        open_ = [each for each in before if self.deliveries[each] < limit]
        window = self.options["window"]
        new = not self.deliveries[seq]
        self.check(len(open_) < window or not new, f"job {seq} is leased with {open_} of {window} open")

    def _check_key(self, seq: int, payload: bytes) -> None:
        key, truth = json.loads(payload)["key"], self.history.truth[JOBS]
        for earlier in range(1, seq):
            if earlier not in self.final and json.loads(truth[earlier - 1] or b"{}")["key"] == key:
                self.history.wrong(f"job {seq} of key {key} is leased before the end of {earlier} is durable")

    def acted(self, about: dict[int, tuple[str, Given]], answer: dict[str, Any]) -> None:
        """Check the answer to a request to settle, which leaves the server."""
        self.look()
        for seq in numbers(answer.get("settled", ())):
            self.check(self.final.get(seq) == "settled", f"job {seq} is said to be settled, and it is not durable")
            token, lease = about.get(seq, ("", None))
            self.check(lease is None or lease.token == token, f"job {seq} is settled with {token}, and {lease} has it")
        for each in answer.get("refused", ()):
            seq, why = each["seq"], each["why"]
            self.check(why in self.reasons, f"job {seq} is refused: {why}")
            self.check(why != "final" or seq in self.final, f"job {seq} is said to be final, and it is not durable")
            token, lease = about.get(seq, ("", None))
            # Two servers later a token does not count any more.
            counts = int(token.partition(".")[0] or 0) in sorted(self.epochs)[-2:]
            if lease is not None and lease.token == token and counts and self.busy.get(seq) is lease:
                lasts = lease.until > self.now() and why == "lease-lost"
                self.check(not lasts, f"job {seq} is refused to {lease}, which has it")
        for each in answer.get("extended", ()):
            seq, (token, lease) = each["seq"], about.get(each["seq"], ("", None))
            if lease is not None and lease.token == token and self.busy.get(seq) is lease:
                self.given[seq, each["token"]] = lease.consumer
                self.busy[seq] = Given(lease.consumer, each["token"], max(lease.until, self.now()))


class Tap:
    """One connection, as seen at the server."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.heard, self.said = bytearray(), bytearray()
        self.asked: deque[tuple[str, Any, Any]] = deque()

    def read(self, data: bytes) -> None:
        self.heard += data
        for line, body in messages(self.heard):
            path = line.split()[1]
            fields = json.loads(body) if path.startswith("/subscriptions") else {}
            self.asked.append((path, fields, self.book.asked(fields) if path.endswith("/settle") else None))

    def wrote(self, data: bytes) -> None:
        self.said += data
        for line, body in messages(self.said):
            status, answer = int(line.split()[1]), json.loads(body)
            # A server that closes may refuse a request of which it has only a part.
            path, fields, about = self.asked.popleft() if self.asked else ("", {}, {})
            self.book.check(bool(path) or status >= 400, f"an answer with {status} to no request: {answer}")
            if path.endswith("/lease") and status == 200:
                self.book.leased(fields["consumer"], fields["request"], answer["records"])
            elif path.endswith("/settle") and status in (200, 409):
                self.book.acted(about, answer)


class Connection(Protocol):
    """One connection of a client."""

    transport: Any

    def __init__(self, client: Client) -> None:
        self.client, self.heard = client, bytearray()

    def connectionMade(self) -> None:
        self.client.connected(self)

    def dataReceived(self, data: bytes) -> None:
        self.heard += data
        for line, body in messages(self.heard):
            self.client.answered(int(line.split()[1]), json.loads(body))

    def connectionLost(self, reason: Any = None) -> None:
        self.client.lost(self)


class Client:
    """Sends one request after another, and each one again until it is answered.

    :ivar paused: whether its process is frozen
    :ivar sent: when the last request was sent, the last time
    """

    def __init__(self, side: Workers, name: str) -> None:
        self.side, self.name, self.world = side, name, side.world
        self.closed = self.paused = False
        self.request: tuple[bytes, Callable[[int, Any], None]] | None = None
        self.connection: Connection | None = None
        self.turn, self.sent, self.wait = 0, 0.0, 0.0
        self.endpoint = Endpoint(self.world, name, PORT, partial(Tap, side.book), servers=side.server.names)
        self._connect()

    def later(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        """Call *what* in a while, unless the client is closed; one that is frozen does it when it continues."""
        self.world.clock.callLater(seconds, self._run, what, *args)

    def _run(self, what: Callable[..., None], *args: Any) -> None:
        if self.paused:
            self.later(0.1, what, *args)
        elif not self.closed:
            what(*args)

    def ask(self, method: str, path: str, body: bytes, then: Callable[[int, Any], None], headers: str = "") -> None:
        """Send a request; *then* takes status and object of the answer."""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self.request = head.encode() + body, then
        self._send()

    def _send(self) -> None:
        if self.request is not None and self.connection is not None:
            self.turn += 1
            self.sent = self.world.clock.seconds()
            self.connection.transport.write(self.request[0])
            dice = self.world.random
            soon = not self.side.patient and dice.random() < LOSSES
            self.later(dice.random() * 0.05 if soon else PATIENCE + self.wait, self._give_up, self.turn)

    def _give_up(self, turn: int) -> None:
        if self.request is not None and turn == self.turn and self.connection is not None:
            self.connection.transport.abortConnection()

    def answered(self, status: int, answer: Any) -> None:
        self.turn += 1
        if status in TEMPORARY and self.connection is not None:
            self.connection.transport.abortConnection()  # It is sent again, to the next server.
        elif self.request is not None:
            then, self.request = self.request[1], None
            then(status, answer)

    def connected(self, connection: Connection) -> None:
        if self.closed:
            connection.transport.abortConnection()
        else:
            self.connection = connection
            self._send()

    def lost(self, connection: Connection) -> None:
        if self.connection is connection:
            self.connection = None
            self.turn += 1
            dice = self.world.random
            self.later(dice.random() * dice.choice((0.01, 1)), self._connect)

    def _connect(self) -> None:
        factory = Factory.forProtocol(lambda: Connection(self))
        self.endpoint.connect(factory).addErrback(lambda _: self.later(0.3, self._connect))

    def pause(self, paused: bool) -> None:
        """Freeze the process, or let it continue."""
        if self.paused is not paused:
            self.paused = paused
            if self.connection is not None:
                transport = self.connection.transport
                (transport.pauseProducing if paused else transport.resumeProducing)()

    def close(self) -> None:
        self.closed = True
        if self.connection is not None:
            self.connection.transport.abortConnection()


class Publisher(Client):
    """Publishes jobs, each request with a key: all of them are stored once, in order."""

    def __init__(self, side: Workers, name: str) -> None:
        super().__init__(side, name)
        self.published = 0
        self.jobs: deque[bytes] = deque()

    def publish(self) -> None:
        dice = self.world.random
        for _ in range(dice.choice(self.world.bursts)):
            self.published += 1
            job = {"n": f"{self.name}:{self.published}", "key": dice.choice("abc"), "bad": dice.random() < 0.15}
            self.jobs.append(json.dumps({**job, "fill": "." * self.world.size()}).encode())
        if self.request is None:
            self._next()

    def _next(self) -> None:
        if self.jobs:
            payload, key = self.jobs[0], f"Idempotency-Key: {self.name}-{self.published - len(self.jobs)}\r\n"
            number = self.published - len(self.jobs)
            self.side.history.send(JOBS, payload, Sent(self.name, number, lambda: 1))
            self.side.history.send(DEAD, payload, Sent(self.name, None, lambda: 1))
            self.ask("POST", f"/streams/{JOBS}", payload, self._stored, key)

    def _stored(self, status: int, answer: Any) -> None:
        if status != 200:
            self.side.history.wrong(f"{self.name}: a job is refused with {status}: {answer}")
        self.side.history.acknowledge(JOBS, self.jobs.popleft())
        self._next()


@attrs.define
class Held:
    """A job that a worker believes to have."""

    token: str
    until: float
    bad: bool


class Worker(Client):
    """Leases jobs, one request after another, and does something with them."""

    def __init__(self, side: Workers, name: str) -> None:
        super().__init__(side, name)
        self.held: dict[int, Held] = {}
        self.ask("PUT", f"/subscriptions/{NAME}", json.dumps(side.body).encode(), self._created)

    def _created(self, status: int, answer: Any) -> None:
        if status != 200:
            self.side.history.wrong(f"{self.name}: creating the subscription is refused with {status}: {answer}")
        self._soon()

    def _soon(self) -> None:
        """Act in a while; a slow worker does so when its leases may be over."""
        dice, slow = self.world.random, 0.0 if self.side.patient else 2.0 * self.side.book.options["lease"]
        self.later(dice.choice((0.0, 0.0, 0.05, 0.05, 0.3, 1.0, slow)) * (dice.random() + 0.01), self._act)

    def _act(self) -> None:
        """Do the next thing."""
        now, dice, patient = self.world.clock.seconds(), self.world.random, self.side.patient
        late = 0.0 if patient else 0.9
        self.held = {seq: held for seq, held in self.held.items() if held.until > now or dice.random() < late}
        # What is not its own any more it seldom speaks of, so that another worker may have that.
        mine = [seq for seq, held in self.held.items() if held.until > now or dice.random() < 0.15]
        if not mine or (not patient and dice.random() < 0.3):
            self._lease()
            return
        seq = dice.choice(sorted(mine))
        if self.held[seq].bad:
            self._settle({"failed" if patient else self._choose((("failed", 7), ("untried", 1), ("extend", 2))): [seq]})
        elif patient:
            self._settle({"done": [seq]})
        else:
            kind = self._choose(KINDS)
            several = [each for each in sorted(self.held) if each != seq and not self.held[each].bad]
            more = dice.sample(several, min(len(several), dice.choice((0, 0, 1, 3))))
            other = dice.choice(("done", kind)) if kind in ("failed", "extend") else kind
            parts: dict[str, list[int]] = {kind: [seq]}
            for each in more:
                parts.setdefault(other, []).append(each)
            self._settle(parts)

    def _choose(self, weighted: tuple[tuple[str, int], ...]) -> str:
        names, weights = zip(*weighted, strict=True)
        return str(self.world.random.choices(names, weights)[0])

    def _lease(self) -> None:
        dice, side = self.world.random, self.side
        side.requests += 1
        self.wait = 0 if any(held.until > self.sent for held in self.held.values()) else dice.choice((0, 0, 1, 20))
        body = {"consumer": self.name, "request": side.requests, "most": dice.choice((1, 2, 10)), "wait": self.wait}
        self.ask("POST", f"/subscriptions/{NAME}/lease", json.dumps(body).encode(), self._leased)

    def _leased(self, status: int, answer: Any) -> None:
        self.wait = 0
        if status != 200:
            self.side.history.wrong(f"{self.name}: leasing is refused with {status}: {answer}")
        until = self.sent + answer["waited"] + answer["lease"]
        for record in answer["records"]:
            if until > self.world.clock.seconds():
                self._take(record["seq"], Held(record["token"], until, json.loads(record["payload"])["bad"]))
        self._soon()

    def _take(self, seq: int, held: Held) -> None:
        self.held[seq] = held
        for other in self.side.workers:
            until = other.held[seq].until if other is not self and seq in other.held else 0
            if until > self.world.clock.seconds():
                self.side.history.wrong(f"{self.name} and {other.name} believe that they have job {seq}")

    def _settle(self, parts: dict[str, list[int]]) -> None:
        """Send one request for the jobs in *parts*, by what is to become of them, with the results of those done."""
        dice, tokens = self.world.random, {seq: held.token for seq, held in self.held.items()}
        options: dict[str, Any] = {"failed": {"delay": dice.choice((0, 0, 0.5, 3))}, "reject": {"why": "no"}}
        dropped = parts.pop("drop", [])
        body: dict[str, Any] = {"consumer": self.name}
        for kind, seqs in parts.items():
            more = [options[kind]] if kind in options and dice.random() < 0.9 else []
            body[kind] = [[seq, tokens[seq], *more] for seq in seqs]
        results = [json.dumps({"of": seq, "by": self.name, "token": tokens[seq]}) for seq in parts.get("done", ())]
        for result in results:
            self.side.history.send(RESULTS, result.encode(), Sent(self.name, None, lambda: 1))
        if results:
            body["publish"] = [{"stream": RESULTS, "payload": result} for result in results]
        extended = {seq: self.held[seq] for seq in parts.get("extend", ())}
        gone = {seq: self.held.pop(seq) for seqs in (dropped, *parts.values()) for seq in seqs}
        self.held |= extended
        if len(body) > 1:
            path = f"/subscriptions/{NAME}/settle"
            self.ask("POST", path, json.dumps(body).encode(), partial(self._settled, {**gone}, body))
        else:
            self._soon()

    def _settled(self, asked: dict[int, Held], body: dict[str, Any], status: int, answer: Any) -> None:
        refused = {each["seq"] for each in answer.get("refused", ())}
        if not (status == 200 or (status == 409 and refused and "publish" in body)):
            self.side.history.wrong(f"{self.name}: {body} is answered with {status}: {answer}")
        settled, done = set(numbers(answer.get("settled", ()))), {seq for seq, _ in body.get("done", ())}
        if status == 200 and settled | refused < done:
            self.side.history.wrong(f"{self.name}: {answer} says nothing of {done}")
        if status == 409:  # Nothing was done, so the others go on.
            self.held |= {seq: held for seq, held in asked.items() if seq not in refused}
        until = self.sent + self.side.book.options["lease"]
        for each in answer.get("extended", ()):
            if each["seq"] in self.held:
                held = self.held[each["seq"]]
                self._take(each["seq"], Held(each["token"], max(held.until, until), held.bad))
        self._soon()


class Workers:
    """All of them.

    :param herd: how many workers there are; 0: a few
    """

    #: whether its clients can do without what is lost or not kept
    gaps = False
    topics = (JOBS,)

    def __init__(self, world: World, server: Server, history: History, herd: int = 0) -> None:
        dice = world.random
        self.world, self.server, self.history = world, server, history
        self.patient_from = 0.0 if herd else inf
        history.internal |= {STATE, KEYS}
        options = {
            "lease": 2 if herd else dice.choice((1, 1, 3, 10)),
            "limit": dice.choice((1, 2, 3)),
            "window": 100 if herd else dice.choice((1, 3, 10, 1000)),
            "most": dice.choice((1, 3, 100)),
            "key": dice.choice((None, "key")),
        }
        self.body = {"stream": JOBS, "shared": True, "dead": DEAD, **options}
        self.book = Book(history, world.clock.seconds, options, len(server.names) == 1)
        self.requests = self.made = 0
        server.listen(self._listener)
        self.publishers = [Publisher(self, f"publisher-{number}") for number in range(dice.choice((1, 2)))]
        self.workers: list[Worker] = []
        for _ in range(herd or dice.randint(1, 4)):
            self.made += 1
            self.workers.append(Worker(self, f"worker-{self.made}"))

    def _listener(self, host: Host, broker: Any) -> Any:
        self.book.lives += 1
        return plugin.make_service(host, broker, f"tcp:{PORT}", HttpSettings())

    def step(self) -> None:
        dice = self.world.random
        self.book.look()
        what, worker = dice.random(), dice.choice(self.workers)
        if what < 0.1:
            self._crash(worker)
        elif what < 0.2:
            worker.pause(not worker.paused)
        elif sum(publisher.published for publisher in self.publishers) < MOST_JOBS:
            dice.choice(self.publishers).publish()

    def _crash(self, worker: Worker) -> None:
        """A worker dies, and another one begins, under its name or a new one."""
        self.world.note(f"{worker.name} dies with {sorted(worker.held)}")
        worker.close()
        worker.held.clear()
        self.made += 1
        name = worker.name if self.world.random.random() < 0.5 else f"worker-{self.made}"
        self.workers[self.workers.index(worker)] = Worker(self, name)

    def everybody(self) -> None:
        """All publishers of a herd publish."""
        for publisher in self.publishers:
            publisher.publish()

    @property
    def patient(self) -> bool:
        """Whether workers settle everything that they can, and no connection breaks."""
        return self.world.clock.seconds() >= self.patient_from

    def calm(self) -> None:
        """For some lease times workers still behave badly by themselves: most simulations are shorter than a lease."""
        lasting = 3 * self.book.options["lease"] * self.world.random.random()
        self.patient_from = min(self.patient_from, self.world.clock.seconds() + lasting)
        for worker in self.workers:
            worker.pause(False)

    def settled(self) -> str:
        """Return which jobs are not published or not settled yet, or how the counters differ; empty if all is well."""
        self.book.look()
        waiting = sum(len(publisher.jobs) for publisher in self.publishers)
        if waiting:
            return f"{waiting} jobs are not published"
        left = [seq for seq in self.book.jobs.values() if seq not in self.book.final]
        if left:
            return f"jobs {left} are never settled"
        return self._miscounted()

    def _miscounted(self) -> str:
        """Return how the counters of the server differ from what happened to the jobs; empty if they do not."""
        broker = self.server.leading_broker()
        shared = None if broker is None else broker.shares.entries.get(NAME)
        if shared is None:
            return "" if not self.book.jobs else "the server has no subscription"
        progress = shared.work.lanes[JOBS].progress
        counted = {"settled": progress.settled, "dead": progress.dead, "expired": progress.expired}
        true = Counter(self.book.final.values())
        return "" if +Counter(counted) == true else f"the server counts {counted}, and it is {true}"

    def counts(self) -> int:
        return sum(publisher.published for publisher in self.publishers)

    def close(self) -> None:
        for client in (*self.publishers, *self.workers):
            client.close()
