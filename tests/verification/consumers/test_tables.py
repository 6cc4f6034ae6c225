"""Run random schedules of the table of shared subscriptions, and check that removing any rule is noticed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

tables = import_module("tables")


@pytest.mark.parametrize("seed", range(10))
def test_random_schedules_of_whole_tables_break_no_rule(seed: int) -> None:
    found, what, seen = tables.SEARCH.run(f"t{seed}", 20)
    assert not found, f"t{seed}-{found - 1}: {what}"
    kinds = ("settled", "dead", "expired", "starts", "deleted", "rewound", "redriven", "retired")
    assert not [kind for kind in kinds if not seen[kind]], "what no schedule has done"


#: Seeds whose first schedules notice a missing rule, where seed 1 needs hundreds of schedules.
NOTICED_BY = {"mark": 8, "rewind-epoch": 17, "name-epoch": 11, "request-number": 19}


@pytest.mark.parametrize("rule", list(tables.MISSING))
def test_a_missing_rule_of_the_table_is_noticed(rule: str) -> None:
    found, _, _ = tables.SEARCH.without(rule, NOTICED_BY.get(rule, 1), 1_500)
    assert found


def test_a_stream_that_was_created_again_waits_for_no_lease_after_an_orderly_stop() -> None:
    assert tables.schedule("7-2245")["retired"]
