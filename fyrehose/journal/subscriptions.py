"""Named subscriptions to the journal's files: retention waits for the programs that read them.

    DIRECTORY/subscriptions/NAME    {"position": ..., "time": ...}: the log is kept from this position on; time of the
    last update

A program updates its subscription whenever it has stored what it read, and now and then while there is nothing to read.
A subscription that is not updated for a long time expires (journal/retention.py), so that a dead program cannot fill
the
disk.  The positions of subscriptions to streams are records of the journal (broker/positions.py).

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

FOLDER = "subscriptions"
#: Limit of the number of subscriptions, because retention reads the file of each.
MAX_SUBSCRIPTIONS = 64
#: Upper bounds of a subscription's position and of its time (microseconds since 1970 UTC: the end of the year 9999).
MAX_POSITION, MAX_TIME = (1 << 63) - 1, 253_402_300_799_999_999
#: Limit of the size of a subscription's file, in bytes.
_MOST = 4 << 10
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@attrs.frozen(slots=True)
class FileSubscription:
    """A named subscription, as retention sees it.

    :ivar position: the position from which on the log must be kept
    :ivar time: the time of the last update, in microseconds since 1970 UTC
    :ivar pinned: whether the subscription has no limits
    """

    name: str
    position: int
    time: int
    pinned: bool = False


def checked_name(name: str) -> str:
    """Return *name* if it is valid for a subscription, whose file gets this name.

    :raises ConfigError: it is not 1 to 64 letters, digits, ``_``, ``.`` and ``-``
    """
    if not _NAME.fullmatch(name) or name.endswith(".new"):
        raise ConfigError(
            f"invalid name of a subscription: {name[:80]!r}; use 1 to 64 letters, digits, '_', '.' and '-', the "
            "first a letter or a digit, and no '.new' at the end"
        )
    return name


def update(directory: Path, name: str, position: int, now: int | None = None) -> None:
    """Create the subscription *name*, or move it to *position*, durably.

    :param now: microseconds since 1970 UTC; None: the wall clock
    :raises ConfigError: the name or the position is invalid, or there are too many subscriptions
    """
    if not 0 <= position <= MAX_POSITION:
        raise ConfigError(f"invalid position {position} of a subscription: expected 0 to {MAX_POSITION}")
    path = _path(directory, name)
    if not path.exists() and len(registered(directory)) >= MAX_SUBSCRIPTIONS:
        raise ConfigError(
            f"{directory} has {MAX_SUBSCRIPTIONS} subscriptions to its files already; delete one with "
            f"`fyrehose journal subscriptions {directory} --delete NAME`"
        )
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({"position": position, "time": time.time_ns() // 1000 if now is None else now})
    Files().store(path, text.encode() + b"\n")


def delete(directory: Path, name: str) -> bool:
    """Delete the subscription *name*; return whether it existed.

    :raises ConfigError: the name is invalid
    """
    path = _path(directory, name)
    known = path.exists()
    path.unlink(missing_ok=True)
    return known


def registered(directory: Path) -> list[FileSubscription]:
    """Return the subscriptions, ordered by position, the one that is furthest behind first.

    A subscription with a damaged file keeps the whole log; the time of the file counts as its last update.
    """
    found = []
    for path in (directory / FOLDER).glob("*"):
        if not _NAME.fullmatch(path.name) or path.name.endswith(".new"):
            continue
        try:
            fields = json.loads(Files().content(path, _MOST))
            subscription = FileSubscription(path.name, int(fields["position"]), int(fields["time"]))
            if not (0 <= subscription.position <= MAX_POSITION and 0 <= subscription.time <= MAX_TIME):
                raise ValueError("position or time out of range")
            found.append(subscription)
        except FileNotFoundError:
            pass  # the subscription has just been deleted
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            found.append(FileSubscription(path.name, 0, int(path.lstat().st_mtime * 1_000_000)))
    return sorted(found, key=lambda each: (each.position, each.name))


def _path(directory: Path, name: str) -> Path:
    return directory / FOLDER / checked_name(name)
