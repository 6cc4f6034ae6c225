"""Fyrehose: a multi-protocol messaging server framework on Twisted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.broker.callback import CallbackBroker
    from fyrehose.journal.journal import FileJournal
    from fyrehose.records import Delivery, Record, Run
    from fyrehose.server.service import Fyrehose
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "broker.callback": "CallbackBroker",
            "journal.journal": "FileJournal",
            "records": "Delivery Record Run",
            "server.service": "Fyrehose",
        },
    )

__all__ = [
    "CallbackBroker",
    "Delivery",
    "FileJournal",
    "Fyrehose",
    "Record",
    "Run",
    "errors",
    "identity",
    "interfaces",
    "options",
    "plugins",
    "sessions",
]

__version__ = "1.0.0rc1"
