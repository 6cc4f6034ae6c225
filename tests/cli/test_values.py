"""Values of options."""

from __future__ import annotations

import click
import pytest

from fyrehose.cli.values import Duration


def test_durations() -> None:
    assert Duration().convert("250ms", None, None) == 0.25
    with pytest.raises(click.BadParameter, match="should be a duration, such as"):
        Duration().convert("soon", None, None)
