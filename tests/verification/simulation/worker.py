"""A simulated worker of a shared subscription over HTTP: it leases, settles, returns and extends, and is often late."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import attrs
from book import NAME, RESULTS, Place
from history import Sent
from webclient import Client, place_of, settled_by

#: What a worker does with a good job, with weights; a dropped job comes again when its lease ends.
KINDS = (("done", 12), ("failed", 2), ("untried", 1), ("reject", 1), ("extend", 3), ("drop", 2))
#: What a worker does with a job that always fails, with weights.
BAD_KINDS = (("failed", 7), ("untried", 1), ("extend", 2))
#: Status codes that say that the subscription does not exist, or no longer.
GONE = (404, 410)


@attrs.define
class Held:
    """A job that a worker believes to have leased.

    :ivar until: when the lease ends
    :ivar bad: whether the job always fails
    """

    token: str
    until: float
    bad: bool


def item(side: Any, place: Place, token: str, *more: Any) -> list[Any]:
    """Return an item of a request to settle; it names its stream if the subscription has several."""
    return [*(place if side.pattern else place[1:]), token, *more]


def items(side: Any, kind: str, jobs: dict[Place, str]) -> list[list[Any]]:
    """Return the items that send the verdict *kind* on *jobs*, which have their tokens."""
    dice = side.world.random
    options: dict[str, Any] = {"failed": {"delay": dice.choice((0, 0, 0.5, 3))}, "reject": {"why": "no"}}
    return [
        item(side, place, token, *([options[kind]] if kind in options and dice.random() < 0.9 else []))
        for place, token in jobs.items()
    ]


def results(side: Any, name: str, jobs: dict[Place, str]) -> list[dict[str, str]]:
    """Return the results of *jobs* that the worker *name* publishes."""
    found = []
    for (stream, seq), token in jobs.items():
        result = json.dumps({"stream": stream, "of": seq, "by": name, "token": token})
        side.history.send(RESULTS, result.encode(), Sent(name, None, lambda: 1))
        found.append({"stream": RESULTS, "payload": result})
    return found


def choose(dice: Any, weighted: tuple[tuple[str, int], ...]) -> str:
    names, weights = zip(*weighted, strict=True)
    return str(dice.choices(names, weights)[0])


class Worker(Client):
    """A worker that leases jobs, one request after another, and answers them.

    :ivar held: the jobs that it believes to have leased, and some whose leases it knows to have ended
    """

    def __init__(self, side: Any, name: str) -> None:
        super().__init__(side, name)
        self.held: dict[Place, Held] = {}
        self._create()

    def _create(self) -> None:
        """Create the subscription, which may already exist."""
        self.ask("PUT", f"/subscriptions/{NAME}", json.dumps(self.side.creation()).encode(), self._created)

    def _created(self, status: int, answer: Any) -> None:
        if status != 200:
            self.side.history.wrong(f"{self.name}: creating the subscription is refused with {status}: {answer}")
        self._soon()

    def _soon(self) -> None:
        """Act after a while; a slow worker waits until its leases may have ended."""
        dice, slow = self.world.random, 0.0 if self.side.patient else 2.0 * self.side.book.options["lease"]
        self.later(dice.choice((0.0, 0.0, 0.05, 0.05, 0.3, 1.0, slow)) * (dice.random() + 0.01), self._act)

    def _act(self) -> None:
        """Send the next request."""
        now, dice, patient = self.world.clock.seconds(), self.world.random, self.side.patient
        late = 0.0 if patient else 0.9
        self.held = {place: held for place, held in self.held.items() if held.until > now or dice.random() < late}
        # It seldom answers jobs whose leases have ended, so that other workers get them.
        mine = [place for place, held in self.held.items() if held.until > now or dice.random() < 0.15]
        if not mine or (not patient and dice.random() < 0.3):
            self._lease()
            return
        place = dice.choice(sorted(mine))
        if self.held[place].bad:
            self._settle({"failed" if patient else choose(dice, BAD_KINDS): [place]})
        elif patient:
            self._settle({"done": [place]})
        else:
            kind = choose(dice, KINDS)
            several = [each for each in sorted(self.held) if each != place and not self.held[each].bad]
            more = dice.sample(several, min(len(several), dice.choice((0, 0, 1, 3))))
            other = dice.choice(("done", kind)) if kind in ("failed", "extend") else kind
            parts: dict[str, list[Place]] = {kind: [place]}
            for each in more:
                parts.setdefault(other, []).append(each)
            self._settle(parts)

    def _lease(self) -> None:
        dice, side = self.world.random, self.side
        side.requests += 1
        self.wait = 0 if any(held.until > self.sent for held in self.held.values()) else dice.choice((0, 0, 1, 20))
        body = {"consumer": self.name, "request": side.requests, "most": dice.choice((1, 2, 10)), "wait": self.wait}
        self.ask("POST", f"/subscriptions/{NAME}/lease", json.dumps(body).encode(), self._leased)

    def _leased(self, status: int, answer: Any) -> None:
        self.wait = 0
        if status in GONE:
            self._create()
            return
        if status != 200:
            self.side.history.wrong(f"{self.name}: leasing is refused with {status}: {answer}")
        until = self.sent + answer["waited"] + answer["lease"]
        for record in answer["records"]:
            if until > self.world.clock.seconds():
                place = record["stream"], record["seq"]
                self._take(place, Held(record["token"], until, json.loads(record["payload"])["bad"]))
        self._soon()

    def _take(self, place: Place, held: Held) -> None:
        self.held[place] = held
        self.side.believes(self, place, held)

    def _settle(self, parts: dict[str, list[Place]]) -> None:
        """Send one request to settle the jobs in *parts*, grouped by verdict, with the results of those done."""
        for place in parts.pop("drop", ()):
            del self.held[place]
        if not parts:
            self._soon()
            return
        tokens = {kind: {place: self.held[place].token for place in places} for kind, places in parts.items()}
        body: dict[str, Any] = {"consumer": self.name}
        body |= {kind: items(self.side, kind, jobs) for kind, jobs in tokens.items()}
        if "done" in tokens:
            body["publish"] = results(self.side, self.name, tokens["done"])
        gone = {place: self.held[place] for places in parts.values() for place in places}
        extended = parts.get("extend", ())
        self.held = {place: held for place, held in self.held.items() if place not in gone or place in extended}
        done = set(tokens.get("done", ()))
        path, then = f"/subscriptions/{NAME}/settle", partial(self._settled, gone, done)
        self.ask("POST", path, json.dumps(body).encode(), then)

    def _settled(self, asked: dict[Place, Held], done: set[Place], status: int, answer: Any) -> None:
        if status in GONE:
            self.held.clear()
            self._create()
            return
        stream = self.side.streams[0]
        refused = {place_of(each, stream) for each in answer.get("refused", ())}
        if not (status == 200 or (status == 409 and refused and done)):
            self.side.history.wrong(f"{self.name}: {asked} is answered with {status}: {answer}")
        if status == 200 and set(settled_by(answer, stream)) | refused < done:
            self.side.history.wrong(f"{self.name}: {answer} says nothing of {done}")
        if status == 409:  # nothing was done, so send the other jobs again
            self.held |= {place: held for place, held in asked.items() if place not in refused}
        until = self.sent + self.side.book.options["lease"]
        for each in answer.get("extended", ()):
            place = place_of(each, stream)
            if place in self.held:
                held = self.held[place]
                self._take(place, Held(each["token"], max(held.until, until), held.bad))
        self._soon()
