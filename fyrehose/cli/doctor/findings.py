"""A finding of `fyrehose doctor`: one line about one thing, how bad it is, and what to do."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import attrs


class Level(IntEnum):
    """How bad a finding is; with a WARNING or an ERROR, the command ends with status 1."""

    OK = 0
    NOTE = 1  #: worth knowing
    WARNING = 2  #: works today, and may not tomorrow
    ERROR = 3  #: messages are refused, lost or readable by others


@attrs.frozen
class Finding:
    """One finding of `fyrehose doctor`.

    :ivar subject: what was looked at, such as ``disk``
    :ivar what: what was found, with the value
    :ivar where: a path, a listener, an option or a process
    :ivar advice: what to do; empty: nothing
    """

    level: Level
    subject: str
    what: str
    where: str = ""
    advice: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the finding as an object for JSON."""
        return {**attrs.asdict(self), "level": self.level.name.lower()}
