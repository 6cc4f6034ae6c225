"""TLS for the TCP protocols, by settings, at a plain ``tcp:``, ``unix:`` or ``systemd:`` endpoint.

    --listen figg=tcp:8119 --option figg.tls-certificate=server.pem --option figg.tls-key=server.key
    --option figg.tls-authorities=clients.pem --option figg.tls-client-auth=required

Twisted's own ``ssl:`` endpoints go on working beside them: they speak TLS 1.2 and later, too, know no client
certificates, and read theirs once.
"""

from __future__ import annotations

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
from fyrehose.net.holding import RefusedConnection
from fyrehose.net.tcp import TCPSettings
from fyrehose.options import option

#: Forward secrecy and authenticated encryption, and nothing else.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

_MINIMA = {"1.2": SSL.TLS1_2_VERSION, "1.3": SSL.TLS1_3_VERSION}
_CLIENT_AUTH = ("none", "optional", "required")


def _one_of(*words: str) -> Any:
    def convert(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text

    return convert


@attrs.frozen(kw_only=True)
class TLSSettings(TCPSettings):
    """The options of a TCP protocol that speaks TLS when it is given a certificate."""

    tls_certificate: str = option("", str, "PEM file: the certificate, then those that it was issued by; makes it TLS")
    tls_key: str = option("", str, "PEM file: the certificate's private key; where it is empty, in the same file")
    tls_key_passphrase: str = option("", str, "file whose first line is the passphrase of the key")
    tls_authorities: str = option("", str, "PEM file: whoever may have issued a client's certificate, all in one file")
    tls_client_auth: str = option("none", _one_of(*_CLIENT_AUTH), "client certificates: none, optional or required")
    tls_minimum: str = option("1.2", _one_of(*_MINIMA), "the lowest version of TLS: 1.2 or 1.3")
    tls_ciphers: str = option(CIPHERS, str, "what OpenSSL calls a cipher list, for TLS 1.2")

    def tls(self, protocol: str) -> TLS | None:
        """What these options come to; None without a certificate.

        :raises ConfigError: a file cannot be used, or the options do not go together
        """
        asks = self.tls_client_auth != "none"
        if not self.tls_certificate and (self.tls_key or self.tls_authorities or asks):
            raise ConfigError(f"options of {protocol}: TLS needs {protocol}.tls-certificate")
        if asks != bool(self.tls_authorities):
            raise ConfigError(
                f"options of {protocol}: tls-authorities and tls-client-auth=optional or required need each other"
            )
        if not self.tls_certificate:
            return None
        return TLS(self, protocol, self._usable(protocol))

    def _usable(self, protocol: str) -> SSL.Context:
        for path in (self.tls_certificate, self.tls_key, self.tls_key_passphrase, self.tls_authorities):
            try:
                Path(path or self.tls_certificate).read_bytes()
            except OSError as error:
                raise ConfigError(f"the TLS options of {protocol} cannot be used: {error}") from error
        try:
            return self._context()
        except (SSL.Error, ValueError) as error:
            said = _said(error) if isinstance(error, SSL.Error) else error
            raise ConfigError(f"the TLS options of {protocol} cannot be used: {said}") from error

    def _context(self) -> SSL.Context:
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_min_proto_version(_MINIMA[self.tls_minimum])
        context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_RENEGOTIATION)
        context.set_cipher_list(self.tls_ciphers.encode())
        context.use_certificate_chain_file(self.tls_certificate)
        context.use_privatekey(self._key())
        context.check_privatekey()
        # A session that is resumed would be one whose certificate was not looked at again.
        context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
        context.set_options(SSL.OP_NO_TICKET)
        if self.tls_client_auth != "none":
            context.load_verify_locations(self.tls_authorities)
            context.load_client_ca(self.tls_authorities.encode())
            required = SSL.VERIFY_FAIL_IF_NO_PEER_CERT if self.tls_client_auth == "required" else 0
            context.set_verify(SSL.VERIFY_PEER | required)
        return context

    def _key(self) -> Any:
        passphrase = None
        if self.tls_key_passphrase:
            passphrase = Path(self.tls_key_passphrase).read_bytes().partition(b"\n")[0].rstrip(b"\r")
        path = Path(self.tls_key or self.tls_certificate)
        try:
            return load_pem_private_key(path.read_bytes(), passphrase)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError(f"{path}: {error}") from error


def _said(error: SSL.Error) -> str:
    """What OpenSSL says, which is a list of what it said to itself."""
    reasons = [str(part[-1]) for part in (error.args[0] if error.args else ()) if part[-1]]
    return "; ".join(dict.fromkeys(reasons)) or "OpenSSL does not say why"


@implementer(IOpenSSLServerConnectionCreator)
@attrs.define(eq=False)
class TLS:
    """Makes the server's side of connections."""

    settings: TLSSettings
    protocol: str
    context: SSL.Context

    def reload(self) -> None:
        """Read the files again, for the connections that come from now on.

        :raises ConfigError: one cannot be used; everything stays as it was
        """
        self.context = self.settings._usable(self.protocol)

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        return SSL.Connection(self.context, None)


class TLSFactory(TLSMemoryBIOFactory):
    """Puts TLS around a factory, also around one that refuses a connection, which Twisted's own cannot."""

    def __init__(self, tls: TLS, factory: Factory, clock: Any) -> None:
        super().__init__(tls, False, cast("IProtocolFactory", factory), clock)
        self.tls = tls

    noisy = False

    def buildProtocol(self, addr: IAddress | None) -> Any:
        protocol: IProtocol | None = self.wrappedFactory.buildProtocol(addr)
        if protocol is None or isinstance(protocol, RefusedConnection):  # no handshake is begun with it
            return protocol
        return self.protocol(self, protocol)

    def reload(self) -> None:
        """See :meth:`TLS.reload`."""
        self.tls.reload()


def around(protocol: str, endpoint: str, factory: Factory, settings: TLSSettings, clock: Any) -> TLSFactory | None:
    """What listens in the place of ``factory`` where ``settings`` ask for TLS; None where they do not.

    :raises ConfigError: the options cannot be used, or the endpoint speaks TLS already
    """
    tls = settings.tls(protocol)
    if tls is None:
        return None
    if endpoint.startswith(("ssl:", "tls:")):
        raise ConfigError(f"--listen {protocol}={endpoint} uses TLS already: {protocol}.tls-certificate goes with tcp:")
    return TLSFactory(tls, factory, clock)
