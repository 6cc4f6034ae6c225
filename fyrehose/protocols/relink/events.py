"""Events that a link returns to its owner, and errors for messages that were refused or whose link was lost.

Sequence numbers in events never wrap; on the wire they are the low 32 bits (3.1).  :class:`fyrehose.errors.Broken` is
the last event of a peer that violates the protocol; its link is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import attrs

from fyrehose.errors import Broken, PublishError
from fyrehose.protocols.relink.frames import Ack
from fyrehose.protocols.relink.messages import MessageSequence


@attrs.frozen(kw_only=True, slots=True)
class Resumed:
    """The peer has sent its resume packet (3.5), and missing messages were sent again: messaging continues."""


@attrs.frozen(kw_only=True, slots=True)
class Received:
    """Messages of a channel without transactions, from number ``first``; the link's owner has to settle them."""

    channel: int
    first: int
    messages: MessageSequence


class DropReason(Enum):
    """Why the payloads of messages were not kept until their commit."""

    COUNT = "more than twice `backlog` messages of the channel were undecided"
    SIZE = "more than twice `backlog_size` bytes of the link were undecided"
    MEMORY = "all links together had too many bytes"
    FORGOTTEN = "the process was restarted, or could not write, after it had acknowledged them as received"


@attrs.frozen(kw_only=True, slots=True)
class Decided:
    """The peer commits or rolls back its messages ``first`` to ``last``; the link's owner has to settle them.

    :ivar commit: True for a commit, False for a rollback
    :ivar dropped: why the messages were not kept; a commit of them has to fail.  None: the messages were kept
    """

    channel: int
    first: int
    last: int
    commit: bool
    messages: MessageSequence
    dropped: DropReason | None = None


@attrs.frozen(kw_only=True, slots=True)
class Resulted:
    """The peer has acknowledged our commit of ``first`` to ``last`` with ``result``: COMMITTED or UNCOMMITTED."""

    channel: int
    first: int
    last: int
    result: Ack


@attrs.frozen(kw_only=True, slots=True)
class Consumed:
    """The peer has consumed our messages ``first`` to ``last``."""

    channel: int
    first: int
    last: int


@attrs.frozen(kw_only=True, slots=True)
class Rewound:
    """The peer holds all messages below ``next``, on a resumed link that does not keep its messages.

    The owner has to send the messages from ``next`` on again; if it was closing the channel, it has to close it again.
    """

    channel: int
    next: int


@attrs.frozen(kw_only=True, slots=True)
class ChannelClosed:
    """The peer has acknowledged the closure of our channel, which may be opened again, from number 0."""

    channel: int


@attrs.frozen(kw_only=True, slots=True)
class Finished:
    """A channel of the peer is closed, and the peer knows all results; the link's owner must ``forget`` the channel."""

    channel: int


@attrs.frozen(kw_only=True, slots=True)
class PeerShutdown:
    """The peer has sent its shutdown packet (3.6): it opens no more channels."""


@attrs.frozen(kw_only=True, slots=True)
class Ended:
    """Both peers have sent shutdown, and no channel is left: the link has ended in good order."""


Event = (
    Resumed
    | Received
    | Decided
    | Resulted
    | Consumed
    | Rewound
    | ChannelClosed
    | Finished
    | PeerShutdown
    | Ended
    | Broken
)


class MessageOutcome(Enum):
    """The outcome of a message whose link was lost before the message was acknowledged, as far as it is known.

    A processed message whose acknowledgement has arrived is not reported.
    """

    NOT_PROCESSED = "its transaction was never committed, so the listener has not processed it"
    UNKNOWN = "the listener may or may not have processed it"


@attrs.frozen(kw_only=True, slots=True)
class Unsettled:
    """A message of ours that was not acknowledged when its link was lost.

    :ivar outcome: always UNKNOWN for a message on a channel without transactions
    """

    channel: int
    seq: int
    parts: tuple[bytes, ...]
    outcome: MessageOutcome


class Uncommitted(PublishError):
    """The listener has refused or could not process a transaction; none of its messages took effect."""


class UnknownOutcome(PublishError):
    """The link was lost before the message was acknowledged, so it may or may not have been processed.

    :ivar unsettled: all messages of the link that were not acknowledged, with what is known of the outcome of each
    """

    retriable = True

    def __init__(self, unsettled: Sequence[Unsettled] = ()) -> None:
        self.unsettled = tuple(unsettled)
        unknown = sum(message.outcome is MessageOutcome.UNKNOWN for message in self.unsettled)
        text = "the link was lost"
        if unknown:
            text += f"; {unknown} messages may or may not have been processed"
        if unknown < len(self.unsettled):
            text += f"; {len(self.unsettled) - unknown} messages of open transactions were not processed"
        super().__init__(text)
