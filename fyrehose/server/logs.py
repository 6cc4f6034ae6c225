"""Write the log as lines of text for people, or as one JSON object per event for log collectors.

    {"time": "2026-11-21T23:59:01.123456Z", "level": "warn", "module": "fyrehose.protocols.figg.server",
     "message": "figg: Forbidden from 10.0.0.5: ...", "protocol": "figg", "cause": "Forbidden", "peer": "10.0.0.5"}

Events contain names from peers, which must not forge lines or control a terminal, so both formats escape characters
that cannot be printed.

    events of twisted.logger -> text -> a file, which the server or another program rotates
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, TextIO

from twisted.logger import FileLogObserver, LogEvent, Logger, LogLevel, formatEvent, formatEventAsClassicLogText
from twisted.python.failure import Failure
from twisted.python.threadable import synchronize

from fyrehose.net.twisted_private import ReopeningLogFile

log = Logger()

#: The longest value of a field, in characters; longer ones are truncated, but messages never are.
MAX_FIELD = 2_000

#: Size at which a log file is rotated, in bytes, and how many older files are kept.
LOG_SIZE = 10 << 20
LOG_FILES = 9

#: Twisted's own log lines about ports, which name Python classes instead of listeners.
_PORT = re.compile(r".* starting on \S+|\((\S+ )?Port .* Closed\)")
#: All levels of Twisted's log.
LEVELS = frozenset(LogLevel.iterconstants())
#: The values of ``--log-level``.
LEVEL_NAMES = ("debug", "info", "warn", "error", "critical")
#: Prefixes of the fields that Twisted itself adds to events.
_OWN = ("log_", "format", "message", "time", "system", "isError", "failure", "why", "printed", "logLevel")


def text_line(event: LogEvent) -> str | None:
    """Return *event* as a line like those of twistd, with control characters escaped; None for an empty event."""
    line = formatEventAsClassicLogText(event)
    return None if line is None else _printable(line)


def json_line(event: LogEvent) -> str:
    """Return *event* as a JSON object: time, level, module and message, then the fields of the event."""
    level = event.get("log_level", LogLevel.info)
    shown: dict[str, Any] = {
        "time": _time(event.get("log_time", 0.0)),
        "level": level.name if level in LEVELS else str(level),
        "module": str(event.get("log_namespace") or event.get("log_system") or "-"),
        "message": formatEvent(event),
    }
    for name, value in event.items():
        if not name.startswith(_OWN) and name not in shown:
            shown[name] = _value(value)
    failure = event.get("log_failure")
    if isinstance(failure, Failure):
        shown["error"] = f"{failure.type.__name__ if failure.type else 'Failure'}: {failure.getErrorMessage()}"
        shown["traceback"] = failure.getTraceback()
    return json.dumps(shown) + "\n"  # ASCII, so it contains no control characters


class RotatedFile(ReopeningLogFile):
    """A log file that the server rotates, and that another program, such as logrotate, may move at any time.

    Every new file gets the permissions of the first file, because a daemon changes its umask after opening that.  A
    file
    that another program has created in place of the moved one keeps its permissions.
    """

    synchronized = ["rotate"]  # noqa: RUF012 (an instance variable in the base class)

    def __init__(self, path: Path, size: int = LOG_SIZE) -> None:
        path = path.absolute()
        super().__init__(path.name, str(path.parent), size, None, LOG_FILES)  # type: ignore[no-untyped-call]
        self.defaultMode = stat.S_IMODE(os.fstat(self.descriptor).st_mode)

    def rotate(self) -> None:
        """Rename the file and begin a new one; if another program has moved it already, only begin a new one."""
        ours = os.fstat(self.descriptor)
        try:
            there = Path(self.path).stat()
        except OSError:
            self._reopen()
        else:
            if not os.path.samestat(there, ours):
                self.defaultMode = stat.S_IMODE(there.st_mode)
                self._reopen()
            elif stat.S_ISREG(ours.st_mode):
                super().rotate()  # type: ignore[no-untyped-call]

    def _reopen(self) -> None:
        """Open a file with the original name; if that fails, continue to write to the file that was moved."""
        try:
            self.reopen()
        except OSError as error:
            self.size = 0  # otherwise each of the next lines would try to rotate the file
            log.error("cannot open the log file {path} again: {why}", path=self.path, why=error.strerror)


synchronize(RotatedFile)

FORMATS: Mapping[str, Callable[[LogEvent], str | None]] = {"text": text_line, "json": json_line}


class LevelObserver(FileLogObserver):
    """An observer of the log that writes the events of a level or above.

    :ivar out: the file that it writes to
    :ivar level: the lowest level that is written; it may change at any time
    :param form: ``text`` or ``json``
    :param level: one of :data:`LEVEL_NAMES`
    """

    def __init__(self, form: str, out: TextIO, level: str = "info") -> None:
        self.out = out
        line = FORMATS[form]
        super().__init__(out, lambda event: None if _is_port_line(event) else line(event))
        self.level = LogLevel.levelWithName(level)

    def __call__(self, event: LogEvent) -> None:
        if event.get("log_level", LogLevel.info) >= self.level:
            super().__call__(event)


def _is_port_line(event: LogEvent) -> bool:
    """Return whether *event* is Twisted's own line about a port; the server logs each listener by name instead."""
    return event.get("log_namespace") == "log_legacy" and _PORT.fullmatch(formatEvent(event)) is not None


def _time(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
    return moment.replace("+00:00", "Z")


def _value(value: object) -> object:
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value)):
        return value
    shown = value if isinstance(value, str) else str(value)
    return shown if len(shown) <= MAX_FIELD else f"{shown[:MAX_FIELD]}..."


def _printable(line: str) -> str:
    """Return *line* with control characters escaped."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in line)
