"""Named readers: what they say is kept, and nothing else becomes a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fyrehose.errors import ConfigError
from fyrehose.journal import holds as readers


def test_positions_are_kept(tmp_path: Path) -> None:
    assert readers.positions(tmp_path) == []
    readers.report(tmp_path, "lake", 500, now=7)
    readers.report(tmp_path, "audit-2", 100, now=8)
    readers.report(tmp_path, "lake", 600, now=9)
    assert readers.positions(tmp_path) == [readers.Reader("audit-2", 100, 8), readers.Reader("lake", 600, 9)]


def test_now_is_the_clock(tmp_path: Path) -> None:
    readers.report(tmp_path, "lake", 1)
    assert readers.positions(tmp_path)[0].time > 1_600_000_000_000_000


def test_one_that_is_forgotten(tmp_path: Path) -> None:
    readers.report(tmp_path, "lake", 1)
    assert readers.forget(tmp_path, "lake")
    assert not readers.forget(tmp_path, "lake")
    assert readers.positions(tmp_path) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\n", "x" * 65, "a.new", "ü"])
def test_names_that_are_no_names_of_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        readers.report(tmp_path, name, 1)
    with pytest.raises(ConfigError):
        readers.forget(tmp_path, name)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", '{"position": "x", "time": 1}', '{"position": Infinity, "time": 1}', "[" * 5000, "\xff"),
        *('{"position": 1, "time": 1e30}', '{"position": 1, "time": -1}', '{"position": -1, "time": 1}'),
        '{"position": 1e30, "time": 1}',
    ],
    ids=lambda text: text[:24],
)
def test_one_that_cannot_be_understood_needs_everything(tmp_path: Path, text: str) -> None:
    readers.report(tmp_path, "lake", 500)
    (tmp_path / "readers" / "lake").write_bytes(text.encode("latin-1"))
    (tmp_path / "readers" / "other.new").write_text("left over")
    os.utime(tmp_path / "readers" / "lake", ns=(1, 1_700_000_000_000_000_000))
    assert readers.positions(tmp_path) == [readers.Reader("lake", 0, 1_700_000_000_000_000)]


def test_a_position_that_can_be_none(tmp_path: Path) -> None:
    for position in (-1, 1 << 63):
        with pytest.raises(ConfigError, match="a position is 0 to"):
            readers.report(tmp_path, "lake", position)
    assert readers.positions(tmp_path) == []


def test_there_are_not_too_many(tmp_path: Path) -> None:
    for i in range(readers.MAX_READERS):
        readers.report(tmp_path, f"r{i}", 1)
    with pytest.raises(ConfigError, match="64 readers already"):
        readers.report(tmp_path, "one-more", 1)
    readers.report(tmp_path, "r3", 2)
