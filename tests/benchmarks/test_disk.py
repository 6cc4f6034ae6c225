"""Writing and syncing, timed one at a time."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.disk import Disk
from fyrehose.bench.disk import AROUND
from fyrehose.bench.plans import Plan


def test_each_message_is_written_and_timed(tmp_path: Path) -> None:
    extra = {"directory": str(tmp_path)}
    load = Disk(Plan(wire="disk", port=0, read_port=0, stream="s", size=100, publishers=[5], extra=extra))
    load.connect()
    assert tmp_path.joinpath("s").stat().st_size == 5 * (100 + AROUND)
    outcome = load.run(time.monotonic())
    assert tmp_path.joinpath("s").read_bytes().count(b"\0" * 300) == 0
    load.close()
    assert outcome.acknowledged == 5
    assert len(outcome.latency["acknowledged"]) == 3
    assert not tmp_path.joinpath("s").exists()
