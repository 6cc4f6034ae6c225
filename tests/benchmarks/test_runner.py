"""Turns: who is measured when."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runner
from fyrehose.bench import loads
from fyrehose.bench.cases import Case
from fyrehose.bench.servers import CannotStart, Contestant, Durable, Running


def contestant(name: str, started: list[str], fails: bool = False) -> Contestant:
    def start(directory: Path, protocol: str, durability: str) -> Running:
        if fails:
            raise CannotStart(name)
        directory.mkdir(parents=True)
        started.append(name)
        return Running(subprocess.Popen(["sleep", "60"]), 1, 1, 1)

    return Contestant(name=name, durable=Durable.SYNCED, share=0.5, start=start, version=lambda: "1")


def test_contestants_are_measured_in_turn_and_stopped(tmp_path: Path) -> None:
    turns: list[tuple[str, int]] = []
    running: list[Running] = []

    class Counting(loads.Bout):
        def measure(self) -> dict[str, float]:
            turns.append((self.contestant.name, self.case.messages))
            running.append(self.running)
            return {"micros": len(turns)}

    case = Case(name="figg/x", protocol="figg", messages=100)
    started: list[str] = []
    told: list[Any] = []
    two = [contestant("a", started), contestant("b", started)]
    found = runner.run(case, two, tmp_path / "servers", 3, "batch", told.append, Counting)
    assert turns == [("a", 50), ("b", 50)] * 3
    assert [(one.contestant, one.median("micros")) for one in found] == [("a", 3), ("b", 4)]
    assert all(one.process.poll() is not None for one in running)
    assert told[0] == "a starts"
    assert not tmp_path.joinpath("servers").exists()


def test_case_of_one_message_at_a_time_is_not_shortened(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Sizes(loads.Bout):
        def measure(self) -> dict[str, float]:
            sizes.append(self.case.messages)
            return {"micros": 1.0}

    for more in ({"window": 1}, {"rate": 5.0}, {}):
        case = Case(name="figg/x", protocol="figg", messages=100, **more)  # type: ignore[arg-type]
        runner.run(case, [contestant("a", [])], tmp_path / "servers", 1, "batch", bout=Sizes)
    assert sizes == [100, 100, 50]


def test_running_servers_are_stopped_if_another_cannot_start(tmp_path: Path) -> None:
    started: list[str] = []
    case = Case(name="figg/x", protocol="figg", messages=100)
    with pytest.raises(CannotStart, match="b"):
        runner.run(case, [contestant("a", started), contestant("b", started, True)], tmp_path / "s", 1, "batch")
    assert started == ["a"]
    assert not tmp_path.joinpath("s").exists()
