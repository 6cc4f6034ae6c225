"""The part of a session that client and server share: turn received datagrams into events, and queue frames to send.

in: receive_datagrams(train, source, now)      out: events; data_to_send() -> (train, destination) each
"""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.backbone.frames import Address, Frame, decode
from fyrehose.protocols.backbone.gso_batches import Train
from fyrehose.records import Buffer

E = TypeVar("E")


@attrs.frozen(kw_only=True, slots=True)
class Dropped:
    """``count`` datagrams of ``source`` were dropped.

    :ivar cause: names a counter; it contains nothing that a peer has sent
    """

    source: Address
    cause: str
    detail: str = ""
    count: int = 1


class BackboneSession(Generic[E]):
    """The protocol state of one side, client or server; ``E`` is the type of its events besides :class:`Dropped`."""

    def __init__(self) -> None:
        self._to_send: list[tuple[Train, Address]] = []

    def receive_datagrams(self, data: Buffer, segment: int, source: Address, now: float) -> list[E | Dropped]:
        """Process datagrams from *source*.

        :param data: datagrams of *segment* bytes each; the last may be shorter
        """
        view = memoryview(data)
        events: list[E | Dropped] = [] if len(view) else [Dropped(source=source, cause="empty")]
        at = 0
        while at < len(view):
            end = self._messages(events, view, at, segment, source, now)
            if end == at:
                end = min(at + segment, len(view))
                try:
                    self._control(events, decode(view[at:end]), source, now)
                except RemoteProtocolError as error:
                    detail = str(error).removeprefix(error.cause).removeprefix(": ")
                    events.append(Dropped(source=source, cause=error.cause, detail=detail))
            at = end
        return events

    def data_to_send(self) -> list[tuple[Train, Address]]:
        """Return the trains to send and their destinations, each once, in order."""
        to_send, self._to_send = self._to_send, []
        return to_send

    def _messages(
        self, events: list[E | Dropped], view: memoryview, at: int, segment: int, source: Address, now: float
    ) -> int:
        """Process the messages at the start of ``view[at:]``; return where they end, or *at* if no message is there."""
        raise NotImplementedError

    def _control(self, events: list[E | Dropped], frame: Frame, source: Address, now: float) -> None:
        """Process a frame that is no message.

        :raises RemoteProtocolError: the frame is dropped
        """
        raise NotImplementedError
