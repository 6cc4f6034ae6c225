"""Work of ``python -m benchmarks``: run cases one after the other, and show the tables."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from rich.status import Status
from rich.table import Table

from benchmarks import peers, plot, results, runner, scraping
from benchmarks.comparing import compared
from benchmarks.results import Measurement, Results
from benchmarks.table import changes, markdown, tables
from fyrehose.bench import servers, usage
from fyrehose.bench.cases import CASES, Case, selected
from fyrehose.bench.disk import mount_of
from fyrehose.bench.servers import CannotStart, Contestant
from fyrehose.cli.console import terminal
from fyrehose.errors import FyrehoseError

EVERYBODY = {**servers.OURS, scraping.FYREHOSE_METRICS.name: scraping.FYREHOSE_METRICS, **peers.PEERS}
DURABLE = {name: contestant.durable for name, contestant in EVERYBODY.items()}


class NoSuchCase(FyrehoseError):
    """No case has such a name."""


@attrs.frozen(kw_only=True)
class Wanted:
    """Options of a run."""

    rounds: int = 5
    scale: float = 1.0
    durability: str = "batch"
    #: whether to measure no other servers
    alone: bool = False
    #: whether to measure the server with its metrics on as well
    metrics: bool = False

    @property
    def ours(self) -> tuple[str, ...]:
        """Return the variants of Fyrehose that every case measures."""
        return ("fyrehose", scraping.FYREHOSE_METRICS.name) if self.metrics else ("fyrehose",)


@attrs.frozen(kw_only=True)
class Report:
    """Results of a run, the machine, and the reasons why contestants were not measured."""

    machine: dict[str, str]
    measured: list[Measurement]
    #: cases and contestants that could not be measured, and why
    failed: list[str]

    def dumps(self) -> str:
        return json.dumps(
            {"machine": self.machine, "failed": self.failed, "results": results.as_json(self.measured)}, indent=1
        )

    @classmethod
    def loads(cls, text: str) -> Report:
        found: dict[str, Any] = json.loads(text)
        return cls(machine=found["machine"], failed=found["failed"], measured=results.from_json(found["results"]))


def joined(reports: Sequence[Report]) -> Report:
    """Merge several runs; of repeated measurements, the last one is kept."""
    found = {(one.case, one.contestant): one for report in reports for one in report.measured}
    machines = {
        name: " | ".join(dict.fromkeys(report.machine[name] for report in reports if name in report.machine))
        for name in reports[0].machine
    }
    order = {case.name: place for place, case in enumerate(CASES)}
    measured = sorted(found.values(), key=lambda one: order.get(one.case, len(order)))
    return Report(machine=machines, measured=measured, failed=[text for report in reports for text in report.failed])


def choose(patterns: Sequence[str]) -> list[Case]:
    """Return the cases that match ``patterns``; all cases without patterns.

    :raises NoSuchCase: a pattern names nothing
    """
    for pattern in patterns:
        if not selected([pattern]):
            raise NoSuchCase(f"no case is called {pattern!r}; see `python -m benchmarks --list`")
    return selected(patterns) if patterns else list(CASES)


def show_list(cases: Sequence[Case]) -> None:
    """Print one line for each case."""
    heads = ("case", "bytes", "messages", "publishers", "subscribers", "window", "target", "against")
    found = Table(*heads, box=None, pad_edge=False)
    for case in cases:
        target = f"{case.target:g} us" if case.target else ""
        numbers = (case.size, case.messages, case.publishers, case.subscribers, case.window)
        found.add_row(case.name, *map(str, numbers), target, " ".join(case.against))
    terminal().print(found)


def measure(cases: Sequence[Case], directory: Path, wanted: Wanted) -> Report:
    """Run ``cases`` with their contestants, and return the results."""
    console = terminal()
    there, missing = available(cases, wanted)
    about = machine(directory, wanted, there)
    console.print("\n".join(f"{name}: {value}" for name, value in about.items()), markup=False, highlight=False)
    measured: list[Measurement] = []
    failed: list[str] = []
    with console.status("") as status:
        for case in cases:
            contestants = [there[name] for name in (*wanted.ours, *case.against) if name in there]
            told = partial(_tell, status, case.name)
            try:
                measured += runner.run(
                    case.scaled(wanted.scale) if case.messages else case,
                    contestants,
                    directory / "servers",
                    wanted.rounds,
                    wanted.durability,
                    told,
                )
            except FyrehoseError as error:
                failed.append(f"{case.name}: {error}")
            except KeyboardInterrupt:
                failed.append(f"{case.name} and what follows: interrupted")
                break
            console.print(f"{case.name}: done", style="dim", markup=False, highlight=False)
    about["load average afterwards"] = f"{os.getloadavg()[0]:.2f}"
    return Report(machine=about, measured=measured, failed=failed + missing)


def show(report: Report, for_page: bool = False) -> None:
    """Print the tables and the contestants that were not measured; with ``for_page``, only the tables, in Markdown."""
    console = terminal()
    made = tables(Results(report.measured), DURABLE)
    if for_page:
        print("\n\n".join(map(markdown, made)))
        return
    for table in made:
        console.print()
        console.print(table)
    console.print()
    console.print(f"load average before: {report.machine.get('load average before', '?')}, ", end="")
    console.print(f"afterwards: {report.machine.get('load average afterwards', '?')}")
    for trouble in report.failed:
        console.print(f"not measured: {trouble}", style="yellow", markup=False, highlight=False)


def compare(before: Report, after: Report) -> None:
    """Print the figures that changed from one run to the other by more than the noise, and how the machines differ."""
    console = terminal()
    found, figures = compared(Results(before.measured), Results(after.measured))
    console.print(f"{len(found)} of {figures} figures changed by more than the noise", highlight=False)
    if found:
        console.print(changes(found))
    for name, then in before.machine.items():
        now = after.machine.get(name, "unknown")
        if now != then:
            text = f"{name}: {then} before, {now} after"
            console.print(text, style="dim", markup=False, highlight=False)


def draw(report: Report, path: Path) -> None:
    """Plot the report into the file at ``path``, with the machine as a footnote."""
    plot.draw(Results(report.measured), path, "; ".join(f"{name}: {value}" for name, value in report.machine.items()))


def available(cases: Sequence[Case], wanted: Wanted) -> tuple[dict[str, Contestant], list[str]]:
    """Return the contestants of ``cases`` that can be started, and the reasons why others cannot."""
    names = dict.fromkeys(wanted.ours) | dict.fromkeys(name for case in cases for name in case.against)
    there: dict[str, Contestant] = {}
    missing: list[str] = []
    for name in names:
        if wanted.alone and name not in (*wanted.ours, "disk"):
            continue
        try:
            EVERYBODY[name].version()
        except CannotStart as error:
            missing.append(f"{name}: {error}")
        else:
            there[name] = EVERYBODY[name]
    return there, missing


def machine(directory: Path, wanted: Wanted, there: dict[str, Contestant]) -> dict[str, str]:
    """Describe the machine and the software that are measured."""
    versions = {name: contestant.version() for name, contestant in there.items()}
    return {
        "machine": usage.machine(mount_of(directory.absolute()).kind),
        "Python": platform.python_version(),
        "servers": ", ".join(f"{name} ({version})" for name, version in versions.items()),
        "rounds": f"{wanted.rounds}, {wanted.scale:g} times the messages, durability {wanted.durability}",
        "load average before": f"{os.getloadavg()[0]:.2f}",
    }


def _tell(status: Status, case: str, what: str) -> None:
    status.update(f"{case}: {what}")
