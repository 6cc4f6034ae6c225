"""A forked program does what the interpreter would have done: its output, its status, and what it inherits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fyrehose.bench.plans import LoadOutcome, Plan
from tests.doubles import programs
from tests.doubles.programs import ForkedPopen, RealPopen

pytestmark = pytest.mark.slow

FYREHOSE = Path(sys.executable).with_name("fyrehose")
TWISTD = Path(sys.executable).with_name("twistd")
KILL9 = programs.TORTURE / "kill9.py"


def outcome(popen: Any, words: list[Any], **how: Any) -> tuple[int, bytes, bytes]:
    given = how.pop("input", b"")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(words, **pipes, **how) as process:
        said, errors = process.communicate(given, timeout=60)
        return process.returncode, said, errors


@pytest.mark.parametrize(
    "words",
    [
        [FYREHOSE, "--version"],
        [FYREHOSE, "journal", "stats"],
        [FYREHOSE, "journal", "verify", "not-there"],
        [FYREHOSE, "serve", "--unknown"],
        [FYREHOSE, "publish", "--to", "127.0.0.1:1", "--stream", "s", "--timeout", "0s"],
        [TWISTD, "fyrehose", "--version"],
        [sys.executable, KILL9, "--unknown"],
    ],
    ids=lambda words: "-".join(Path(word).name for word in words),
)
def test_output_and_status_are_those_of_a_new_interpreter(words: list[Any], tmp_path: Path) -> None:
    forked = outcome(ForkedPopen, words, cwd=tmp_path)
    assert forked == outcome(RealPopen, words, cwd=tmp_path)
    assert forked[1] or forked[2]


def test_a_program_has_the_given_environment_and_standard_streams(tmp_path: Path) -> None:
    words = [FYREHOSE, "doctor", "--format", "json", "--data-dir", "data"]
    for popen in (ForkedPopen, RealPopen):
        status, _, errors = outcome(popen, [*words, "--timeout", "soon"], cwd=tmp_path)
        assert status == 2, errors
    path = tmp_path / "out"
    for width in ("20", "60"):
        with path.open("wb") as out:
            subprocess.run([FYREHOSE, "protocols"], stdout=out, env={**os.environ, "COLUMNS": width}, check=True)
        assert max(map(len, path.read_text().splitlines())) <= int(width)


def started(words: list[Any], tmp_path: Path, popen: Any = ForkedPopen) -> Any:
    words = [*words, "--data-dir", tmp_path / "data", "-l", "figg=tcp:0:interface=127.0.0.1"]
    process = popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    while "#info] serving" not in process.stdout.readline():
        assert process.poll() is None
    return process


def descriptors(pid: int) -> list[str]:
    """Return what the descriptors of a process are, without the numbers of pipes and sockets."""
    return sorted(str(link.readlink()).partition("[")[0] for link in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.parametrize("words", [[FYREHOSE, "serve"], [TWISTD, "-n", "fyrehose"]], ids=["serve", "twistd"])
def test_a_server_is_a_child_of_the_test_and_has_no_other_descriptors(words: list[Any], tmp_path: Path) -> None:
    found = []
    for popen in (ForkedPopen, RealPopen):
        with started(words, tmp_path, popen) as process:
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert f"PPid:\t{os.getpid()}\n" in status
            assert Path(f"/proc/{process.pid}/cwd").samefile(tmp_path)
            found.append(descriptors(process.pid))
            process.terminate()
            assert process.wait(60) == 0
    assert found[0] == found[1]
    assert len(found[0]) > 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_signal_ends_a_forked_program(number: signal.Signals, tmp_path: Path) -> None:
    with started([FYREHOSE, "serve"], tmp_path) as process:
        process.send_signal(number)
        assert process.wait(60) == -number


def test_forks_run_at_once_and_are_waited_for_by_their_own_numbers(tmp_path: Path) -> None:
    running = [ForkedPopen([FYREHOSE, "--version"], stdout=subprocess.PIPE) for _ in range(5)]
    assert len({process.pid for process in running}) == 5
    assert {process.communicate(timeout=60)[0] for process in running} == {
        outcome(RealPopen, [FYREHOSE, "--version"])[1]
    }


@pytest.mark.parametrize(
    ("words", "how"),
    [
        ([sys.executable, "-c", "import sys; print('twisted' in sys.modules)"], {}),
        ([FYREHOSE, "--version"], {"env": {**os.environ, "PYTHONHASHSEED": "1"}}),
        ([FYREHOSE, "--version"], {"env": {**os.environ, "LD_PRELOAD": ""}}),
        ([FYREHOSE, "--version"], {"start_new_session": True}),
        (f"{FYREHOSE} --version", {"shell": True}),
    ],
)
def test_everything_else_is_started_as_usual(words: Any, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.Parent, "fork", None)
    assert outcome(ForkedPopen, words, **how) == outcome(RealPopen, words, **how)


def test_another_fyrehose_on_the_path_is_not_replaced_by_a_fork(tmp_path: Path) -> None:
    package = tmp_path / "fyrehose"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("cli.py").write_text("def main():\n    print('another one')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert outcome(ForkedPopen, [FYREHOSE], env=environment)[:2] == (0, b"another one\n")


def test_the_parent_ends_with_the_process_that_has_started_it() -> None:
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(programs.ROOT)!r})\n"
        "from tests.doubles.programs import STARTED, parent\n"
        "parent()\n"
        "print(STARTED[0].pid)\n"
    )
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("maker", programs.MAKERS)
def test_a_forked_load_maker_ends_like_a_module_that_python_runs(maker: str) -> None:
    plan = Plan(wire="figg", port=1, read_port=1, stream="s", size=1, publishers=[1]).dumps().encode()
    words = [sys.executable, "-m", maker]
    for popen in (ForkedPopen, RealPopen):
        status, said, errors = outcome(popen, words, cwd=programs.ROOT, input=plan + b"\n")
        assert (status, errors) == (0, b"")
        assert "refused" in LoadOutcome.loads(said.decode()).trouble
