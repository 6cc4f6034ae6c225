"""A journal on a real file system for tests, which control its clock, its worker and its system calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface import implementer

from fyrehose.interfaces import IJournalObserver, JournalState
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.commit import InlineWorker, Pace, Worker
from fyrehose.journal.files import Files
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.records import Record, Run
from tests.doubles.appending import append_runs
from tests.doubles.killed import close_files


@implementer(IJournalObserver)
@attrs.define(eq=False)
class Observer:
    """An observer that keeps what it hears.

    :ivar then: called with the ends that became durable
    """

    ends: dict[str, int] = attrs.field(factory=dict)
    states: list[tuple[JournalState, str]] = attrs.field(factory=list)
    stuck_for: list[str] = attrs.field(factory=list)
    then: Callable[[Mapping[str, int]], object] = lambda ends: None

    def durable(self, ends: Mapping[str, int]) -> None:
        self.ends.update(ends)
        self.then(ends)

    def state_changed(self, state: JournalState, reason: str) -> None:
        self.states.append((state, reason))

    def stuck(self, reason: str) -> None:
        self.stuck_for.append(reason)


@attrs.define(eq=False)
class Bench:
    """An open journal, with helpers to append and to read."""

    directory: Path
    journal: FileJournal
    clock: Clock
    observer: Observer
    next: dict[str, int]
    failures: list[Any] = attrs.field(factory=list)
    crashed: bool = False

    def append(self, *payloads: bytes, stream: str = "s", source: str = "test", **constants: Any) -> Deferred[None]:
        run = Run.of(stream, payloads, source=source, **constants)
        first = self.next.get(stream, self.journal.floor + 1)
        self.next[stream] = first + len(run)
        return append_runs(self.journal, [run], [first])

    def fill(self, count: int, times: int = 100) -> None:
        """Append the numbers below *count*, each in a batch of its own: three digits, *times* over."""
        for number in range(count):
            self.append(b"%03d" % number * times)

    def records(self, stream: str = "s", start: int = 1, max_bytes: int = 1 << 20) -> list[Record]:
        found: list[Record] = []
        while runs := self.journal.read(stream, start, max_bytes):
            found += [record for run in runs for record in run.records()]
            start = runs[-1].last_seq + 1
        return found

    def payloads(self, stream: str = "s", start: int = 1) -> list[bytes]:
        return [record.payload for record in self.records(stream, start)]

    def close(self) -> None:
        self.journal.close()

    def crash(self) -> None:
        """Stop as if the process had been killed: nothing more is written, and the lock is released."""
        self.crashed = True
        close_files(self.directory)


def opened(
    directory: Path,
    files: Files | None = None,
    now: Callable[[], int] = lambda: 1_000_000,
    monotonic: Callable[[], int] | None = None,
    worker: Worker | None = None,
    pace: Pace | None = None,
    stream_age: Callable[[str], float] | None = None,
    **settings: Any,
) -> Bench:
    """Open the journal in *directory*; without a worker of the test, commits are done at once."""
    clock, observer = Clock(), Observer()
    settings = {"min_free": 0, "segment_size": 1 << 20} | settings
    journal = FileJournal(
        clock,
        directory,
        JournalSettings(**settings),
        files=files or Files(),
        clock=RecordClock(now, monotonic or (lambda: int(clock.seconds() * 1_000_000))),
        worker=worker or InlineWorker(),
        pace=pace,
        stream_age=stream_age,
    )
    outcome: list[Any] = []
    journal.open(observer).addBoth(outcome.append)
    if not isinstance(outcome[0], Mapping):
        outcome[0].raiseException()
    return Bench(directory, journal, clock, observer, {s: end + 1 for s, end in outcome[0].items()})


Opener = Callable[..., Bench]


@pytest.fixture
def open_journal(tmp_path: Path) -> Iterator[Opener]:
    """Return a function that opens the journal of this test; it may be called again after a stop."""
    benches: list[Bench] = []

    def open_it(files: Files | None = None, directory: Path = tmp_path / "j", **how: Any) -> Bench:
        benches.append(opened(directory, files, **how))
        return benches[-1]

    yield open_it
    for bench in benches:
        if not bench.crashed:
            bench.close()
