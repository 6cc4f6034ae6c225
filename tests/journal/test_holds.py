"""Retention holds are stored durably, and only valid names become files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fyrehose.errors import ConfigError
from fyrehose.journal import holds


def test_holds_are_stored_and_ordered_by_position(tmp_path: Path) -> None:
    assert holds.registered(tmp_path) == []
    holds.update(tmp_path, "lake", 500, now=7)
    holds.update(tmp_path, "audit-2", 100, now=8)
    holds.update(tmp_path, "lake", 600, now=9)
    assert holds.registered(tmp_path) == [holds.Hold("audit-2", 100, 8), holds.Hold("lake", 600, 9)]


def test_update_takes_the_wall_clock_by_default(tmp_path: Path) -> None:
    holds.update(tmp_path, "lake", 1)
    assert holds.registered(tmp_path)[0].time > 1_600_000_000_000_000


def test_released_hold_is_not_listed(tmp_path: Path) -> None:
    holds.update(tmp_path, "lake", 1)
    assert holds.release(tmp_path, "lake")
    assert not holds.release(tmp_path, "lake")
    assert holds.registered(tmp_path) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\n", "x" * 65, "a.new", "ü"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        holds.update(tmp_path, name, 1)
    with pytest.raises(ConfigError):
        holds.release(tmp_path, name)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", '{"position": "x", "time": 1}', '{"position": Infinity, "time": 1}', "[" * 5000, "\xff"),
        *('{"position": 1, "time": 1e30}', '{"position": 1, "time": -1}', '{"position": -1, "time": 1}'),
        '{"position": 1e30, "time": 1}',
    ],
    ids=lambda text: text[:24],
)
def test_damaged_hold_keeps_everything(tmp_path: Path, text: str) -> None:
    holds.update(tmp_path, "lake", 500)
    (tmp_path / "holds" / "lake").write_bytes(text.encode("latin-1"))
    (tmp_path / "holds" / "other.new").write_text("left over")
    os.utime(tmp_path / "holds" / "lake", ns=(1, 1_700_000_000_000_000_000))
    assert holds.registered(tmp_path) == [holds.Hold("lake", 0, 1_700_000_000_000_000)]


def test_times_of_holds_end_with_the_year_9999(tmp_path: Path) -> None:
    holds.update(tmp_path, "lake", 500, 253_402_300_799_999_999)
    assert holds.registered(tmp_path) == [holds.Hold("lake", 500, 253_402_300_799_999_999)]
    holds.update(tmp_path, "lake", 500, 253_402_300_800_000_000)
    assert holds.registered(tmp_path)[0].position == 0


def test_positions_out_of_range_are_refused(tmp_path: Path) -> None:
    for position in (-1, 1 << 63):
        with pytest.raises(ConfigError, match="invalid position"):
            holds.update(tmp_path, "lake", position)
    assert holds.registered(tmp_path) == []


def test_number_of_holds_is_limited(tmp_path: Path) -> None:
    for i in range(holds.MAX_HOLDS):
        holds.update(tmp_path, f"r{i}", 1)
    with pytest.raises(ConfigError, match="64 subscriptions to its files already"):
        holds.update(tmp_path, "one-more", 1)
    holds.update(tmp_path, "r3", 2)
