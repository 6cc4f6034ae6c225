"""The bar of long work."""

from __future__ import annotations

import io
import sys

import pytest

from fyrehose.cli.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("copying data") as progress:
        progress(500, 1000)
    assert "copying data" in shown.getvalue()


def test_file_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    with progress_bar("copying data") as progress:
        progress(500, 1000)
    assert shown.getvalue() == ""
