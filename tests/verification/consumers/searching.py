"""Search random schedules for one that breaks a rule, with all rules in the code or with one removed."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, nullcontext
from types import ModuleType
from typing import Any
from unittest.mock import patch

import attrs
from ran import Ran


class Violation(Exception):
    """A rule was broken."""


def check(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


@attrs.frozen
class Search:
    """All schedules of one kind.

    :ivar schedule: runs the schedule of a seed, and returns what happened
    :ivar missing: by rule, a function that returns the replacements, by owner and name, that remove the rule from the
        code
    :ivar modules: the modules that have the rules
    """

    schedule: Callable[[str], Counter[str]]
    missing: Mapping[str, Callable[[], Mapping[tuple[Any, str], Any]]]
    modules: tuple[ModuleType, ...] = ()

    def run(self, seed: object, schedules: int) -> tuple[int | None, str, Counter[str]]:
        """Return the ordinal of the first schedule with a violation (or None), the violation, and all counts."""
        seen: Counter[str] = Counter()
        for number in range(schedules):
            try:
                seen += self.schedule(f"{seed}-{number}")
            except Violation as violation:
                return number + 1, str(violation), seen
        return None, "", seen

    def without(self, rule: str, seed: object, schedules: int) -> tuple[int | None, str, Counter[str]]:
        """Search with *rule* removed."""
        with ExitStack() as stack:
            for (owner, name), value in self.missing[rule]().items():
                stack.enter_context(patch.object(owner, name, value))
            return self.run(seed, schedules)

    def unreached(self, seed: object, schedules: int, elsewhere: Collection[str]) -> list[str]:
        """Return the branches of the rules that never run, but those of *elsewhere*, of which each has to exist."""
        with Ran(*self.modules) as ran:
            self.run(seed, schedules)
        return [*ran.never() - set(elsewhere), *set(elsewhere) - ran.branches().keys()]

    def main(self, description: str | None) -> int:
        """Run the search as a command; return its exit status."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--schedules", type=int, default=20_000)
        parser.add_argument("--seed", default="1")
        parser.add_argument("--without", choices=list(self.missing), metavar="RULE")
        parser.add_argument("--branches", action="store_true", help="count how often each branch of the rules runs")
        parser.add_argument("--rules", action="store_true", help="remove each rule in turn; each must be noticed")
        options = parser.parse_args()
        missed = 0
        for rule in list(self.missing) if options.rules else [options.without] if options.without else []:
            found, what, _ = self.without(rule, options.seed, options.schedules)
            missed += not found
            print(f"without {rule:22} {f'schedule {found}: {what}' if found else 'NOT NOTICED'}", flush=True)
        if options.rules or options.without:
            return 1 if missed else 0
        begun = time.monotonic()
        with Ran(*self.modules) if options.branches else nullcontext() as ran:
            found, what, seen = self.run(options.seed, options.schedules)
        for branch, count in sorted(ran.branches().items(), key=lambda each: each[1]) if ran else ():
            print(f"{count:9}  {branch}")
        if found:
            print(f"schedule {options.seed}-{found - 1}: {what}")
            return 1
        print(f"no violation in {options.schedules} schedules, {time.monotonic() - begun:.0f} s: {dict(seen)}")
        return 0
