"""What clients were promised and what they saw, and whether the journal agrees: the oracle of every simulation.

a client sends    -> sent: nothing else may ever be stored, and nothing more often than it was sent
durable           -> truth: number -> payload, for ever, crashes included; numbers follow on; time never goes back
a client is told  -> what it was told lies in the truth by then: released means durable
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import attrs
from world import Violation

from fyrehose.records import Run


@attrs.define(eq=False)
class Sent:
    """One message.

    :ivar copies: says how often it may be stored by now
    :ivar order: which of the messages of one publisher it is; None where the protocol promises no order
    """

    publisher: str
    order: int | None
    copies: Callable[[], int]


class History:
    """All of it, by stream.

    :ivar internal: streams that the server itself writes, which no client sent
    :ivar foreign: what streams of hostile peers begin with, of which nobody keeps a record
    """

    foreign = "hostile"

    def __init__(self) -> None:
        self.sent: dict[str, dict[bytes, Sent]] = {}
        self.truth: dict[str, list[bytes]] = {}
        self.stored: dict[str, Counter[bytes]] = {}
        self.times: dict[str, list[int]] = {}
        self.acked: dict[str, set[bytes]] = {}
        self.newest: dict[tuple[str, str], int] = {}
        self.internal: set[str] = set()
        self.journal: Any = None  #: None while the server is down
        self.problems: list[str] = []

    def wrong(self, what: str) -> NoReturn:
        """It is noted: whoever is called here may be called by somebody who catches everything."""
        self.problems.append(what)
        raise Violation(what)

    def send(self, stream: str, payload: bytes, sent: Sent) -> None:
        self.sent.setdefault(stream, {})[payload] = sent

    def look(self) -> None:
        """Take in what became durable since the last look."""
        if self.journal is None:
            return
        for stream, end in self.journal.ends().items():
            while (known := len(self.truth.setdefault(stream, []))) < end:
                runs = self.journal.read(stream, known + 1, 1 << 20)
                if not runs:
                    self.wrong(f"{stream} {known + 1} cannot be read, though {end} is durable")
                for run in runs:
                    self._store(stream, run)

    def _store(self, stream: str, run: Run) -> None:
        truth = self.truth[stream]
        if run.first_seq != len(truth) + 1:
            self.wrong(f"{stream}: {run.first_seq} follows {len(truth)}")
        times = self.times.setdefault(stream, [])
        if times and run.time < times[-1]:
            self.wrong(f"{stream} {run.first_seq}: the time goes back")
        for payload in map(bytes, run.payloads()):
            if stream in self.internal or stream.startswith(self.foreign):
                truth.append(payload)
                times.append(run.time)
                continue
            sent = self.sent.get(stream, {}).get(payload)
            if sent is None:
                self.wrong(f"{stream} {len(truth) + 1}: nobody sent {payload[:40]!r}")
            stored = self.stored.setdefault(stream, Counter())
            stored[payload] += 1
            if stored[payload] > sent.copies():
                self.wrong(f"{stream}: {payload[:40]!r} is stored {stored[payload]} times, sent {sent.copies()}")
            if sent.order is not None and stored[payload] == 1:
                before = self.newest.get((stream, sent.publisher), -1)
                if sent.order <= before:
                    self.wrong(f"{stream}: {payload[:40]!r} comes behind number {before} of {sent.publisher}")
                self.newest[stream, sent.publisher] = sent.order
            truth.append(payload)
            times.append(run.time)

    def acknowledge(self, stream: str, payload: bytes) -> None:
        """A publisher was told that it is stored."""
        self.look()
        if not self.stored.get(stream, Counter())[payload]:
            self.wrong(f"{stream}: {payload[:40]!r} is acknowledged and not durable")
        self.acked.setdefault(stream, set()).add(payload)

    def release(self, stream: str, seq: int, payload: bytes) -> None:
        """The record of number ``seq`` leaves the server, or reaches somebody."""
        truth = self.truth.setdefault(stream, [])
        if seq > len(truth):
            self.look()
        if not 1 <= seq <= len(truth):
            self.wrong(f"{stream} {seq} was released and is not durable")
        if truth[seq - 1] != payload:
            self.wrong(f"{stream} {seq} is {truth[seq - 1][:40]!r}, and was said to be {payload[:40]!r}")

    def recovered(self) -> None:
        """After a crash: everything that was ever durable is there, unchanged; what is there besides was sent."""
        for stream, truth in self.truth.items():
            _, end = self.journal.bounds(stream)
            if end < len(truth):
                self.wrong(f"{stream} ended with {len(truth)} and ends with {end} after the crash")
            seq = 1
            while seq <= len(truth):
                runs = self.journal.read(stream, seq, 1 << 20)
                if not runs:
                    self.wrong(f"{stream} {seq} cannot be read after the crash, though the stream ends with {end}")
                for run in runs:
                    for payload in map(bytes, run.payloads()):
                        if seq <= len(truth) and (run.first_seq > seq or truth[seq - 1] != payload):
                            self.wrong(f"{stream} {seq} is not what it was before the crash")
                        seq += 1
        self.look()


@attrs.define(eq=False)
class Reader:
    """What one subscriber was given: from its place on, in rising order, without a gap, as the journal has it.

    :ivar position: the last number that it was given; None before the first
    """

    history: History
    stream: str
    name: str
    position: int | None = None

    def take(self, first: int, payloads: list[bytes]) -> None:
        if self.position is not None and first != self.position + 1:
            self.history.wrong(f"{self.name} has {self.stream} up to {self.position}, and then gets {first}")
        for seq, payload in enumerate(payloads, first):
            self.history.release(self.stream, seq, payload)
        self.position = first + len(payloads) - 1
