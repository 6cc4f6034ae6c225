"""TLS for the TCP protocols, configured by options, on a plain ``tcp:``, ``unix:`` or ``systemd:`` endpoint.

    --listen figg=tcp:8119 --option figg.tls-certificate=server.pem --option figg.tls-key=server.key
    --option figg.tls-authorities=clients.pem --option figg.tls-client-auth=required

Twisted's own ``ssl:`` endpoints work, too.  They also use TLS 1.2 or later, but do not check client certificates, and
read the server's certificate only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import attrs
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL
from twisted.internet.interfaces import IAddress, IOpenSSLServerConnectionCreator, IProtocol, IProtocolFactory
from twisted.internet.protocol import Factory
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from zope.interface import implementer

from fyrehose.errors import ConfigError
from fyrehose.net.holding import DelayedConnection, RefusedConnection
from fyrehose.net.tcp import TCPSettings
from fyrehose.options import file_path, one_of, option

#: Only ciphers with forward secrecy and authenticated encryption.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

_NO_CERTIFICATE = "it has no complete certificate in PEM form (-----BEGIN CERTIFICATE-----)"
_NO_KEY = "it has no complete private key in PEM form (-----BEGIN PRIVATE KEY-----)"
_MINIMA = {"1.2": SSL.TLS1_2_VERSION, "1.3": SSL.TLS1_3_VERSION}


@attrs.frozen(kw_only=True)
class TLSSettings(TCPSettings):
    """The options of a TCP protocol that uses TLS when a certificate is configured."""

    tls_certificate: str = option("", file_path, "PEM file: the server's certificate, then its issuers; enables TLS")
    tls_key: str = option("", file_path, "PEM file: the private key; default: the certificate's file")
    tls_key_passphrase: str = option("", file_path, "file whose first line is the passphrase of the private key")
    tls_authorities: str = option("", file_path, "PEM file: all authorities that may issue client certificates")
    tls_client_auth: str = option(
        "none", one_of("none", "optional", "required"), "client certificates: none, optional or required"
    )
    tls_minimum: str = option("1.2", one_of(*_MINIMA), "lowest version of TLS: 1.2 or 1.3")

    def tls(self, protocol: str) -> TLS | None:
        """Return the TLS configuration of these options, or None without a certificate.

        :raises ConfigError: a file is invalid, or options contradict each other
        """
        wants_certificates = self.tls_client_auth != "none"
        if not self.tls_certificate and (self.tls_key or self.tls_authorities or wants_certificates):
            raise ConfigError(f"invalid options of {protocol}: TLS requires {protocol}.tls-certificate")
        if wants_certificates != bool(self.tls_authorities):
            raise ConfigError(
                f"invalid options of {protocol}: tls-authorities and "
                "tls-client-auth=optional or required can only be set together"
            )
        if not self.tls_certificate:
            return None
        return TLS(self, protocol, self.context(protocol))

    def context(self, protocol: str) -> SSL.Context:
        """Read the files of these options.

        :raises ConfigError: a file cannot be read or used
        """
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_min_proto_version(_MINIMA[self.tls_minimum])
        context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_RENEGOTIATION)
        context.set_cipher_list(CIPHERS.encode())
        with _used(protocol, "tls-certificate", self.tls_certificate, _NO_CERTIFICATE):
            context.use_certificate_chain_file(self.tls_certificate)
        key = self._key(protocol)
        with _used(protocol, *self._key_option, f"its key is not that of the certificate in {self.tls_certificate}"):
            context.use_privatekey(key)
            context.check_privatekey()
        # Resume no TLS session, because resuming would skip the verification of the client's certificate.
        context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
        context.set_options(SSL.OP_NO_TICKET)
        if self.tls_client_auth != "none":
            with _used(protocol, "tls-authorities", self.tls_authorities, _NO_CERTIFICATE):
                context.load_verify_locations(self.tls_authorities)
                context.load_client_ca(self.tls_authorities.encode())
            required = SSL.VERIFY_FAIL_IF_NO_PEER_CERT if self.tls_client_auth == "required" else 0
            context.set_verify(SSL.VERIFY_PEER | required)
        return context

    @property
    def _key_option(self) -> tuple[str, str]:
        """Return the option that names the file with the private key, and its path."""
        return ("tls-key", self.tls_key) if self.tls_key else ("tls-certificate", self.tls_certificate)

    def _key(self, protocol: str) -> Any:
        passphrase = None
        with _used(protocol, "tls-key-passphrase", self.tls_key_passphrase, "it cannot be read"):
            if self.tls_key_passphrase:
                passphrase = Path(self.tls_key_passphrase).read_bytes().partition(b"\n")[0].rstrip(b"\r")
        name, path = self._key_option
        wrong = _NO_KEY
        if not self.tls_key:
            wrong += f"; add the key to it, or set {protocol}.tls-key"
        with _used(protocol, name, path, wrong):
            data = Path(path).read_bytes()
        if passphrase is None and b"ENCRYPTED" in data:
            wrong = f"its key is encrypted; set {protocol}.tls-key-passphrase to a file with the passphrase"
        elif passphrase is not None and b"ENCRYPTED" in data:
            wrong = f"the passphrase in {self.tls_key_passphrase} does not decrypt its key"
        elif passphrase is not None and b"PRIVATE KEY" in data:
            wrong = f"its key is not encrypted; remove {protocol}.tls-key-passphrase"
        with _used(protocol, name, path, wrong):
            return load_pem_private_key(data, passphrase)


@contextmanager
def _used(protocol: str, name: str, path: str, wrong: str) -> Iterator[None]:
    """Report an error of the block as one of the file *path*, which the option *name* names.

    :param wrong: what is wrong with the file, if it can be read
    """
    problem = f"invalid TLS options of {protocol}: cannot {{}} {protocol}.{name} {path}"
    try:
        if path:
            Path(path).read_bytes()
        yield
    except OSError as error:
        raise ConfigError(f"{problem.format('read')}: {error.strerror}") from error
    except (SSL.Error, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{problem.format('use')}: {wrong}") from error


@implementer(IOpenSSLServerConnectionCreator)
@attrs.define(eq=False)
class TLS:
    """The creator of the server side of TLS connections, with the settings and the certificate of a listener."""

    settings: TLSSettings
    protocol: str
    context: SSL.Context

    def prepare(self, settings: TLSSettings) -> Callable[[], None]:
        """Read the files of *settings*, and return a function that uses them for new connections.

        :raises ConfigError: a file is invalid
        """
        context = settings.context(self.protocol)

        def apply() -> None:
            self.settings, self.context = settings, context

        return apply

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        return SSL.Connection(self.context, None)


class TLSFactory(TLSMemoryBIOFactory):
    """A TLS factory around a factory that may refuse connections, which Twisted's own does not support."""

    def __init__(self, tls: TLS, factory: Factory, clock: Any) -> None:
        super().__init__(tls, False, cast("IProtocolFactory", factory), clock)
        self.tls = tls

    noisy = False

    def buildProtocol(self, addr: IAddress | None) -> Any:
        return self._with_tls(self.wrappedFactory.buildProtocol(addr))

    def _with_tls(self, protocol: IProtocol | None) -> IProtocol | None:
        """Wrap *protocol* into TLS, unless the connection was refused; wrap a delayed connection after its delay."""
        if isinstance(protocol, DelayedConnection):
            build = protocol.build
            protocol.build = lambda: self._with_tls(build())
            return protocol
        if protocol is None or isinstance(protocol, RefusedConnection):
            return protocol
        return cast("IProtocol", self.protocol(self, protocol))

    def prepare(self, settings: TLSSettings) -> Callable[[], None]:
        """Read the files of *settings*; see :meth:`TLS.prepare`."""
        return self.tls.prepare(settings)


def add_tls(protocol: str, endpoint: str, factory: Factory, settings: TLSSettings, clock: Any) -> TLSFactory | None:
    """Return a TLS factory around *factory* if *settings* configure a certificate, else None.

    :raises ConfigError: the options are invalid, or the endpoint uses TLS already
    """
    tls = settings.tls(protocol)
    if tls is None:
        return None
    if endpoint.startswith(("ssl:", "tls:")):
        raise ConfigError(
            f"invalid --listen {protocol}={endpoint}: it uses TLS already; use {protocol}.tls-certificate with tcp:"
        )
    return TLSFactory(tls, factory, clock)
