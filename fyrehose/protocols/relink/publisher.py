"""A client that publishes in transactions of a fixed size, for ``fyrehose publish --transaction``."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredLock
from twisted.python.failure import Failure

from fyrehose.errors import Closed
from fyrehose.net.lifecycle import Timers
from fyrehose.protocols.relink.client import RelinkClient, Transaction

#: An open transaction is committed when no message was added to it for this long, in seconds.
COMMIT_DELAY = 0.2


@attrs.define(eq=False)
class TransactionalPublisher(RelinkClient):
    """A client that publishes to one stream in transactions of ``size`` messages.

    A transaction with fewer messages is committed after ``COMMIT_DELAY``.
    """

    transactional: bool = attrs.field(default=True, kw_only=True)
    size: int = attrs.field(default=1, kw_only=True)
    _lock: DeferredLock = attrs.field(factory=DeferredLock, init=False)
    _open: Transaction | None = attrs.field(default=None, init=False)
    _waiting: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _timers: Timers = attrs.field(default=attrs.Factory(lambda self: Timers(self.clock), takes_self=True), init=False)

    def publish(self, stream: str | None, payload: bytes) -> Deferred[None]:
        """Add a message to the open transaction.

        :return: a Deferred that fires when the transaction is committed
        :raises ConfigError: as for :meth:`prepare`
        """
        self.prepare(stream)
        done: Deferred[None] = Deferred()

        def add() -> Deferred[None]:
            # After a failure the next message, which waits for the lock, must not find the transaction that is lost.
            return Deferred.fromCoroutine(self._add(payload, done)).addErrback(self._fail_open, done)

        self._lock.run(add)
        return done

    def ready(self, channel: int = 0) -> Deferred[None]:
        """Wait until another message can be added at once."""
        idle: Deferred[Any] = self._lock.run(lambda: None)
        return idle.addCallback(lambda _: self.when_room(channel))

    def close(self) -> Deferred[None]:
        """Roll back the open transaction, whose publishes fail, and close the client."""
        self._timers.clear()
        closed = super().close()
        self._open = None
        waiting, self._waiting = self._waiting, []
        for deferred in waiting:
            deferred.errback(Closed("the client was closed before the transaction was committed"))
        return closed

    async def _add(self, payload: bytes, done: Deferred[None]) -> None:
        """Add a message to the open transaction, or to a new one; commit at ``size`` messages."""
        if self._open is None:
            self._open = await self.transaction().begin()
        self._timers.clear()  # a message that waits for room belongs to the transaction, and keeps it open
        await self._open.send(payload)
        self._waiting.append(done)
        if len(self._waiting) >= self.size:
            self._commit()
        else:
            self._timers.start(COMMIT_DELAY, self._commit)

    def _commit(self) -> None:
        self._timers.clear()
        transaction, self._open = self._open, None
        waiting, self._waiting = self._waiting, []
        assert transaction is not None

        def settled(result: Any) -> None:
            for deferred in waiting:
                deferred.callback(result)  # A Failure makes Twisted call the errbacks.

        try:
            transaction.commit().addBoth(settled)
        except Exception:
            settled(Failure())

    def _fail_open(self, failure: Failure, done: Deferred[None]) -> None:
        """Fail every message of the open transaction, because its link was lost."""
        self._timers.clear()  # nothing is left to be committed
        self._open = None
        waiting, self._waiting = self._waiting, []
        for deferred in [*waiting, done]:
            deferred.errback(failure)
