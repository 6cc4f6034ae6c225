"""Test `fyrehose publish` and `tail` with the client of another package, the example protocol of the docs."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import fyrehose

pytestmark = pytest.mark.live


@pytest.fixture
def run(lines_path: list[Path]) -> Any:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, lines_path))}
    return partial(fyrehose, env=environment)


def test_commands_use_the_client_of_an_installed_plugin(start: Any, run: Any) -> None:
    server = start("--listen", "lines=tcp:0:interface=127.0.0.1")
    at = f"127.0.0.1:{server.port('lines')}"
    published = run("publish", "--protocol", "lines", "--to", at, "--stream", "notes", "first", "second one")
    assert published.stdout == ""
    assert "2 messages (15 bytes) published and acknowledged" in published.stderr
    words = ("tail", "--protocol", "lines", "--from", at, "--stream", "notes", "--since", "start", "--count", "2")
    assert run(*words).stdout == "first\nsecond one\n"
    refused = run("publish", "--protocol", "lines", "--to", at, "--stream", "no tes", "x", status=2)
    assert "without spaces" in refused.stderr
