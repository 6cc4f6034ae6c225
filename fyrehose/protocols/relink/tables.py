"""The state machines of Relink, as tables that the code runs and from which docs/protocols/relink.md is drawn.

    CONNECTOR, LISTENER    (phase of a connection, happening) -> (method of the session, next phase)
    PACKETS                phase -> kinds of packets that the peer may send -> method of the link
    SENDING, RECEIVING     (mode of a channel, event) -> next mode

A combination that is not in a table is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """Base of the enumerations used as keys of the tables.

    The tables are consulted for each read, and the hash of Enum is a slow function in Python.  Members are singletons,
    so the hash of object serves.
    """

    __hash__ = object.__hash__


class Phase(State):
    """State of a connection."""

    VERSION = "waits for the peer's version"
    HELLO = "waits for the connector's hello"
    LOOKUP = "waits for its owner to look up the link"
    REPLY = "waits for the listener's epoch and link id"
    RESYNC = "an old link: waits for the peer's report and its resume"
    OPEN = "both peers may send messages"
    ENDED = "ignores all further bytes"


class Happening(State):
    """Event that changes the state of a connection."""

    VERSION = "version"
    HELLO = "hello"
    NEW = "a new link"
    SAME = "the old link"
    NONE = "no link"
    RESUME = "resume"
    BROKEN = "a protocol violation"
    FENCED = "fenced, or the end of the transport"


_ANYWHERE: dict[Happening, tuple[str, Phase]] = {
    Happening.BROKEN: ("discard", Phase.ENDED),
    Happening.FENCED: ("fence", Phase.ENDED),
}


def _with_endings(
    table: Mapping[tuple[Phase, Happening], tuple[str, Phase]],
) -> Mapping[tuple[Phase, Happening], tuple[str, Phase]]:
    phases = {phase for phase, _ in table} | {phase for _, phase in table.values()}
    endings = {(phase, happening): to for phase in phases - {Phase.ENDED} for happening, to in _ANYWHERE.items()}
    return {**table, **endings}


CONNECTOR = _with_endings(
    {
        (Phase.VERSION, Happening.VERSION): ("send_hello", Phase.REPLY),
        (Phase.REPLY, Happening.NEW): ("begin", Phase.OPEN),
        (Phase.REPLY, Happening.SAME): ("report", Phase.RESYNC),
        (Phase.REPLY, Happening.NONE): ("refused", Phase.ENDED),
        (Phase.RESYNC, Happening.RESUME): ("resend", Phase.OPEN),
    }
)

LISTENER = _with_endings(
    {
        (Phase.VERSION, Happening.VERSION): ("send_version", Phase.HELLO),
        (Phase.HELLO, Happening.HELLO): ("request_link", Phase.LOOKUP),
        (Phase.LOOKUP, Happening.NEW): ("begin", Phase.OPEN),
        (Phase.LOOKUP, Happening.SAME): ("report", Phase.RESYNC),
        (Phase.LOOKUP, Happening.NONE): ("refuse_reply", Phase.ENDED),
        (Phase.RESYNC, Happening.RESUME): ("resend", Phase.OPEN),
    }
)

#: Packets that are allowed once there is a link.  The peer may send messages before its resume, because it has ours.
_ALWAYS = {
    "nop": "nop",
    "ping": "pinged",
    "pong": "ponged",
    "shutdown": "shut_down",
    "message": "message",
    "messages": "messages",
    "operation": "operation",
    "acknowledgement": "acknowledged",
}
PACKETS: Mapping[Phase, Mapping[str, str]] = {
    Phase.RESYNC: {**_ALWAYS, "resume": "resumed"},
    Phase.OPEN: _ALWAYS,
}


class Sending(State):
    """State of one of our own channels."""

    OPEN = "accepts messages"
    DRAINING = "accepts no more messages, and waits until all are consumed"
    CLOSING = "close was sent, and is sent again after each resume"
    GONE = "may be opened again, from number 0"


class Receiving(State):
    """State of a channel of the peer."""

    OPEN = "accepts messages"
    CLOSING = "close has arrived; not everything is consumed"
    BARRIER = "a ping was sent behind the last acknowledgement"
    FINISHED = "its pong has arrived, so the peer knows all results; the owner forgets the channel durably"
    GONE = "closed was sent"


class Event(State):
    """Event that changes the state of a channel."""

    CLOSE = "close"
    DRAINED = "everything is decided and consumed"
    CLOSED = "closed"
    PING = "ping"
    PONG = "pong"
    DETACHED = "the connection is lost"
    REWOUND = "messages that are not durable, and close, will be sent again"
    FORGOTTEN = "forgotten"


SENDING: Mapping[tuple[Sending, Event], Sending] = {
    (Sending.OPEN, Event.CLOSE): Sending.DRAINING,
    (Sending.DRAINING, Event.DRAINED): Sending.CLOSING,
    (Sending.DRAINING, Event.REWOUND): Sending.OPEN,
    (Sending.CLOSING, Event.CLOSED): Sending.GONE,
}

RECEIVING: Mapping[tuple[Receiving, Event], Receiving] = {
    (Receiving.OPEN, Event.CLOSE): Receiving.CLOSING,
    (Receiving.CLOSING, Event.PING): Receiving.BARRIER,
    (Receiving.BARRIER, Event.PONG): Receiving.FINISHED,
    (Receiving.BARRIER, Event.DETACHED): Receiving.CLOSING,
    (Receiving.CLOSING, Event.REWOUND): Receiving.OPEN,
    (Receiving.FINISHED, Event.FORGOTTEN): Receiving.GONE,
}
