"""Figg: topics with offsets over TCP; publish with a sliding window, subscribe from any offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.protocols.figg.client import FiggClient
    from fyrehose.protocols.figg.frames import (
        Ack,
        Attach,
        Attached,
        DataRun,
        Detach,
        Detached,
        Ping,
        Pong,
        Published,
    )
    from fyrehose.protocols.figg.server import FiggFactory, FiggProtocol, FiggSettings
    from fyrehose.protocols.figg.session import FiggClientSession, FiggServerSession
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "client": "FiggClient",
            "frames": "Ack Attach Attached DataRun Detach Detached Ping Pong Published",
            "server": "FiggFactory FiggProtocol FiggSettings",
            "session": "FiggClientSession FiggServerSession",
        },
    )

__all__ = [
    "Ack",
    "Attach",
    "Attached",
    "DataRun",
    "Detach",
    "Detached",
    "FiggClient",
    "FiggClientSession",
    "FiggFactory",
    "FiggProtocol",
    "FiggServerSession",
    "FiggSettings",
    "Ping",
    "Pong",
    "Published",
]
