"""The plugin by which the framework finds the admin listener; the listener requires prometheus-client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import attrs
from zope.interface import implementer

from fyrehose.admin.settings import PROTOCOL, TOKEN_FILE, AdminSettings, check_place
from fyrehose.broker.broker import Broker
from fyrehose.errors import ConfigError
from fyrehose.imports import ADMIN
from fyrehose.interfaces import Abilities, IBroker, IProtocolPlugin
from fyrehose.web.tokens import read_token

if TYPE_CHECKING:
    from fyrehose.admin.listener import AdminService


@implementer(IProtocolPlugin)
@attrs.frozen
class AdminPlugin:
    """The plugin of the admin listener."""

    name: str = PROTOCOL
    description: str = "a web page, metrics and JSON for operators: http://127.0.0.1:8118/"
    default_endpoint: str = "tcp:8118:interface=127.0.0.1"
    settings: type[AdminSettings] = AdminSettings
    #: The listener needs no access policy, because its token protects it.
    abilities: Abilities = Abilities(guards=True, extra=ADMIN)

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: AdminSettings) -> AdminService:
        """Return the service of the page at *endpoint*.

        :raises ConfigError: *broker* is not this server's own, or a token is needed at this endpoint and missing
        :raises MissingExtra: the packages of the page are not installed
        """
        ADMIN.require(PROTOCOL)
        from fyrehose.admin.listener import AdminService, make_admin

        if not isinstance(broker, Broker):
            raise ConfigError(f"{PROTOCOL} requires the server's own broker, not {type(broker).__name__}")
        check_place(endpoint, settings)
        admin = make_admin(broker, reactor, time.time, settings, read_token(settings.token_file, TOKEN_FILE))
        return AdminService(reactor, endpoint, admin, settings)


plugin = AdminPlugin()
