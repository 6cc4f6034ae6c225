"""Run every command of the README and of the tour, and compare its output with the page."""

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
#: The files of a checkout that the commands need.
NEEDED = ("Makefile", "setup.cfg", "setup.py", "pyproject.toml", "README.md", "fyrehose", "twisted", "docs")
#: Commands that are not run: `make test` would run this test again.
NOT_RUN = {"make test"}
#: Commands that run until the shell stops them.
SERVERS = ("make run", "fyrehose serve")


@attrs.frozen
class Step:
    """A command of a page, and the lines of output that the page shows."""

    command: str
    expected: list[str]


def steps(page: str) -> Iterator[Step]:
    """Yield the commands of a page in order: lines after ``$`` in its code blocks, and its Python programs."""
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
    """Return a line without values that differ from run to run: numbers with their units, and widths of columns."""
    line = re.sub(r"\S*\d\S*( ([kMG]|[KMG]i)?B\b| bytes\b)?|…", "#", line)
    return " ".join(word.rstrip(",") for word in line.split() if word not in ("...", "#"))


@attrs.define
class Shell:
    """A shell that runs all commands, in a network namespace of its own if the system allows it."""

    process: subprocess.Popen[bytes]
    lines: list[str] = attrs.field(factory=list)
    #: how long a command may take on a busy machine, in seconds
    patience: float = 180.0
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
        shell.write("export COLUMNS=110 PATH=$PWD/.venv/bin:$PATH; unset CI PYTEST_CURRENT_TEST; set +m")
        # The environment exists already, in another folder, so `make` must not set it up again.
        shell.write('make() { command make -o .venv/run.stamp "$@"; }')
        return shell

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))

    def write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def run(self, step: Step) -> None:
        """Run *step*; wait until it has ended and has printed the expected lines."""
        begin = len(self.lines)
        if step.command in SERVERS:
            self.write(f"{step.command} 2>&1 &")
            self.until(begin, lambda output: any(line.endswith("serving") for line in output), step)
        else:
            self.write(f"{step.command}\necho status=$?")
            self.until(begin, lambda output: any(line.startswith("status=") for line in output), step)
            status = next(line for line in self.lines[begin:] if line.startswith("status="))
            assert status == "status=0", f"{step.command}: {self.lines[begin:]}"
        if step.command.endswith("&"):  # wait until the subscriber is connected, as a person would
            self.write(
                'until curl -s http://127.0.0.1:8118/api/subscribers | grep -q \'"protocol": "http"\'; '
                "do sleep 0.2; done; echo there"
            )
            self.until(begin, lambda output: "there" in output, step)
        self.until(begin, lambda output: _contains(step.expected, output), step)

    def until(self, begin: int, done: object, step: Step) -> None:
        limit = time.monotonic() + self.patience
        while not done(self.lines[begin:]):  # type: ignore[operator]
            if time.monotonic() > limit or self.process.poll() is not None:
                pytest.fail(f"{step.command}\nexpected {step.expected}\nbut the output is {self.lines[begin:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server and the shell."""
        with self.process:  # closes its pipes
            if self.process.poll() is None:
                self.write("kill -TERM $(cat data/LOCK); kill $(jobs -p); wait; exit")
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.reading.join()


def _contains(expected: list[str], output: list[str]) -> bool:
    """Return whether the expected lines appear in order; lines of the log begin with their time."""
    left = iter([plain(line) for line in output])
    return all(any(line.endswith(plain(wanted)) for line in left) for wanted in expected)


@pytest.mark.live
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["README.md", "docs/tour.md"])
def test_every_command_of_the_page_runs(page: str, tmp_path: Path) -> None:
    found = [step for step in steps((ROOT / page).read_text()) if step.command not in NOT_RUN]
    assert len(found) > 10, "the page has commands"
    shell = Shell.start(tmp_path)
    try:
        for step in found:
            shell.run(step)
    finally:
        shell.stop()


#: A stand-in for Filebeat: it sends lines to the server that its configuration names, and keeps running.
FILEBEAT = """#!{python}
import json, sys, time
import pylogbeat, yaml
with open(sys.argv[sys.argv.index("-c") + 1]) as file:
    (server,) = yaml.safe_load(file)["output.logstash"]["hosts"]
host, port = server.split(":")
client = pylogbeat.PyLogBeatClient(host, int(port), timeout=60)
lines = ["line %d" % number for number in range(1, 6)]
client.send([json.dumps({{"@metadata": {{"beat": "filebeat"}}, "message": line}}) for line in lines])
time.sleep(600)
"""


@pytest.mark.live
@pytest.mark.timeout(1200)
def test_five_commands_of_the_readme_lead_from_nothing_to_sql(tmp_path: Path) -> None:
    """The first command is not run, because the test's environment has everything installed."""
    section = (ROOT / "README.md").read_text().partition("\n## From nothing to SQL in five commands\n")[2]
    install, *others = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[0].splitlines()
    assert install.startswith("pip install")
    server, filebeat, tail, query = others
    stand_in = tmp_path / "filebeat-bin" / "filebeat"
    stand_in.parent.mkdir()
    stand_in.write_text(FILEBEAT.format(python=sys.executable))
    stand_in.chmod(0o755)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    shell = Shell.start(tmp_path)
    shell.patience = 800.0  # Spark takes 15 seconds even on an idle machine
    try:
        shell.write('export PATH="$PWD/filebeat-bin:$PATH"')
        shell.write(server.replace(" &", " 2>&1 &"))
        shell.until(0, lambda output: any(line.endswith("serving") for line in output), Step(server, []))
        shell.write(filebeat)
        # A user runs the next command when Filebeat has sent something.
        shell.write("until curl -sf http://127.0.0.1:8117/streams/lumberjack; do sleep 0.2; done; echo there")
        shell.until(0, lambda output: "there" in output, Step(filebeat, []))
        shell.run(Step(tail, [f'"message": "line {number}"}}' for number in (1, 2, 3)]))
        shell.run(Step(query, ["message", *[f"line {number}" for number in range(1, 6)]]))
    finally:
        shell.stop()


def test_the_commands_of_the_tour_are_found_and_their_output_is_compared() -> None:
    page = "Say\n\n    $ echo a\n    a 12\n    $ echo b &  # in between\n\n"
    page += "```console\n$ c\n```\n```python\nprint()\n```\n"
    assert list(steps(page)) == [
        Step("echo a", ["a 12"]),
        Step("echo b &", []),
        Step("c", []),
        Step("python - <<'END'\nprint()\nEND", []),
    ]
    assert _contains(["a 12", "x 1.5 kB ... y"], ["n", "2026-01-01 a 13", "m", "x 7 B z"]) is False
    assert _contains(["a 12", "x 1.5 kB ... y"], ["n", "2026-01-01 a 13", "m", "x 7 B y"]) is True
