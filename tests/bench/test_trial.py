"""Rounds of `fyrehose bench`, with servers and load makers that only count."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import attrs

from fyrehose import plugins
from fyrehose.bench.cases import CASES, Case
from fyrehose.bench.results import Sample, Spread
from fyrehose.bench.trial import NAMES, ROUNDS, Trial, cores, measure

#: Messages a second of the load that the tests pretend.
RATE = 10_000.0


@attrs.define
class Counting:
    """Stands for the run of a case, and counts instead of measuring."""

    case: Case
    contestant: Any = None
    running: Any = None
    ran: list[tuple[str, int]] = attrs.field(factory=list)

    def measure(self) -> Sample:
        self.ran.append((self.case.name, self.case.messages))
        return {"rate": RATE, "micros": float(len(self.ran)), "acknowledged.50": 0.001}


class Running:
    stopped = 0

    def stop(self) -> None:
        Running.stopped += 1


@attrs.frozen
class Contestant:
    def start(self, directory: Path, protocol: str, durability: str) -> Running:
        return Running()


pretended: Any = partial(
    measure, contestant=Contestant(), bout=Counting, sync_times=lambda path, count: [0.001] * count
)


def test_cases_are_those_of_the_benchmarks() -> None:
    known = {case.name: case for case in CASES}
    for protocol, (full, single) in NAMES.items():
        assert protocol in plugins.names()
        assert known[full].window > known[single].window == 1
        assert known[full].protocol == known[single].protocol == protocol


def test_every_round_has_every_case(tmp_path: Path) -> None:
    stopped, told = Running.stopped, list[str]()
    report = pretended(tmp_path, ["figg", "http"], 10.0, "batch", lambda seconds, what: told.append(what))
    assert Running.stopped == stopped + 2
    assert len(report.syncs) == ROUNDS
    for each in report.trials:
        assert {name: len(samples) for name, samples in each.samples.items()} == dict.fromkeys(
            NAMES[each.protocol], ROUNDS
        )
        assert len(each.bout.ran) == 2 * (ROUNDS + 1)  # the first round is not counted
    assert told[-1] == "http/post/window-1, round 3 of 3"


def test_rounds_share_the_time_that_is_left(tmp_path: Path) -> None:
    (each,) = pretended(tmp_path, ["figg"], 9.0, "batch", lambda seconds, what: None).trials
    last = dict(each.bout.ran[-2:])
    # 9 s are 3 rounds of the disk and two cases: at most a second each, and hardly less, since nothing takes time here.
    assert all(0.7 * RATE <= messages <= RATE for messages in last.values())


def test_spread_is_that_of_the_first_measured_figure() -> None:
    full, single = (next(case for case in CASES if case.name == name) for name in NAMES["backbone"])
    each = Trial("backbone", Counting(full), full, single)  # type: ignore[arg-type]
    each.samples[full.name] = [{"arrived.50": 1.0}, {"arrived.50": 3.0}, {"arrived.50": 2.0}]
    assert each.spread(full, "acknowledged.50", "arrived.50") == Spread(2.0, 1.0, 3.0)
    assert each.spread(full, "micros") is None
    assert each.spread(single, "arrived.50") is None


def test_cores_are_those_of_this_process() -> None:
    assert cores() >= 1
