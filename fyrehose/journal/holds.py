"""Named readers: programs that read the journal's files by themselves, and that retention waits for.

    DIRECTORY/readers/NAME    {"position": ..., "time": ...}: how far the reader NAME has come, and when it said so

A reader says how far it has come whenever it has kept what it read, and now and then while there is nothing to read:
who is silent for long is taken for dead (journal/retention.py), so that it cannot fill the disk.

Knows no Twisted: readers are processes of their own.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import attrs

from fyrehose.errors import ConfigError
from fyrehose.journal.files import Files

FOLDER = "readers"
#: How many there may be: each is a file that retention looks at.
MAX_READERS = 64
#: No position is beyond the first, and no reader is heard of after the second, in us since 1970 UTC (the year 9999).
MOST_POSITION, MOST_TIME = (1 << 63) - 1, 253_402_300_799_999_999
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@attrs.frozen(slots=True)
class Reader:
    """A named reader.

    :ivar position: it needs nothing below this position any more
    :ivar time: when it said so, us since 1970 UTC
    """

    name: str
    position: int
    time: int


def checked(name: str) -> str:
    """``name``, which becomes the name of a file.

    :raises ConfigError: it is not 1 to 64 letters, digits, ``_``, ``.`` and ``-``
    """
    if not _NAME.fullmatch(name) or name.endswith(".new"):
        raise ConfigError(
            f"a reader is named by 1 to 64 letters, digits, _ . and -, and no .new at its end: not {name[:80]!r}"
        )
    return name


def report(directory: Path, name: str, position: int, now: int | None = None) -> None:
    """Say durably how far the reader ``name`` has come.

    :param now: us since 1970 UTC; the clock's time if None
    :raises ConfigError: it may not be named so, there are too many, or it can have come to no such position
    """
    if not 0 <= position <= MOST_POSITION:
        raise ConfigError(f"a position is 0 to {MOST_POSITION}, not {position}")
    path = _path(directory, name)
    if not path.exists() and len(positions(directory)) >= MAX_READERS:
        raise ConfigError(f"{directory} has {MAX_READERS} readers already; `fyrehose journal readers --forget NAME`")
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({"position": position, "time": time.time_ns() // 1000 if now is None else now})
    Files().store(path, text.encode() + b"\n")


def forget(directory: Path, name: str) -> bool:
    """Nobody waits for ``name`` any more; whether anybody did."""
    path = _path(directory, name)
    known = path.exists()
    path.unlink(missing_ok=True)
    return known


def positions(directory: Path) -> list[Reader]:
    """The named readers, those first that are furthest behind.

    One whose file cannot be understood needs everything, and said so when the file was written.
    """
    found = []
    for path in (directory / FOLDER).glob("*"):
        if not _NAME.fullmatch(path.name) or path.name.endswith(".new"):
            continue
        try:
            said = json.loads(path.read_bytes())
            reader = Reader(path.name, int(said["position"]), int(said["time"]))
            if not (0 <= reader.position <= MOST_POSITION and 0 <= reader.time <= MOST_TIME):
                raise ValueError("no reader was ever there, or then")
            found.append(reader)
        except FileNotFoundError:
            continue  # forgotten at this moment
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            found.append(Reader(path.name, 0, int(path.stat().st_mtime * 1_000_000)))
    return sorted(found, key=lambda reader: (reader.position, reader.name))


def _path(directory: Path, name: str) -> Path:
    return directory / FOLDER / checked(name)
