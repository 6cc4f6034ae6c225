"""The fields of messages by RFC 5424 and RFC 3164."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.protocols.syslog.message import fields_of

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
HEAD = {"facility": "auth", "severity": "crit"}
NEW = {"timestamp": "2003-10-11T22:14:15.003Z", "hostname": "mymachine.example.com"}

STRUCTURED = (
    "<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 "
    '[exampleSDID@32473 iut="3" eventSource="Application" eventID="1011"][examplePriority@32473 class="high"]'
)
EXAMPLES: list[tuple[str, dict[str, Any]]] = [
    # The examples of RFC 5424, section 6.5.
    (
        "<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \ufeff'su root' failed",
        HEAD | NEW | {"app-name": "su", "msgid": "ID47", "message": "'su root' failed"},
    ),
    (
        STRUCTURED,
        NEW
        | {"facility": "local4", "severity": "notice", "app-name": "evntslog", "msgid": "ID47", "message": ""}
        | {
            "structured-data": {
                "exampleSDID@32473": {"iut": "3", "eventSource": "Application", "eventID": "1011"},
                "examplePriority@32473": {"class": "high"},
            }
        },
    ),
    (
        r'<34>1 - - - 7 - [a b="\"\\\]\n"][c] x',
        HEAD | {"procid": "7", "structured-data": {"a": {"b": '"\\]\\n'}, "c": {}}, "message": "x"},
    ),
    ("<34>1 - - - - - -", HEAD | {"message": ""}),
    # The example of RFC 3164, section 5.4, and what programs make of it.
    (
        "<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8",
        HEAD
        | {"timestamp": "2025-10-11T22:14:15+02:00", "hostname": "mymachine", "app-name": "su"}
        | {"message": "'su root' failed for lonvick on /dev/pts/8"},
    ),
    (
        "<34>Jan  2 03:04:05 web-1 sshd[42]: a: b",
        HEAD
        | {
            "timestamp": "2026-01-02T03:04:05+02:00",
            "hostname": "web-1",
            "app-name": "sshd",
            "procid": "42",
            "message": "a: b",
        },
    ),
    (
        "<34>2026-11-28T12:00:00.123456+00:00 web-1 app: hello",
        HEAD
        | {"timestamp": "2026-11-28T12:00:00.123456+00:00", "hostname": "web-1", "app-name": "app", "message": "hello"},
    ),
    (
        "<34>Jan  2 03:04:05 app: hello",
        HEAD | {"timestamp": "2026-01-02T03:04:05+02:00", "app-name": "app", "message": "hello"},
    ),
    (
        "<34>Jan  2 03:04:05 web-1 hello world",
        HEAD | {"timestamp": "2026-01-02T03:04:05+02:00", "hostname": "web-1", "message": "hello world"},
    ),
    # What is no syslog message is text.
    ("<34>hello", HEAD | {"message": "hello"}),
    ("<192>hello", {"message": "<192>hello"}),
    ("hello", {"message": "hello"}),
    ("<34>1 - - - - - [broken", HEAD | {"message": "1 - - - - - [broken"}),
    ("", {"message": ""}),
]


@pytest.mark.parametrize(("text", "fields"), EXAMPLES)
def test_fields_of_a_message_are_found(text: str, fields: dict[str, Any]) -> None:
    assert fields_of(text.encode(), NOW) == fields


@pytest.mark.parametrize(
    ("now", "text", "found"),
    [
        (datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC), "Jan  1 00:00:01", "2027-01-01T00:00:01+00:00"),
        (datetime(2027, 1, 1, 0, 0, 1, tzinfo=UTC), "Dec 31 23:59:59", "2026-12-31T23:59:59+00:00"),
        (datetime(2028, 3, 1, tzinfo=UTC), "Feb 29 00:00:00", "2028-02-29T00:00:00+00:00"),
        (datetime(2026, 3, 1, tzinfo=UTC), "Foo 29 00:00:00", "Foo 29 00:00:00"),
    ],
)
def test_time_without_a_year_is_the_nearest_one_that_is_not_in_the_future(now: datetime, text: str, found: str) -> None:
    assert fields_of(f"<34>{text} h a: b".encode(), now)["timestamp"] == found


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert fields_of(b"<34>\xff", NOW) == HEAD | {"message": "\ufffd"}


@given(st.text(alphabet='<>134[]="\\ -:aT\u00e9\n', max_size=60))
def test_any_text_has_a_message(text: str) -> None:
    assert text.endswith(fields_of(text.encode(), NOW)["message"])
