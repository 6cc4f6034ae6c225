"""The state machines of Relink, as the tables that run them and that docs/protocols/relink.md is drawn from.

    CONNECTOR, LISTENER    (phase of a connection, what happened) -> (method of the session, next phase)
    PACKETS                phase -> kinds of packets that may come in -> method of the link
    SENDING, RECEIVING     (mode of a channel, what happened) -> next mode

What a table does not have is an error of whoever did it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """What the tables are about.

    A member is equal to itself alone, so the machine's own hash will do: Enum's is a function in Python, and tables are
    looked into for every read.
    """

    __hash__ = object.__hash__


class Phase(State):
    """How far a connection is."""

    VERSION = "waits for the peer's version"
    HELLO = "waits for the connector's hello"
    LOOKUP = "waits for its owner to look the link up"
    REPLY = "waits for the listener's epoch and link id"
    RESYNC = "an old link: waits for the peer's report and its resume"
    OPEN = "messages go both ways"
    ENDED = "takes nothing more in"


class Happening(State):
    """What moves a connection on."""

    VERSION = "version"
    HELLO = "hello"
    NEW = "a new link"
    SAME = "the old link"
    NONE = "no link"
    RESUME = "resume"
    BROKEN = "a broken rule"
    FENCED = "fenced, or the end of the transport"


_ANYWHERE: dict[Happening, tuple[str, Phase]] = {
    Happening.BROKEN: ("discard", Phase.ENDED),
    Happening.FENCED: ("fence", Phase.ENDED),
}


def _with_endings(
    table: Mapping[tuple[Phase, Happening], tuple[str, Phase]],
) -> Mapping[tuple[Phase, Happening], tuple[str, Phase]]:
    phases = {phase for phase, _ in table} | {phase for _, phase in table.values()}
    endings = {(phase, what): to for phase in phases - {Phase.ENDED} for what, to in _ANYWHERE.items()}
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
        (Phase.HELLO, Happening.HELLO): ("ask_owner", Phase.LOOKUP),
        (Phase.LOOKUP, Happening.NEW): ("begin", Phase.OPEN),
        (Phase.LOOKUP, Happening.SAME): ("report", Phase.RESYNC),
        (Phase.LOOKUP, Happening.NONE): ("refuse_reply", Phase.ENDED),
        (Phase.RESYNC, Happening.RESUME): ("resend", Phase.OPEN),
    }
)

#: What may come in once there is a link.  Messages may come before the peer's resume: it has ours.
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
    """How far one of our own channels is."""

    OPEN = "takes messages"
    DRAINING = "takes no more, and waits until all are consumed"
    CLOSING = "close is sent, and again after each resume"
    GONE = "may be opened again, from number 0"


class Receiving(State):
    """How far a channel of the peer is."""

    OPEN = "takes messages"
    CLOSING = "close came in; not everything is consumed"
    BARRIER = "a ping is sent behind the last acknowledgement"
    FINISHED = "its pong came: the peer knows everything; the owner forgets the channel durably"
    GONE = "closed is sent"


class Event(State):
    """What moves a channel on."""

    CLOSE = "close"
    DRAINED = "everything is decided and consumed"
    CLOSED = "closed"
    PING = "ping"
    PONG = "pong"
    DETACHED = "the connection is gone"
    REWOUND = "what is not durable is forgotten: it comes again, close too"
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
