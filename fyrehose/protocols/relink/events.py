"""What a session tells its owner.  Numbers of messages never wrap; on the wire they are the low 32 bits.

:class:`fyrehose.errors.Broken` is the last event of a peer that breaks a rule; its link is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from fyrehose.errors import Broken
from fyrehose.protocols.relink.frames import Ack
from fyrehose.protocols.relink.handshake import Hello
from fyrehose.protocols.relink.messages import Messages

if TYPE_CHECKING:
    from fyrehose.protocols.relink.link import Link


@attrs.frozen(kw_only=True, slots=True)
class Asked:
    """Listener: a connector wants this.  Answer with ``accept`` or ``refuse`` of the session, now or later."""

    hello: Hello


@attrs.frozen(kw_only=True, slots=True)
class Linked:
    """The handshake is over.  With ``resumed`` the link is the old one, and :class:`Resumed` follows."""

    link: Link
    resumed: bool
    #: connector: the old link, when the listener did not know it any more (see Link.unknown)
    lost: Link | None = None


@attrs.frozen(kw_only=True, slots=True)
class Refused:
    """Connector: the old link was required, and the listener does not know it any more."""

    lost: Link | None


@attrs.frozen(kw_only=True, slots=True)
class Resumed:
    """The peer's report is complete, and what it had not got was sent again: messaging goes on."""


@attrs.frozen(kw_only=True, slots=True)
class Received:
    """Messages on a plain channel, from number ``first``; ``stage`` and ``settle`` them."""

    channel: int
    first: int
    messages: Messages


@attrs.frozen(kw_only=True, slots=True)
class Decided:
    """The peer commits or rolls back its messages ``first`` to ``last``; ``stage`` and ``settle`` them.

    :ivar dropped: the messages were not kept, because too much was undecided: a commit of them fails
    """

    channel: int
    first: int
    last: int
    commit: bool
    messages: Messages
    dropped: bool = False


@attrs.frozen(kw_only=True, slots=True)
class Resulted:
    """Our committed messages ``first`` to ``last`` were processed (COMMITTED), or were not (UNCOMMITTED)."""

    channel: int
    first: int
    last: int
    result: Ack


@attrs.frozen(kw_only=True, slots=True)
class Consumed:
    """The peer is done with our messages ``first`` to ``last``."""

    channel: int
    first: int
    last: int


@attrs.frozen(kw_only=True, slots=True)
class Rewound:
    """The peer holds what is below ``next`` of a channel that is not kept: go on from there, and close it again."""

    channel: int
    next: int


@attrs.frozen(kw_only=True, slots=True)
class Closed:
    """The peer has forgotten our channel: its number may be used again, from number 0."""

    channel: int


@attrs.frozen(kw_only=True, slots=True)
class Finished:
    """The peer's channel is closed, and it knows everything: ``forget`` it (durably first, if links are)."""

    channel: int


@attrs.frozen(kw_only=True, slots=True)
class PeerShutdown:
    """The peer opens no more channels."""


@attrs.frozen(kw_only=True, slots=True)
class Ended:
    """Both peers have shut down and no channel is left: the link has come to its good end."""


Event = (
    Asked
    | Linked
    | Refused
    | Resumed
    | Received
    | Decided
    | Resulted
    | Consumed
    | Rewound
    | Closed
    | Finished
    | PeerShutdown
    | Ended
    | Broken
)


@attrs.frozen(kw_only=True, slots=True)
class Unknown:
    """A message of ours whose fate nobody knows, because its link was lost.

    :ivar decided: False: it was never committed, so it was certainly not processed
    """

    channel: int
    seq: int
    parts: tuple[bytes, ...]
    decided: bool
