"""List the targets, and compute from medians whether they were reached.

Targets hold for what was measured in one run; what was not measured is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from benchmarks.results import Results
from fyrehose.bench.cases import CASES

#: Computes a figure; None if it was not measured.
Value = Callable[[Results], float | None]

#: Other logs, with the variant of Fyrehose whose acknowledgements promise the same.
PAIRS = {
    "redis-always": "fyrehose",
    "jetstream-always": "fyrehose",
    "redis-everysec": "fyrehose-later",
    "jetstream": "fyrehose-later",
}
#: Upper limits: name, limit, unit; the case and the figure that is compared, and the divisor that gives the unit.
LIMITS = (
    ("figg, 20,000 messages/s, p99", 50, "ms", "figg/latency/20k", "acknowledged.99", 1e-3),
    ("figg, 50,000 messages/s, p99", 25, "ms", "figg/latency/50k", "acknowledged.99", 1e-3),
    ("start with 10 GB after a clean stop", 1, "s", "start/10G/clean", "seconds", 1.0),
    ("start with 10 GB after kill -9", 3, "s", "start/10G/killed", "seconds", 1.0),
    ("memory of an idle connection", 32, "KiB", "figg/idle", "each", 1024.0),
    ("flow control, memory that the server took for it", 16, "MiB", "figg/flow-control", "grown", 2.0**20),
)


@attrs.frozen(kw_only=True)
class Target:
    """One figure and its limit."""

    name: str
    unit: str
    limit: float
    #: whether less is better
    at_most: bool = True
    value: Value

    def met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit


def _median(case: str, figure: str, unit: float = 1.0) -> Value:
    def value(results: Results) -> float | None:
        found = results.median(case, figure)
        return None if found is None else found / unit

    return value


def _times(figure: str, above: tuple[str, str], below: tuple[str, str], divisor: str = "") -> Value:
    """Return a function that divides a figure of one case and contestant by that of another (or by ``divisor``)."""

    def value(results: Results) -> float | None:
        over, under = results.median(above[0], figure, above[1]), results.median(below[0], divisor or figure, below[1])
        return over / under if over is not None and under else None

    return value


def _further(results: Results) -> float | None:
    few, many = results.median("figg/live/1", "micros"), results.median("figg/live/16", "micros")
    return None if few is None or many is None else (many - few) / 15


def _lost(results: Results) -> float | None:
    sent, got = (results.median("figg/flow-control", figure) for figure in ("sent", "received"))
    return None if sent is None or got is None else sent - got


def _targets() -> Iterable[Target]:
    for case in CASES:
        if case.target:
            value = _median(case.name, "micros")
            yield Target(name=f"{case.name}, CPU a message", unit="us", limit=case.target, value=value)
            value = _times("micros", (case.name, "fyrehose-metrics"), (case.name, "fyrehose"))
            yield Target(name=f"{case.name}, CPU with metrics against without", unit="times", limit=1.05, value=value)
    yield Target(name="figg, each further subscriber, CPU a delivery", unit="us", limit=0.1, value=_further)
    yield Target(
        name="http, 16 workers, messages/s",
        unit="1/s",
        limit=60_000,
        at_most=False,
        value=_median("http/workers/16", "rate"),
    )
    yield Target(
        name="http, settling one message against publishing one",
        unit="times",
        limit=1.3,
        value=_times(
            "arrived.50", ("http/workers/1", "fyrehose"), ("http/post/window-1", "fyrehose"), "acknowledged.50"
        ),
    )
    live, past, alone = "figg/live/1", "figg/catch-up", "figg/publish/window-1"
    for name, limit, value in (
        (
            "journal, batches of 64 KiB a second against write and fdatasync",
            0.7,
            _times("rate", ("journal/append/64K", "fyrehose"), ("journal/append/64K", "disk")),
        ),
        ("figg, catching up against live", 3.0, _times("rate", (past, "fyrehose"), (live, "fyrehose"))),
        (
            "backbone, CPU of plain recvfrom and sendto against ours",
            10.0,
            _times("micros", ("backbone/live/1", "udp-loop"), ("backbone/live/1", "fyrehose")),
        ),
        *(
            (f"{work}, messages for a CPU second against {peer}", 2.0, _times("micros", (work, peer), (work, ours)))
            for work in ("figg/publish", live)
            for peer, ours in PAIRS.items()
        ),
    ):
        yield Target(name=name, unit="times", limit=limit, at_most=False, value=value)
    yield Target(
        name="figg, one message at a time against write and fdatasync",
        unit="times",
        limit=1.3,
        value=_times("acknowledged.50", (alone, "fyrehose"), (alone, "disk")),
    )
    for name, limit, unit, work, figure, scale in LIMITS:
        yield Target(name=name, unit=unit, limit=limit, value=_median(work, figure, scale))
    yield Target(name="flow control, messages that a slow subscriber lost", unit="messages", limit=0, value=_lost)


TARGETS: tuple[Target, ...] = tuple(_targets())
