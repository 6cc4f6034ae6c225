"""Run some schedules of replication, and check that removing a rule is noticed; `make torture` runs many more."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
replication = import_module("replication")

#: For each rule, a schedule that fails without it; --break finds more of them.
SHOWN = {
    "order-blind": 1,
    "give-up": 0,
    "blind-takeover": 2,
    "no-step-down": 0,
    "ack-local": 0,
    "ack-remote": 5,
    "trim-alone": 1,
    "depose-by-void": 0,
    "number-together": 4,
    "trust-position": 2,
    "trim-for-anybody": 1,
    "list-at-once": 13,
    "change-together": 2,
    "forget-members": 262,
    "lead-outside": 6,
    "wait-for-removed": 0,
    "let-last-copy-go": 162,
    "lead-unready": 11,
    "keep-the-lead": 0,
    "count-void": 0,
    "no-truncate": 1,
    "mark-local": 0,
    "trim-anywhere": 0,
    "copy-unconfirmed": 255,
    "age-by-arrival": 5,
    "age-without-entries": 2,
    "confirm-blindly": 7,
    "confirm-unordered": 39,
}


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_in_any_schedule() -> None:
    acked = purged = changes = 0
    for number in range(150):
        world, violation = replication.schedule(f"1/{number}", 400)
        assert not violation, f"{number}: {violation}"
        acked, purged, changes = acked + world.acked, purged + world.base, changes + world.changes
    assert acked
    assert purged
    assert changes


@pytest.mark.parametrize("rule", replication.RULES)
def test_schedules_fail_without_a_rule(rule: str) -> None:
    near = range(max(0, SHOWN[rule] - 30), SHOWN[rule] + 60)
    ordered = sorted(near, key=lambda number: abs(number - SHOWN[rule]))
    assert any(replication.schedule(f"1/{number}", 400, rule)[1] for number in ordered)
