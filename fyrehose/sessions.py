"""The contract of the sans-I/O sessions, which turn the bytes of a peer into events, and calls into bytes for the peer.

Use::

    for event in events_of(session, data):
        ...
    transport.write(b"".join(session.data_to_send()))

A session has no socket, reactor or clock.  It never raises for what a peer sends: if the peer breaks the protocol, the
last event is :class:`fyrehose.errors.Broken`, and nothing follows it.  The events do not depend on how the bytes were
cut, except that messages which follow each other may be joined in one event.

One read may hold more events than a server wants to handle before it serves other peers.  So a session may stop in the
middle of its bytes, and then says that there are *more*.  :func:`events_of` continues until there are none.

The sessions of the backbone take datagrams, and those of the event bus whole ZeroMQ messages: each is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class ByteSession:
    """Base of the sessions that receive a stream of bytes.

    A session processes all bytes at once, unless it overrides :attr:`more` and :meth:`next_events`.

    :ivar out: the pending output; the connection that writes it clears the list
    """

    __slots__ = ()
    out: list[bytes]

    def receive_data(self, data: bytes) -> list[Any]:
        """Return the events that *data* completes, but at most one turn of them; see :attr:`more`."""
        raise NotImplementedError

    def data_to_send(self) -> list[bytes]:
        """Return the pending output, and clear it."""
        data = self.out.copy()
        self.out.clear()
        return data

    @property
    def more(self) -> bool:
        """Return whether :meth:`next_events` can return events of bytes that were received already.

        A call of the owner may make it true, too, for example one that acknowledges messages.
        """
        return False

    def next_events(self) -> list[Any]:
        """Return the events of the next turn; nothing if there are no more."""
        return []


def events_of(session: ByteSession, data: bytes) -> Iterator[Any]:
    """Pass *data* to *session*, and yield its events until there are no more.

    Handle each event before the next one is taken: some sessions continue only when earlier messages are acknowledged.
    """
    yield from session.receive_data(data)
    while session.more:
        yield from session.next_events()
