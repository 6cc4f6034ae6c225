"""A simulated publisher of jobs over HTTP; idempotency keys ensure that each job is stored once, in order."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from book import DEAD
from history import Sent
from webclient import Client

#: How often the history lets a job be stored; a smaller limit, which depends on its dead letters, is checked by the
#: book.
OFTEN = 1_000


class Publisher(Client):
    """A client that publishes jobs to the streams of the subscription."""

    def __init__(self, side: Any, name: str) -> None:
        super().__init__(side, name)
        self.published = 0
        self.jobs: deque[tuple[str, bytes]] = deque()

    def publish(self) -> None:
        dice = self.world.random
        for _ in range(dice.choice(self.world.bursts)):
            self.published += 1
            job = {"n": f"{self.name}:{self.published}", "key": dice.choice("abc"), "bad": dice.random() < 0.15}
            payload = json.dumps({**job, "fill": "." * self.world.size()}).encode()
            self.jobs.append((dice.choice(self.side.streams), payload))
        if self.request is None:
            self._next()

    def _next(self) -> None:
        if self.jobs:
            (stream, payload), number = self.jobs[0], self.published - len(self.jobs)
            self.side.history.send(stream, payload, Sent(self.name, number, lambda: OFTEN))
            self.side.history.send(DEAD, payload, Sent(self.name, None, lambda: OFTEN))
            key = f"Idempotency-Key: {self.name}-{number}\r\n"
            self.ask("POST", f"/streams/{stream}", payload, self._stored, key)

    def _stored(self, status: int, answer: Any) -> None:
        if status != 200:
            self.side.history.wrong(f"{self.name}: a job is refused with {status}: {answer}")
        self.side.history.acknowledge(*self.jobs.popleft())
        self._next()
