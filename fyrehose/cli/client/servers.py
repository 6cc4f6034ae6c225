"""The server that a command talks to: its address, and the clients of the protocol."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import click
from twisted.internet.endpoints import HostnameEndpoint

from fyrehose import plugins
from fyrehose.cli import candidates
from fyrehose.cli.client.failures import TIMES, FinalFailures
from fyrehose.cli.client.remote import token_in
from fyrehose.errors import ConfigError
from fyrehose.interfaces import (
    IClientPlugin,
    ITransactionalPlugin,
)
from fyrehose.net.clients import ClientTarget
from fyrehose.net.several import CONNECT_TIMEOUT, AnyServer, place_text
from fyrehose.records import MAX_NAME

#: In a cluster, ROUNDS times as many connections of each server have to be closed at once to count as a refusal.
ROUNDS = 4
#: Options of `publish` and `tail`, and the help of their addresses.
PROTOCOL = click.option(
    "--protocol",
    default="figg",
    show_default=True,
    metavar="NAME",
    help="Protocol to use; see `fyrehose protocols`.",
    shell_complete=candidates.clients,
)
TLS = click.option("--tls", metavar="CA[,CERT[,KEY]]", help="Use TLS with these PEM files.", type=click.Path())
ADDRESS_HELP = "Server, or all of a cluster's.  [default: 127.0.0.1]"
#: How long to wait for a connection to the http listener, which may not exist, in seconds.
PROBE = 1.0


@attrs.frozen
class ServerAddress:
    """Address of a server, and the plugin of its protocol, which makes the clients.

    :ivar plugin: provides :class:`fyrehose.interfaces.IClientPlugin`
    :ivar others: hosts and ports of other servers of the same cluster
    :ivar tls: PEM files, if the connection uses TLS: see :func:`fyrehose.cli.client.tls.encrypted`
    :ivar token: the bearer token that clients send, if any
    :ivar failures: decides which failures of a connection end the command
    """

    protocol: str
    host: str
    port: int
    plugin: Any
    tls: tuple[str, ...] = ()
    others: tuple[tuple[str, int], ...] = ()
    token: str | None = attrs.field(default=None, repr=False)
    failures: FinalFailures = attrs.field(init=False)

    @failures.default
    def _failures(self) -> FinalFailures:
        places = [place_text(host, port) for host, port in ((self.host, self.port), *self.others)]
        # Followers close each connection at once, and for a while there may be no leader.
        times = TIMES * ROUNDS * len(places) if self.others else TIMES
        return FinalFailures(f"{self.protocol} at {', '.join(places)}", encrypted=bool(self.tls), times=times)

    def publisher(self, reactor: Any, stream: str | None, window: int, transaction: int | None = None) -> Any:
        """Return an :class:`fyrehose.interfaces.IPublisher` that is prepared for *stream*.

        :param window: the most messages that await acknowledgement
        :param transaction: the number of messages that are committed together; None without transactions
        :raises ConfigError: the protocol has no such client, or the stream's name is invalid
        """
        target = self._target(reactor, "publish", "publish into", stream)
        if transaction is None:
            made = self.plugin.publisher(target, window)
        elif ITransactionalPlugin.providedBy(self.plugin):
            made = self.plugin.transactional_publisher(target, window, transaction)
        else:
            raise ConfigError(f"protocol {self.protocol} has no transactions; leave --transaction out")
        if made is None:
            raise ConfigError(f"protocol {self.protocol} has no publisher; see --protocol")
        made.prepare(stream)
        return made

    def tailer(self, reactor: Any, stream: str | None, named: bool = False, timed: bool = False) -> Any:
        """Return an :class:`fyrehose.interfaces.ITailer`, for a subscription to *stream*.

        :param stream: a name, or a pattern, in which ``*`` stands for any text
        :param named: whether the client will consume a named subscription
        :param timed: whether it will begin at a time
        :raises ConfigError: the protocol has no such client, or the stream's name is invalid
        """
        if named and not self.plugin.abilities.consumes:
            raise ConfigError(f"protocol {self.protocol} has no named subscriptions; use --protocol http or relink")
        if timed and not self.plugin.abilities.times:
            raise ConfigError(f"protocol {self.protocol} begins at a number; use --protocol http for a time")
        if stream is not None and "*" in stream and not self.plugin.abilities.patterns:
            raise ConfigError(
                f"protocol {self.protocol} reads one stream by its name; use --protocol http for the pattern {stream!r}"
            )
        made = self.plugin.tailer(self._target(reactor, "read", "read", stream))
        if made is None:
            raise ConfigError(f"protocol {self.protocol} has no subscriber; see --protocol")
        return made

    def _target(self, reactor: Any, alone: str, wanted: str, stream: str | None) -> ClientTarget:
        """Return the server for a client that publishes to *stream* or reads it.

        :param alone: the action as errors name it if *stream* is None, because the protocol has only one stream
        :param wanted: the action on *stream* as errors name it, such as ``read``
        """
        if stream is not None and not 1 <= len(os.fsencode(stream)) <= MAX_NAME:
            raise ConfigError(
                f"invalid --stream: the name has {len(os.fsencode(stream))} bytes; expected 1 to {MAX_NAME} bytes"
            )
        self.failures.servers_own = stream is not None and stream.startswith(".")
        self.failures.wanted = alone if stream is None else f"{wanted} {stream!r}"
        if self.others and self.plugin.abilities.own_connections:
            raise ConfigError(f"protocol {self.protocol} takes one address: its client connects to only one server")
        if self.tls and not any(field.name == "tls_certificate" for field in attrs.fields(self.plugin.settings)):
            raise ConfigError(f"protocol {self.protocol} has no TLS; leave --tls out")
        if self.token is not None and not self.plugin.abilities.token:
            raise ConfigError(f"protocol {self.protocol} sends no token; leave --token-file out")
        if self.plugin.abilities.own_connections:
            return ClientTarget(reactor, self.host, self.port, process_exception=self.failures)
        places = ((self.host, self.port), *self.others)
        endpoints = [self._one_server(reactor, host, port) for host, port in places]
        endpoint = AnyServer(endpoints, [place_text(*place) for place in places]) if self.others else endpoints[0]
        return ClientTarget(
            reactor, self.host, self.port, endpoint=endpoint, token=self.token, process_exception=self.failures
        )

    def _one_server(self, reactor: Any, host: str, port: int) -> Any:
        """Return the endpoint of one server, with TLS if --tls was given."""
        endpoint: Any = HostnameEndpoint(reactor, host, port, timeout=CONNECT_TIMEOUT if self.others else 30)
        if self.tls:
            from fyrehose.cli.client.tls import encrypted

            endpoint = encrypted(endpoint, host, self.tls)
        return endpoint


def protocol_to_tail(place: tuple[str, int | None]) -> str:
    """Return the protocol that ``tail`` uses without ``--protocol``: http if the server listens for it, otherwise figg.

    HTTP sends all columns of a record, and Figg only the payload.
    """
    host, port = place
    http: Any = plugins.load("http")
    if port is not None:
        return "http" if port == http.default_port else "figg"
    try:
        socket.create_connection((host, http.default_port), PROBE).close()
    except OSError:
        return "figg"
    return "http"


def server(
    protocol: str,
    place: tuple[str, int | None],
    tls: str | None = None,
    others: Sequence[tuple[str, int | None]] = (),
    token_file: Path | None = None,
) -> ServerAddress:
    """Return the server at ``place``: a host, and a port, which may be None for the protocol's default port.

    :param others: hosts and ports of other servers of the same cluster
    :param tls: the value of ``--tls``: comma-separated PEM files
    :param token_file: a file with the token that clients send
    :raises ConfigError: the protocol has no clients for the command line, or ``tls`` or the token is invalid
    """
    plugin: Any = plugins.load(protocol)
    if not IClientPlugin.providedBy(plugin):
        raise ConfigError(f"protocol {protocol} has no command-line client; see --protocol")
    if tls is not None and not all(tls.split(",")):  # Refuse an empty value, which would turn encryption off silently.
        raise ConfigError(f"invalid --tls {tls!r}: expected PEM files CA[,CERT[,KEY]]")
    host, port = place
    paths = () if tls is None else tuple(tls.split(","))
    token = None if token_file is None else token_in(token_file)
    usual = plugin.default_port
    more = tuple((name, usual if number is None else number) for name, number in others)
    return ServerAddress(protocol, host, usual if port is None else port, plugin, paths, more, token)
