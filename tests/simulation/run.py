#!/usr/bin/env python3
"""Simulates servers, clients and bad networks, one seed after the other.

    run.py [--count N] [--seed S] [--protocol P] [--jobs J] [--trace]

Prints how many simulations broke what must be true, and their seeds; the status is 1 if any did.  A seed replays
exactly: `run.py --count 1 --seed S --trace` says what happened in it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import simulation
from twisted.logger import globalLogBeginner
from world import Violation

#: Simulations that one process takes at a time.
SHARE = 20


def share(first: int, count: int, protocol: str) -> tuple[list[str], list[int]]:
    """Run the seeds from ``first`` on: what was wrong, and messages, records, crashes and lives."""
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    problems, counts = [], [0] * 4
    for seed in range(first, first + count):
        try:
            found = simulation.simulate(seed, protocol)
        except Violation as violation:
            problems.append(str(violation))
        except Exception as error:
            problems.append(f"seed {seed} of {protocol}: {type(error).__name__}: {error}")
        else:
            new = (found.messages, found.stored, found.crashes, found.lives)
            counts = [a + b for a, b in zip(counts, new, strict=True)]
    return problems, counts


def show(seed: int, protocol: str) -> int:
    """Say what happens in one simulation."""
    trace: list[str] = []
    try:
        end, status = str(simulation.simulate(seed, protocol, trace=trace)), 0
    except Violation as violation:
        end, status = f"VIOLATION: {violation}", 1
    print(*trace, end, sep="\n")
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--protocol", choices=sorted(simulation.PROTOCOLS), action="append")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="say what happens, and run one simulation only")
    arguments = parser.parse_args()
    protocols = arguments.protocol or sorted(simulation.PROTOCOLS)
    if arguments.trace:
        return show(arguments.seed, protocols[0])
    os.nice(10)
    failed = False
    for protocol in protocols:
        began = time.monotonic()
        firsts = range(arguments.seed, arguments.seed + arguments.count, SHARE)
        sizes = [min(SHARE, arguments.seed + arguments.count - first) for first in firsts]
        problems: list[str] = []
        totals = [0] * 4
        with ProcessPoolExecutor(arguments.jobs) as pool:
            for bad, counts in pool.map(share, firsts, sizes, [protocol] * len(sizes)):
                problems += bad
                totals = [a + b for a, b in zip(totals, counts, strict=True)]
        messages, stored, crashes, lives = totals
        print(
            f"{protocol}: {arguments.count} simulations, {messages} messages, {stored} records, {crashes} crashes, "
            f"{lives} starts, {len(problems)} violations, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        for problem in problems[:5]:
            print(f"VIOLATION: {problem}")
        failed = failed or bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
