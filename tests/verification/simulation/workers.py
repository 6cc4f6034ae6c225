"""Simulate workers that share a subscription over HTTP; they settle jobs, return them, and crash.

    publishers -> jobs -> leases -> workers -> settle with a result in ``done``, fail, reject, or let the lease end

The subscription has one stream, or the pattern ``jobs.*``.  Meanwhile an operator rewinds it, deletes it, and publishes
its dead letters again (managers.py), and retention may delete jobs that are not settled.  The rules are in book.py.
Workers are written from docs/protocols/http.md (worker.py).
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

from book import DEAD, KEYS, NAME, STATE, Book, Place
from history import History
from managers import Manager
from publisher import Publisher
from server import Server
from webclient import PORT
from worker import Held, Worker
from world import Host, World

from fyrehose.protocols.http.plugin import plugin
from fyrehose.protocols.http.server import HttpSettings

#: How many jobs are published at most: with a window of 1, slow networks allow only two settled jobs a second.
MOST_JOBS = 200


class Workers:
    """The publishers, the workers and the operator of a shared subscription.

    :param herd: how many workers there are; 0 means a few
    """

    #: whether its clients cope with records that were lost or deleted
    gaps = False
    #: whether retention may delete jobs that are not settled
    retention = True
    topics = ("jobs",)

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
        self.pattern = dice.random() < 0.4
        self.streams = ("jobs.a", "jobs.b", "jobs.c") if self.pattern else self.topics
        place = {"match": "jobs.*"} if self.pattern else {"stream": self.streams[0]}
        self.body = {**place, "shared": True, "dead": DEAD, **options}
        self.book = Book(history, world.clock.seconds, options, self.streams, len(server.names) == 1, self._keeps)
        self.requests = self.made = 0
        server.listen(self._listener)
        self.publishers = [Publisher(self, f"publisher-{number}") for number in range(dice.choice((1, 2)))]
        #: how often a step is a change of the subscription
        self.changes = 0.0 if herd else dice.choice((0.0, 0.1, 0.3))
        self.manager = Manager(self, "manager")
        self.workers: list[Worker] = []
        for _ in range(herd or dice.randint(1, 4)):
            self.workers.append(self._worker())

    def creation(self) -> dict[str, Any]:
        """Return the body of a request that creates the subscription, from a random first number."""
        return {**self.body, "from": self.world.random.choice((1, 1, 3)) if self.changes else 1}

    def _worker(self, name: str = "") -> Worker:
        self.made += 1
        return Worker(self, name or f"worker-{self.made}")

    def _listener(self, host: Host, broker: Any) -> Any:
        self.book.lives += 1
        return plugin.make_service(host, broker, f"tcp:{PORT}", HttpSettings())

    def _keeps(self) -> bool:
        """Return whether retention waits for workers so long that it deletes no job before it is settled."""
        if not self.book.alone:
            return True
        settings = self.server.settings
        return min(settings.subscription_timeout, settings.subscription_bytes) > 3600 and not self.world.leapt

    def believes(self, worker: Any, place: Place, held: Held) -> None:
        """Check that no other worker believes that it has the job of *worker*, too."""
        generation = self.book.generation(place, held.token)
        for other in self.workers:
            theirs = other.held.get(place)
            if other is worker or theirs is None or theirs.until <= self.world.clock.seconds():
                continue
            void = (place, theirs.token) in self.book.returned or (place, held.token) in self.book.returned
            if not void and self.book.generation(place, theirs.token) == generation:
                self.history.wrong(f"{worker.name} and {other.name} believe that they have job {place}")

    def step(self) -> None:
        dice = self.world.random
        self.book.look()
        what, worker = dice.random(), dice.choice(self.workers)
        if what < 0.1:
            self._crash(worker)
        elif what < 0.2:
            worker.pause(not worker.paused)
        elif what < 0.2 + self.changes:
            self.manager.act()
        elif self.counts() < MOST_JOBS:
            dice.choice(self.publishers).publish()

    def _crash(self, worker: Worker) -> None:
        """Crash a worker, and start another one under the same or a new name."""
        self.world.note(f"{worker.name} dies with {sorted(worker.held)}")
        worker.close()
        name = worker.name if self.world.random.random() < 0.5 else ""
        self.workers[self.workers.index(worker)] = self._worker(name)

    def everybody(self) -> None:
        """Publish a job with every publisher."""
        for publisher in self.publishers:
            publisher.publish()

    @property
    def patient(self) -> bool:
        """Return whether workers settle all good jobs and no connection breaks any more."""
        return self.world.clock.seconds() >= self.patient_from

    def calm(self) -> None:
        """End the faults, except that workers lose leases for some lease times: most simulations are shorter."""
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
        if self.manager.request is not None:
            return "the manager waits for an answer"
        if not self.book.truth.exists:
            return "there is no subscription"
        ends = ((stream, len(self.history.truth.get(stream, ()))) for stream in self.streams)
        left = [(stream, seq) for stream, end in ends for seq in range(1, end + 1)]
        left = [place for place in left if place not in self.book.truth.final]
        if left:
            return f"jobs {left} are not settled"
        return self._miscounted()

    def _miscounted(self) -> str:
        """Return how the counters of the server differ from what happened to the jobs, or an empty string."""
        broker = self.server.leading_broker()
        shared = None if broker is None else broker.table.entries.get(NAME)
        if shared is None:
            return "the server has no subscription"
        counted: Counter[tuple[str, str]] = Counter()
        for stream, lane in shared.pool.lanes.items():
            counted |= {(stream, how): count for how, count in lane.progress.counts.items()}
        true = self.book.truth.counts
        return "" if +counted == +true else f"the server counts {counted}, but {true} is right"

    def counts(self) -> int:
        return sum(publisher.published for publisher in self.publishers)

    def close(self) -> None:
        for client in (*self.publishers, *self.workers, self.manager):
            client.close()
