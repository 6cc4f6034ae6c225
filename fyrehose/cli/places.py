"""The server that a command talks to: its address, and the clients of the protocol."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs

from fyrehose import plugins
from fyrehose.cli.contacts import Contacts, Watching
from fyrehose.errors import ConfigError
from fyrehose.records import MAX_NAME, Run


@attrs.frozen
class Server:
    """Address of a server, and the clients of its protocol: see :class:`fyrehose.interfaces.IClients`."""

    protocol: str
    host: str
    port: int
    clients: Any
    #: PEM files, if the connection uses TLS: see :class:`fyrehose.cli.encrypting.Encrypted`
    tls: tuple[str, ...] = ()
    #: history of the connections to this server
    contacts: Contacts = attrs.field(init=False)

    @contacts.default
    def _contacts(self) -> Contacts:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Contacts(f"{self.protocol} at {host}:{self.port}", encrypted=bool(self.tls))

    def publisher(self, reactor: Any, stream: str | None, window: int, transaction: int | None = None) -> Any:
        """Build an :class:`fyrehose.interfaces.IPublisher`.

        :param window: the most messages that await acknowledgement
        :param transaction: the number of messages that are committed together; None without transactions
        :raises ConfigError: the protocol has no such client, or the stream's name is invalid
        """
        reactor = self._watched(reactor, "publish", "publish into", stream)
        if transaction is None:
            made = self.clients.publisher(reactor, self.host, self.port, stream, window)
        elif hasattr(self.clients, "transactional_publisher"):
            made = self.clients.transactional_publisher(reactor, self.host, self.port, stream, window, transaction)
        else:
            raise ConfigError(f"protocol {self.protocol} has no transactions; leave --transaction out")
        if made is None:
            raise ConfigError(f"protocol {self.protocol} has no publisher; see --protocol")
        return made

    def tailer(
        self,
        reactor: Any,
        stream: str | None,
        after: int | None,
        take: Callable[[Run], None],
        lost: Callable[[int, int], None],
    ) -> Any:
        """Build an :class:`fyrehose.interfaces.ITailer`.

        :param after: the number before the first record; None for new records only
        :param take: called with each run of records
        :param lost: called with the first and last number of records that are no longer kept
        :raises ConfigError: the protocol has no such client, or the stream's name is invalid
        """
        made = self.clients.tailer(
            self._watched(reactor, "read", "read", stream), self.host, self.port, stream, after, take, lost
        )
        if made is None:
            raise ConfigError(f"protocol {self.protocol} has no subscriber; see --protocol")
        return made

    def _watched(self, reactor: Any, alone: str, wanted: str, stream: str | None) -> Any:
        if stream is not None and not 1 <= len(os.fsencode(stream)) <= MAX_NAME:
            raise ConfigError(
                f"invalid --stream: the name has {len(os.fsencode(stream))} bytes; expected 1 to {MAX_NAME} bytes"
            )
        self.contacts.wanted = alone if stream is None else f"{wanted} {stream!r}"
        if self.tls:
            from fyrehose.cli.encrypting import Encrypted

            if not hasattr(plugins.load(self.protocol).settings(), "tls_certificate"):
                raise ConfigError(f"protocol {self.protocol} has no TLS; leave --tls out")
            reactor = Encrypted(reactor, self.host, self.tls)
        return Watching(reactor, self.contacts)


def server(protocol: str, place: tuple[str, int | None], tls: str | None = None) -> Server:
    """Return the server at ``place``, a host and a port, or the protocol's default port.

    :param tls: the value of ``--tls``: comma-separated PEM files
    :raises ConfigError: the protocol has no clients for the command line, or ``tls`` is invalid
    """
    clients = plugins.load_clients(protocol)
    if clients is None:
        raise ConfigError(f"protocol {protocol} has no command-line client; see --protocol")
    if tls is not None and not all(tls.split(",")):  # An empty value must not turn encryption off silently.
        raise ConfigError(f"invalid --tls {tls!r}: expected PEM files CA[,CERT[,KEY]]")
    host, port = place
    paths = () if tls is None else tuple(tls.split(","))
    return Server(protocol, host, clients.default_port if port is None else port, clients, paths)
