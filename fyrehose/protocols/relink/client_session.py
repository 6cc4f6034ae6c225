"""Session of the connector: its machine, whose states are those of the specification ("1. Handshake").

VERSION -> REPLY -> a new link: OPEN
                 -> the old link: RESYNC -> OPEN
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from automat import TypeMachineBuilder

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.relink import handshake
from fyrehose.protocols.relink.handshake import Hello
from fyrehose.protocols.relink.handshake_events import LinkUnknown
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.session import Inputs, RelinkSession


@attrs.define(eq=False)
class ConnectorSession(RelinkSession):
    """Session of the connector, which selects the endpoint and the terms.

    :ivar hello: the connector's part of the handshake; its epoch and link id are those of ``link``
    :ivar link: the old link, detached, to be resumed; None for a new one
    :ivar new_link: returns a new link from its epoch and id
    """

    hello: Hello = attrs.field(kw_only=True)
    new_link: Callable[[int, int], Link] = attrs.field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._machine = MACHINE(self)
        self.send(handshake.pack_version(handshake.VERSION), handshake.version_size)


_builder = TypeMachineBuilder(Inputs, ConnectorSession)
_version = _builder.state("VERSION")  #: waits for the listener's version
_reply = _builder.state("REPLY")  #: waits for the listener's epoch and link id
_resync = _builder.state("RESYNC")  #: an old link: waits for the listener's report and its resume
_open = _builder.state("OPEN")  #: both peers may send messages
_refused = _builder.state("REFUSED")  #: the required link is lost


@_version.upon(Inputs.field).to(_reply)
def send_hello(_: Inputs, session: ConnectorSession) -> None:
    """Send the hello, if the version is supported."""
    version = handshake.unpack_version(session.take())
    if version > handshake.VERSION:
        detail = f"the listener replied with version {version}; the highest supported is {handshake.VERSION}"
        raise RemoteProtocolError("version-unknown", detail)
    session.send(session.hello.serialize(), handshake.reply_size)


@_reply.upon(Inputs.field).loop()
def read_reply(machine: Inputs, session: ConnectorSession) -> None:
    """Find out whether the listener's reply means the old link, a new link, or none (L6)."""
    epoch, link_id = handshake.unpack_reply(session.take())
    hello, old = session.hello, session.link
    if link_id and not epoch:
        raise RemoteProtocolError("zero-epoch")
    if not link_id and not hello.require:
        raise RemoteProtocolError("zero-link-id")
    if not link_id:
        machine.no_link(epoch)
    elif old is not None and (epoch, link_id) == (hello.epoch, hello.link_id):
        machine.old_link(old)
    else:
        machine.new_link(session.new_link(epoch, link_id))


@_reply.upon(Inputs.new_link).to(_open)
def begin(_: Inputs, session: ConnectorSession, link: Link) -> None:
    """Attach a new link; the old one, if any, is lost."""
    lost = session.link
    if lost is not None:
        lost.over = True
    session.attach(link, resumed=False, lost=lost)


@_reply.upon(Inputs.old_link).to(_resync)
def send_report(_: Inputs, session: ConnectorSession, link: Link) -> None:
    """Attach the old link, and send its report."""
    session.attach(link, resumed=True)


@_reply.upon(Inputs.no_link).to(_refused)
def give_up(_: Inputs, session: ConnectorSession, epoch: int) -> None:
    """Report that the required link is lost."""
    if session.link is not None:
        session.link.over = True
    session.fenced()
    session.report(LinkUnknown(lost=session.link))


_resync.upon(Inputs.resume).to(_open).returns(None)
MACHINE = _builder.build()
