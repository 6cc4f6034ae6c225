"""Run random schedules of shared subscriptions, and check that removing any rule is noticed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

schedules = import_module("schedules")

#: Rules whose violations are so rare that a search takes minutes: ``schedules.py --without RULE`` finds them.
SELDOM = ("old-token", "epoch-first", "retention-grace")

#: Seeds whose first schedules notice a missing rule, where seed 1 needs hundreds of schedules.
NOTICED_BY = {
    "all-or-nothing": 28,
    "checkpoint-appended": 5,
    "dead-letter-atomic": 5,
    "ended-first": 337,
    "grace": 41,
    "leader-confirmed": 19,
    "publish-atomic": 52,
    "reach-first": 8,
    "rewind-epoch": 186,
    "token": 265,
}


@pytest.mark.parametrize("seed", range(12))
def test_random_schedules_break_no_rule(seed: int) -> None:
    found, what, seen = schedules.SEARCH.run(seed, 20)
    assert not found, f"{seed}-{found - 1}: {what}"
    assert not [kind for kind in ("settled", "dead", "expired", "starts") if seen[kind] < 5], "what was seldom done"


@pytest.mark.parametrize("rule", [rule for rule in schedules.MISSING if rule not in SELDOM])
def test_a_missing_rule_is_noticed(rule: str) -> None:
    found, _, _ = schedules.SEARCH.without(rule, NOTICED_BY.get(rule, 1), 1_500)
    assert found


@pytest.mark.parametrize("rule", SELDOM)
def test_a_rule_whose_absence_is_seldom_noticed_can_be_taken_away(rule: str) -> None:
    _, _, seen = schedules.SEARCH.without(rule, 1, 1)
    assert seen["deliveries"], "nothing happened"
