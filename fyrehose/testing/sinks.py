"""A sink, the receiving end of a subscription, that records its deliveries."""

from __future__ import annotations

import attrs
from zope.interface import implementer

from fyrehose.interfaces import ISink
from fyrehose.records import Delivery, Record


@implementer(ISink)
@attrs.define(eq=False)
class RecordingSink:
    """A sink that records, in order, deliveries, gaps, and the reason why the subscription ended."""

    deliveries: list[Delivery] = attrs.field(factory=list, init=False)
    gaps: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    reason: Exception | None = attrs.field(default=None, init=False)

    def deliver(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)

    def skipped(self, first: int, last: int) -> None:
        self.gaps.append((first, last))

    def ended(self, reason: Exception) -> None:
        self.reason = reason

    @property
    def records(self) -> list[Record]:
        """Return all delivered records."""
        return [record for delivery in self.deliveries for run in delivery.runs for record in run.records()]

    @property
    def payloads(self) -> list[bytes]:
        return [record.payload for record in self.records]
