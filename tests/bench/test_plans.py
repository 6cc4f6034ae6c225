"""Plans and outcomes are the same after they were sent through a pipe."""

from __future__ import annotations

from fyrehose.bench.plans import LoadOutcome, Plan


def test_a_plan_is_one_line() -> None:
    plan = Plan(wire="figg", port=1, read_port=2, stream="a\nb", size=3, publishers=[4, 5], extra={"level": 3})
    assert "\n" not in plan.dumps()
    assert Plan.loads(plan.dumps()) == plan


def test_an_outcome_is_one_line() -> None:
    outcome = LoadOutcome(began=1.5, ended=2.5, cpu=0.25, latency={"acknowledged": [0.1]}, trouble="a\nb")
    assert "\n" not in outcome.dumps()
    assert LoadOutcome.loads(outcome.dumps()) == outcome
