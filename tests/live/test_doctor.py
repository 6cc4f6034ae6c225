"""Test `fyrehose doctor` beside a running server, whose command line it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import FYREHOSE, fyrehose

pytestmark = pytest.mark.live


def doctor(*words: str | Path) -> tuple[int, list[dict[str, str]]]:
    done = fyrehose("doctor", "--json", *words, status=None)
    assert done.stderr == ""
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


#: Runs ``fyrehose serve`` where the fixture starts twistd.
SERVE = ("sh", "-c", f'shift 2; exec {FYREHOSE} serve "$@"')


@pytest.mark.usefixtures("real_programs")  # a fork has the command line of its parent
@pytest.mark.parametrize("command", [(), SERVE], ids=["twistd", "serve"])
def test_options_of_a_running_server_are_those_of_its_command_line(
    command: tuple[str, ...], start: Any, tmp_path: Path
) -> None:
    words = ("--listen", "admin=tcp:0:interface=127.0.0.1", "--option", "journal.keep-bytes=7G", "--data-dir", "mine")
    server = start(*words, command=command)
    url = f"http://127.0.0.1:{server.port('admin')}"
    status, found = doctor("--data-dir", tmp_path / "mine", "--url", url)
    by_subject = {each["subject"]: each for each in found}
    assert by_subject["retention"] == {
        "level": "ok",
        "subject": "retention",
        "what": "keep-bytes 7GiB",
        "where": f"process {server.process.pid}",
        "advice": "",
    }
    assert f"pid {server.process.pid}" in by_subject["server"]["what"]
    assert "open in a server" in by_subject["journal"]["what"]
    assert status == int(any(each["level"] in ("warning", "error") for each in found))
