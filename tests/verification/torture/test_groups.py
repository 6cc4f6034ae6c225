"""Run some schedules of groups, and check that removing a rule is noticed; `make torture` runs many more."""

from __future__ import annotations

import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
groups = import_module("groups")

#: For each rule, a schedule that fails without it; --break finds more of them.
SHOWN = {
    "epochs": 2,
    "owner-checks": 1,
    "freeze-durable": 100,
    "freeze-in-log": 3,
    "copy-frozen": 812,
    "copy-continues": 1,
    "keys-go": 4,
    "map-decides": 48,
    "whole-copy": 1,
    "forward-waits": 0,
    "one-group": 0,
    "unknown": 147,
    "read-durable": 51,
}


@pytest.mark.slow
def test_moves_between_groups_lose_and_double_nothing_in_any_schedule() -> None:
    ran: Counter[str] = Counter()
    for number in range(60):
        world, violation = groups.schedule(f"1/{number}", 300)
        assert not violation, f"{number}: {violation}"
        ran += world.ran
    assert not [branch for branch in groups.BRANCHES if not ran[branch]], "these branches of the rules never ran"


@pytest.mark.parametrize("rule", groups.RULES)
def test_schedules_fail_without_a_rule(rule: str) -> None:
    shown = SHOWN[rule]
    near = sorted(range(max(0, shown - 5), shown + 30), key=lambda number: abs(number - shown))
    assert any(groups.schedule(f"1/{number}", 300, rule)[1] for number in near), "every schedule passed"
