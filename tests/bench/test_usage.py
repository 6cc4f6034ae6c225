"""CPU and memory of processes, as the kernel states them."""

from __future__ import annotations

import os
import time

from fyrehose.bench import usage


def test_cpu_seconds_match_those_of_the_process_itself() -> None:
    before, own = usage.cpu(os.getpid()), time.process_time()
    while time.process_time() - own < 0.05:
        pass
    spent = usage.cpu(os.getpid()).since(before)
    assert 0.05 <= spent.total <= time.process_time() - own + 0.05
    assert spent.user >= 0
    assert spent.system >= 0


def test_present_and_peak_memory_are_measured() -> None:
    now, most = usage.memory(os.getpid())
    assert 1 << 20 < now <= most
