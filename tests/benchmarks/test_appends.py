"""The journal's batches, appended in a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fyrehose.bench.makers import LoadFailed, Makers
from fyrehose.bench.plans import Plan


def plan(directory: Path, size: int = 64 << 10) -> Plan:
    extra = {"directory": str(directory)}
    return Plan(wire="journal", port=0, read_port=0, stream="s", size=size, publishers=[20], window=2, extra=extra)


@pytest.mark.slow
def test_every_batch_becomes_durable(tmp_path: Path) -> None:
    with Makers([plan(tmp_path)], "benchmarks.maker") as makers:
        (outcome,) = makers.run()
        assert outcome.acknowledged == 20
        assert outcome.ended > outcome.began
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.segment")) > 20 * (64 << 10)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_failure_of_the_journal_is_reported(tmp_path: Path) -> None:
    tmp_path.joinpath("s").write_bytes(b"in the way")
    with (
        pytest.raises(LoadFailed, match="cannot use the journal's directory"),
        Makers([plan(tmp_path)], "benchmarks.maker") as makers,
    ):
        makers.run()
