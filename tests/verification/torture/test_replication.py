"""Some schedules of replication, and the rules without which they have to fail; `make torture` runs many more."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
replication = import_module("replication")

#: A schedule that shows what each rule is there for; the others that fail are found with --break.
SHOWN = {
    "order-blind": 2,
    "give-up": 0,
    "blind-takeover": 0,
    "no-step-down": 2,
    "ack-local": 0,
    "ack-remote": 55,
    "trim-alone": 35,
    "depose-by-void": 3,
    "number-together": 9,
    "trust-position": 2,
    "count-void": 5,
    "no-truncate": 3,
    "mark-local": 2,
    "trim-anywhere": 4,
    "copy-unconfirmed": 4,
}


def test_nothing_acknowledged_is_lost_in_any_schedule() -> None:
    acked = purged = 0
    for number in range(150):
        world, violation = replication.schedule(f"1/{number}", 400)
        assert not violation, f"{number}: {violation}"
        acked, purged = acked + world.acked, purged + world.base
    assert acked
    assert purged


@pytest.mark.parametrize("rule", replication.RULES)
def test_schedules_fail_without(rule: str) -> None:
    near = range(max(0, SHOWN[rule] - 30), SHOWN[rule] + 60)
    ordered = sorted(near, key=lambda number: abs(number - SHOWN[rule]))
    assert any(replication.schedule(f"1/{number}", 400, rule)[1] for number in ordered)
