"""Values as people write and read them: durations in options, sizes in output."""

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


def shown_size(size: float) -> str:
    """Return *size*, in bytes, as people read it: ``512 bytes``, ``334.1 KiB``, ``64.0 MiB``, in powers of 1024."""
    if size < 1024:
        return f"{int(size)} byte{'' if int(size) == 1 else 's'}"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        size /= 1024
        if size < 1024 or unit == "PiB":
            break
    return f"{size:,.1f} {unit}"
