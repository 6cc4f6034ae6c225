"""The state machines of Relink, as tables that the code runs and from which docs/protocols/relink-wire.md is drawn.

    SENDING, RECEIVING     (state of a channel, event) -> next state
    transitions            (stage of a connection, step) -> next stage, what the session does; a table of each session

A combination that is not in a table is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum


class TableKey(Enum):
    """Base of the enumerations used as keys of the tables.

    The tables are consulted for each read, and Enum's hash is a slow function in Python.  Each member exists once, so
    the fast hash of ``object`` will do.
    """

    __hash__ = object.__hash__


class Stage(TableKey):
    """Stage of a connection; the states of the specification ("1. Handshake")."""

    VERSION = "waits for the peer's version"
    HELLO = "waits for the connector's hello"
    LOOKUP = "waits for the owner to look up the link"
    REPLY = "waits for the listener's epoch and link id"
    RESYNC = "an old link: waits for the peer's report and its resume"
    OPEN = "both peers may send messages"
    REFUSED = "the required link is not known"


class Step(TableKey):
    """The events that change the stage of a connection."""

    FIELD = "field"  #: a field of the handshake has arrived completely
    NEW_LINK = "new_link"  #: the link is new
    OLD_LINK = "old_link"  #: the link is resumed
    NO_LINK = "no_link"  #: the old link was required and is not known
    RESUME = "resume"  #: the peer's resume packet has arrived


#: The next stage for each stage and step, and the method of the session that handles the step; None: nothing to do.
Transitions = Mapping[tuple[Stage, Step], tuple[Stage, Callable[..., None] | None]]


class Sending(TableKey):
    """State of one of our own channels."""

    OPEN = "accepts messages"
    DRAINING = "accepts no more messages, and waits until all are consumed"
    CLOSING = "close was sent, and is sent again after each resume"
    GONE = "may be opened again, from number 0"


class Receiving(TableKey):
    """State of a channel of the peer."""

    OPEN = "accepts messages"
    CLOSING = "close has arrived; not everything is consumed"
    BARRIER = "a ping was sent behind the last acknowledgement"
    FINISHED = "its pong has arrived, so the peer knows all results; the owner forgets the channel durably"
    GONE = "closed was sent"


class ChannelEvent(TableKey):
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
