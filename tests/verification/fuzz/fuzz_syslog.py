"""Fuzz syslog with random bytes: the session, and the fields of messages.

The session receives frames of every kind, some of them damaged, once whole and once in pieces, and must return the same
events.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import harness

with harness.instrumented("fyrehose.protocols.syslog"):
    from fyrehose.errors import Broken
    from fyrehose.protocols.syslog.message import fields_of
    from fyrehose.protocols.syslog.session import LargeMessage, SyslogMessages, SyslogServerSession
    from fyrehose.sessions import events_of

LIMIT = 60
NOW = datetime(2026, 11, 28, tzinfo=UTC)
COMMANDS = (b"syslog", b"syslog", b"syslog", b"open", b"close", b"starttls")
HEADS = (b"<34>", b'<34>1 2026-11-28T12:00:00Z h a 7 - [x y="z"] ', b"<34>Nov 28 12:00:00 h a[7]: ", b"")


def frame(dice: harness.Dice, relp: bool) -> bytes:
    """Return a frame of RELP, or a message with either framing."""
    message = dice.choice(HEADS) + dice.blob()
    if relp:
        return b"%d %b %d %b\n" % (dice.number(16), dice.choice(COMMANDS), len(message), message)
    return b"%b\n" % message if dice.one_in(2) else b"%d %b" % (len(message), message)


def said(chunks: list[bytes]) -> tuple[list[Any], str]:
    """Return the messages of a session, and what ended it."""
    session = SyslogServerSession(LIMIT)
    found: list[Any] = []
    cause = ""
    events = [event for chunk in chunks for event in events_of(session, chunk)] + session.receive_eof()
    assert session.expected == 0 or not events or not isinstance(events[-1], Broken)
    for event in events:
        assert not cause, "an event follows the end"
        if isinstance(event, Broken):
            cause = event.error.cause
        elif isinstance(event, SyslogMessages):
            found += zip(event.numbers or [None] * len(event.payloads), event.payloads, strict=True)
        elif isinstance(event, LargeMessage):
            assert len(event.payload) == LIMIT < event.size
            found.append((event.number, event.size, bytes(event.payload)))
        else:
            cause = type(event).__name__
    return found, cause


def session(data: bytes) -> None:
    """Check that a session handles whole and split frames alike."""
    dice = harness.Dice(data)
    relp = dice.one_in(2)
    wire = b"1 open 0\n" if relp else b""
    while dice and len(wire) < 8000:
        wire += dice.damaged(frame(dice, relp))
    assert said(dice.pieces(wire)) == said([wire])


def raw(data: bytes) -> None:
    """Check that a session handles any bytes alike, however they are cut."""
    assert said([data]) == said([data[:3], data[3:]]) == said([data[at : at + 1] for at in range(len(data))])


def fields(data: bytes) -> None:
    """Check that every message has fields, which are text."""
    for head in HEADS:
        found = fields_of(head + data, NOW)
        assert "message" in found
        assert all(isinstance(value, str) for name, value in found.items() if name != "structured-data")


DECODERS = {"session": session, "raw": raw, "fields": fields}
