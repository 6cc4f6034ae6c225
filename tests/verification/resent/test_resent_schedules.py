"""Run random schedules for repeated events, and check that removing any rule is noticed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

schedules = import_module("resent_schedules")


@pytest.mark.parametrize("seed", range(3))
def test_random_schedules_lose_nothing_and_store_no_event_with_an_identity_twice(seed: int) -> None:
    found, what, seen = schedules.SEARCH.run(seed, 100)
    assert not found, f"{seed}-{found - 1}: {what}"
    assert all(seen[kind] > 50 for kind in ("dropped", "doubled ok", "doubled u"))


def test_every_branch_of_the_rules_runs_but_those_of_retention_damage_and_a_stop() -> None:
    elsewhere = {
        "Repetitions._enter: self.forget(stretch)",
        "Repetitions._forget_if_closed: for stretch in list(self._ages):",
        "Repetitions._forget_if_closed: self.forget(stretch)",
        "Repetitions._runs: pass  # events behind the damage are not recognized; the jou",
        "Repetitions._runs: return",
        "Repetitions.close: self._closed = True",
        "Repetitions.open: self._closed = False",
        "Repetitions.originals.<locals>.<listcomp>: originals = [None if stretch in gone else stretch for stretc",
        "Repetitions.originals: originals = [None if stretch in gone else stretch for stretc",
        "Repetitions.read_more: return",
        "Repetitions.read_more: self.forgot(len(run))",
        "Repetitions.suspects: return len(self._ledger)",
        "Sender.publishing: self.repetitions.forget(stretch)",
        "Sender.publishing: stretch = self.recent.popleft()",
    }
    assert schedules.SEARCH.unreached(0, 100, elsewhere) == []


#: Seeds whose first schedules notice a missing rule, where seed 3 needs nearly two thousand schedules.
NOTICED_BY = {"durable": 1338}


@pytest.mark.parametrize("rule", schedules.MISSING)
def test_a_missing_rule_is_noticed(rule: str) -> None:
    found, _, _ = schedules.SEARCH.without(rule, NOTICED_BY.get(rule, 3), 2_000)
    assert found
