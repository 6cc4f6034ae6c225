"""Values of options."""

from __future__ import annotations

import click
import pytest

from fyrehose.cli.client.values import DURATION


def test_durations_are_parsed() -> None:
    assert DURATION.convert("250ms", None, None) == 0.25
    with pytest.raises(click.BadParameter, match="expected a duration, for example"):
        DURATION.convert("soon", None, None)
