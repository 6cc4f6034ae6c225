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


#: Branches that the schedules do not run, or seldom: those of a stop, of a second leader, of damage, of a failed turn,
#: of records of several sizes, of a second subscription, and of what the bounds of one turn leave over.
ELSEWHERE = {
    "Lane._lease_returned: continue",
    "Lane._lease_returned: low, end, looks = low + 1, low + 1, looks - 1  # queued agai",
    "Lane._lease_with_keys: break",
    "Lane._lease_with_keys: self.pool.tick(look=True)  # Let it expire; the others wait ",
    'Lane._without_state: found.append((first, low - 1, None, "final"))',
    'LeasePool._draft: outcome.refuse(item, end + 1, last, "later")',
    'LeasePool._draft: outcome.refuse(item, first, last, "not-leading")',
    'LeasePool.act: outcome.refuse(item, low, high, "lease-lost")',
    "LeasePool.alarm: self._set_alarms()",
    "LeasePool.holds: return self.held_records > 0 and self.in_grace()",
    "LeasePool.may_lease: return False",
    "LeasePool.release: break",
    "LeasePool.tick: continue",
    "SharedSubscription._add_letters: for (half,) in halves([found]):",
    "SharedSubscription._add_letters: self._add_letters(draft, lane, half)",
    "SharedSubscription._copy: first = self.table.reader.behind(first)",
    "SharedSubscription._copy: return first - 1",
    "SharedSubscription._redrivable: raise SubscriptionConflict(",
    'SharedSubscription._redrivable: raise SubscriptionConflict(f"subscription {name!r} has no st',
    "SharedSubscription._serve: continue",
    "SharedSubscription._take: part, left = part.slice(0, part.fitting(left) if not found o",
    'SharedSubscription.act: return fail(SubscriptionGone(f"shared subscription {self.nam',
    "SharedSubscription.act: return fail(refusal)",
    'SharedSubscription.check: self.table.say(self, "cannot write dead letters, and tries a',
    'SharedSubscription.failed: log.failure("a turn of subscription {name!r} failed; please ',
    "SharedSubscription.release: break",
    "SharedSubscription.wake: return 0",
    "Waiting.end: return 0.0 if self.writing else self.until",
    "no_copy: return last",
}


@pytest.mark.slow
def test_every_other_branch_of_the_rules_runs() -> None:
    assert tables.SEARCH.unreached("branches", 150, ELSEWHERE) == []


#: Seeds whose first schedules notice a missing rule, where seed 1 needs hundreds of schedules.
NOTICED_BY = {"mark": 8, "rewind-epoch": 17, "name-epoch": 11, "request-number": 18, "token": 8, "epoch-first": 11}
NOTICED_BY |= {"grace": 18, "retention-ends": 2, "retention-grace": 5}


@pytest.mark.parametrize("rule", list(tables.MISSING))
def test_a_missing_rule_of_the_table_is_noticed(rule: str) -> None:
    found, _, _ = tables.SEARCH.without(rule, NOTICED_BY.get(rule, 1), 1_500)
    assert found
