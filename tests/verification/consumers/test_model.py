"""Run random schedules of the model of subscriptions, and check that removing any of its rules is noticed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

model = import_module("model")

#: Rules whose violations are so rare that a search takes minutes: ``model.py --without RULE`` finds them.
SELDOM = ("old-token", "retention-grace", "leader-confirmed", "epoch-first", "all-or-nothing", "dead-letter-atomic")


@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_of_the_model_break_no_rule(seed: int) -> None:
    found, what, seen = model.SEARCH.run(seed, 100)
    assert not found, f"{seed}-{found - 1}: {what}"
    assert all(seen[kind] > 20 for kind in ("settled", "dead", "expired", "starts", "letters", "acknowledged"))


@pytest.mark.parametrize("rule", [rule for rule in model.RULES if rule not in SELDOM])
def test_a_missing_rule_of_the_model_is_noticed(rule: str) -> None:
    found, _, _ = model.SEARCH.without(rule, 1, 1_500)
    assert found
