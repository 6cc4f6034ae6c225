"""``fyrehose reload``: which server it asks, and what it prints of the answer."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fyrehose.cli.command import main
from fyrehose.server.reload_answer import ReloadAnswer, write_answer


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["reload", *words])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the processes to which the command sends a signal."""
    found: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: found.append(pid))
    return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    """Return the directory of a journal that this process has locked, as a server would."""
    with (tmp_path / "LOCK").open("w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()
        yield tmp_path


def test_a_journal_without_a_server_is_refused(tmp_path: Path, asked: list[int]) -> None:
    missing = run("--data-dir", str(tmp_path / "none"))
    assert (missing.exit_code, "there is no journal in" in missing.output) == (1, True)
    (tmp_path / "LOCK").write_text("4711\n")
    idle = run("--data-dir", str(tmp_path))
    assert (idle.exit_code, "no server has the journal" in idle.output) == (1, True)
    assert asked == []


@pytest.mark.parametrize(
    ("answer", "status", "lines"),
    [
        (ReloadAnswer(changed=("a: 1 -> 2",), restart=("b needs a restart",)), 0, ["a: 1 -> 2", "b needs a restart"]),
        (ReloadAnswer(), 0, ["nothing has changed"]),
        (ReloadAnswer(error="not TOML"), 1, ["fyrehose: nothing was changed: not TOML"]),
    ],
)
def test_the_answer_of_the_server_is_printed(
    served: Path, monkeypatch: pytest.MonkeyPatch, answer: ReloadAnswer, status: int, lines: list[str]
) -> None:
    write_answer(served, ReloadAnswer(changed=("an older one",)))
    asked: list[int] = []

    def kill(pid: int, number: Any) -> None:
        asked.append(pid)
        write_answer(served, answer)

    monkeypatch.setattr(os, "kill", kill)
    result = run("--data-dir", str(served))
    assert (result.exit_code, result.output.splitlines(), asked) == (status, lines, [4711])


def test_a_server_that_does_not_answer_is_named(served: Path, asked: list[int]) -> None:
    result = run("--data-dir", str(served), "--timeout", "100ms")
    assert (result.exit_code, asked) == (1, [4711])
    assert "the server (pid 4711) has not answered within 0.1 s" in result.output
