"""The state machines of channels, as tables that the code runs and from which docs/protocols/relink-wire.md is drawn.

    SENDING, RECEIVING     (mode of a channel, event) -> next mode

A combination that is not in a table is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class ChannelState(Enum):
    """Base of the enumerations used as keys of the tables.

    The tables are consulted for each read, and the hash of Enum is a slow function in Python.  Members are singletons,
    so the hash of object serves.
    """

    __hash__ = object.__hash__


class Sending(ChannelState):
    """State of one of our own channels."""

    OPEN = "accepts messages"
    DRAINING = "accepts no more messages, and waits until all are consumed"
    CLOSING = "close was sent, and is sent again after each resume"
    GONE = "may be opened again, from number 0"


class Receiving(ChannelState):
    """State of a channel of the peer."""

    OPEN = "accepts messages"
    CLOSING = "close has arrived; not everything is consumed"
    BARRIER = "a ping was sent behind the last acknowledgement"
    FINISHED = "its pong has arrived, so the peer knows all results; the owner forgets the channel durably"
    GONE = "closed was sent"


class ChannelEvent(ChannelState):
    """Event that changes the state of a channel."""

    CLOSE = "close"
    DRAINED = "everything is decided and consumed"
    CLOSED = "closed"
    PING = "ping"
    PONG = "pong"
    DETACHED = "the connection is lost"
    REWOUND = "messages that are not durable, and close, will be sent again"
    FORGOTTEN = "forgotten"


SENDING: Mapping[tuple[Sending, ChannelEvent], Sending] = {
    (Sending.OPEN, ChannelEvent.CLOSE): Sending.DRAINING,
    (Sending.DRAINING, ChannelEvent.DRAINED): Sending.CLOSING,
    (Sending.DRAINING, ChannelEvent.REWOUND): Sending.OPEN,
    (Sending.CLOSING, ChannelEvent.CLOSED): Sending.GONE,
}

RECEIVING: Mapping[tuple[Receiving, ChannelEvent], Receiving] = {
    (Receiving.OPEN, ChannelEvent.CLOSE): Receiving.CLOSING,
    (Receiving.CLOSING, ChannelEvent.PING): Receiving.BARRIER,
    (Receiving.BARRIER, ChannelEvent.PONG): Receiving.FINISHED,
    (Receiving.BARRIER, ChannelEvent.DETACHED): Receiving.CLOSING,
    (Receiving.CLOSING, ChannelEvent.REWOUND): Receiving.OPEN,
    (Receiving.FINISHED, ChannelEvent.FORGOTTEN): Receiving.GONE,
}
