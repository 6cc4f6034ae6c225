"""Connections that do nothing, against a server that hardly does more."""

from __future__ import annotations

import attrs
import pytest

from benchmarks import idle
from benchmarks.idle import measure
from fyrehose.bench.cases import Case, CaseWork
from fyrehose.bench.servers import FYREHOSE, CannotStart


def test_descriptor_limit_that_is_too_low_is_reported(tmp_path) -> None:  # type: ignore[no-untyped-def]
    case = Case(name="x/idle", protocol="figg", work=CaseWork.IDLE, messages=1 << 40)
    with pytest.raises(CannotStart, match="descriptors"):
        measure(case, FYREHOSE, tmp_path, 1, "batch", print)


@attrs.frozen
class Used:
    total: float

    def since(self, before: Used) -> Used:
        return Used(self.total - before.total)


def test_settle_waits_until_the_process_uses_no_cpu() -> None:
    samples = iter((0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 9.0))
    idle.settle(1, lambda pid: Used(next(samples)), every=0.001)  # type: ignore[arg-type, return-value]
    assert list(samples) == [9.0]
