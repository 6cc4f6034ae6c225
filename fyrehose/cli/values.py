"""Values of options, as people write them."""

from __future__ import annotations

from typing import Any

import click

from fyrehose.options import duration


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds, or 250ms, 5m, 12h."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        try:
            return duration(str(value))
        except ValueError as wanted:
            self.fail(f"{value!r} should be {wanted}", param, ctx)
