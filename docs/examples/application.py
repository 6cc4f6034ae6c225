"""Embed the whole pipeline in a program: a shop that adds up its orders.

    twistd -ny docs/examples/application.py

Tills publish orders with Figg to the stream ``orders``.  The shop subscribes to that stream, keeps a sum, and publishes
it to ``totals``, which displays follow with any protocol.  After a restart it continues after the last counted order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
from twisted.application.service import Application, IService, Service
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose import Delivery, FileJournal, Fyrehose, Run, plugins
from fyrehose.interfaces import IBroker, IJournal, ISink, ISubscription

log = Logger()


@implementer(ISink)
@attrs.define(eq=False)
class Shop(Service):
    """Add up orders.  Each total says up to which order it goes, so that no order is counted twice."""

    broker: IBroker
    name: str = "shop"
    total: int = 0
    _subscription: ISubscription | None = None

    def startService(self) -> None:
        """Subscribe to the orders after the last one that is included in a total."""
        counted = 0
        last = self.broker.bounds("totals")[1]
        if last:
            (run,) = self.broker.read("totals", last, 1)
            last_total = json.loads(bytes(run.payload))
            self.total, counted = last_total["total"], last_total["orders"]
        self._subscription = self.broker.subscribe("orders", counted, self)
        self._subscription.resumeProducing()

    def stopService(self) -> None:
        if self._subscription is not None:
            self._subscription.stopProducing()

    # Methods of ISink, which the broker calls.

    def deliver(self, delivery: Delivery) -> None:
        """Add the orders, amounts in cents, and publish the new total; log and skip payloads that are not numbers."""
        for run in delivery.runs:
            for payload in run.payloads():
                try:
                    self.total += int(bytes(payload))
                except ValueError:
                    log.warn("skipped an order that is not a number: {payload!r}", payload=bytes(payload[:80]))
        total = json.dumps({"total": self.total, "orders": delivery.last_seq}).encode()
        published: Deferred[Any] = self.broker.publish([Run.of("totals", [total], source="shop")])
        published.addErrback(lambda failure: log.error("total not published: {why}", why=failure.getErrorMessage()))

    def skipped(self, first: int, last: int) -> None:
        log.warn("orders {first} to {last} are no longer in the journal", first=first, last=last)

    def ended(self, reason: Exception) -> None:
        log.error("the subscription to orders ended: {why}", why=reason)


def make_service(reactor: Any, journal: IJournal, endpoint: str) -> Fyrehose:
    """Return the pipeline with the shop, and a listener for tills and displays, which opens last."""
    fyrehose = Fyrehose(reactor, journal)
    Shop(fyrehose.broker).setServiceParent(fyrehose)
    figg = plugins.load("figg")
    listener = figg.make_service(reactor, fyrehose.broker, endpoint, figg.settings(max_connections=50))
    listener.setName("figg")
    listener.setServiceParent(fyrehose)
    return fyrehose


application = Application("shop")
make_service(reactor, FileJournal(reactor, Path("shop-data")), "tcp:8119:interface=127.0.0.1").setServiceParent(
    IService(application)
)
