"""Where a command talks to: a protocol's clients and the address of a server."""

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
    """A server, and the clients of its protocol: see :class:`fyrehose.interfaces.IClients`."""

    protocol: str
    host: str
    port: int
    clients: Any
    #: files of PEM, where TLS is spoken: see :class:`fyrehose.cli.encrypting.Encrypted`
    tls: tuple[str, ...] = ()
    #: how it takes us
    contacts: Contacts = attrs.field(init=False)

    @contacts.default
    def _contacts(self) -> Contacts:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Contacts(f"{self.protocol} at {host}:{self.port}", encrypted=bool(self.tls))

    def publisher(self, reactor: Any, stream: str | None, window: int, transaction: int | None = None) -> Any:
        """An :class:`fyrehose.interfaces.IPublisher`; with transactions of ``transaction`` messages, if it is given.

        :raises ConfigError: there is none, or not for this stream
        """
        reactor = self._reaching(reactor, "publish", "publish into", stream)
        if transaction is None:
            made = self.clients.publisher(reactor, self.host, self.port, stream, window)
        elif hasattr(self.clients, "transactional_publisher"):
            made = self.clients.transactional_publisher(reactor, self.host, self.port, stream, window, transaction)
        else:
            raise ConfigError(f"{self.protocol} has no transactions")
        if made is None:
            raise ConfigError(f"nothing can be published by {self.protocol}")
        return made

    def tailer(
        self,
        reactor: Any,
        stream: str | None,
        after: int | None,
        take: Callable[[Run], None],
        lost: Callable[[int, int], None],
    ) -> Any:
        """An :class:`fyrehose.interfaces.ITailer`.

        :raises ConfigError: there is none, or not for this stream
        """
        made = self.clients.tailer(
            self._reaching(reactor, "read", "read", stream), self.host, self.port, stream, after, take, lost
        )
        if made is None:
            raise ConfigError(f"nothing can be read by {self.protocol}")
        return made

    def _reaching(self, reactor: Any, alone: str, wanted: str, stream: str | None) -> Any:
        if stream is not None and not 1 <= len(os.fsencode(stream)) <= MAX_NAME:
            raise ConfigError(
                f"a stream's name is 1 to {MAX_NAME} bytes long, and this one has {len(os.fsencode(stream))}"
            )
        self.contacts.wanted = alone if stream is None else f"{wanted} {stream!r}"
        if self.tls:
            from fyrehose.cli.encrypting import Encrypted

            if not hasattr(plugins.load(self.protocol).settings(), "tls_certificate"):
                raise ConfigError(f"{self.protocol} does not speak TLS")
            reactor = Encrypted(reactor, self.host, self.tls)
        return Watching(reactor, self.contacts)


def server(protocol: str, place: tuple[str, int | None], tls: str | None = None) -> Server:
    """The server at ``place``.

    :raises ConfigError: the protocol has no clients for the command line
    """
    clients = plugins.load_clients(protocol)
    if clients is None:
        raise ConfigError(f"{protocol} has no client that this command could use")
    if tls is not None and not all(tls.split(",")):  # else nothing would be encrypted, in silence
        raise ConfigError(f"--tls is {tls!r}, and should be files: CA[,CERT[,KEY]]")
    host, port = place
    words = () if tls is None else tuple(tls.split(","))
    return Server(protocol, host, clients.default_port if port is None else port, clients, words)
