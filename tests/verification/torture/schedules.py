"""The common part of programs that run random schedules of a model, whose rules can be removed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

#: Runs the schedule of a seed with so many steps, without a rule or with all (None); returns the model's world, which
#: counts in ``ran`` what happened, and the violation, or "".
Schedule = Callable[[str, int, str | None], tuple[Any, str]]


def main(doc: str | None, schedule: Schedule, steps: int, rules: Iterable[str], branches: Sequence[str]) -> int:
    """Run the schedules that the command line asks for; return 1 if one violates a rule, or a branch never ran.

    :param steps: the default of --steps
    :param branches: what must happen in some schedule
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--break", dest="broken", choices=rules)
    options = parser.parse_args()
    bad, ran = 0, Counter[str]()
    for number in range(options.first, options.first + options.count):
        world, violation = schedule(f"{options.seed}/{number}", options.steps, options.broken)
        if violation:
            bad += 1
            if bad <= 5:
                print(f"schedule {number}: {violation}")
        ran.update(world.ran)
        if sys.stderr.isatty() and number % 100 == 0:
            print(f"\r{number - options.first} of {options.count}", end="", file=sys.stderr)
    print(", ".join(f"{branch} {ran[branch]}" for branch in branches))
    never = [branch for branch in branches if not ran[branch]]
    if never:
        print(f"never ran: {', '.join(never)}")
    print(f"{options.count} schedules: {bad} violating")
    return int(bool(bad or never))
