"""Targets are judged by medians, and only where something was measured."""

from __future__ import annotations

import pytest

from benchmarks.peers import PEERS
from benchmarks.results import Measurement, Results
from benchmarks.targets import LIMITS, PAIRS, TARGETS
from fyrehose.bench.cases import CASES
from fyrehose.bench.servers import OURS


def one(case: str, contestant: str = "fyrehose", **figures: float) -> Measurement:
    return Measurement(
        case=case, contestant=contestant, samples=[{name.replace("_", "."): value for name, value in figures.items()}]
    )


def found(name: str, *measured: Measurement) -> tuple[float | None, bool | None]:
    (target,) = [target for target in TARGETS if target.name == name]
    value = target.value(Results(measured))
    return value, None if value is None else target.met(value)


def test_targets_without_measurement_are_not_judged() -> None:
    assert [target for target in TARGETS if target.value(Results([])) is not None] == []


def test_targets_name_existing_cases_and_servers() -> None:
    assert {case for _, _, _, case, _, _ in LIMITS} <= {case.name for case in CASES}
    assert set(PAIRS) <= set(PEERS)
    assert set(PAIRS.values()) <= set(OURS)
    for peer, ours in PAIRS.items():
        assert PEERS[peer].durable is OURS[ours].durable


@pytest.mark.parametrize(("cpu", "met"), [(0.6, True), (0.61, False)])
def test_cpu_target_is_an_upper_limit(cpu: float, met: bool) -> None:
    assert found("figg/live/1, CPU a message", one("figg/live/1", micros=cpu)) == (cpu, met)


def test_further_subscribers_share_what_they_add() -> None:
    name = "figg, each further subscriber, CPU a delivery"
    assert found(name, one("figg/live/1", micros=1.0), one("figg/live/16", micros=4.0)) == (0.2, False)
    assert found(name, one("figg/live/1", micros=1.0)) == (None, None)


def test_other_logs_must_use_twice_the_cpu() -> None:
    name = "figg/live/1, messages for a CPU second against redis-always"
    ours = one("figg/live/1", micros=2.0)
    assert found(name, ours, one("figg/live/1", "redis-always", micros=5.0)) == (2.5, True)
    assert found(name, ours, one("figg/live/1", "redis-always", micros=3.0)) == (1.5, False)
    later = "figg/live/1, messages for a CPU second against jetstream"
    assert found(later, ours, one("figg/live/1", "jetstream", micros=3.0)) == (None, None), "ours syncs more"


def test_journal_is_compared_with_the_bare_disk() -> None:
    name, case = "figg, one message at a time against write and fdatasync", "figg/publish/window-1"
    assert found(name, one(case, acknowledged_50=0.0025), one(case, "disk", acknowledged_50=0.002)) == (1.25, True)


def test_limits_have_their_units() -> None:
    assert found("memory of an idle connection", one("figg/idle", each=4096.0)) == (4.0, True)
    assert found("figg, 20,000 messages/s, p99", one("figg/latency/20k", acknowledged_99=0.06)) == (60.0, False)


def test_lost_messages_miss_the_flow_control_target() -> None:
    name = "flow control, messages that a slow subscriber lost"
    assert found(name, one("figg/flow-control", sent=10.0, received=10.0)) == (0.0, True)
    assert found(name, one("figg/flow-control", sent=10.0, received=9.0)) == (1.0, False)
