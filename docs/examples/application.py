"""Depth three, the whole pipeline in a program of your own: a shop that counts what it sells.

    twistd -ny docs/examples/application.py

Tills publish orders by Figg into the stream ``orders``.  The shop itself reads that stream, keeps a sum, and publishes
it into ``totals``, which displays follow by any listener.  After a restart it goes on where the journal says it was.
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

from fyrehose import plugins
from fyrehose.interfaces import IBroker, IJournal, ISink, ISubscription
from fyrehose.journal.journal import FileJournal
from fyrehose.records import Delivery, Run
from fyrehose.server.service import Fyrehose

log = Logger()


@implementer(ISink)
@attrs.define(eq=False)
class Shop(Service):
    """Adds up orders.  Each total says up to which order it goes, so that no order counts twice."""

    broker: IBroker
    name: str = "shop"
    total: int = 0
    _subscription: ISubscription | None = None

    def startService(self) -> None:
        """Go on behind the last order that is in a total."""
        counted = 0
        last = self.broker.bounds("totals")[1]
        if last:
            (run,) = self.broker.read("totals", last, 1)
            said = json.loads(bytes(run.payload))
            self.total, counted = said["total"], said["orders"]
        self._subscription = self.broker.subscribe("orders", counted, self)
        self._subscription.resumeProducing()

    def stopService(self) -> None:
        if self._subscription is not None:
            self._subscription.stopProducing()

    # What the broker calls.

    def deliver(self, delivery: Delivery) -> None:
        """Orders: amounts in cents.  What is none is left out, and said."""
        for run in delivery.runs:
            for payload in run.payloads():
                try:
                    self.total += int(bytes(payload))
                except ValueError:
                    log.warn("no order: {payload}", payload=bytes(payload[:80]))
        said = json.dumps({"total": self.total, "orders": delivery.last_seq}).encode()
        published: Deferred[Any] = self.broker.publish([Run.of("totals", [said], source="shop")])
        published.addErrback(lambda failure: log.error("not published: {why}", why=failure.getErrorMessage()))

    def skipped(self, first: int, last: int) -> None:
        log.warn("orders {first} to {last} are not kept any more", first=first, last=last)

    def ended(self, reason: Exception) -> None:
        log.error("no more orders: {why}", why=reason)


def make_service(reactor: Any, journal: IJournal, endpoint: str) -> Fyrehose:
    """The pipeline, the shop in it, and a listener for tills and displays, which opens last."""
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
