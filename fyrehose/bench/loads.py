"""Measure publishing and delivery with the server of one contestant, round after round.

[fill the stream] -> for each round: load makers get ready -> CPU -> they run -> CPU -> a Sample
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import attrs

from fyrehose.bench import usage
from fyrehose.bench.cases import Case
from fyrehose.bench.makers import MAKER, Makers
from fyrehose.bench.plans import LoadOutcome, Plan
from fyrehose.bench.results import Sample, latency
from fyrehose.bench.servers import Contestant, Running

#: Protocols with only one stream, which keeps the messages of earlier rounds.  These protocols have no
#: acknowledgements, so a publisher also subscribes, to see when its messages have arrived.
ONE_STREAM = {"backbone", "eventbus"}


def shares(total: int, parts: int) -> list[int]:
    """Split ``total`` into ``parts`` numbers that differ by one at most."""
    return [total // parts + (part < total % parts) for part in range(parts)]


@attrs.define
class Bout:
    """The measurement of one case with one contestant, whose server keeps running from round to round."""

    case: Case
    contestant: Contestant
    running: Running
    #: the module that the load makers of the case run
    maker: str = MAKER
    #: returns the context in which the load makers run
    meanwhile: Callable[[], AbstractContextManager[object]] = nullcontext
    #: number of messages that the stream holds
    held: int = 0
    rounds: int = 0

    @property
    def wire(self) -> str:
        return self.contestant.wire or self.case.protocol

    def prepare(self) -> None:
        """Publish the messages for late subscribers, which read them when the measurement begins."""
        if self.case.late:
            own = int(self.wire in ONE_STREAM)
            self._run([self._plan("past", publishers=[self.case.messages], subscribers=own)])

    def measure(self) -> Sample:
        """Run one round, and return its figures."""
        self.rounds += 1
        return self._run(self._past() if self.case.late else self._live(f"live-{self.rounds}"))

    def _past(self) -> list[Plan]:
        if "leases" in self.case.extra:  # All workers are in one process, because they share the messages.
            return [self._plan("past", subscribers=self.case.subscribers)]
        return [self._plan("past", subscribers=1) for _ in range(self.case.subscribers)]

    def _live(self, stream: str) -> list[Plan]:
        """Plan publishers and subscribers; subscribers get a process of their own unless they are also publishers."""
        case = self.case
        together = self.wire in ONE_STREAM or (case.rate and not case.reads)
        own = min(case.subscribers, 1) if together else 0
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
            reads=0.0 if publishers else case.reads,
            extra={
                **case.extra,
                **self.contestant.extra,
                **self.running.extra,
                "last": self.held,
                "round": self.rounds,
            },
        )

    def _run(self, plans: list[Plan]) -> Sample:
        with Makers(plans, self.maker) as makers:
            resident = usage.memory(self.running.pid)[0]
            before = usage.cpu(self.running.pid)
            with self.meanwhile():
                outcomes = makers.run()
            spent = usage.cpu(self.running.pid).since(before)
        if any(plan.publishers for plan in plans) and self.wire in ONE_STREAM:
            self.held += self.case.messages - max(outcome.lost for outcome in outcomes)
        if not self.running.serves:
            return figures(self.case, outcomes)
        peak = usage.memory(self.running.pid)[1]
        return {**figures(self.case, outcomes, spent), "peak": peak, "grown": max(0, peak - resident)}


def figures(case: Case, outcomes: Sequence[LoadOutcome], spent: usage.Cpu | None = None) -> dict[str, float]:
    """Return the figures of one round, without the server's CPU if there is no server."""
    each = 1e6 / case.messages
    seconds = max(outcome.ended for outcome in outcomes) - min(outcome.began for outcome in outcomes)
    maker = max(outcome.cpu for outcome in outcomes)
    found: dict[str, float] = {
        "rate": case.messages / seconds,
        "maker": maker * each,
        "busy": maker / seconds,
        "sent": case.messages * case.subscribers,
        "received": sum(outcome.received for outcome in outcomes),
        "lost": sum(outcome.lost for outcome in outcomes),
    }
    if spent is not None:
        found |= {"micros": spent.total * each, "user": spent.user * each, "system": spent.system * each}
    for outcome in outcomes:
        for name, values in outcome.latency.items():
            found |= latency(name, values)
    return found
