"""Values of options."""

from __future__ import annotations

import click
import pytest

from fyrehose.cli.values import Duration, shown_size


def test_durations_are_parsed() -> None:
    assert Duration().convert("250ms", None, None) == 0.25
    with pytest.raises(click.BadParameter, match="expected a duration, such as"):
        Duration().convert("soon", None, None)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (334_100, "326.3 KiB"),
        (64 << 20, "64.0 MiB"),
        (5 << 60, "5,120.0 PiB"),
    ],
)
def test_sizes_are_shown_in_powers_of_1024(size: int, shown: str) -> None:
    assert shown_size(size) == shown
