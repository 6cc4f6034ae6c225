"""The state machines of channels, as tables that the code runs and from which docs/protocols/relink.md is drawn.

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
