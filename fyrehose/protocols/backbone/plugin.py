"""What the framework finds: the backbone plugin.

in: an endpoint string ``udp:PORT[:interface=IP]`` and settings      out: a service
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address
from random import Random, SystemRandom
from typing import Any

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import CannotListenError
from zope.interface import implementer

from fyrehose.errors import ConfigError
from fyrehose.interfaces import IBroker, IProtocolPlugin
from fyrehose.protocols.backbone.frames import MAX_DATA, Address
from fyrehose.protocols.backbone.server import PROTOCOL, BackboneServer
from fyrehose.protocols.backbone.settings import Settings
from fyrehose.protocols.backbone.udp import UDPPort, is_local


def parse_endpoint(endpoint: str) -> Address:
    """The host and port of ``udp:PORT[:interface=IP]``; without an interface it is all of them.

    :raises ConfigError: it is something else
    """
    right = f"--listen {PROTOCOL}={endpoint} should be udp:PORT or udp:PORT:interface=IP, with an IPv4 address"
    kind, _, rest = endpoint.partition(":")
    number, found, option = rest.partition(":")
    if kind != "udp" or not (number.isascii() and number.isdecimal()) or int(number) > 65_535:
        raise ConfigError(right)
    if not found:
        return "0.0.0.0", int(number)
    key, _, host = option.partition("=")
    if key != "interface":
        raise ConfigError(right)
    try:
        return str(IPv4Address(host)), int(number)
    except AddressValueError:
        raise ConfigError(right) from None


class BackboneService(Service):
    """Serves one stream at one UDP port as long as it runs."""

    def __init__(self, reactor: Any, broker: IBroker, address: Address, settings: Settings, random: Random) -> None:
        self._reactor = reactor
        self._broker = broker
        self._address = address
        self._settings = settings
        self._random = random
        self._server: BackboneServer | None = None
        # Now, and not when it starts: other listeners may be open before this one is.
        broker.restrict(settings.stream, MAX_DATA)

    def startService(self) -> Deferred[UDPPort]:
        """Bind; fires with the port, or fails with what keeps it from listening."""
        Service.startService(self)
        settings = self._settings
        server = BackboneServer(self._reactor, self._broker, settings, self._random, is_local)
        port = UDPPort(
            self._reactor,
            server,
            self._address,
            protocol=PROTOCOL,
            counters=self._broker.counters,
            receive_buffer=settings.receive_buffer,
            batching=settings.batching,
        )
        try:
            port.listen()
        except CannotListenError as error:
            return fail(error)
        server.start(port)
        self._server = server
        return succeed(port)

    @property
    def connections(self) -> int:
        """Subscribers that are alive: nobody else stays."""
        return 0 if self._server is None else self._server.subscribers

    def stopService(self) -> Deferred[None]:
        """Take nothing more in; fires when what came in is durable, was delivered, and the port is closed."""
        Service.stopService(self)
        server, self._server = self._server, None
        return succeed(None) if server is None else server.stop()


@implementer(IProtocolPlugin)
@attrs.frozen
class BackbonePlugin:
    """The fyrehose backbone."""

    name: str = PROTOCOL
    description: str = "fyrehose backbone: publish and subscribe by UDP, repaired by whoever has the messages"
    default_endpoint: str = "udp:2323:interface=127.0.0.1"
    settings: type[Settings] = Settings

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: Settings) -> BackboneService:
        return BackboneService(reactor, broker, parse_endpoint(endpoint), settings, SystemRandom())


plugin = BackbonePlugin()
