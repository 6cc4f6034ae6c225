"""Lumberjack, versions 1 and 2: the protocol of Filebeat and other Beats over TCP or TLS, acknowledged by windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.protocols.lumberjack.client import LumberjackClient
    from fyrehose.protocols.lumberjack.client_session import LumberjackWriterSession
    from fyrehose.protocols.lumberjack.server import LumberjackFactory, LumberjackProtocol, LumberjackSettings
    from fyrehose.protocols.lumberjack.session import LumberjackServerSession
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "client": "LumberjackClient",
            "client_session": "LumberjackWriterSession",
            "server": "LumberjackFactory LumberjackProtocol LumberjackSettings",
            "session": "LumberjackServerSession",
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
