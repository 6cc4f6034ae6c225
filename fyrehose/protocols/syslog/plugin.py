"""The protocol plugin by which the framework finds syslog."""

from __future__ import annotations

from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.interfaces import Abilities, IBroker, IProtocolPlugin
from fyrehose.net.endpoints import TCPService
from fyrehose.net.udp import UDPPort, parse_endpoint
from fyrehose.net.udp_server import UDPService
from fyrehose.protocols.syslog.server import PROTOCOL, SyslogDatagrams, SyslogFactory, SyslogSettings


@implementer(IProtocolPlugin)
@attrs.frozen
class SyslogPlugin:
    """The protocol plugin of syslog, which builds the service of a listener over TCP or UDP."""

    name: str = PROTOCOL
    description: str = "syslog: RELP, TCP, TLS and UDP, from rsyslog, syslog-ng and logger"
    default_endpoint: str = "tcp:2514:interface=127.0.0.1"
    settings: type[SyslogSettings] = SyslogSettings
    abilities: Abilities = Abilities(only_leading=True)

    def make_service(
        self, reactor: Any, broker: IBroker, endpoint: str, settings: SyslogSettings
    ) -> TCPService | UDPService:
        if not endpoint.startswith("udp:"):
            return TCPService(reactor, PROTOCOL, endpoint, SyslogFactory(broker, settings, reactor))
        host, number = parse_endpoint(PROTOCOL, endpoint)
        protocol = SyslogDatagrams(broker, settings, reactor)
        port = UDPPort(number, protocol, host, reactor)
        return UDPService(endpoint, port, protocol)


plugin = SyslogPlugin()
