"""The protocol plugin of the backbone.

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
    """Parse ``udp:PORT[:interface=IP]``; without an interface the server listens on all of them.

    :raises ConfigError: the endpoint is invalid
    """
    message = f"invalid --listen '{PROTOCOL}={endpoint}': expected udp:PORT or udp:PORT:interface=IP (IPv4 only)"
    kind, _, rest = endpoint.partition(":")
    number, found, option = rest.partition(":")
    if kind != "udp" or not (number.isascii() and number.isdecimal()) or int(number) > 65_535:
        raise ConfigError(message)
    if not found:
        return "0.0.0.0", int(number)
    key, _, host = option.partition("=")
    if key != "interface":
        raise ConfigError(message)
    try:
        return str(IPv4Address(host)), int(number)
    except AddressValueError:
        raise ConfigError(message) from None


class BackboneService(Service):
    """Serve one stream at one UDP port while the service runs."""

    def __init__(self, reactor: Any, broker: IBroker, address: Address, settings: Settings, random: Random) -> None:
        self._reactor = reactor
        self._broker = broker
        self._address = address
        self._settings = settings
        self._random = random
        self._server: BackboneServer | None = None
        # Here, and not when the service starts, because other listeners may be open before this one.
        broker.restrict(settings.stream, MAX_DATA)

    def startService(self) -> Deferred[UDPPort]:
        """Bind the port and serve.

        :return: fires with the port, or fails with CannotListenError
        """
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
        """Number of live subscribers."""
        return 0 if self._server is None else self._server.subscribers

    def stopService(self) -> Deferred[None]:
        """Stop serving.

        :return: fires when accepted messages are durable and delivered, and the port is closed
        """
        Service.stopService(self)
        server, self._server = self._server, None
        return succeed(None) if server is None else server.stop()


@implementer(IProtocolPlugin)
@attrs.frozen
class BackbonePlugin:
    """The protocol plugin of the fyrehose backbone."""

    name: str = PROTOCOL
    description: str = "fyrehose backbone: publish and subscribe over UDP, with repair by clients that store messages"
    default_endpoint: str = "udp:2323:interface=127.0.0.1"
    settings: type[Settings] = Settings

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: Settings) -> BackboneService:
        return BackboneService(reactor, broker, parse_endpoint(endpoint), settings, SystemRandom())


plugin = BackbonePlugin()
