"""The shared parts of protocol servers: sockets, TLS, endpoints, and limits of connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.lazy import lazily

if TYPE_CHECKING:
    from fyrehose.net.connections import SessionFactory
    from fyrehose.net.endpoints import TCPService
    from fyrehose.net.tcp import Session, SessionProtocol, TCPSettings
    from fyrehose.net.tls import TLSSettings, add_tls
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "connections": "SessionFactory",
            "endpoints": "TCPService",
            "tcp": "Session SessionProtocol TCPSettings",
            "tls": "TLSSettings add_tls",
        },
    )

__all__ = ["Session", "SessionFactory", "SessionProtocol", "TCPService", "TCPSettings", "TLSSettings", "add_tls"]
