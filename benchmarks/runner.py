"""Measure the contestants of a case in turn, round after round."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import idle, starts
from benchmarks.results import Measurement
from benchmarks.scraping import Scraper
from fyrehose.bench import loads
from fyrehose.bench.cases import Case, CaseWork
from fyrehose.bench.results import Sample
from fyrehose.bench.servers import Contestant

#: The load makers that also know the servers of others.
MAKER = "benchmarks.maker"
#: A function that is called with what is being measured.
Told = Callable[[str], None]


def run(
    case: Case,
    contestants: Sequence[Contestant],
    directory: Path,
    rounds: int,
    durability: str,
    told: Told = lambda what: None,
    bout: type[loads.Bout] = loads.Bout,
) -> list[Measurement]:
    """Run all rounds of ``case``.

    :param bout: loads a server
    :param directory: where servers keep their files; it is emptied afterwards
    :raises CannotStart: a server does not start
    :raises LoadFailed: a load maker failed
    """
    try:
        if case.work is CaseWork.START:
            samples = {contestants[0].name: starts.measure(case, directory, rounds, durability, told)}
        elif case.work is CaseWork.IDLE:
            samples = {contestants[0].name: idle.measure(case, contestants[0], directory, rounds, durability, told)}
        else:
            samples = _in_turn(case, contestants, directory, rounds, durability, told, bout)
        return [Measurement(case=case.name, contestant=name, samples=taken) for name, taken in samples.items()]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _in_turn(
    case: Case,
    contestants: Sequence[Contestant],
    directory: Path,
    rounds: int,
    durability: str,
    told: Told,
    bout: type[loads.Bout],
) -> dict[str, list[Sample]]:
    """Measure all contestants in turn in each round, so that a slow phase of the machine affects all of them."""
    samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in contestants}
    idle.allow(case.idle)
    with contextlib.ExitStack() as stack:
        bouts = []
        for contestant in contestants:
            told(f"{contestant.name} starts")
            running = contestant.start(directory / contestant.name, case.protocol, durability)
            stack.callback(running.stop)
            stack.enter_context(idle.attached(running.port, case.idle))
            # Give a slow server fewer messages only if the case has no rate and many messages at a time, because others
            # end in time.
            whole = case.window == 1 or case.rate
            scraped = partial(Scraper, running.extra.get("metrics", 0))
            fitting = case if whole else case.scaled(contestant.share)
            bouts.append(bout(fitting, contestant, running, MAKER, scraped))
            bouts[-1].prepare()
        for number in range(rounds):
            for each in bouts:
                told(f"{each.contestant.name}, round {number + 1} of {rounds}")
                samples[each.contestant.name].append(each.measure())
    return samples
