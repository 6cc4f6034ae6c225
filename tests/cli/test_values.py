"""Values of options."""

from __future__ import annotations

import click
import pytest

from fyrehose.cli.values import Duration


def test_durations_are_parsed() -> None:
    assert Duration().convert("250ms", None, None) == 0.25
    with pytest.raises(click.BadParameter, match="expected a duration, for example"):
        Duration().convert("soon", None, None)
