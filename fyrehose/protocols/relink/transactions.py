"""A client's transactions: the listener processes all messages of a transaction, or none (specification, 3.2).

Commits and rollbacks apply to messages in order, so a channel has at most one open transaction.  A commit need not wait
for the results of earlier transactions; results arrive in order.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, DeferredLock, maybeDeferred, succeed

from fyrehose.errors import LocalProtocolError
from fyrehose.options import shown_size
from fyrehose.protocols.relink.events import Uncommitted, UnknownOutcome
from fyrehose.protocols.relink.frames import Ack, Op
from fyrehose.protocols.relink.link import Link, LinkLimits
from fyrehose.protocols.relink.messages import MessageParts, message_parts


@attrs.define(eq=False)
class Channel:
    """The results that the program waits for on one channel.

    :ivar sent: unconsumed messages in order: the number of each, and the Deferred that its sender waits for
    :ivar closing: the Deferreds of the calls that close the channel
    :ivar lock: held by the open transaction
    :ivar open: the open transaction
    :ivar committed: committed transactions that wait for their results, in order: number of the last message, count of
        messages, and the Deferred of the commit
    :ivar refused: whether a part of the first committed transaction was refused
    """

    sent: deque[tuple[int, Deferred[None]]] = attrs.field(factory=deque)
    closing: list[Deferred[None]] = attrs.field(factory=list)
    lock: DeferredLock = attrs.field(factory=DeferredLock)
    open: Transaction | None = None
    committed: deque[tuple[int, int, Deferred[None]]] = attrs.field(factory=deque)
    refused: bool = False

    def consumed(self, last: int) -> None:
        """Fire the Deferreds of the messages up to number *last*."""
        while self.sent and self.sent[0][0] <= last:
            self.sent.popleft()[1].callback(None)

    def abandon(self) -> list[Deferred[None]]:
        """Return the Deferreds of all that waits for the listener, and forget them."""
        waiting = [deferred for _, deferred in self.sent]
        waiting += [deferred for _, _, deferred in self.committed] + self.closing
        self.sent.clear()
        self.committed.clear()
        self.closing, self.refused = [], False
        return waiting

    def resulted(self, last: int, result: Ack) -> None:
        """Record *result* for the messages up to number *last*, and fire the Deferreds of finished transactions."""
        end = -1
        while self.committed and end < last:
            self.refused = self.refused or result is Ack.UNCOMMITTED
            end, count, done = self.committed[0]
            if end > last:
                return
            refused, self.refused = self.refused, False
            self.committed.popleft()
            if refused:
                done.errback(Uncommitted(_refusal(count)))
            else:
                done.callback(None)


def _refusal(count: int) -> str:
    """Return the message of the error for a refused transaction of *count* messages.

    The protocol does not state the reason, so the message names the limits that listeners have.
    """
    limits = LinkLimits()
    return (
        f"the listener refused a transaction of {count} messages, and none of them is stored; a server takes at most "
        f"{2 * limits.backlog} undecided messages on a channel, and {shown_size(2 * limits.backlog_size)} on a link; "
        "its log says why it refused"
    )


class TransactionOwner(Protocol):
    """The client that a transaction belongs to."""

    limits: LinkLimits
    link: Link | None

    def when_room(self, channel: int) -> Deferred[None]: ...

    def flush_soon(self) -> None: ...


@attrs.define(eq=False)
class Transaction:
    """One transaction of one channel.

        async with client.transaction() as transaction:
            await transaction.send(b"...")

    commits at the end of the block, and waits for the result; an exception rolls back.
    """

    _client: TransactionOwner
    _state: Channel
    channel: int
    count: int = attrs.field(default=0, init=False)
    _link: Link | None = attrs.field(default=None, init=False)

    def begin(self) -> Deferred[Transaction]:
        """Begin the transaction; fires with it when the previous transaction on this channel has ended."""
        acquired: Deferred[Any] = self._state.lock.acquire()

        def begun(_: Any) -> Deferred[Transaction]:
            ready: Deferred[Any] = maybeDeferred(self._client.when_room, self.channel)
            return ready.addCallbacks(opened, release)

        def opened(_: Any) -> Transaction:
            self._state.open, self._link = self, self._client.link
            return self

        def release(failure: Any) -> Any:
            self._state.lock.release()
            return failure

        return acquired.addCallback(begun)

    def send(self, parts: MessageParts) -> Deferred[None]:
        """Send a message as soon as the window has room; fires when it was passed to the link.

        :raises LocalProtocolError: the transaction is not open, or already has as many messages as the window
        :raises UnknownOutcome: (through the Deferred) the link was lost, so no message of the transaction will be
            processed
        """
        self._check()
        client = self._client
        if self.count >= client.limits.window:
            raise LocalProtocolError(
                f"a transaction may not exceed the window of {client.limits.window} messages; commit it, or create the "
                "client with limits=LinkLimits(window=...)"
            )
        self.count += 1
        message = message_parts(parts)

        def send_now(_: Any = None) -> None:
            self._check()
            self._require_link().send((self.channel,), message)
            client.flush_soon()

        ready: Deferred[Any] = client.when_room(self.channel)
        return ready.addCallback(send_now)

    def commit(self) -> Deferred[None]:
        """Commit; fires when the listener has processed all messages, and fails with Uncommitted if it could not.

        :raises LocalProtocolError: the transaction is not open
        """
        self._check()
        link = self._require_link()
        try:
            if not self.count:
                return succeed(None)
            _, last = link.decide(self.channel, Op.COMMIT)
            done: Deferred[None] = Deferred()
            self._state.committed.append((last, self.count, done))
            self._client.flush_soon()
            return done
        finally:
            # End the transaction last: the next one on the channel may begin and end within this call.
            self._end()

    def rollback(self) -> None:
        """Roll the transaction back.

        :raises LocalProtocolError: the transaction is not open
        """
        self._check()
        link = self._link
        try:
            if self.count and link is self._client.link and link is not None and not link.over:
                link.decide(self.channel, Op.ROLLBACK)
                self._client.flush_soon()
        finally:
            self._end()  # End it last, for the same reason as in commit.

    async def __aenter__(self) -> Transaction:
        await self.begin()
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            await self.commit()
        elif self._state.open is self:
            self.rollback()

    def _check(self) -> None:
        if self._state.open is not self:
            raise LocalProtocolError("the transaction is not open")

    def _require_link(self) -> Link:
        """Return the link that the transaction began on.

        :raises UnknownOutcome: that link is lost; the transaction is over
        """
        link = self._link
        if link is None or link.over or link is not self._client.link:
            self._end()
            raise UnknownOutcome
        return link

    def _end(self) -> None:
        if self._state.open is self:
            self._state.open = None
            self._state.lock.release()
