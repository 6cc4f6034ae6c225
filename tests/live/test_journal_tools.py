"""Test ``fyrehose journal`` beside a server that writes, and after it was killed."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from tests.live.conftest import FYREHOSE, PATIENCE, fyrehose

pytestmark = [pytest.mark.live, pytest.mark.slow]


def tool(*words: str) -> str:
    """Run the command, which must succeed; return its output."""
    return fyrehose("journal", *words).stdout


def test_the_journal_commands_work_beside_a_running_server_and_after_a_kill(start: Any) -> None:
    server = start("--listen", "figg=tcp:0:interface=127.0.0.1", "--option", "journal.segment-size=64K")
    data = str(server.directory / "data")
    publish = [FYREHOSE, "publish", "--to", f"127.0.0.1:{server.port('figg')}", "--stream", "s"]
    with subprocess.Popen(publish, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as publisher:
        assert publisher.stdin is not None
        for i in range(5):
            publisher.stdin.write(b"".join(b"line %d\n" % n for n in range(2000 * i, 2000 * i + 2000)))
            publisher.stdin.flush()
            assert "OK: " in tool("verify", data)
            found = [json.loads(line) for line in tool("dump", data, "--format", "json").splitlines()]
            assert [(o["seq"], o["payload"]) for o in found] == [(n + 1, f"line {n}") for n in range(len(found))]
        publisher.stdin.close()
        assert publisher.wait(PATIENCE) == 0
    server.stop(signal.SIGKILL)
    stats = json.loads(tool("stats", data, "--format", "json"))
    assert stats["streams"]["s"]["records"] == stats["streams"]["s"]["last"] == 10_000
    assert stats["segments"] > 1
    assert "OK: " in tool("verify", "--all", data)
