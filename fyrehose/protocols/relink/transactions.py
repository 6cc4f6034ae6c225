"""A client's transactions: the listener processes all messages of a transaction, or none (specification, 3.2).

Decisions apply to messages in their order, so a channel has at most one open transaction.  A commit does not wait for
the results of earlier transactions, which arrive later, in order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, DeferredLock, maybeDeferred, succeed

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink.frames import Ack, Op
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.outcomes import Uncommitted, UnknownOutcome
from fyrehose.protocols.relink.parts import Parts, parts_of

if TYPE_CHECKING:
    from fyrehose.protocols.relink.client import RelinkClient


@attrs.define(eq=False)
class Transaction:
    """One transaction of one channel.

        async with client.transaction() as transaction:
            await transaction.send(b"...")

    commits at the end of the block, and waits for the result; an exception rolls back.
    """

    _owner: Transactions
    channel: int
    count: int = attrs.field(default=0, init=False)
    _open: bool = attrs.field(default=False, init=False)
    _link: Link | None = attrs.field(default=None, init=False)

    def begin(self) -> Deferred[Transaction]:
        """Begin the transaction; fires with it when the transaction before it on this channel is decided."""
        return self._owner.begin(self)

    def send(self, parts: Parts) -> Deferred[None]:
        """Send a message as soon as the window has room; fires when it was passed to the link.

        :raises LocalProtocolError: the transaction is not open, or already has as many messages as the window
        :raises UnknownOutcome: (through the Deferred) the link was lost, so no message of it will be processed
        """
        return self._owner.send(self, parts)

    def commit(self) -> Deferred[None]:
        """Commit; fires when the listener has processed all messages, and fails with Uncommitted if it could not.

        :raises LocalProtocolError: the transaction is not open
        """
        return self._owner.commit(self)

    def rollback(self) -> None:
        """Roll the transaction back.

        :raises LocalProtocolError: the transaction is not open
        """
        self._owner.rollback(self)

    async def __aenter__(self) -> Transaction:
        await self.begin()
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            await self.commit()
        elif self._open:
            self.rollback()


@attrs.define(eq=False)
class Transactions:
    """The transactions of a client: at most one is open per channel; committed ones wait for their results."""

    _client: RelinkClient
    _locks: dict[int, DeferredLock] = attrs.field(factory=dict, init=False)
    _open: dict[int, Transaction] = attrs.field(factory=dict, init=False)
    #: committed transactions that wait for their results, by channel, in order
    _committed: dict[int, deque[_Committed]] = attrs.field(factory=dict, init=False)

    def begin(self, transaction: Transaction) -> Deferred[Transaction]:
        """See :meth:`Transaction.begin`."""
        lock = self._locks.setdefault(transaction.channel, DeferredLock())
        acquired: Deferred[Any] = lock.acquire()

        def begun(_: Any) -> Deferred[Transaction]:
            ready: Deferred[Any] = maybeDeferred(self._client.ready, transaction.channel)
            return ready.addCallbacks(opened, release)

        def opened(_: Any) -> Transaction:
            transaction._open, transaction._link = True, self._client.link
            self._open[transaction.channel] = transaction
            return transaction

        def release(failure: Any) -> Any:
            lock.release()
            return failure

        return acquired.addCallback(begun)

    def send(self, transaction: Transaction, parts: Parts) -> Deferred[None]:
        """See :meth:`Transaction.send`."""
        self._check(transaction)
        client = self._client
        if transaction.count >= client.limits.window:
            raise LocalProtocolError(f"a transaction may not exceed the window of {client.limits.window} messages")
        transaction.count += 1
        message = parts_of(parts)

        def send_now(_: Any = None) -> None:
            self._check(transaction)
            self._require_link(transaction).send((transaction.channel,), message)
            client.flush_soon()

        ready: Deferred[Any] = client.ready(transaction.channel)
        return ready.addCallback(send_now)

    def commit(self, transaction: Transaction) -> Deferred[None]:
        """See :meth:`Transaction.commit`."""
        self._check(transaction)
        link = self._require_link(transaction)
        try:
            if not transaction.count:
                return succeed(None)
            _, last = link.decide(transaction.channel, Op.COMMIT)
            committed = _Committed(last)
            self._committed.setdefault(transaction.channel, deque()).append(committed)
            self._client.flush_soon()
            return committed.done
        finally:
            # End it only now: the next transaction on the channel may begin and be decided within this call.
            self._end(transaction)

    def rollback(self, transaction: Transaction) -> None:
        """See :meth:`Transaction.rollback`."""
        self._check(transaction)
        link = transaction._link
        try:
            if transaction.count and link is self._client.link and link is not None and not link.over:
                link.decide(transaction.channel, Op.ROLLBACK)
                self._client.flush_soon()
        finally:
            self._end(transaction)  # Last, for the same reason as in commit.

    def resulted(self, channel: int, last: int, result: Ack) -> None:
        """Record *result* for the messages up to number *last*, and fire the Deferreds of finished transactions."""
        waiting = self._committed.get(channel, deque())
        for committed in waiting:
            committed.refused = committed.refused or result is Ack.UNCOMMITTED
            if committed.last >= last:
                break
        while waiting and waiting[0].last <= last:
            committed = waiting.popleft()
            if committed.refused:
                committed.done.errback(Uncommitted("the listener did not commit the transaction"))
            else:
                committed.done.callback(None)

    def abandon(self) -> None:
        """Roll back all open transactions, because the client is being closed."""
        for transaction in list(self._open.values()):
            self.rollback(transaction)

    def fail(self, error: Exception) -> None:
        """Fail all committed transactions that wait for results, because the link was lost or the client is closed."""
        committed, self._committed = self._committed, {}
        for waiting in committed.values():
            for transaction in waiting:
                transaction.done.errback(error)

    def _check(self, transaction: Transaction) -> None:
        if not transaction._open:
            raise LocalProtocolError("the transaction is not open")

    def _require_link(self, transaction: Transaction) -> Link:
        """Return the link that the transaction began on.

        :raises UnknownOutcome: that link is lost; the transaction is over
        """
        link = transaction._link
        if link is None or link.over or link is not self._client.link:
            self._end(transaction)
            raise UnknownOutcome
        return link

    def _end(self, transaction: Transaction) -> None:
        if transaction._open:
            transaction._open = False
            del self._open[transaction.channel]
            self._locks[transaction.channel].release()


@attrs.define(eq=False)
class _Committed:
    """A committed transaction that waits for its result.

    :ivar last: number of its last message
    :ivar refused: whether the result of any message is UNCOMMITTED
    """

    last: int
    refused: bool = False
    done: Deferred[None] = attrs.field(factory=Deferred)
