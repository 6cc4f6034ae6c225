"""Publishes that are not settled are counted, and charged to an account."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from fyrehose.broker.budget import Budget
from fyrehose.broker.inflight import InFlight
from fyrehose.errors import InvalidName


@attrs.define
class Owner:
    """Notes what it is called with, and how much was held then."""

    budget: Budget = attrs.field(factory=Budget)
    calls: list[tuple[str, Any, int]] = attrs.field(factory=list)
    flights: InFlight = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.flights = InFlight(
            self.budget.account(self), lambda failure: self.note("failed", failure.type), lambda: self.note("settled")
        )

    def note(self, name: str, value: Any = None) -> None:
        self.calls.append((name, value, self.budget.held))

    def refused(self, failure: Failure) -> None:
        failure.trap(InvalidName)
        self.note("refused", failure.type)

    def track(self) -> Deferred[int]:
        call: Deferred[int] = Deferred()
        self.flights.track(call, lambda result: self.note("answer", result), self.refused, 100)
        return call

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...


def test_a_call_is_charged_until_it_is_answered() -> None:
    owner = Owner()
    call = owner.track()
    assert (owner.flights.count, owner.budget.held) == (1, 100)
    call.callback(7)
    assert owner.calls == [("answer", 7, 100), ("settled", None, 0)]
    assert owner.flights.count == 0


def test_a_refused_call_is_released() -> None:
    owner = Owner()
    owner.track().errback(InvalidName("x"))
    assert owner.calls == [("refused", InvalidName, 100), ("settled", None, 0)]


def test_an_unexpected_failure_is_reported_and_the_call_released() -> None:
    owner = Owner()
    owner.track().errback(KeyError("x"))
    assert owner.calls == [("failed", KeyError, 100), ("settled", None, 0)]
    assert (owner.flights.count, owner.budget.held) == (0, 0)
