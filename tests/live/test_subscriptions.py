"""Test named subscriptions in a real server: kill -9, the command line, and the examples of the page about streams."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import FYREHOSE, listening

pytestmark = [pytest.mark.live, pytest.mark.slow]

LISTEN = listening("http", "relink")
PAGE = (Path(__file__).parents[2] / "docs" / "streams.md").read_text()


def test_the_examples_of_the_subscriptions_page_run(start: Any) -> None:
    server = start(*LISTEN)
    (block,) = (found for found in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) if "subscription" in found)
    for example in block.strip().split("$ ")[1:]:
        command, _, expected = example.partition("\n")
        words = shlex.split(command.replace("127.0.0.1:8117", f"127.0.0.1:{server.port('http')}"))
        if words[0] == "fyrehose":
            words[:1] = [FYREHOSE]
            if "relink" in words:
                words += ["--from", f"127.0.0.1:{server.port('relink')}", "--idle", "60s"]
            else:
                words += ["--url", f"http://127.0.0.1:{server.port('http')}"]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
        assert _plain(ended.stdout) == _plain(expected), (command, ended.stderr)


def _plain(text: str) -> list[str]:
    """Return the lines of *text* without parts that differ each time: times, addresses, and the widths of columns."""
    text = re.sub(r'"(time|active)": \d+|"lag_seconds": [\d.]+|"producer": "[^"]*"|null|[\d,.]+ s\b', "~", text)
    text = re.sub(r'"lag_seconds": ~', "~", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+", "~", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip() and set(line) - set(" ─")]
