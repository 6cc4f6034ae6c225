"""Embed the backbone in a program: publish and subscribe over UDP, next to whatever else the program does.

    twistd -ny docs/examples/news.py

Newsrooms push reports to UDP port 2323; the program writes them to ``news-data``, and delivers them to all readers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.application.internet import UDPServer
from twisted.application.service import Application, IService
from twisted.internet import reactor

from fyrehose.interfaces import IJournal
from fyrehose.journal.journal import FileJournal
from fyrehose.protocols.backbone.server import BackboneProtocol
from fyrehose.protocols.backbone.settings import BackboneSettings
from fyrehose.server.service import Fyrehose


def make_service(reactor: Any, journal: IJournal, port: int = 2323) -> Fyrehose:
    """Return the whole program as a service."""
    fyrehose = Fyrehose(reactor, journal)
    news = BackboneProtocol(fyrehose.broker, BackboneSettings(stream="news"), reactor)
    UDPServer(port, news, interface="127.0.0.1", reactor=reactor).setServiceParent(fyrehose)
    return fyrehose


application = Application("news")
make_service(reactor, FileJournal(reactor, Path("news-data"))).setServiceParent(IService(application))
