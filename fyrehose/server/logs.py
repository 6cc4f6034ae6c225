"""How the log is written: lines for people, or JSON objects, one an event, for programs that collect them.

    {"time": "2026-11-21T23:59:01.123456Z", "level": "warn", "module": "fyrehose.protocols.figg.server",
     "message": "figg: Forbidden from 10.0.0.5: ...", "protocol": "figg", "cause": "Forbidden", "peer": "10.0.0.5"}

Names come from peers, and nothing in them may look like another line, or be obeyed by a terminal: what cannot be
printed is escaped, in both.

    in: events of twisted.logger      out: text
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, TextIO

from twisted.logger import FileLogObserver, LogEvent, LogLevel, formatEvent, formatEventAsClassicLogText
from twisted.python.failure import Failure

#: The longest value of a field, in characters; a message has all of its own.
MAX_FIELD = 2_000

#: What Twisted says of ports: the class that serves one says nothing to an operator.
_PORT = re.compile(r".* starting on \S+|\((\S+ )?Port .* Closed\)")
#: Fields of Twisted's own, and of its older log.
_OWN = ("log_", "format", "message", "time", "system", "isError", "failure", "why", "printed", "logLevel")


def text_line(event: LogEvent) -> str | None:
    """A line as twistd writes it; what follows in a traceback is indented."""
    line = formatEventAsClassicLogText(event)
    return None if line is None else _printable(line)


def json_line(event: LogEvent) -> str:
    """An object: time, level, module and message, then the event's own fields."""
    level = event.get("log_level", LogLevel.info)
    shown: dict[str, Any] = {
        "time": _time(event.get("log_time", 0.0)),
        "level": getattr(level, "name", str(level)),
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
    return json.dumps(shown) + "\n"  # ASCII, so that nothing in it is more than a character


FORMATS: Mapping[str, Callable[[LogEvent], str | None]] = {"text": text_line, "json": json_line}


def observer(form: str, out: TextIO) -> FileLogObserver:
    """What writes the log to ``out``, as ``form`` is called; without what is said better elsewhere."""
    line = FORMATS[form]
    return FileLogObserver(out, lambda event: None if _said_elsewhere(event) else line(event))


def _said_elsewhere(event: LogEvent) -> bool:
    """Whether it is a line of Twisted's own about a port, each of which we tell of by its listener's name."""
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
    """``line`` without anything that a terminal would obey."""
    if line.isascii() and line.replace("\n", "").replace("\t", "").isprintable():
        return line
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in line)
