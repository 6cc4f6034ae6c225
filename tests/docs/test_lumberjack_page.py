"""Check that the page on lumberjack lists every option, and that its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fyrehose.options import options_of, typed
from fyrehose.protocols.lumberjack.server import LumberjackSettings

PAGE = (Path(__file__).parents[2] / "docs" / "protocols" / "lumberjack.md").read_text()


def test_every_option_is_in_the_table() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert {typed(field.name) for field in options_of(LumberjackSettings)} <= named


def test_the_codec_example_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "events_of(session" in block)
    exec(compile(code, "lumberjack.md", "exec"), {})
    assert capsys.readouterr().out == "None 1 b'{}'\n[b'2A\\x00\\x00\\x00\\x01']\n"
