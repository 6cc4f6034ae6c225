"""Option types that several commands share."""

from __future__ import annotations

from typing import Any

import click

from fyrehose.options import duration
from fyrehose.records import LAST_SEQ


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Option type of a duration, such as 30, 250ms, 5m or 12h; the value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        try:
            return duration(str(value))
        except ValueError as expected:
            self.fail(f"{value!r}: expected {expected}", param, ctx)


class Since(click.ParamType):  # type: ignore[type-arg]
    """Option type of a stream position: the number before the first record, or None for new records only."""

    name = "latest|start|seq"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | None:
        """Return the number before the first record of *value*; None for ``latest``."""
        if value == "latest":
            return None
        if value == "start":
            return 0
        number = str(value)
        if not (number.isascii() and number.isdecimal() and len(number) <= 15 and int(number) <= LAST_SEQ):
            self.fail(f"{value!r}: expected latest, start, or a record number up to {LAST_SEQ}", param, ctx)
        return max(int(number) - 1, 0)
