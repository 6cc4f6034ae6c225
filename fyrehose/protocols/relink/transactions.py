"""A client's transactions: messages that count together, or not at all.

Decisions are made in the order of messages, so a channel has one open transaction at a time.  Committing does not wait
for the transactions before: their results come later, in order.
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

    commits when the block ends, and waits for the result; an exception rolls back.
    """

    _owner: Transactions
    channel: int
    count: int = attrs.field(default=0, init=False)
    _open: bool = attrs.field(default=False, init=False)
    _link: Link | None = attrs.field(default=None, init=False)

    def begin(self) -> Deferred[Transaction]:
        """Fires when the one before on this channel is decided."""
        return self._owner.begin(self)

    def send(self, parts: Parts) -> Deferred[None]:
        """Send a message, when there is room; fires when it is on its way.

        :raises LocalProtocolError: the transaction is not open, or is as large as the window
        :raises UnknownOutcome: through the Deferred: its link was lost, so nothing of it will be processed
        """
        return self._owner.send(self, parts)

    def commit(self) -> Deferred[None]:
        """Fires when the listener has processed all of it; fails with Uncommitted when it has not, and will not.

        :raises LocalProtocolError: the transaction is not open
        """
        return self._owner.commit(self)

    def rollback(self) -> None:
        """Nothing of it counts.

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
    """All transactions of a client."""

    _client: RelinkClient
    _locks: dict[int, DeferredLock] = attrs.field(factory=dict, init=False)
    _open: dict[int, Transaction] = attrs.field(factory=dict, init=False)
    #: committed, in order: the last number, whether a part of it was refused, who waits
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
            raise LocalProtocolError(f"a transaction holds {client.limits.window} messages at the most: the window")
        transaction.count += 1
        message = parts_of(parts)

        def go(_: Any = None) -> None:
            self._check(transaction)
            self._link(transaction).send((transaction.channel,), message)
            client.flush_soon()

        ready: Deferred[Any] = client.ready(transaction.channel)
        return ready.addCallback(go)

    def commit(self, transaction: Transaction) -> Deferred[None]:
        """See :meth:`Transaction.commit`."""
        self._check(transaction)
        link = self._link(transaction)
        try:
            if not transaction.count:
                return succeed(None)
            _, last = link.decide(transaction.channel, Op.COMMIT)
            committed = _Committed(last)
            self._committed.setdefault(transaction.channel, deque()).append(committed)
            self._client.flush_soon()
            return committed.done
        finally:
            self._end(transaction)  # now, because the next one on the channel may begin and be decided within this

    def rollback(self, transaction: Transaction) -> None:
        """See :meth:`Transaction.rollback`."""
        self._check(transaction)
        link = transaction._link
        try:
            if transaction.count and link is self._client.link and link is not None and not link.over:
                link.decide(transaction.channel, Op.ROLLBACK)
                self._client.flush_soon()
        finally:
            self._end(transaction)  # see commit

    def resulted(self, channel: int, last: int, result: Ack) -> None:
        """Messages up to number ``last`` have this result."""
        waiting = self._committed.get(channel, deque())
        for one in waiting:
            one.refused = one.refused or result is Ack.UNCOMMITTED
            if one.last >= last:
                break
        while waiting and waiting[0].last <= last:
            one = waiting.popleft()
            if one.refused:
                one.done.errback(Uncommitted("the listener could not process the transaction"))
            else:
                one.done.callback(None)

    def abandon(self) -> None:
        """The client closes: what is open is rolled back."""
        for transaction in list(self._open.values()):
            self.rollback(transaction)

    def fail(self, error: Exception) -> None:
        """The link was lost, or the client is closed."""
        committed, self._committed = self._committed, {}
        for waiting in committed.values():
            for one in waiting:
                one.done.errback(error)

    def _check(self, transaction: Transaction) -> None:
        if not transaction._open:
            raise LocalProtocolError("the transaction is not open")

    def _link(self, transaction: Transaction) -> Link:
        """The link that the transaction began on.

        :raises UnknownOutcome: it is lost; the transaction is over
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
    last: int
    refused: bool = False
    done: Deferred[None] = attrs.field(factory=Deferred)
