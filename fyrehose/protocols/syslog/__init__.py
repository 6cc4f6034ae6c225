"""Syslog: messages from rsyslog, syslog-ng and others, by RELP, which acknowledges them, or by TCP, TLS or UDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.protocols.syslog.server import SyslogDatagrams, SyslogFactory, SyslogProtocol, SyslogSettings
    from fyrehose.protocols.syslog.session import SyslogServerSession
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "server": "SyslogDatagrams SyslogFactory SyslogProtocol SyslogSettings",
            "session": "SyslogServerSession",
        },
    )

__all__ = ["SyslogDatagrams", "SyslogFactory", "SyslogProtocol", "SyslogServerSession", "SyslogSettings"]
