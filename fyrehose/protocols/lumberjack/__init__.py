"""Lumberjack, versions 1 and 2: the protocol of Filebeat and other Beats over TCP or TLS, acknowledged by windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.protocols.lumberjack.client import LumberjackClient
    from fyrehose.protocols.lumberjack.server import LumberjackFactory, LumberjackProtocol, LumberjackSettings
    from fyrehose.protocols.lumberjack.session import LumberjackServerSession, LumberjackWriterSession
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "client": "LumberjackClient",
            "server": "LumberjackFactory LumberjackProtocol LumberjackSettings",
            "session": "LumberjackServerSession LumberjackWriterSession",
        },
    )

__all__ = [
    "LumberjackClient",
    "LumberjackFactory",
    "LumberjackProtocol",
    "LumberjackServerSession",
    "LumberjackSettings",
    "LumberjackWriterSession",
]
