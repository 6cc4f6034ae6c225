"""The fields of a syslog message, by RFC 5424, or by RFC 3164 as far as they can be told.

in: the bytes of a message      out: its fields, by the names that RFC 5424 has for them
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp"),
    *("audit", "alert", "clock", *(f"local{number}" for number in range(8))),
)
SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
#: The fields that may be in the name of a stream.
FIELDS = ("hostname", "app-name", "facility", "severity", "procid", "msgid")

_PRIORITY = re.compile(r"<([0-9]{1,3})>")
_ID, _VALUE = r'[^\s\]="]+', r'"(?:[^"\\]|\\.)*+"'
_PARAMETER = re.compile(rf" +({_ID})=({_VALUE})", re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_ELEMENT = re.compile(rf"\[({_ID})((?: +{_ID}={_VALUE})*+) *\]", re.DOTALL)
#: The header of RFC 5424 behind the priority.
_NEW = re.compile(rf"1 {5 * '([^ ]+) '}(-|(?:\[{_ID}(?: +{_ID}={_VALUE})*+ *\])++)(?: |$)", re.DOTALL)
#: The header of RFC 3164, with its time or one of ISO 8601 as rsyslog sends it, and without a name of the host if the
#: program has written it itself.
_OLD = re.compile(
    r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)) (?:(\S*[^\s:]) )?"
)
_TAG = re.compile(r"([^\s:\[\]]{1,128})(?:\[([^\]\s]*)\])?:(?: |$)")


def fields_of(payload: bytes, now: datetime) -> dict[str, Any]:
    """Return the fields of a message by name; a field that it does not have is left out.

    :param now: the present time with a zone, from which a time of RFC 3164 gets its year and its zone
    :return: text, except that ``structured-data`` has a dictionary of the parameters of each of its elements
    """
    text = payload.decode("utf-8", "replace")
    found: dict[str, Any] = {}
    priority = _PRIORITY.match(text)
    at = 0
    if priority is not None and int(priority[1]) < 8 * len(FACILITIES):
        facility, severity = divmod(int(priority[1]), 8)
        found["facility"], found["severity"] = FACILITIES[facility], SEVERITIES[severity]
        at = priority.end()
    head = _NEW.match(text, at)
    if head is not None:
        names = ("timestamp", "hostname", "app-name", "procid", "msgid")
        found |= {name: value for name, value in zip(names, head.groups(), strict=False) if value != "-"}
        if head[6] != "-":
            found["structured-data"] = _structured(head[6])
        found["message"] = text[head.end() :].removeprefix("\ufeff")
        return found
    head = _OLD.match(text, at)
    if head is not None:
        found["timestamp"] = _with_year(head[1], now)
        if head[2] is not None:
            found["hostname"] = head[2]
        at = head.end()
    tag = _TAG.match(text, at)
    if tag is not None:
        found["app-name"] = tag[1]
        if tag[2]:
            found["procid"] = tag[2]
        at = tag.end()
    found["message"] = text[at:].removeprefix(" ") if tag is None and head is not None else text[at:]
    return found


def _structured(text: str) -> dict[str, dict[str, str]]:
    return {
        element[1]: {name: _ESCAPED.sub(r"\1", value[1:-1]) for name, value in _PARAMETER.findall(element[2])}
        for element in _ELEMENT.finditer(text)
    }


def _with_year(text: str, now: datetime) -> str:
    """Return the time *text* as ISO 8601; one without a year is the last such time, or at most a day ahead of *now*."""
    if text[0].isdecimal():
        return text
    for year in (now.year + 1, now.year, now.year - 1):
        try:
            time = datetime.strptime(f"{year} {text}", "%Y %b %d %H:%M:%S").replace(tzinfo=now.tzinfo)
        except ValueError:
            continue  # the 29th of February of another year, or no time at all
        if time <= now + timedelta(days=1):
            return time.isoformat()
    return text
