"""Connections that do nothing, against a server that hardly does more."""

from __future__ import annotations

import os

import pytest

from benchmarks.cases import Case, Work
from benchmarks.idle import measure, settle
from benchmarks.servers import FYREHOSE, CannotStart


def test_descriptor_limit_that_is_too_low_is_reported(tmp_path) -> None:  # type: ignore[no-untyped-def]
    case = Case(name="x/idle", protocol="figg", work=Work.IDLE, messages=1 << 40)
    with pytest.raises(CannotStart, match="descriptors"):
        measure(case, FYREHOSE, tmp_path, 1, "batch", print)


def test_a_process_that_rests_has_settled() -> None:
    settle(os.getpid())
