"""Run random schedules of exclusive subscriptions, and check that removing any rule is noticed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

exclusives = import_module("exclusives")


@pytest.mark.parametrize("seed", range(10))
def test_random_schedules_of_exclusive_subscriptions_break_no_rule(seed: int) -> None:
    found, what, seen = exclusives.SEARCH.run(f"e{seed}", 15)
    assert not found, f"e{seed}-{found - 1}: {what}"
    kinds = ("acknowledged", "refused", "attached", "in use", "rewound", "deleted", "retired", "starts")
    assert not [kind for kind in kinds if not seen[kind]], "what no schedule has done"


def test_every_branch_of_the_rules_runs() -> None:
    elsewhere = {
        "ExclusiveSubscription.seq: return self.tracks[self.options.stream].durable_floor",
        "ExclusiveSubscription.take_report: self.report = ConsumerReport(text, self.table.clock.seconds(",
    }
    assert exclusives.SEARCH.unreached("e0", 30, elsewhere) == []


@pytest.mark.parametrize("rule", list(exclusives.MISSING))
def test_a_missing_rule_of_exclusive_subscriptions_is_noticed(rule: str) -> None:
    found, _, _ = exclusives.SEARCH.without(rule, 1, 200)
    assert found
