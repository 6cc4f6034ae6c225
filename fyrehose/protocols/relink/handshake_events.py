"""Events of the handshake, which a session returns to its owner before the events of its link (events.py)."""

from __future__ import annotations

import attrs

from fyrehose.protocols.relink.events import Event
from fyrehose.protocols.relink.handshake import Hello
from fyrehose.protocols.relink.link import Link


@attrs.frozen(kw_only=True, slots=True)
class HelloReceived:
    """Listener: the connector has sent its part of the handshake (1); call ``accept`` or ``refuse`` of the session."""

    hello: Hello


@attrs.frozen(kw_only=True, slots=True)
class Linked:
    """The handshake is complete; if ``resumed``, the link is the old one, and :class:`~.events.Resumed` follows."""

    link: Link
    resumed: bool
    #: connector: the old link, if the listener no longer knew it (see Link.unsettled)
    lost: Link | None = None


@attrs.frozen(kw_only=True, slots=True)
class LinkUnknown:
    """Connector: the listener does not know the old link, which the handshake required."""

    lost: Link | None


SessionEvent = HelloReceived | Linked | LinkUnknown | Event
