"""Check the jobs of a shared subscription: how each ended in the journal, who had a lease, and what workers were told.

each job ends once in a generation (between two rewinds): settled, in one commit with its result, or as a dead letter,
in one commit with the letter
while a lease lasts no other worker gets its job, even if the server crashes
a worker has no more jobs than its limit, window and share; of two jobs with one key the second is leased only after
the end of the first is durable
tokens of earlier generations have no effect, and a dead letter is published again at most once
retention ends the jobs that it deletes; it deletes jobs that are not settled only after the configured time

Each protocol has a :class:`Tap` that tells the book what workers ask, when the server reads it, and what the server
sends.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from history import History

sys.path.insert(0, str(Path(__file__).parents[1] / "consumers"))

from truth import Truth

NAME, RESULTS, DEAD = "workers", "done", "jobs.dead"
#: The streams in which the server keeps the state of subscriptions, and the idempotency keys of publishes.
STATE, KEYS = ".subscriptions", ".published"
#: Verdicts after which a worker has no longer the job, and verdicts that may end the job.
RETURNING, CLOSING = ("failed", "untried", "reject"), ("done", "reject", "failed")

#: A job, by its stream and its number there.
Place = tuple[str, int]


def epoch_of(token: str) -> int:
    return int(token.partition(".")[0])


@attrs.define
class Given:
    """A lease that the server gave: its worker, its token, and the earliest time at which it ends."""

    consumer: str
    token: str
    until: float


@attrs.frozen
class Verdict:
    """What a worker says about a job: done, failed, untried, reject or extend.

    :ivar lease: the lease of the job at the time when the server read the verdict; None if there was none
    """

    kind: str
    place: Place
    token: str
    lease: Given | None = None


@attrs.define(eq=False)
class Book:
    """All jobs of one subscription, and what was seen of them.

    :ivar streams: the streams of the subscription
    :ivar alone: whether there is a single server, not a cluster
    :ivar keeps: returns whether retention must keep jobs that are not settled
    :ivar given: the worker that got a job with a token
    :ivar busy: the last lease of each job, unless its worker has returned the job
    :ivar returned: tokens of leases that the server returned by itself because the worker's connection was lost
    :ivar closing: jobs about which the server has read a verdict that may end them
    :ivar looked: the last number of each stream that the server had read when it started; it may lease any of these at
        once
    :ivar deleted: the last number of each stream that was deleted when the generation of the stream began
    :ivar requests: of each worker's last request for jobs: its number, the life of the server, and the leases
    :ivar lives: how often a server was started
    """

    history: History
    now: Callable[[], float]
    options: dict[str, Any]
    streams: tuple[str, ...]
    alone: bool
    keeps: Callable[[], bool] = lambda: True
    truth: Truth = attrs.field(init=False)
    results: set[tuple[str, int, int]] = attrs.field(factory=set)
    copies: Counter[bytes] = attrs.field(factory=Counter)
    died: Counter[bytes] = attrs.field(factory=Counter)
    letters: Counter[bytes] = attrs.field(factory=Counter)
    excused: Counter[bytes] = attrs.field(factory=Counter)
    seen: Counter[str] = attrs.field(factory=Counter)
    happened: Counter[str] = attrs.field(factory=Counter)
    given: dict[tuple[Place, str], str] = attrs.field(factory=dict)
    busy: dict[Place, Given] = attrs.field(factory=dict)
    returned: set[tuple[Place, str]] = attrs.field(factory=set)
    closing: set[Place] = attrs.field(factory=set)
    deliveries: Counter[Place] = attrs.field(factory=Counter)
    untried: Counter[Place] = attrs.field(factory=Counter)
    high: Counter[str] = attrs.field(factory=Counter)
    looked: dict[str, int] = attrs.field(factory=dict)
    deleted: dict[str, int] = attrs.field(factory=dict)
    requests: dict[str, tuple[int, int, dict[Place, str]]] = attrs.field(factory=dict)
    lives: int = 0

    def __attrs_post_init__(self) -> None:
        self.truth = Truth(NAME, self.check, self._begun)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the reasons for which the server may refuse a verdict; in a cluster the leader may be deposed."""
        return ("final", "later", "lease-lost", "rewound", *(() if self.alone else ("not-leading",)))

    def check(self, holds: object, what: str) -> None:
        if not holds:
            self.history.wrong(what)

    def deleted_up_to(self, stream: str) -> int:
        """Return the number of the last job of *stream* that retention has deleted; 0 if it has deleted none."""
        journal = self.history.journal
        oldest = 0 if journal is None else journal.bounds(stream)[0]
        return int(max(self.history.deleted.get(stream, 0), oldest - 1))

    def is_deleted(self, place: Place) -> bool:
        return place[1] <= self.deleted_up_to(place[0])

    def generation(self, place: Place, token: str) -> tuple[str, int, int]:
        """Return stream, number, and the generation in which the job was leased with *token*."""
        return *place, self.truth.generation(place[0], epoch_of(token))

    def is_current(self, place: Place, token: str) -> bool:
        """Return whether *token* was given in the present generation of its job."""
        return self.generation(place, token)[2] == self.truth.generation(place[0])

    def ended_ever(self, place: Place) -> bool:
        """Return whether a job has ended, in this generation or in one before a rewind."""
        return place in self.truth.final or any(each[:2] == place for each in self.truth.ended)

    def _begun(self, rewound: str | None) -> None:
        """Handle the begin of a new generation of the stream *rewound*, or of all streams if it is None."""
        self.happened["rewound" if rewound else "created" if self.truth.exists else "deleted"] += 1
        self.requests.clear()
        for stream in self.streams if rewound is None else (rewound,):
            self.high[stream] = 0
            self.deleted[stream] = self.deleted_up_to(stream)
            for known in (self.busy, self.deliveries, self.untried):
                for place in [place for place in known if place[0] == stream]:
                    del known[place]
            self.closing = {place for place in self.closing if place[0] != stream}

    # The journal:

    def look(self) -> None:
        """Read what became durable, and check that results and dead letters agree with how jobs ended."""
        self.history.look()
        known = (STATE, RESULTS, DEAD, *self.streams)
        if all(len(self.history.truth.get(stream, ())) == self.seen[stream] for stream in known):
            return
        touched = set()
        for stream in self.streams:
            for _, payload in self._new(stream):
                self.copies[payload] += 1
                touched.add(payload)
        settled: list[tuple[str, int, int]] = []
        for _, payload in self._new(STATE):
            touched |= self._changed(json.loads(payload), settled)
        results = [self._result(json.loads(payload)) for _, payload in self._new(RESULTS)]
        for _, payload in self._new(DEAD):
            self.letters[payload] += 1
            touched.add(payload)
        for each in settled:
            self.check(each in self.results, f"job {each} is settled without its result")
        for each in results:
            self.check(self.truth.ended.get(each) == "settled", f"job {each} has a result although it is not settled")
        for payload in touched:
            self._check_letters(payload)

    def _new(self, stream: str) -> Iterator[tuple[int, bytes]]:
        truth = self.history.truth.get(stream, ())
        for seq in range(self.seen[stream] + 1, len(truth) + 1):
            payload = truth[seq - 1]
            self.seen[stream] = seq
            if payload is not None:
                yield seq, payload

    def _result(self, result: dict[str, Any]) -> tuple[str, int, int]:
        found = self.generation((result["stream"], result["of"]), result["token"])
        self.check(found not in self.results, f"the result of job {found} is published twice")
        self.results.add(found)
        return found

    def _changed(self, change: dict[str, Any], settled: list[tuple[str, int, int]]) -> set[bytes]:
        """Apply a durable change of the subscription; return the jobs that died, and add those settled to *settled*."""
        if "epoch" in change and "set" not in change:
            self.looked = dict(self.truth.reach)
        self.happened["redriven"] += "redriven" in change and "set" not in change
        found, died = self.truth.apply(change), set()
        for stream, seq, how in found:
            self.happened[how] += 1
            place = stream, seq
            if how == "settled":
                settled.append((stream, seq, self.truth.generation(stream)))
            elif how == "dead":
                payload = self.history.truth[stream][seq - 1]
                self.died[payload or b""] += 1
                self.excused[payload or b""] += self.is_deleted(place)
                died.add(payload or b"")
            else:
                self.check(self.is_deleted(place), f"job {place} expired although it is not deleted")
                early = self.keeps() and seq > self.deleted.get(stream, 0)
                self.check(not early, f"retention has deleted job {place} before it was settled")
        for seq, failures, why, _ in change.get("letters", ()):
            limit = self.options["limit"]
            self.check(
                why != "limit" or failures == limit,
                f"job {seq} is dead after {failures} failures, and the limit is {limit}",
            )
        return died

    def _check_letters(self, payload: bytes) -> None:
        """Check that a job has one dead letter for each death, and one more copy at most for each letter."""
        died, letters, copies = self.died[payload], self.letters[payload], self.copies[payload]
        if payload:
            right = died - self.excused[payload] <= letters <= died
            self.check(right, f"{payload[:50]!r} has died {died} times, and has {letters} dead letters")
            # If retention has deleted the idempotency key, a repeated publish is stored again.
            twice = copies > letters + 1 and not self.deleted_up_to(KEYS)
            self.check(not twice, f"{payload[:50]!r} is published {copies} times, and has {letters} dead letters")

    # Requests to the server, and its answers:

    def asked(self, verdicts: Iterable[Verdict]) -> dict[Place, Verdict]:
        """Record the *verdicts* that the server reads; return them by job, each with the job's present lease."""
        self.look()
        about = {}
        for each in verdicts:
            lease, lasting = self.busy.get(each.place), None
            if lease is not None and lease.until > self.now():
                lasting = lease
                if each.kind in RETURNING and each.token == lease.token:
                    del self.busy[each.place]
            if each.kind in CLOSING and self.is_current(each.place, each.token):
                self.closing.add(each.place)
            self.untried[each.place] += each.kind == "untried"
            about[each.place] = attrs.evolve(each, lease=lasting)
        return about

    def lost(self, verdicts: Mapping[Place, Verdict]) -> None:
        """Record that the server returns the jobs of a worker whose connection is lost."""
        self.returned |= {(place, each.token) for place, each in verdicts.items()}

    def leased(self, consumer: str, request: int | None, records: list[tuple[Place, str, int, bytes]]) -> None:
        """Check the jobs that the server sends to the worker *consumer*: (job, token, failures, payload) of each."""
        self.look()
        if request is not None:
            self._check_repeated(consumer, request, {place: token for place, token, _, _ in records})
        for place, token, failures, payload in records:
            self.check(self.truth.exists, f"job {place} is leased although the subscription is deleted")
            self.check(
                place[0] in self.streams, f"job {place} is leased although its stream is not in the subscription"
            )
            self.history.release(*place, payload)
            known = self.truth.final.get(place)
            self.check(known is None, f"job {place} is leased although it was {known}")
            old = epoch_of(token) not in self.truth.epochs or not self.is_current(place, token)
            self.check(not old, f"job {place} is leased with token {token}, whose epoch is not the present one")
            if self.options["key"] is not None:
                self._check_key(place, payload)
            self._give(place, token, consumer)
            right = failures == self.truth.ends.get(place, [0, 0])[1]
            self.check(right, f"job {place} is said to have failed {failures} times, not {self.truth.ends.get(place)}")
        now, busy = self.now(), self.busy.items()
        # A record that retention has deleted expires, but that need not be on disk yet.
        ended = {place for place, _ in busy if place in self.truth.final or self.is_deleted(place)}
        mine = [each for place, each in busy if each.consumer == consumer and place not in ended]
        held = Counter(epoch_of(each.token) for each in mine if each.until > now)
        most = self.options["most"]
        self.check(max(held.values(), default=0) <= most, f"{consumer} has {held} jobs, {most} are allowed")

    def _check_repeated(self, consumer: str, request: int, tokens: dict[Place, str]) -> None:
        """Check that a repeated request for jobs gets the same leases, if no server was started in between.

        In a cluster nothing is checked: another server does not know the earlier request.
        """
        number, life, got = self.requests.get(consumer, (0, 0, {}))
        if number == request and life == self.lives and self.alone:
            for place, token in got.items():
                lease = self.busy.get(place)
                lasts = lease is not None and lease.token == token and lease.until > self.now()
                ends = place in self.truth.final or place in self.closing or self.is_deleted(place)
                right = not lasts or ends or tokens.get(place) == token
                self.check(right, f"the repeated request of {consumer} did not return {lease} of job {place}")
        if tokens:
            self.requests[consumer] = request, self.lives, tokens

    def _give(self, place: Place, token: str, consumer: str) -> None:
        until = self.now() + self.options["lease"]
        holder, last = self.given.get((place, token)), self.busy.get(place)
        if holder is None:
            ended = last is None or last.until <= self.now() + 1e-6
            self.check(ended, f"job {place} goes to {consumer} with token {token}, while it is leased: {last}")
            self._check_window(place)
            self.given[place, token] = consumer
            self.deliveries[place] += 1
            self.high[place[0]] = max(self.high[place[0]], place[1])
            self._check_limit(place)
        else:
            self.check(holder == consumer, f"job {place} with token {token} goes to {consumer}, and {holder} had it")
        self.busy[place] = Given(consumer, token, until)

    def _check_limit(self, place: Place) -> None:
        generation, count = self.truth.generation(place[0]), self.deliveries[place]
        epochs = sum(each >= generation for each in self.truth.epochs.values())
        most = self.options["limit"] + epochs - 1 + self.untried[place]
        self.check(count <= most, f"job {place} is delivered {count} times, {most} are allowed")

    def _check_window(self, place: Place) -> None:
        """Check that leasing a job for the first time keeps the window; jobs that are about to end are not counted."""
        stream, seq = place
        if self.deliveries[place] or (len(self.streams) > 1 and seq <= self.looked.get(stream, 0)):
            return
        ends = {each: seq - 1 if each == stream else self.high[each] for each in self.streams}
        before = ((each, number) for each, end in ends.items() for number in range(1, end + 1))
        limit, final = self.options["limit"], self.truth.final
        open_ = [each for each in before if each not in final and each not in self.closing]
        open_ = [each for each in open_ if self.deliveries[each] < limit and not self.is_deleted(each)]
        window = self.options["window"]
        self.check(len(open_) < window, f"job {place} is leased while {open_} are open, beyond the window of {window}")

    def _check_key(self, place: Place, payload: bytes) -> None:
        stream, seq = place
        key, truth = json.loads(payload)["key"], self.history.truth[stream]
        for earlier in range(1, seq):
            same = json.loads(truth[earlier - 1] or b"{}").get("key") == key
            if same and (stream, earlier) not in self.truth.final:
                self.history.wrong(f"job {place} of key {key} is leased before the end of {earlier} is durable")

    def acted(
        self,
        about: Mapping[Place, Verdict],
        settled: Iterable[Place],
        refused: Iterable[tuple[Place, str]],
        extended: Iterable[tuple[Place, str]],
    ) -> None:
        """Check the server's answer to a worker's verdicts *about*: the jobs settled, refused and extended."""
        self.look()
        for place in settled:
            asked = about[place]
            how = self.truth.ended.get(self.generation(place, asked.token))
            self.check(how == "settled", f"the server says that job {place} is settled, but the journal says {how}")
            right = asked.lease is None or asked.lease.token == asked.token
            self.check(right, f"job {place} is settled with {asked.token} although {asked.lease} has it")
        for place, why in refused:
            self._check_refused(about[place], why)
        for place, token in extended:
            lease = about[place].lease
            if lease is not None and lease.token == about[place].token and self.busy.get(place) is lease:
                self.given[place, token] = lease.consumer
                self.busy[place] = Given(lease.consumer, token, max(lease.until, self.now()))

    def _check_refused(self, asked: Verdict, why: str) -> None:
        place, token, lease = asked.place, asked.token, asked.lease
        self.check(why in self.reasons, f"job {place} is refused: {why}")
        self.check(
            why != "final" or self.ended_ever(place),
            f"the server says that job {place} has ended, but the journal does not",
        )
        # A token is no longer valid after two more starts of a server, nor after a rewind.
        counts = epoch_of(token) in sorted(self.truth.epochs)[-2:]
        counts = counts and self.truth.epochs.get(epoch_of(token)) == self.truth.beginnings
        if lease is not None and lease.token == token and counts and self.busy.get(place) is lease:
            lasts = lease.until > self.now() and why == "lease-lost" and not self.is_deleted(place)
            self.check(not lasts, f"a verdict on job {place} is refused to {lease}, which has the job")
