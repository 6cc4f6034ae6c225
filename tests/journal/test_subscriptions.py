"""Subscriptions to the files are stored durably, and only valid names become files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fyrehose.errors import ConfigError
from fyrehose.journal import subscriptions


def test_subscriptions_are_stored_and_ordered_by_position(tmp_path: Path) -> None:
    assert subscriptions.registered(tmp_path) == []
    subscriptions.update(tmp_path, "lake", 500, now=7)
    subscriptions.update(tmp_path, "audit-2", 100, now=8)
    subscriptions.update(tmp_path, "lake", 600, now=9)
    assert subscriptions.registered(tmp_path) == [
        subscriptions.FileSubscription("audit-2", 100, 8),
        subscriptions.FileSubscription("lake", 600, 9),
    ]


def test_update_takes_the_wall_clock_by_default(tmp_path: Path) -> None:
    subscriptions.update(tmp_path, "lake", 1)
    assert subscriptions.registered(tmp_path)[0].time > 1_600_000_000_000_000


def test_deleted_subscription_is_not_listed(tmp_path: Path) -> None:
    subscriptions.update(tmp_path, "lake", 1)
    assert subscriptions.delete(tmp_path, "lake")
    assert not subscriptions.delete(tmp_path, "lake")
    assert subscriptions.registered(tmp_path) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\n", "x" * 65, "a.new", "ü"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        subscriptions.update(tmp_path, name, 1)
    with pytest.raises(ConfigError):
        subscriptions.delete(tmp_path, name)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", '{"position": "x", "time": 1}', '{"position": Infinity, "time": 1}', "[" * 5000, "\xff"),
        *('{"position": 1, "time": 1e30}', '{"position": 1, "time": -1}', '{"position": -1, "time": 1}'),
        '{"position": 1e30, "time": 1}',
    ],
    ids=lambda text: text[:24],
)
def test_a_subscription_with_a_damaged_file_keeps_the_whole_log(tmp_path: Path, text: str) -> None:
    subscriptions.update(tmp_path, "lake", 500)
    (tmp_path / "subscriptions" / "lake").write_bytes(text.encode("latin-1"))
    (tmp_path / "subscriptions" / "other.new").write_text("left over")
    os.utime(tmp_path / "subscriptions" / "lake", ns=(1, 1_700_000_000_000_000_000))
    assert subscriptions.registered(tmp_path) == [subscriptions.FileSubscription("lake", 0, 1_700_000_000_000_000)]


def test_times_of_subscriptions_end_with_the_year_9999(tmp_path: Path) -> None:
    subscriptions.update(tmp_path, "lake", 500, 253_402_300_799_999_999)
    assert subscriptions.registered(tmp_path) == [subscriptions.FileSubscription("lake", 500, 253_402_300_799_999_999)]
    subscriptions.update(tmp_path, "lake", 500, 253_402_300_800_000_000)
    assert subscriptions.registered(tmp_path)[0].position == 0


def test_positions_out_of_range_are_refused(tmp_path: Path) -> None:
    for position in (-1, 1 << 63):
        with pytest.raises(ConfigError, match="invalid position"):
            subscriptions.update(tmp_path, "lake", position)
    assert subscriptions.registered(tmp_path) == []


def test_the_largest_position_and_the_smallest_time_are_stored(tmp_path: Path) -> None:
    subscriptions.update(tmp_path, "lake", (1 << 63) - 1, now=0)
    assert subscriptions.registered(tmp_path) == [subscriptions.FileSubscription("lake", (1 << 63) - 1, 0)]


def test_number_of_subscriptions_is_limited(tmp_path: Path) -> None:
    for i in range(subscriptions.MAX_SUBSCRIPTIONS):
        subscriptions.update(tmp_path, f"r{i}", 1)
    with pytest.raises(ConfigError, match="64 subscriptions to its files already"):
        subscriptions.update(tmp_path, "one-more", 1)
    subscriptions.update(tmp_path, "r3", 2)
