"""Measures a case: each contestant's server in its turn, round after round.

start server -> [fill it] -> for each round: load makers get ready -> CPU -> they run -> CPU -> a Sample
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from fyrehose.bench import usage
from fyrehose.bench.cases import Case
from fyrehose.bench.makers import Makers
from fyrehose.bench.plans import Outcome, Plan
from fyrehose.bench.results import Measured, Sample
from fyrehose.bench.servers import Contestant, Running

#: One stream for everybody: what a round leaves is there in the next.
ONE_STREAM = {"backbone", "eventbus"}
#: Publishers that hear nothing of their own are their own first subscriber.
SELF_HEARING = {"backbone", "eventbus"}


def shares(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` numbers that are as equal as can be."""
    return [total // parts + (part < total % parts) for part in range(parts)]


@attrs.define
class Bout:
    """One contestant at one case: its server runs until the case is over."""

    case: Case
    contestant: Contestant
    running: Running
    #: messages that its one stream holds
    held: int = 0
    rounds: int = 0

    @property
    def wire(self) -> str:
        return self.contestant.wire or self.case.protocol

    def fill(self) -> None:
        """Publish what subscribers are to catch up with."""
        plans = [self._plan("past", publishers=[self.case.messages], subscribers=int(self.wire in SELF_HEARING))]
        self._run(plans)

    def measure(self) -> Sample:
        """One round."""
        self.rounds += 1
        plans = self._past() if self.case.late else self._live(f"live-{self.rounds}")
        return self._run(plans)

    def _past(self) -> list[Plan]:
        return [self._plan("past", subscribers=1) for _ in range(self.case.subscribers)]

    def _live(self, stream: str) -> list[Plan]:
        case = self.case
        own = min(case.subscribers, 1) if self.wire in SELF_HEARING or case.rate else 0
        publishers = self._plan(stream, publishers=shares(case.messages, case.publishers), subscribers=own)
        others = case.subscribers - own
        return [*([self._plan(stream, subscribers=others)] if others else []), publishers]

    def _plan(self, stream: str, publishers: Sequence[int] = (), subscribers: int = 0) -> Plan:
        case, late = self.case, not publishers and self.case.late
        return Plan(
            wire=self.wire,
            port=self.running.port,
            read_port=self.running.past_port if late else self.running.live_port,
            stream=stream,
            size=case.size,
            publishers=list(publishers),
            subscribers=subscribers,
            expected=case.messages,
            window=case.window,
            late=late,
            rate=case.rate,
            extra={**case.extra, "last": self.held},
        )

    def _run(self, plans: list[Plan]) -> Sample:
        with Makers(plans) as makers:
            before = usage.cpu(self.running.pid)
            outcomes = makers.run()
            spent = usage.cpu(self.running.pid).since(before)
        if any(plan.publishers for plan in plans) and self.wire in ONE_STREAM:
            self.held += self.case.messages - max(outcome.lost for outcome in outcomes)
        return sample(self.case, outcomes, spent, usage.memory(self.running.pid)[1])


def sample(case: Case, outcomes: Sequence[Outcome], spent: usage.Cpu, peak: int) -> Sample:
    """What one round came to."""
    latency = {name: values for outcome in outcomes for name, values in outcome.latency.items()}
    return Sample(
        messages=case.messages,
        seconds=max(o.ended for o in outcomes) - min(o.began for o in outcomes),
        cpu=spent.total,
        user=spent.user,
        system=spent.system,
        maker_cpu=max(outcome.cpu for outcome in outcomes),
        received=sum(outcome.received for outcome in outcomes),
        lost=sum(outcome.lost for outcome in outcomes),
        peak=peak,
        latency=latency,
    )


def run(
    case: Case,
    contestants: Sequence[Contestant],
    directory: Path,
    rounds: int,
    durability: str,
    told: Callable[[str], None] = lambda what: None,
) -> list[Measured]:
    """All rounds of ``case``, the contestants in turn.

    :param directory: where servers keep their files; it is emptied afterwards
    :raises CannotStart: a server does not start
    :raises LoadFailed: a load maker met trouble
    """
    try:
        with contextlib.ExitStack() as stack:
            bouts = []
            for contestant in contestants:
                told(f"{contestant.name} starts")
                running = contestant.start(directory / contestant.name, case.protocol, durability)
                stack.callback(running.stop)
                bouts.append(Bout(case, contestant, running))
                if case.late:
                    told(f"{contestant.name} is filled")
                    bouts[-1].fill()
            samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in contestants}
            for number in range(rounds):
                for bout in bouts:
                    told(f"{bout.contestant.name}, round {number + 1} of {rounds}")
                    samples[bout.contestant.name].append(bout.measure())
            return [Measured(case=case.name, contestant=name, samples=tuple(taken)) for name, taken in samples.items()]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
