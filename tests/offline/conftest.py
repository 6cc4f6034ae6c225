"""Helpers of tests of journals that no server uses; their fixture is that of tests/doubles/opened_journal.py."""

from __future__ import annotations

from pathlib import Path

from fyrehose.journal import scan
from fyrehose.offline.view import look
from tests.doubles.opened_journal import open_journal

__all__ = ["open_journal"]


def is_same_log(source: Path, target: Path) -> bool:
    """Return whether the target has the durable part of the source, byte for byte."""
    view = look(source)
    return look(target) == view and all(
        scan.path_of(source, e.base).read_bytes()[: e.end - e.base] == scan.path_of(target, e.base).read_bytes()
        for e in view.segments
    )


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
