"""Measure what a disk and a CPU will carry: each protocol with its own server, round after round, in a given time.

servers start -> a first round, which is not counted, says how fast each is
-> rounds of equal length: the disk alone, each protocol with a full window, each with one message at a time
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs

from fyrehose.bench.cases import CASES, Case
from fyrehose.bench.disk import sync_times
from fyrehose.bench.loads import Bout
from fyrehose.bench.results import Sample, Spread
from fyrehose.bench.servers import FYREHOSE, Contestant

#: The cases of each protocol: with a full window, and one message at a time.
NAMES = {
    "figg": ("figg/publish", "figg/publish/window-1"),
    "lumberjack": ("lumberjack/level-3", "lumberjack/level-0/window-1"),
    "http": ("http/ndjson", "http/post/window-1"),
    "relink": ("relink/publish", "relink/publish/window-1"),
    "backbone": ("backbone/live/1", "backbone/live/1/window-1"),
    "eventbus": ("eventbus/live/1", "eventbus/live/1/window-1"),
}
ROUNDS = 3
#: The fraction of a case's messages in the first round, and the number of syncs that are timed in it.
FIRST, FIRST_SYNCS = 0.02, 50
#: The shortest load of a round, in seconds; a shorter one would say nothing.
SHORTEST_S = 0.2
#: A function that is called with the elapsed seconds, and the name of what is being measured.
Told = Callable[[float, str], object]


@attrs.define
class Trial:
    """The trial of one protocol: its server, its two cases, and the figures of each round.

    :ivar bout: runs the cases with the server
    :ivar rates: messages a second of the first round, by case
    """

    protocol: str
    bout: Bout
    full: Case
    single: Case
    rates: dict[str, float] = attrs.field(factory=dict)
    samples: dict[str, list[Sample]] = attrs.field(factory=dict)

    @property
    def cases(self) -> tuple[Case, Case]:
        return self.full, self.single

    def first(self, case: Case) -> float:
        """Run *case* with a few messages, and return how many seconds the start and the end of the load took."""
        began = time.monotonic()
        self.bout.case = case.scaled(FIRST)
        rate = self.rates[case.name] = self.bout.measure()["rate"]
        return max(0.0, time.monotonic() - began - self.bout.case.messages / rate)

    def round(self, case: Case, seconds: float) -> None:
        """Run *case* for about *seconds* seconds, and keep its figures."""
        self.bout.case = case.scaled(max(SHORTEST_S, seconds) * self.rates[case.name] / case.messages)
        self.samples.setdefault(case.name, []).append(self.bout.measure())

    def spread(self, case: Case, *figures: str) -> Spread | None:
        """Return median and range of the first of *figures* that the rounds of *case* have; None if they have none."""
        samples = self.samples.get(case.name, ())
        for figure in figures:
            if samples and all(figure in sample for sample in samples):
                return Spread.of(sample[figure] for sample in samples)
        return None


@attrs.frozen(kw_only=True)
class TrialReport:
    """The figures of a trial, and the load of the machine before and after it.

    :ivar syncs: the seconds of each round's syncs, the shortest first
    :ivar load_before: load average of the machine before the measurement; ``load_after``: after it
    """

    trials: Sequence[Trial]
    syncs: Sequence[Sequence[float]]
    load_before: float
    load_after: float
    seconds: float


def measure(
    directory: Path,
    protocols: Sequence[str],
    seconds: float,
    durability: str,
    told: Told,
    *,
    contestant: Contestant = FYREHOSE,
    bout: type[Bout] = Bout,
    sync_times: Callable[[Path, int], list[float]] = sync_times,
) -> TrialReport:
    """Measure *protocols* for about *seconds* seconds, with servers whose journals are in *directory*.

    :param contestant: starts the servers
    :param bout: loads them
    :param sync_times: measures the disk
    :raises CannotStart: a server does not start
    :raises LoadFailed: a load maker failed
    """
    began, load = time.monotonic(), os.getloadavg()[0]
    with ExitStack() as stack:
        trials = []
        for protocol in protocols:
            told(time.monotonic() - began, f"{protocol} starts")
            running = contestant.start(directory / protocol, protocol, durability)
            stack.callback(running.stop)
            full, single = (_case(name) for name in NAMES[protocol])
            trials.append(Trial(protocol, bout(full, contestant, running), full, single))
        probe = directory / "disk"
        syncs, lost = FIRST_SYNCS / sum(sync_times(probe, FIRST_SYNCS)), 0.0
        for trial, case in _each(trials):
            told(time.monotonic() - began, f"{case.name}, first round")
            lost += trial.first(case)
        left = seconds - (time.monotonic() - began) - ROUNDS * lost
        slot = max(SHORTEST_S, left / ROUNDS / (2 * len(trials) + 1))
        times = []
        for number in range(ROUNDS):
            told(time.monotonic() - began, f"disk, round {number + 1} of {ROUNDS}")
            times.append(sync_times(probe, max(FIRST_SYNCS, int(syncs * slot))))
            for trial, case in _each(trials):
                told(time.monotonic() - began, f"{case.name}, round {number + 1} of {ROUNDS}")
                trial.round(case, slot)
        took = time.monotonic() - began
    return TrialReport(trials=trials, syncs=times, load_before=load, load_after=os.getloadavg()[0], seconds=took)


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def _each(trials: Sequence[Trial]) -> Iterator[tuple[Trial, Case]]:
    yield from ((trial, case) for trial in trials for case in trial.cases)


def cores() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))
