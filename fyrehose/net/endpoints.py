"""Listen on an endpoint, as a Twisted service.

start: endpoint string -> port -> factory, or a TLS factory around it
stop:  the port, then the connections
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Mapping
from functools import partial
from ipaddress import ip_address
from typing import Any, cast

import attrs
from OpenSSL import SSL, crypto
from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import AdoptedStreamServerEndpoint, UNIXServerEndpoint, serverFromString
from twisted.internet.interfaces import IListeningPort
from zope.interface import implementer

from fyrehose.errors import ConfigError
from fyrehose.file_content import FileContent
from fyrehose.interfaces import IConnected, IReloading, Prepared
from fyrehose.net.connections import SessionFactory
from fyrehose.net.proxied import ProxiedFactory
from fyrehose.net.sockets import check_adopted, deepen_backlog, remove_stale_socket
from fyrehose.net.tcp import TCPSettings
from fyrehose.net.tls import EndpointReactor, TLSFactory, TLSSettings, add_tls
from fyrehose.net.twisted_private import path_of
from fyrehose.options import suggestion

#: Why an ssl: endpoint cannot be used.
_NO_KEY = "its privateKey and certKey must be PEM files with a private key and its certificate"
#: The most bytes of the path of a Unix socket.
UNIX_PATH = 107
#: The names of the parts of an endpoint behind its kind.
_PARTS = {
    "tcp": "port interface backlog",
    "udp": "port interface",
    "ssl": "port privateKey certKey sslmethod interface backlog extraCertChain dhParameters",
    "unix": "address mode backlog lockfile",
}

#: The kinds of endpoints behind which connections begin with a PROXY header, if the option ``proxies`` says so.
_PLAIN = ("tcp", "tcp6", "unix", "systemd")


def flaw_of(endpoint: str) -> str:
    """Return what is wrong with the text of *endpoint*, and what is expected; empty if nothing is seen to be wrong.

    Endpoints of a kind that Twisted's plugins define are not examined.
    """
    kind, *rest = re.split(r"(?<!\\):", endpoint)
    if kind not in _PARTS:
        return ""
    first, *known = _PARTS[kind].split()
    parts = {}
    for at, part in enumerate(rest):
        name, equals, value = part.partition("=")
        if equals and name not in (first, *known):
            expected = f"; expected {', '.join((first, *known[:-1]))} or {known[-1]}"
            return f"it has an unknown part {name!r}{suggestion(name, (first, *known)) or expected}"
        parts[name if equals else first if not at else ""] = re.sub(r"\\(.)", r"\1", value if equals else part)
    if kind == "unix":
        size = len(os.fsencode(parts.get("address", "")))
        return f"its path has {size} bytes, and a Unix socket at most {UNIX_PATH}" if size > UNIX_PATH else ""
    port, interface = parts.get("port", ""), parts.get("interface", "")
    if not port.isdecimal() or int(port) > 65535:
        return f"expected a port from 0 to 65535 after {kind}:, not {port!r}"
    return _flaw_of_interface(interface)


def _flaw_of_interface(interface: str) -> str:
    names = [name for _, name in socket.if_nameindex()]
    if interface in names:
        return f"{interface} is a network interface; expected an address, which `ip address show {interface}` lists"
    if re.fullmatch(r"[\d.]+|.*:.*", interface):
        try:
            ip_address(interface)
        except ValueError:
            return f"interface={interface} is no IP address; expected one of this machine, such as 127.0.0.1"
    return ""


def check_wrapped(protocol: str, endpoint: str, settings: TCPSettings) -> None:
    """Check that the service learns the peers of *endpoint*, which may wrap another one.

    :raises ConfigError: each peer would be the load balancer, or TLS would hide the PROXY header
    """
    kind, *parts = endpoint.split(":")
    remedy = f"use {protocol}=tcp: with {protocol}.proxies, the networks of the load balancer"
    if "haproxy" in (kind, *(() if kind in _PARTS else parts)):
        raise ConfigError(f"invalid --listen {protocol}={endpoint}: each peer would be the load balancer; {remedy}")
    if settings.proxies and kind not in _PLAIN:
        tls = f"; for TLS add {protocol}.tls-certificate"
        raise ConfigError(f"invalid --listen {protocol}={endpoint}: it hides the PROXY header; {remedy}{tls}")


@implementer(IConnected, IReloading)
class TCPService(Service):
    """A service that listens on an endpoint while it runs; its name in the log is ``PROTOCOL (ENDPOINT)``.

    :param protocol: the name of the protocol, or any other name
    :param factory: builds the protocols of connections; a TLSFactory around it listens if its settings have a
        certificate
    :raises ConfigError: the endpoint string or the options of TLS are invalid
    """

    def __init__(self, reactor: Any, protocol: str, endpoint: str, factory: SessionFactory) -> None:
        self.name = f"{protocol} ({endpoint})"
        self.factory = factory
        settings = factory.settings
        check_wrapped(protocol, endpoint, settings)
        self._check = partial(check_wrapped, protocol, endpoint)
        self._outer: TLSFactory | None = None
        if isinstance(settings, TLSSettings):
            self._outer = add_tls(protocol, endpoint, factory, settings, reactor)
        self._port: IListeningPort | None = None
        self._backlog = "backlog=" in endpoint or endpoint.startswith("systemd:")
        try:
            listening = EndpointReactor(reactor) if endpoint.startswith("ssl:") else reactor
            self._endpoint = serverFromString(listening, endpoint)
        except (OSError, SSL.Error, crypto.Error) as error:
            why = f"cannot read {error.filename}: {error.strerror}" if isinstance(error, OSError) else _NO_KEY
            raise ConfigError(f"invalid --listen {protocol}={endpoint}: {why}") from error
        except (ValueError, TypeError, KeyError, IndexError) as error:
            if endpoint.startswith("systemd:") and isinstance(error, LookupError):
                raise ConfigError(
                    f"invalid --listen {protocol}={endpoint}: systemd has passed no such socket"
                ) from error
            raise ConfigError(
                f"invalid --listen {protocol}={endpoint}: not a Twisted endpoint ({error}); expected for "
                f"example {protocol}=tcp:8119:interface=127.0.0.1"
            ) from error

    def startService(self) -> Deferred[IListeningPort]:
        """Listen on the endpoint.

        :return: a Deferred that fires with the port, or fails with the reason why the service cannot listen
        """
        Service.startService(self)
        if isinstance(self._endpoint, UNIXServerEndpoint):
            remove_stale_socket(path_of(self._endpoint))
        elif isinstance(self._endpoint, AdoptedStreamServerEndpoint):
            check_adopted(self._endpoint.fileno, self._endpoint.addressFamily)
            # Give the endpoint a copy of the descriptor, because the endpoint closes it, and systemd's descriptor is
            # needed when the listener opens again.
            self._endpoint.fileno = os.dup(self._endpoint.fileno)
        listening = self._endpoint.listen(ProxiedFactory(self._outer or self.factory, self.factory))
        return cast("Deferred[IListeningPort]", listening).addCallback(self._listening)

    def _listening(self, port: IListeningPort) -> IListeningPort:
        self._port = self.factory.newcomers.accept_from(port if self._backlog else deepen_backlog(port))
        return port

    @property
    def connections(self) -> int:
        """Return the number of connections."""
        return len(self.factory.connections)

    def fixed(self, settings: Any) -> Collection[str]:
        """Return the options that *settings* change and a running listener cannot, such as TLS on or off."""
        on = isinstance(settings, TLSSettings) and bool(settings.tls_certificate)
        names = [field.name for field in attrs.fields(type(settings)) if field.name.startswith("tls_")]
        now, then = (attrs.asdict(each, recurse=False) for each in (self.factory.settings, settings))
        changed = [name for name in self.factory.fixed_options if then[name] != now[name]]
        return changed + (names if on != (self._outer is not None) else [])

    @property
    def contents(self) -> Mapping[str, FileContent]:
        """Return the contents of the files of TLS."""
        return {} if self._outer is None else self._outer.tls.files.contents

    def prepare(self, settings: Any) -> Prepared:
        """Check *settings*, and return what applies them: limits at once, all others to new connections."""
        self._check(settings)
        tls = None if self._outer is None else self._outer.tls.prepare(settings)

        def apply() -> None:
            self.factory.configure(settings)
            if tls is not None:
                tls.apply()

        return Prepared(apply, {} if tls is None else tls.contents)

    def stopService(self) -> Deferred[None]:
        """Close the port, then each connection once its publishes are acknowledged."""
        Service.stopService(self)
        port = self._port
        closed = succeed(None) if port is None else cast("Deferred[None]", port.stopListening() or succeed(None))
        return closed.addCallback(lambda _: self.factory.drain())
