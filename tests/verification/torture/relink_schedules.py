#!/usr/bin/env python3
"""Random schedules of two Relink sessions over an unreliable network; see relink_world.py.

    relink_schedules.py [--count N] [--seed S] [--jobs J] [--without RULE] [--losses]

Prints how many schedules broke a rule; the exit status is 1 if any did, or, with --without, if none did.  It is 1, too,
if something that the schedules count never happened.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import relink_rules
import relink_world

#: How many schedules a process runs at a time.
SHARE = 500


def share(first: int, count: int, rule: str | None, losses: bool) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Run schedules ``first`` to ``first + count - 1``; return the failures with their causes, and the counts."""
    failed = []
    ran: Counter[str] = Counter()
    with relink_rules.without(rule) as broken:
        for seed in range(first, first + count):
            try:
                world = relink_world.run(seed, broken, losses)
            except Exception as error:  # without a rule any error may occur; otherwise it is a failure, too
                failed.append((seed, f"{type(error).__name__}: {error}"))
                continue
            ran["messages"] += sum(map(len, world.sent.values()))
            ran.update({name: getattr(world, name) for name in relink_world.COUNTED})
    return failed, ran


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--without", choices=sorted(relink_rules.RULES))
    parser.add_argument("--losses", action="store_true", help="links are lost now and then")
    args = parser.parse_args()
    os.nice(10)
    began = time.monotonic()
    firsts = range(args.seed, args.seed + args.count, SHARE)
    sizes = [min(SHARE, args.seed + args.count - first) for first in firsts]
    failed: list[tuple[int, str]] = []
    ran: Counter[str] = Counter()
    with ProcessPoolExecutor(args.jobs) as pool:
        rules, losses = [args.without] * len(sizes), [args.losses] * len(sizes)
        for bad, counts in pool.map(share, firsts, sizes, rules, losses):
            failed += bad
            ran.update(counts)
    counted = ", ".join(f"{ran[name]} {words}" for name, words in relink_world.COUNTED.items())
    print(
        f"{args.without or 'all rules'}{', links lost' if args.losses else ''}: {args.count} schedules, "
        f"{ran['messages']} messages, {counted}, {len(failed)} violations, "
        f"{args.count / (time.monotonic() - began):.0f} schedules/s"
    )
    for seed, why in failed[:3]:
        print(f"   seed {seed}: {why}")
    if args.without not in (None, "letter"):
        return int(not failed)
    missed = relink_world.missed(ran, args.losses)
    if missed:
        print(f"   the schedules prove too little: they had no {' and no '.join(missed)}")
    return int(bool(failed or missed))


if __name__ == "__main__":
    sys.exit(main())
