"""Find the error of Fyrehose in a failure of Spark, which reports an error in a worker only as text."""

from __future__ import annotations

import re

from fyrehose import errors
from fyrehose.errors import FyrehoseError

_OURS = re.compile(r"^(?:[\w.]*: )?fyrehose\.errors\.(\w+): (.+)$", re.MULTILINE)


def own_error(error: Exception) -> FyrehoseError | None:
    """Return the Fyrehose error that Spark has wrapped in an error of its own; None if there is none."""
    found = _OURS.findall(str(error))
    if not found:
        return None
    name, text = found[-1]
    kind = getattr(errors, name, FyrehoseError)
    return kind(text) if isinstance(kind, type) and issubclass(kind, FyrehoseError) else FyrehoseError(text)
