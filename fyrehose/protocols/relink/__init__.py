"""Relink: acknowledged or transactional messages over channels of a link, which outlives its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.protocols.relink.client import RelinkClient
    from fyrehose.protocols.relink.events import MessageOutcome, Uncommitted, UnknownOutcome, Unsettled
    from fyrehose.protocols.relink.publisher import TransactionalPublisher
    from fyrehose.protocols.relink.reader import RelinkReader
    from fyrehose.protocols.relink.server import RelinkProtocol
    from fyrehose.protocols.relink.service import RelinkFactory
    from fyrehose.protocols.relink.settings import RelinkSettings
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "client": "RelinkClient",
            "events": "MessageOutcome Uncommitted UnknownOutcome Unsettled",
            "publisher": "TransactionalPublisher",
            "reader": "RelinkReader",
            "server": "RelinkProtocol",
            "service": "RelinkFactory",
            "settings": "RelinkSettings",
        },
    )

__all__ = [
    "MessageOutcome",
    "RelinkClient",
    "RelinkFactory",
    "RelinkProtocol",
    "RelinkReader",
    "RelinkSettings",
    "TransactionalPublisher",
    "Uncommitted",
    "UnknownOutcome",
    "Unsettled",
]
