"""The listeners of a server: their services, their descriptions for operators, and their changes on a reload.

ListenerConfig -> service, within the file descriptors of the process -> a child of Fyrehose, a Listener to show
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
from twisted.application.service import IService

from fyrehose.errors import ConfigError, MissingExtra
from fyrehose.interfaces import IConnected
from fyrehose.net import connections
from fyrehose.observe.listeners import Listener, encryption
from fyrehose.options import counted
from fyrehose.server import process
from fyrehose.server.config import Config, ListenerConfig
from fyrehose.server.service import Fyrehose
from fyrehose.web.hosts import is_local

#: The name and the endpoint of a listener.
Key = tuple[str, str]


def key_of(listener: ListenerConfig) -> Key:
    """Return the name and the endpoint of *listener*, which cannot change while it is open."""
    return listener.name, listener.endpoint


@attrs.define(eq=False)
class Open:
    """An open listener: its configuration, its service, and its description for operators."""

    config: ListenerConfig
    service: Any
    shown: Listener


@attrs.define(eq=False)
class Listeners:
    """The open listeners of a server.

    :ivar reactor: passed to new services
    :ivar warnings: log lines about parts of the configuration that the server cannot follow
    :ivar remarks: log lines about defaults that were reduced
    """

    reactor: Any
    fyrehose: Fyrehose
    warnings: list[str] = attrs.field(factory=list)
    remarks: list[str] = attrs.field(factory=list)
    open: dict[Key, Open] = attrs.field(factory=dict, init=False)

    def make(self, listener: ListenerConfig, config: Config) -> Any | None:
        """Return the service of *listener*, or None if a listener that was not configured lacks its package.

        :raises ConfigError: its options are invalid, or the access policy does not protect it
        """
        try:
            service = listener.plugin.make_service(
                self.reactor, self.fyrehose.broker, listener.endpoint, listener.settings
            )
        except MissingExtra as missing:
            if config.explicit:
                raise
            self.warnings.append(f"starting without {listener.name}: {missing}")
            return None
        except ConfigError as error:
            raise ConfigError(f"{error}{_origin(listener)}") from error
        check_guarded(listener, config)  # only now, because this parses the endpoint, which make_service() has checked
        service.setName(f"{listener.name} ({listener.endpoint})")
        return service

    def add(self, listener: ListenerConfig, service: Any) -> None:
        """Add *service* to the server, which starts it together with the other listeners."""
        if listener.plugin.abilities.only_leading:
            self.fyrehose.add_for_leader(service)
        else:
            service.setServiceParent(IService(self.fyrehose))
        self.show(listener, service)

    def show(self, listener: ListenerConfig, service: Any) -> None:
        """Describe a listener for operators, in place of an earlier description of the same listener."""
        shown = Listener(
            name=listener.name,
            protocol=listener.plugin.name,
            endpoint=listener.endpoint,
            encryption=encryption(listener.endpoint, listener.settings),
            access=partial(self._access, listener),
            connections=lambda: service.connections if IConnected.providedBy(service) else None,
            stream=attrs.asdict(listener.settings, recurse=False).get("stream"),
        )
        all_shown, before = self.fyrehose.broker.listeners, self.open.get(key_of(listener))
        if before is None:
            all_shown.append(shown)
        else:
            all_shown[all_shown.index(before.shown)] = shown
        self.open[key_of(listener)] = Open(listener, service, shown)

    def forget(self, key: Key) -> Any:
        """Remove the listener *key* from the open listeners, and return its service, which the caller closes."""
        removed = self.open.pop(key)
        self.fyrehose.broker.listeners.remove(removed.shown)
        return removed.service

    def within_descriptors(self, listeners: Sequence[ListenerConfig], available: int) -> list[ListenerConfig]:
        """Return *listeners*, with max_connections reduced to what *available* file descriptors permit."""
        limited = [each for each in listeners if "max_connections" in attrs.fields_dict(type(each.settings))]
        share = left = connections.connections_within(available, len(limited))
        for n, wanted in enumerate(sorted(listener.settings.max_connections for listener in limited)):
            share = left // (len(limited) - n)
            if wanted > share:
                break
            left -= wanted  # the remaining listeners share the rest
        cut = [listener for listener in limited if listener.settings.max_connections > share]
        if cut:
            defaults = [type(listener.settings)().max_connections for listener in cut]
            configured = defaults != [listener.settings.max_connections for listener in cut]
            wanted = sum(connections.descriptors_for(listener.settings.max_connections) for listener in limited)
            names, each = ", ".join(listener.name for listener in cut), " each" if len(cut) > 1 else ""
            (self.warnings if configured else self.remarks).append(
                f"file-descriptor limit {available + process.RESERVED}: max-connections of {names} reduced to {share}"
                f"{each}; for the configured maximum, use `ulimit -n {wanted + process.RESERVED}`, or LimitNOFILE= in "
                "a unit"
            )
        return [_with_connections(listener, share) if listener in cut else listener for listener in listeners]

    def _access(self, listener: ListenerConfig) -> str:
        """Return as text for people which clients have access to a listener."""
        if listener.plugin.abilities.guards:
            token = attrs.asdict(listener.settings, recurse=False).get("token_file")
            return "clients with the token" if token else "this machine"
        policy = self.fyrehose.broker.guard.policy
        if policy.advice:
            return "this machine"
        return f"by policy ({counted(len(policy.rules), 'rule')})"


def check_guarded(listener: ListenerConfig, config: Config) -> None:
    """Check that other machines can reach *listener* only with an access policy, or with access control of its own.

    :raises ConfigError: other machines can reach it without either
    """
    # The address of a systemd socket is known only later; there, too, the policy checks the address of each peer.
    local = is_local(listener.endpoint) or listener.endpoint.startswith("systemd:")
    guarded = config.policy_file is not None or listener.plugin.abilities.guards
    if not local and not guarded:
        raise ConfigError(
            f"--listen {listener.name}={listener.endpoint}: refusing to listen on a public address without an "
            f"access policy; pass --policy FILE or add interface=127.0.0.1{_origin(listener)}"
        )


def _origin(listener: ListenerConfig) -> str:
    """Return the end of an error about *listener*, which names the configuration file that describes it."""
    return f" (--config {listener.file})" if listener.file else ""


def _with_connections(listener: ListenerConfig, most: int) -> ListenerConfig:
    return attrs.evolve(listener, settings=attrs.evolve(listener.settings, max_connections=most))
