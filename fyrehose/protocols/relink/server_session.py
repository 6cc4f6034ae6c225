"""The listener's session: a state machine, with the stages of the specification ("1.  Handshake").

VERSION -> HELLO -> LOOKUP -> a new link: OPEN
                           -> the old link: RESYNC -> OPEN
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink import handshake
from fyrehose.protocols.relink.handshake_events import HelloReceived, SessionEvent
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.session import RelinkSession
from fyrehose.protocols.relink.tables import Stage, Step, Transitions


@attrs.define(eq=False)
class ListenerSession(RelinkSession):
    """The listener's session; its owner looks up the link that a peer requests: see :class:`~.HelloReceived`."""

    #: one turn ends after these events, so that a peer with thousands of small packets does not keep others waiting
    most_events = 256

    def accept(self, link: Link, *, resumed: bool) -> list[SessionEvent]:
        """Answer the hello with *link*; call ``receive_data(b"")`` afterwards.

        :raises LocalProtocolError: the link is attached to another connection
        """
        if link.attached:
            raise LocalProtocolError("the link is attached to another connection; call fenced() of that first")
        self.step(Step.OLD_LINK if resumed else Step.NEW_LINK, link)
        return self._take_events()

    def refuse(self, epoch: int) -> None:
        """Answer the hello by refusing the required link, which is not known; then send the pending data, and close.

        :raises LocalProtocolError: no hello has arrived
        """
        self.step(Step.NO_LINK, epoch)

    # The handshake.

    def send_version(self) -> None:
        """Reply with version 0, the only version, whatever the connector supports."""
        self.take()
        self.send(handshake.pack_version(handshake.VERSION), handshake.hello_size)

    def request_link(self) -> None:
        """Pass the hello to the owner."""
        self.report(HelloReceived(hello=handshake.unpack_hello(self.take())))

    def begin(self, link: Link) -> None:
        """Reply with a new link."""
        self.send(handshake.pack_reply(link.epoch, link.id))
        self.attach(link, resumed=False)

    def send_report(self, link: Link) -> None:
        """Reply with the old link, and send its report."""
        self.send(handshake.pack_reply(link.epoch, link.id))
        self.attach(link, resumed=True)

    def send_refusal(self, epoch: int) -> None:
        """Reply with link id zero."""
        self.fenced()
        self.send(handshake.pack_reply(epoch, 0))

    transitions: ClassVar[Transitions] = {
        (Stage.VERSION, Step.FIELD): (Stage.HELLO, send_version),
        (Stage.HELLO, Step.FIELD): (Stage.LOOKUP, request_link),
        (Stage.LOOKUP, Step.NEW_LINK): (Stage.OPEN, begin),
        (Stage.LOOKUP, Step.OLD_LINK): (Stage.RESYNC, send_report),
        (Stage.LOOKUP, Step.NO_LINK): (Stage.REFUSED, send_refusal),
        (Stage.RESYNC, Step.RESUME): (Stage.OPEN, None),
    }
