"""Every protocol is measured once, with a few messages: that all of them are counted, not how fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from fyrehose.bench import runner, servers
from fyrehose.bench.cases import Case, selected

pytestmark = pytest.mark.live

NAMES = (
    "figg/live/4",
    "figg/catch-up",
    "figg/publish/window-1",
    "lumberjack/level-3/16-connections",
    "relink/live/1",
    "relink/catch-up",
    "backbone/live/4",
    "backbone/catch-up",
    "eventbus/live/4",
    "eventbus/catch-up",
)


def measure(case: Case, directory: Path) -> None:
    (found,) = runner.run(case, [servers.FYREHOSE], directory / "servers", 1, "batch")
    (sample,) = found.samples
    assert sample.messages == case.messages
    assert sample.received + sample.lost == case.messages * case.subscribers
    assert sample.cpu > 0
    assert sample.peak > 1 << 20
    assert bool(sample.latency) == (case.window == 1)
    assert not directory.joinpath("servers").exists()


@pytest.mark.parametrize("name", NAMES)
def test_every_protocol_is_measured(name: str, tmp_path: Path) -> None:
    (case,) = selected([name])
    measure(case.scaled(0.0005), tmp_path)


def test_a_rate_is_kept_and_latency_told(tmp_path: Path) -> None:
    case = Case(name="figg/x", protocol="figg", messages=300, subscribers=1, rate=2_000.0)
    (found,) = runner.run(case, [servers.FYREHOSE], tmp_path / "servers", 1, "batch")
    (sample,) = found.samples
    assert set(sample.latency) == {"acknowledged", "received"}
    assert sample.seconds >= 299 / 2_000
