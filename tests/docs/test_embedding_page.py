"""Run the programs of docs/embedding.md as the page says: with pytest-twisted and trial, on three reactors."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_twisted

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: A program that installs the reactor named by its first argument, also as pytest-twisted's default, and runs pytest.
PYTEST = """
import sys
from importlib import import_module
import pytest
import twisted.internet.default as default
module = import_module(f"twisted.internet.{sys.argv[1]}reactor")
module.install()
default.install = module.install
kind = ["--reactor=asyncio"] if sys.argv[1] == "asyncio" else []
sys.exit(pytest.main([*kind, "-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def load(name: str) -> ModuleType:
    spec = spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


page = load("embedding_page")


@pytest.mark.live
@pytest.mark.parametrize("scenario", page.SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest_twisted.ensureDeferred
async def test_each_program_of_the_page_runs_as_the_page_says(scenario: Any) -> None:
    await scenario()


@pytest.mark.parametrize("heading", ["Only the messages", "Several protocols, one journal", "In a web application"])
def test_program_has_fewer_than_15_lines(heading: str) -> None:
    lines = [line for line in page.program(heading).split("\n") if line.strip()]
    assert len(lines) < 15


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("reactor", ["epoll", "select", "asyncio"])
@pytest.mark.parametrize("runner", ["pytest", "trial"])
def test_the_programs_of_the_page_run_on_every_reactor(runner: str, reactor: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if runner == "trial":
        command = ["-m", "twisted.trial", f"--reactor={reactor}", str(HERE / "embedding_page.py")]
    else:
        command = [
            "-c",
            PYTEST,
            reactor,
            f"--rootdir={ROOT}",
            f"{__file__}::{test_each_program_of_the_page_runs_as_the_page_says.__name__}",
        ]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("successes=3" if runner == "trial" else "3 passed") in done.stdout
