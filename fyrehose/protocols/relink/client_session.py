"""The connector's session: a state machine, with the states of the specification ("1.  Handshake").

VERSION -> REPLY -> a new link: OPEN
                 -> the old link: RESYNC -> OPEN
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.relink import handshake
from fyrehose.protocols.relink.handshake import Hello
from fyrehose.protocols.relink.handshake_events import LinkUnknown
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.session import RelinkSession
from fyrehose.protocols.relink.tables import Stage, Step, Transitions


@attrs.define(eq=False)
class ConnectorSession(RelinkSession):
    """The connector's session; the connector selects the endpoint and the terms of the link.

    :ivar hello: the connector's part of the handshake; its epoch and link id are those of ``link``
    :ivar link: the old link, without a connection, to be resumed; None: request a new link
    :ivar new_link: returns a new link from its epoch and id
    """

    hello: Hello = attrs.field(kw_only=True)
    new_link: Callable[[int, int], Link] = attrs.field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.send(handshake.pack_version(handshake.VERSION), handshake.version_size)

    # The handshake.

    def send_hello(self) -> None:
        """Send the hello, if the version is supported."""
        version = handshake.unpack_version(self.take())
        if version > handshake.VERSION:
            detail = f"the listener replied with version {version}; the highest supported is {handshake.VERSION}"
            raise RemoteProtocolError("version-unknown", detail)
        self.send(self.hello.serialize(), handshake.reply_size)

    def read_reply(self) -> None:
        """Read from the listener's reply whether it resumes the old link, begins a new one, or knows none (rule L6)."""
        epoch, link_id = handshake.unpack_reply(self.take())
        hello, old = self.hello, self.link
        if link_id and not epoch:
            raise RemoteProtocolError("zero-epoch")
        if not link_id and not hello.require:
            raise RemoteProtocolError("zero-link-id")
        if not link_id:
            self.step(Step.NO_LINK, epoch)
        elif old is not None and (epoch, link_id) == (hello.epoch, hello.link_id):
            self.step(Step.OLD_LINK, old)
        else:
            self.step(Step.NEW_LINK, self.new_link(epoch, link_id))

    def begin(self, link: Link) -> None:
        """Begin a new link on this connection; the old link, if there is one, is lost."""
        lost = self.link
        if lost is not None:
            lost.over = True
        self.attach(link, resumed=False, lost=lost)

    def send_report(self, link: Link) -> None:
        """Resume the old link on this connection: report which messages have arrived."""
        self.attach(link, resumed=True)

    def give_up(self, epoch: int) -> None:
        """Report that the listener does not know the required link."""
        if self.link is not None:
            self.link.over = True
        self.fenced()
        self.report(LinkUnknown(lost=self.link))

    transitions: ClassVar[Transitions] = {
        (Stage.VERSION, Step.FIELD): (Stage.REPLY, send_hello),
        (Stage.REPLY, Step.FIELD): (Stage.REPLY, read_reply),
        (Stage.REPLY, Step.NEW_LINK): (Stage.OPEN, begin),
        (Stage.REPLY, Step.OLD_LINK): (Stage.RESYNC, send_report),
        (Stage.REPLY, Step.NO_LINK): (Stage.REFUSED, give_up),
        (Stage.RESYNC, Step.RESUME): (Stage.OPEN, None),
    }
