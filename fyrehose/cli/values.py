"""Option types that several commands share."""

from __future__ import annotations

from typing import Any

import click

from fyrehose.options import duration


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Option type of a duration, such as 30, 250ms, 5m or 12h; the value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        try:
            return duration(str(value))
        except ValueError as expected:
            self.fail(f"{value!r}: expected {expected}", param, ctx)
