"""The shared parts of protocol servers: sockets, TLS, endpoints, and limits of connections; and of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.net.clients import Client, ClientConnection, ConnectionFailed, ConnectionOptions, TCPClient
    from fyrehose.net.connections import SessionFactory
    from fyrehose.net.endpoints import TCPService
    from fyrehose.net.inflight import InFlight
    from fyrehose.net.several import AnyServer
    from fyrehose.net.tcp import Session, SessionProtocol, TCPSettings, on
    from fyrehose.net.tls import TLSSettings
    from fyrehose.net.turns import Turns
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "clients": "Client ClientConnection ConnectionFailed ConnectionOptions TCPClient",
            "connections": "SessionFactory",
            "endpoints": "TCPService",
            "inflight": "InFlight",
            "several": "AnyServer",
            "tcp": "Session SessionProtocol TCPSettings on",
            "tls": "TLSSettings",
            "turns": "Turns",
        },
    )

__all__ = [
    "AnyServer",
    "Client",
    "ClientConnection",
    "ConnectionFailed",
    "ConnectionOptions",
    "InFlight",
    "Session",
    "SessionFactory",
    "SessionProtocol",
    "TCPClient",
    "TCPService",
    "TCPSettings",
    "TLSSettings",
    "Turns",
    "on",
]
