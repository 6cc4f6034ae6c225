"""Retention holds: the named subscriptions of programs that read the journal's files, for which retention waits.

    DIRECTORY/holds/NAME    {"position": ..., "time": ...}: what must be kept, and when the hold was updated last

A reader updates its hold whenever it has stored what it read, and now and then while there is nothing to read.  A hold
that is not updated for long times out (journal/retention.py), so that a dead reader cannot fill the disk.

This module does not import Twisted, because the readers are processes of their own.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import attrs

from fyrehose.errors import ConfigError
from fyrehose.journal.files import Files

FOLDER = "holds"
#: Limit of the number of holds; retention reads the file of each.
MAX_HOLDS = 64
#: Upper bounds of a hold's position and of its time (microseconds since 1970 UTC: the end of the year 9999).
MAX_POSITION, MAX_TIME = (1 << 63) - 1, 253_402_300_799_999_999
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@attrs.frozen(slots=True)
class Hold:
    """A retention hold.

    :ivar position: the log must be kept from this position on
    :ivar time: last update, in microseconds since 1970 UTC
    :ivar pinned: whether the hold has no limits
    """

    name: str
    position: int
    time: int
    pinned: bool = False


def checked_name(name: str) -> str:
    """Return *name* if a hold may have it; it becomes the name of a file.

    :raises ConfigError: it is not 1 to 64 letters, digits, ``_``, ``.`` and ``-``
    """
    if not _NAME.fullmatch(name) or name.endswith(".new"):
        raise ConfigError(
            f"invalid name of a subscription: {name[:80]!r}; use 1 to 64 letters, digits, '_', '.' and '-', the "
            "first a letter or a digit, and no '.new' at the end"
        )
    return name


def update(directory: Path, name: str, position: int, now: int | None = None) -> None:
    """Register the hold *name*, or move it to *position*, durably.

    :param now: microseconds since 1970 UTC; None: the wall clock
    :raises ConfigError: the name or the position is invalid, or there are too many holds
    """
    if not 0 <= position <= MAX_POSITION:
        raise ConfigError(f"invalid position {position} of a subscription: expected 0 to {MAX_POSITION}")
    path = _path(directory, name)
    if not path.exists() and len(registered(directory)) >= MAX_HOLDS:
        raise ConfigError(
            f"{directory} has {MAX_HOLDS} subscriptions to its files already; delete one with `fyrehose journal "
            f"subscriptions {directory} --delete NAME`"
        )
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({"position": position, "time": time.time_ns() // 1000 if now is None else now})
    Files().store(path, text.encode() + b"\n")


def release(directory: Path, name: str) -> bool:
    """Remove the hold *name*; return whether it was registered.

    :raises ConfigError: the name is invalid
    """
    path = _path(directory, name)
    known = path.exists()
    path.unlink(missing_ok=True)
    return known


def registered(directory: Path) -> list[Hold]:
    """Return the registered holds, ordered by position, the one that is furthest behind first.

    A hold whose file is damaged keeps everything, and counts as updated when the file was written.
    """
    found = []
    for path in (directory / FOLDER).glob("*"):
        if not _NAME.fullmatch(path.name) or path.name.endswith(".new"):
            continue
        try:
            fields = json.loads(path.read_bytes())
            hold = Hold(path.name, int(fields["position"]), int(fields["time"]))
            if not (0 <= hold.position <= MAX_POSITION and 0 <= hold.time <= MAX_TIME):
                raise ValueError("position or time out of range")
            found.append(hold)
        except FileNotFoundError:
            continue  # released at this moment
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            found.append(Hold(path.name, 0, int(path.stat().st_mtime * 1_000_000)))
    return sorted(found, key=lambda hold: (hold.position, hold.name))


def _path(directory: Path, name: str) -> Path:
    return directory / FOLDER / checked_name(name)
