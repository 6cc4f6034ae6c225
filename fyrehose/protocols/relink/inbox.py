"""Pass the messages that a client has received to its program, one after another, and acknowledge their results.

events Received, Decided -> on_message, or nothing for a rollback -> consumed, committed, uncommitted
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink.events import Decided, Received
from fyrehose.protocols.relink.frames import Ack
from fyrehose.protocols.relink.link import Link

log = Logger()

#: Called with channel, sequence number and parts of a message.
OnMessage = Callable[[int, int, tuple[bytes, ...]], Any]


@attrs.define(eq=False)
class Inbox:
    """Pass on messages until ``on_message`` returns a Deferred that has not fired.

    :ivar on_message: as for :class:`~.client.RelinkClient`
    :ivar refused: called if a plain message could not be processed
    :ivar flush: called after messages were settled
    """

    on_message: OnMessage | None
    refused: Callable[[], object]
    flush: Callable[[], object]
    link: Link | None = None
    paused: bool = False
    #: channel, sequence number, parts, and whether to process the message; None instead of the parts if they were
    #: dropped
    _waiting: deque[tuple[int, int, tuple[bytes, ...] | None, bool]] = attrs.field(factory=deque, init=False)
    _busy: bool = attrs.field(default=False, init=False)
    _delivering: bool = attrs.field(default=False, init=False)

    def add(self, link: Link, event: Received | Decided) -> None:
        """Pass on the messages of *event*, after the messages that already wait."""
        self.link = link
        process = True
        if isinstance(event, Decided):
            process = event.commit
            if event.dropped is not None:
                self._waiting.append((event.channel, event.last, None, process))
        for seq, parts in enumerate(event.messages, event.first):
            self._waiting.append((event.channel, seq, parts, process))
        self.deliver()

    def clear(self) -> None:
        """Forget all messages, because their link is lost."""
        self._waiting.clear()

    def deliver(self) -> None:
        """Pass on messages.

        Messages that are processed at once are handled by this loop, not by recursion, however many there are.
        """
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._waiting and not self._busy and not self.paused:
                self._deliver_one(*self._waiting.popleft())
        finally:
            self._delivering = False
        self.flush()

    def _deliver_one(self, channel: int, seq: int, parts: tuple[bytes, ...] | None, process: bool) -> None:
        link = self.link
        assert link is not None
        if not process or parts is None:
            link.consume(channel, seq, Ack.UNCOMMITTED if process else None)
            return
        self._busy = True
        done: Deferred[Any] = maybeDeferred(self._call_on_message, channel, seq, parts)
        done.addBoth(self._processed, link, channel, seq)

    def _call_on_message(self, channel: int, seq: int, parts: tuple[bytes, ...]) -> Any:
        if self.on_message is None:
            raise LocalProtocolError("received a message, but on_message is not set")
        return self.on_message(channel, seq, parts)

    def _processed(self, result: Any, link: Link, channel: int, seq: int) -> None:
        self._busy = False
        if link is not self.link or link.over:
            self.deliver()  # Messages of a new link may have arrived meanwhile.
            return
        failed = isinstance(result, Failure)
        if failed:
            log.failure("message {seq} of {name!r} could not be processed", result, seq=seq, name=link.terms.endpoint)
        if link.peer_transactions:
            link.consume(channel, seq, Ack.UNCOMMITTED if failed else Ack.COMMITTED)
        elif failed:
            self.refused()
            return
        else:
            link.consume(channel, seq)
        self.deliver()
