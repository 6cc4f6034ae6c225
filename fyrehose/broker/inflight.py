"""The calls of the broker that one peer, or one transport, waits for.

publish -> charged to the account -> durable: answered, or refused -> released -> settled
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from fyrehose.broker.budget import Account

T = TypeVar("T")


@attrs.define(eq=False)
class InFlight:
    """Counts calls of the broker that are not settled, and charges their memory.

    :ivar account: the account that is charged
    :ivar failed: called with the failure of an unexpected error
    :ivar settled: called after each call was answered or refused, and its memory released
    :ivar count: number of calls that are not settled
    """

    account: Account
    failed: Callable[[Failure], object]
    settled: Callable[[], object]
    count: int = attrs.field(default=0, init=False)

    def track(
        self,
        call: Deferred[T],
        answer: Callable[[T], object],
        refused: Callable[[Failure], object],
        size: int = 0,
    ) -> None:
        """Handle the result of *call*, which the broker has returned.

        :param answer: called with the result
        :param refused: called with the failure; unexpected ones, which it raises again, are passed to ``failed``
        :param size: bytes that are charged until then
        """
        self.count += 1
        self.account.hold(size)
        call.addCallbacks(self._answer, self._refuse, (answer, refused, size), errbackArgs=(refused, size))

    def hold(self, size: int) -> None:
        """Count one call, and charge its *size* in bytes."""
        self.count += 1
        self.account.hold(size)

    def release(self, _: object, size: int) -> None:
        """Settle one call that was charged *size* bytes."""
        self.count -= 1
        self.account.release(size)
        self.settled()

    def _answer(
        self, result: T, answer: Callable[[T], object], refused: Callable[[Failure], object], size: int
    ) -> None:
        try:
            answer(result)
        except Exception:
            self._refuse(Failure(), refused, size)
        else:
            self.release(None, size)

    def _refuse(self, failure: Failure, refused: Callable[[Failure], object], size: int) -> None:
        try:
            refused(failure)
        except Exception:
            self.failed(Failure())
        finally:
            self.release(None, size)
