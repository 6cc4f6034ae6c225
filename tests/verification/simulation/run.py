#!/usr/bin/env python3
"""Simulate servers, clients and bad networks, one seed after the other.

    run.py [--count N] [--seed S] [--steps N] [--protocol P]... [--jobs J] [--herd CLIENTS | --servers N] [--trace]
           [--bug NAME | --bugs]

Prints how many simulations broke a rule, and their seeds; the exit status is 1 if any did.  A seed replays exactly:
`run.py --seed S --protocol P --trace` prints what happens in it.

--bug NAME       put this bug into the code; print how many simulations it took to notice it; the status is 1 if none
--bugs           the same with each known bug in turn
--herd CLIENTS   simulate so many clients that lose their server together, beside hostile peers (herds.py)
--servers N      simulate a cluster of N servers with a shared log (clusters.py), and --bugs those of replication
--steps N        so many steps in each simulation, such as 3000 for a long run; by default most have 5 to 40
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import attrs
import bugs
import clusters
import herds
import rules
import simulation
from twisted.logger import globalLogBeginner
from world import Violation

#: How many simulations one process runs before the next begins; how long one may take, in seconds of processor time.
SHARE = 500
PATIENCE = 60.0
#: How many violations are printed.
SHOWN = 20
ALL = bugs.BUGS | rules.BUGS
#: Errors that show that a bug or the simulation no longer fits the code, so that nothing was noticed.
UNFIT = ("AttributeError: ", "NameError: ")


class Endless(BaseException):
    """A simulation does not end; not an Exception, because simulated code might catch that."""


@attrs.define
class Tally:
    """The sum of the results of several simulations."""

    simulations: int = 0
    messages: int = 0
    stored: int = 0
    crashes: int = 0
    lives: int = 0
    synced: int = 0
    damages: int = 0
    takeovers: int = 0
    voids: int = 0
    trimmed: int = 0
    freezes: int = 0
    faults: int = 0
    wipes: int = 0
    fills: int = 0
    reopenings: int = 0
    problems: list[str] = attrs.field(factory=list)

    def add(self, other: Tally) -> None:
        for name in attrs.fields_dict(Tally):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def take(self, outcome: simulation.Outcome) -> None:
        """Add the result of one simulation."""
        for name in attrs.fields_dict(type(outcome)).keys() & attrs.fields_dict(Tally).keys():
            setattr(self, name, getattr(self, name) + getattr(outcome, name))

    def __str__(self) -> str:
        cluster = (
            f"{self.takeovers} take-overs, {self.voids} void entries, {self.trimmed} entries trimmed, {self.freezes} "
            f"servers frozen, {self.faults} faults of disks, {self.wipes} disks lost, {self.fills} servers filled, "
            f"{self.reopenings} opened again in place, "
        )
        return (
            f"{self.simulations} simulations, {self.messages} messages, {self.stored} records, {self.synced} of them "
            f"found to be synced when they were released, {self.crashes} crashes, {self.damages} damaged files, "
            f"{cluster if self.takeovers else ''}{self.lives} starts, {len(self.problems)} violations"
        )


@attrs.frozen
class Kind:
    """The kind of a simulation, besides its seed and protocol.

    :ivar herd: how many clients restart together; 0 if there is no herd
    :ivar servers: how many servers the cluster has; 0 for one server alone
    :ivar steps: how many steps there are; None if the seed decides
    :ivar patience: how much processor time one takes at most, in seconds, besides the time for its steps and its herd
    """

    herd: int = 0
    servers: int = 0
    steps: int | None = None
    patience: float = PATIENCE

    def simulate(self, seed: int, protocol: str, trace: list[str] | None = None) -> simulation.Outcome:
        if self.herd:
            return herds.simulate(seed, protocol, self.herd, trace)
        if self.servers:
            return clusters.simulate(seed, protocol, self.servers, self.steps, trace)
        return simulation.simulate(seed, protocol, self.steps, trace)


def one(seed: int, protocol: str, tally: Tally, kind: Kind) -> None:
    """Run one simulation; record a violation with its seed in *tally*."""
    signal.setitimer(signal.ITIMER_VIRTUAL, kind.patience + kind.herd + (kind.steps or 0) / 10)
    tally.simulations += 1
    try:
        found = kind.simulate(seed, protocol)
    except Violation as violation:
        tally.problems.append(str(violation))
    except Endless:
        tally.problems.append(f"seed {seed} of {protocol}: it has taken {kind.patience:g} s of processor time")
    except Exception as error:
        tally.problems.append(f"seed {seed} of {protocol}: {type(error).__name__}: {error}")
    else:
        tally.take(found)
        return
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    gc.collect()  # otherwise objects of this simulation would report errors during the next one


def _endless(*_: Any) -> None:
    raise Endless


def quiet() -> None:
    """Switch logs off, because nobody reads them; the simulation notices errors by itself."""
    faulthandler.enable()
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    signal.signal(signal.SIGVTALRM, _endless)
    gc.freeze()
    gc.disable()  # each simulation collects its own garbage


def share(first: int, count: int, protocol: str, at: Any, tell: Connection, kind: Kind) -> None:
    """Run ``count`` seeds from ``first`` on, in a process of its own; set ``at`` to the present seed."""
    quiet()
    tally = Tally()
    for seed in range(first, first + count):
        at.value = seed
        one(seed, protocol, tally, kind)
    tally.problems = tally.problems[:SHOWN]
    tell.send(tally)
    tell.close()


@attrs.define(eq=False)
class Share:
    """A process and its seeds; if the process dies, the seed that killed it is known."""

    protocol: str
    first: int
    count: int
    kind: Kind
    at: Any = attrs.field(init=False)
    ear: Connection = attrs.field(init=False)
    process: Any = attrs.field(init=False)

    def begin(self) -> None:
        fork = multiprocessing.get_context("fork")
        self.at = fork.Value("q", self.first)
        self.ear, mouth = fork.Pipe(duplex=False)
        self.process = fork.Process(
            target=share, args=(self.first, self.count, self.protocol, self.at, mouth, self.kind)
        )
        self.process.start()
        mouth.close()

    def end(self, total: Tally) -> Share | None:
        """Add the results of the process to *total*; return a share with the remaining seeds if the process died."""
        try:
            total.add(self.ear.recv())
            self.process.join()
            return None
        except EOFError:
            self.process.join()
        finally:
            self.ear.close()
        seed = self.at.value
        total.simulations += seed + 1 - self.first
        total.problems.append(f"seed {seed} of {self.protocol}: its process ended with {self.process.exitcode}")
        left = self.first + self.count - (seed + 1)
        return Share(self.protocol, seed + 1, left, self.kind) if left else None


def run(protocol: str, first: int, count: int, jobs: int, kind: Kind) -> Tally:
    """Run ``count`` seeds in ``jobs`` processes."""
    total = Tally()
    waiting = deque(
        Share(protocol, at, min(SHARE, first + count - at), kind) for at in range(first, first + count, SHARE)
    )
    running: dict[Any, Share] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            begun = waiting.popleft()
            begun.begin()
            running[begun.ear] = begun
        for ear in wait(list(running)):
            left = running.pop(ear).end(total)
            if left is not None:
                waiting.append(left)
    return total


def show(seed: int, protocol: str, kind: Kind) -> int:
    """Print what happens in one simulation; return the exit status."""
    trace: list[str] = []
    try:
        end, status = str(kind.simulate(seed, protocol, trace)), 0
    except Violation as violation:
        end, status = f"VIOLATION: {violation}", 1
    print(*trace, end, sep="\n")
    return status


def hunt(name: str, first: int, count: int) -> Tally:
    """Run at most ``count`` simulations with the bug ``name``, until one notices it."""
    bug, began = ALL[name], time.process_time()
    tally = Tally()
    with having(name):
        for seed in range(first, first + count):
            one(seed, bug.protocol, tally, Kind(servers=bug.servers, steps=bug.steps))
            if tally.problems:
                break
    said = tally.problems[0][:200] if tally.problems else "NOT NOTICED"
    if any(error in said for error in UNFIT):
        said, tally.problems = f"NOT NOTICED, because it does not fit the code: {said}", []
    print(f"{name}: {tally.simulations} simulations, {time.process_time() - began:.1f} s: {said}", flush=True)
    return tally


def having(name: str | None) -> Any:
    """Return a context in which the code has the bug ``name``."""
    return bugs.having(None if name is None else ALL[name])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="steps of each simulation; by default its seed decides")
    parser.add_argument("--protocol", choices=sorted(simulation.PROTOCOLS), action="append")
    parser.add_argument("--jobs", type=int, default=1)
    several = parser.add_mutually_exclusive_group()
    several.add_argument(
        "--herd",
        type=int,
        default=0,
        metavar="CLIENTS",
        help="simulate so many clients that lose their server together",
    )
    several.add_argument("--servers", type=int, default=0, choices=(2, 3), help="simulate a cluster of so many servers")
    parser.add_argument("--trace", action="store_true", help="run one simulation, and print what happens")
    parser.add_argument("--bug", choices=sorted(ALL), help="put this bug into the code")
    parser.add_argument("--bugs", action="store_true", help="put each known bug into the code in turn")
    arguments = parser.parse_args()
    protocols = arguments.protocol or sorted(simulation.PROTOCOLS)
    kind = Kind(arguments.herd, arguments.servers, arguments.steps)
    if arguments.trace:
        with having(arguments.bug):
            return show(arguments.seed, protocols[0], kind)
    os.nice(10)
    if arguments.bug or arguments.bugs:
        quiet()
        names = [arguments.bug] if arguments.bug else list(rules.BUGS if arguments.servers else bugs.BUGS)
        noticed = [hunt(name, arguments.seed, arguments.count).problems for name in names]
        return int(not all(noticed))
    failed = False
    for protocol in protocols:
        began = time.monotonic()
        total = run(protocol, arguments.seed, arguments.count, arguments.jobs, kind)
        print(f"{protocol}: {total}, {time.monotonic() - began:.0f} s", flush=True)
        for problem in total.problems[:SHOWN]:
            print(f"VIOLATION: {problem}")
        failed = failed or bool(total.problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
