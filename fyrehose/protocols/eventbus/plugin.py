"""What the framework finds: the event bus plugin.

in: an endpoint string ``tcp:PORT[:interface=IP]`` and settings      out: a service
"""

from __future__ import annotations

from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import attrs
from zope.interface import implementer

from fyrehose.errors import ConfigError, MissingExtra
from fyrehose.interfaces import IBroker, IProtocolPlugin
from fyrehose.protocols.eventbus.encoding import PROTOCOL
from fyrehose.protocols.eventbus.settings import Settings

if TYPE_CHECKING:
    from fyrehose.protocols.eventbus.service import EventBusService


def require_zmq() -> None:
    """:raises MissingExtra: pyzmq is not installed"""
    if find_spec("zmq") is None:
        raise MissingExtra(f"{PROTOCOL} needs pyzmq: pip install fyrehose[eventbus]")


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """The host and first port of ``tcp:PORT[:interface=IP]``; without an interface it is all of them.

    The two ports behind it are used, too.  Port 0 is any three in a row that are free.

    :raises ConfigError: it is something else
    """
    right = f"--listen {PROTOCOL}={endpoint} should be tcp:PORT or tcp:PORT:interface=IP, and uses PORT to PORT + 2"
    kind, _, rest = endpoint.partition(":")
    number, found, option = rest.partition(":")
    if kind != "tcp" or not (number.isascii() and number.isdecimal()) or int(number) > 65_533:
        raise ConfigError(right)
    if not found:
        return "0.0.0.0", int(number)
    key, _, host = option.partition("=")
    if key != "interface":
        raise ConfigError(right)
    try:
        return str(ip_address(host.replace("\\:", ":"))), int(number)
    except ValueError:
        raise ConfigError(right) from None


@implementer(IProtocolPlugin)
@attrs.frozen
class EventBusPlugin:
    """The event bus."""

    name: str = PROTOCOL
    description: str = "event bus over ZeroMQ: publish, subscribe by topic, catch up from any sequence"
    default_endpoint: str = "tcp:5556:interface=127.0.0.1"
    settings: type[Settings] = Settings

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: Settings) -> EventBusService:
        host, port = parse_endpoint(endpoint)
        require_zmq()
        from fyrehose.protocols.eventbus.service import EventBusService

        return EventBusService(reactor, broker, host, port, settings)


plugin = EventBusPlugin()
