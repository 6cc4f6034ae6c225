"""Run some schedules of each model, and check that removing a rule is noticed; `make torture` runs many more."""

from __future__ import annotations

import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
groups, replication = import_module("groups"), import_module("replication")

#: For each model, the steps of a schedule, and for each rule a schedule that fails without it; --break finds more.
MODELS: dict[Any, tuple[int, dict[str, int]]] = {
    replication: (
        400,
        {
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
        },
    ),
    groups: (
        300,
        {
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
        },
    ),
}
#: How many schedules around the shown one are tried.
NEAR = 60


@pytest.mark.slow
@pytest.mark.parametrize(("model", "count"), [(replication, 150), (groups, 60)], ids=["replication", "groups"])
def test_no_schedule_breaks_a_rule_and_each_branch_runs(model: Any, count: int) -> None:
    ran: Counter[str] = Counter()
    for number in range(count):
        world, violation = model.schedule(f"1/{number}", MODELS[model][0])
        assert not violation, f"{number}: {violation}"
        ran.update(world.ran)
    assert not [branch for branch in model.BRANCHES if not ran[branch]], "these branches never ran"


@pytest.mark.parametrize(
    ("model", "rule"),
    [(model, rule) for model in MODELS for rule in model.RULES],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_schedules_fail_without_a_rule(model: Any, rule: str) -> None:
    steps, shown = MODELS[model]
    near = sorted(
        range(max(0, shown[rule] - NEAR // 2), shown[rule] + NEAR), key=lambda number: abs(number - shown[rule])
    )
    assert any(model.schedule(f"1/{number}", steps, rule)[1] for number in near), "every schedule passed"
