"""Every command of the README and of the tour, run as it stands there, and what it says compared."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]
#: What a checkout has that the commands need.
NEEDED = ("Makefile", "setup.cfg", "setup.py", "pyproject.toml", "README.md", "fyrehose", "twisted", "docs")
#: A command that is not run: what runs this.
NOT_RUN = {"make test"}


@attrs.frozen
class Step:
    """A command of a page, and what the page says that it says; a program in Python has no command."""

    command: str
    expected: list[str]


def steps(page: str) -> Iterator[Step]:
    """The commands of a page in their order: what follows a ``$`` in its blocks, and its programs."""
    for block in re.finditer(r"^```(\w+)\n(.*?)^```$|((?:^    [^\n]*\n|^\n)+)", page, re.MULTILINE | re.DOTALL):
        kind, fenced, indented = block.groups()
        if kind == "python":
            yield Step(f"python - <<'END'\n{fenced}END", [])
        elif kind in (None, "console"):
            lines = [line.removeprefix("    ") if indented else line for line in (fenced or indented).splitlines()]
            yield from _commands(lines)


def _commands(lines: list[str]) -> Iterator[Step]:
    step = None
    for line in lines:
        if line.startswith("$ "):
            if step:
                yield step
            step = Step(line[2:].split("  # ")[0].strip(), [])
        elif step and line.strip():
            step.expected.append(line)
    if step:
        yield step


def plain(line: str) -> str:
    """A line without what differs from run to run: numbers with their units, and how wide a column is."""
    line = re.sub(r"\S*\d\S*( [kMG]?B\b| bytes\b)?|…", "#", line)
    return " ".join(word.rstrip(",") for word in line.split() if word not in ("...", "#"))


@attrs.define
class Shell:
    """One shell in which all commands are run, with a network of its own if that can be had."""

    process: subprocess.Popen[bytes]
    lines: list[str] = attrs.field(factory=list)
    reading: threading.Thread = attrs.field(init=False)

    @classmethod
    def start(cls, directory: Path) -> Shell:
        for name in NEEDED:
            (directory / name).symlink_to(ROOT / name)
        (directory / ".venv").symlink_to(Path(sys.prefix))
        alone = subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0
        command = ["unshare", "-rn", "sh", "-c", "ip link set lo up && exec bash"] if alone else ["bash"]
        shell = cls(
            subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
        shell.reading = threading.Thread(target=shell._read, daemon=True)
        shell.reading.start()
        shell.say("export COLUMNS=110 PATH=$PWD/.venv/bin:$PATH; unset CI PYTEST_CURRENT_TEST; set +m")
        # What is set up is set up, for another folder.
        shell.say('make() { command make -o .venv/run.stamp "$@"; }')
        return shell

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def run(self, step: Step) -> None:
        """Run it, and wait for its end and for what it should say."""
        begin = len(self.lines)
        if step.command == "make run":
            self.say("make run 2>&1 &")
            self.until(begin, lambda said: any(line.endswith("serving") for line in said), step)
        else:
            self.say(f"{step.command}\necho status=$?")
            self.until(begin, lambda said: any(line.startswith("status=") for line in said), step)
            status = next(line for line in self.lines[begin:] if line.startswith("status="))
            assert status == "status=0", f"{step.command}: {self.lines[begin:]}"
        if step.command.endswith("&"):  # a person would look whether it is there
            self.say(
                'until curl -s http://127.0.0.1:8118/api/status | grep -q \'"protocol": "figg"\'; '
                "do sleep 0.2; done; echo there"
            )
            self.until(begin, lambda said: "there" in said, step)
        self.until(begin, lambda said: _said(step.expected, said), step)

    def until(self, begin: int, done: object, step: Step) -> None:
        limit = time.monotonic() + 180
        while not done(self.lines[begin:]):  # type: ignore[operator]
            if time.monotonic() > limit or self.process.poll() is not None:
                pytest.fail(f"{step.command}\nshould say {step.expected}\nand said {self.lines[begin:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it, and all that it has started."""
        with self.process:  # which closes its pipes
            if self.process.poll() is None:
                self.say("kill -TERM $(cat twistd.pid); kill $(jobs -p); wait; exit")
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.reading.join()


def _said(expected: list[str], said: list[str]) -> bool:
    """Whether each of the lines comes, in their order; a line of the log has its time in front."""
    left = iter([plain(line) for line in said])
    return all(any(line.endswith(plain(wanted)) for line in left) for wanted in expected)


@pytest.mark.live
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["README.md", "docs/tour.md"])
def test_every_command_of(page: str, tmp_path: Path) -> None:
    found = [step for step in steps((ROOT / page).read_text()) if step.command not in NOT_RUN]
    assert len(found) > 10, "the page has commands"
    shell = Shell.start(tmp_path)
    try:
        for step in found:
            shell.run(step)
    finally:
        shell.stop()


def test_commands_are_found_and_compared() -> None:
    page = "Say\n\n    $ echo a\n    a 12\n    $ echo b &  # in between\n\n"
    page += "```console\n$ c\n```\n```python\nprint()\n```\n"
    assert list(steps(page)) == [
        Step("echo a", ["a 12"]),
        Step("echo b &", []),
        Step("c", []),
        Step("python - <<'END'\nprint()\nEND", []),
    ]
    assert _said(["a 12", "x 1.5 kB ... y"], ["n", "2026-01-01 a 13", "m", "x 7 B z"]) is False
    assert _said(["a 12", "x 1.5 kB ... y"], ["n", "2026-01-01 a 13", "m", "x 7 B y"]) is True
