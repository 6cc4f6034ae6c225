"""Run random requests of a hostile tenant, and check that removing any rule is noticed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

hostile = import_module("hostile_tenant")


@pytest.mark.parametrize("seed", range(2))
def test_a_hostile_tenant_breaks_no_rule(seed: int) -> None:
    found, what, seen = hostile.SEARCH.run(seed, 5)
    assert not found, f"{seed}-{found - 1}: {what}"
    assert all(seen[kind] > 20 for kind in ("lease 200", "settle 200", "settle 409", "release 200", " 200", " 401"))


@pytest.mark.parametrize("rule", hostile.MISSING)
def test_a_missing_rule_is_noticed(rule: str, logged_errors: Any) -> None:
    found, _, _ = hostile.SEARCH.without(rule, 1, 20)
    assert found
    assert bool(logged_errors.take()) == (rule == "errors")
