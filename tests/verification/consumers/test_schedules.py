"""Shared subscriptions keep their rules in random schedules, and each rule that is taken away is noticed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

schedules = import_module("schedules")

#: Rules that are broken so seldom that a search takes minutes: ``schedules.py --without RULE`` finds them.
SELDOM = ("old-token", "epoch-first", "retention-grace")

#: Seeds of searches that notice a missing rule within a few schedules, where seed 1 needs hundreds.
NOTICED_BY = {"all-or-nothing": 112, "token": 191, "dead-letter-atomic": 50, "leader-confirmed": 3}


@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_break_no_rule(seed: int) -> None:
    found, what, seen = schedules.search(seed, 60)
    assert not found, f"{seed}-{found - 1}: {what}"
    assert all(seen[kind] > 60 for kind in ("settled", "dead", "expired", "starts"))


@pytest.mark.parametrize("rule", [rule for rule in schedules.MISSING if rule not in SELDOM])
def test_a_missing_rule_is_noticed(rule: str) -> None:
    found, _, _ = schedules.search_without(rule, NOTICED_BY.get(rule, 1), 1_500)
    assert found
