"""Session of the listener: its machine, whose states are those of the specification ("1. Handshake").

VERSION -> HELLO -> LOOKUP -> a new link: OPEN
                           -> the old link: RESYNC -> OPEN
"""

from __future__ import annotations

import attrs
from automat import NoTransition, TypeMachineBuilder

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink import handshake
from fyrehose.protocols.relink.handshake_events import HelloReceived, SessionEvent
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.session import Inputs, RelinkSession


@attrs.define(eq=False)
class ListenerSession(RelinkSession):
    """Session of the listener.  Its owner looks up links: see :class:`~.HelloReceived`."""

    #: so that a peer that sends thousands of small packets at once does not keep others waiting
    most_events = 256

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._machine = MACHINE(self)

    def accept(self, link: Link, *, resumed: bool) -> list[SessionEvent]:
        """Answer the hello with *link*; call ``receive_data(b"")`` afterwards.

        :raises LocalProtocolError: the link is attached to another connection
        """
        if link.attached:
            raise LocalProtocolError("the link is attached to another connection; fence that first (L4)")
        (self._machine.old_link if resumed else self._machine.new_link)(link)
        return self._take_events()

    def refuse(self, epoch: int) -> None:
        """Answer the hello by refusing the required link, which is not known; send the pending data, and close.

        :raises LocalProtocolError: no hello has arrived
        """
        try:
            self._machine.no_link(epoch)
        except NoTransition as error:
            raise LocalProtocolError(f"cannot refuse a link: {error}") from error


_builder = TypeMachineBuilder(Inputs, ListenerSession)
_version = _builder.state("VERSION")  #: waits for the connector's version
_hello = _builder.state("HELLO")  #: waits for the connector's hello
_lookup = _builder.state("LOOKUP")  #: waits for the owner to look up the link
_resync = _builder.state("RESYNC")  #: an old link: waits for the connector's report and its resume
_open = _builder.state("OPEN")  #: both peers may send messages
_refused = _builder.state("REFUSED")  #: the required link is not known


@_version.upon(Inputs.field).to(_hello)
def send_version(_: Inputs, session: ListenerSession) -> None:
    """Reply with version 0, which is the only one, whatever the connector supports."""
    session.take()
    session.send(handshake.pack_version(handshake.VERSION), handshake.hello_size)


@_hello.upon(Inputs.field).to(_lookup)
def request_link(_: Inputs, session: ListenerSession) -> None:
    """Pass the hello to the owner."""
    session.report(HelloReceived(hello=handshake.unpack_hello(session.take())))


@_lookup.upon(Inputs.new_link).to(_open)
def begin(_: Inputs, session: ListenerSession, link: Link) -> None:
    """Reply with a new link."""
    session.send(handshake.pack_reply(link.epoch, link.id))
    session.attach(link, resumed=False)


@_lookup.upon(Inputs.old_link).to(_resync)
def send_report(_: Inputs, session: ListenerSession, link: Link) -> None:
    """Reply with the old link, and send its report."""
    session.send(handshake.pack_reply(link.epoch, link.id))
    session.attach(link, resumed=True)


@_lookup.upon(Inputs.no_link).to(_refused)
def refuse(_: Inputs, session: ListenerSession, epoch: int) -> None:
    """Reply with link id zero."""
    session.fenced()
    session.send(handshake.pack_reply(epoch, 0))


_resync.upon(Inputs.resume).to(_open).returns(None)
MACHINE = _builder.build()
