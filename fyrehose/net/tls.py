"""TLS for the TCP protocols, configured by options, on a plain ``tcp:``, ``unix:`` or ``systemd:`` endpoint.

    --listen figg=tcp:8119 --option figg.tls-certificate=server.pem --option figg.tls-key=server.key
    --option figg.tls-authorities=clients.pem --option figg.tls-client-auth=required

The ``ssl:`` endpoints of Twisted work, too.  They also use TLS 1.2 or later, but do not check client certificates, and
read the server's certificate only once.  Their connections get the TLS of this module (:class:`EndpointReactor`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import attrs
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates
from OpenSSL import SSL
from OpenSSL.crypto import X509
from twisted.internet.interfaces import (
    IAddress,
    IHalfCloseableProtocol,
    IListeningPort,
    IOpenSSLServerConnectionCreator,
    IProtocol,
    IProtocolFactory,
)
from twisted.internet.protocol import Factory
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import ConfigError
from fyrehose.file_content import FileContent
from fyrehose.interfaces import Prepared
from fyrehose.net.foreign import BEGINNING, IBegun
from fyrehose.net.holding import DelayedConnection, RefusedConnection
from fyrehose.net.tcp import SessionProtocol, TCPSettings
from fyrehose.options import file_path, one_of, option, typed

#: Only ciphers with forward secrecy and authenticated encryption.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

_NO_CERTIFICATE = "it has no complete certificate in PEM form (-----BEGIN CERTIFICATE-----)"
_NO_KEY = "it has no complete private key in PEM form (-----BEGIN PRIVATE KEY-----)"
#: The options that name files.
_FILES = ("tls_certificate", "tls_key", "tls_key_passphrase", "tls_authorities")
#: How many records are decrypted together, at most.
RECORDS = 64
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

    @property
    def lacks_tls(self) -> bool:
        return not self.tls_certificate

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
        return TLS(self, protocol, self.read(protocol))

    def read(self, protocol: str) -> TLSFiles:
        """Read the files of these options, each once.

        :raises ConfigError: a file cannot be read or used
        """
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_min_proto_version(_MINIMA[self.tls_minimum])
        context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_RENEGOTIATION)
        context.set_cipher_list(CIPHERS.encode())
        names = [name for name in _FILES if attrs.asdict(self, recurse=False)[name]]
        data = {name: _read(protocol, name, attrs.asdict(self, recurse=False)[name]) for name in names}
        with _used(protocol, "tls_certificate", self.tls_certificate, _NO_CERTIFICATE):
            own, *issuers = load_pem_x509_certificates(data["tls_certificate"])
            context.use_certificate(own)
            for issuer in issuers:
                context.add_extra_chain_cert(issuer)
        key = self._key(protocol, data)
        with _used(protocol, *self._key_option, f"its key is not that of the certificate in {self.tls_certificate}"):
            context.use_privatekey(key)
            context.check_privatekey()
        # Resume no TLS session, because resuming would skip the verification of the client's certificate.
        context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
        context.set_options(SSL.OP_NO_TICKET)
        if self.tls_client_auth != "none":
            with _used(protocol, "tls_authorities", self.tls_authorities, _NO_CERTIFICATE):
                store = context.get_cert_store()
                assert store is not None
                for authority in load_pem_x509_certificates(data["tls_authorities"]):
                    store.add_cert(X509.from_cryptography(authority))
                    context.add_client_ca(authority)
            required = SSL.VERIFY_FAIL_IF_NO_PEER_CERT if self.tls_client_auth == "required" else 0
            context.set_verify(SSL.VERIFY_PEER | required)
        return TLSFiles(context, {name: FileContent.of(data[name]) for name in names})

    @property
    def _key_option(self) -> tuple[str, str]:
        """Return the option that names the file with the private key, and its path."""
        return ("tls_key", self.tls_key) if self.tls_key else ("tls_certificate", self.tls_certificate)

    def _key(self, protocol: str, files: Mapping[str, bytes]) -> Any:
        """Return the private key in *files*, the contents by option."""
        name, path = self._key_option
        data, passphrase = files[name], None
        if self.tls_key_passphrase:
            passphrase = files["tls_key_passphrase"].partition(b"\n")[0].rstrip(b"\r")
        wrong = _NO_KEY
        if not self.tls_key:
            wrong += f"; add the key to it, or set {protocol}.tls-key"
        if passphrase is None and b"ENCRYPTED" in data:
            wrong = f"its key is encrypted; set {protocol}.tls-key-passphrase to a file with the passphrase"
        elif passphrase is not None and b"ENCRYPTED" in data:
            wrong = f"the passphrase in {self.tls_key_passphrase} does not decrypt its key"
        elif passphrase is not None and b"PRIVATE KEY" in data:
            wrong = f"its key is not encrypted; remove {protocol}.tls-key-passphrase"
        with _used(protocol, name, path, wrong):
            return load_pem_private_key(data, passphrase)


def _read(protocol: str, name: str, path: str) -> bytes:
    """Return the content of the file *path*, which the option *name* names."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        where = f"{protocol}.{typed(name)} {path}"
        raise ConfigError(f"invalid TLS options of {protocol}: cannot read {where}: {error.strerror}") from error


@contextmanager
def _used(protocol: str, name: str, path: str, wrong: str) -> Iterator[None]:
    """Report an error of the block as one of the file *path*, which the option *name* names.

    :param wrong: what is wrong with the file
    """
    try:
        yield
    except (SSL.Error, ValueError, TypeError, UnsupportedAlgorithm) as error:
        where = f"{protocol}.{typed(name)} {path}"
        raise ConfigError(f"invalid TLS options of {protocol}: cannot use {where}: {wrong}") from error


@attrs.frozen
class TLSFiles:
    """The files of a listener's TLS options, as they were read.

    :ivar context: the certificate, the key and the authorities, for new connections
    :ivar contents: what the files had, by option
    """

    context: SSL.Context
    contents: Mapping[str, FileContent]


@implementer(IOpenSSLServerConnectionCreator)
@attrs.define(eq=False)
class TLS:
    """The creator of the server side of TLS connections, with the settings and the certificate of a listener."""

    settings: TLSSettings
    protocol: str
    files: TLSFiles

    def prepare(self, settings: TLSSettings) -> Prepared:
        """See :meth:`.IReloading.prepare`; new connections use the files of *settings*."""
        files = settings.read(self.protocol)

        def apply() -> None:
            self.settings, self.files = settings, files

        return Prepared(apply, files.contents)

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        return PacedConnection(self.files.context, tlsProtocol)


class PacedConnection(SSL.Connection):
    """The TLS of one connection: it decrypts small records together, and none while others have their turns.

    A read of 64 KiB may hold 2,800 records of one byte, each of which costs as much as a message.

    :ivar paused: whether the connection is not read, so that records wait in memory as they were received
    :ivar cut: whether records may wait in memory
    :ivar ended: whether the peer has closed its sending side, so that no bytes follow those that have arrived
    """

    paused = cut = ended = False
    _error: SSL.Error | None = None

    def __init__(self, context: SSL.Context, protocol: Any) -> None:
        super().__init__(context, None)
        self._protocol = protocol

    def bio_write(self, buf: Any) -> int:
        if not self._protocol.beginning:
            self._protocol.beginning = bytes(buf[:BEGINNING])
        return super().bio_write(buf) if buf else 0

    def recv(self, bufsiz: int, flags: int | None = None) -> bytes:
        """Return the content of the next records, up to RECORDS of them, or as many as exceed *bufsiz* bytes."""
        if self._error is not None:
            self._end(self._error)
        if self.paused or not self._protocol.may_decrypt():
            self.cut = True
            raise SSL.WantReadError
        began = self._protocol.factory.clock.seconds()
        try:
            pieces = [super().recv(bufsiz, flags)]
        except SSL.Error as error:
            self._end(error)
        size = len(pieces[0])
        try:
            while len(pieces) < RECORDS and size < bufsiz:
                pieces.append(super().recv(bufsiz, flags))
                size += len(pieces[-1])
        except SSL.WantReadError:
            pass
        except SSL.Error as error:  # the records before it count
            self._error = error
        self._protocol.charge(self._protocol.factory.clock.seconds() - began)
        return b"".join(pieces)

    def _end(self, error: SSL.Error) -> NoReturn:
        """End the input of the connection if *error* is its regular end, behind which the server may write on.

        :raises SSL.Error: none of the records that follow can be read
        """
        self._error = None
        regular = isinstance(error, SSL.ZeroReturnError) or (self.ended and isinstance(error, SSL.WantReadError))
        if regular and not self._protocol.disconnecting:
            self._protocol.end_input()
            raise SSL.WantReadError
        raise error


@implementer(IBegun, IHalfCloseableProtocol)
class PacedTLS(BufferingTLSTransport):
    """TLS that decrypts only while the connection is read, and continues in turns with other networks.

    :ivar beginning: the first bytes of the peer, as they were received
    """

    transport: Any
    wrappedProtocol: Any
    beginning = b""
    _input_ended = _waits = _has_turn = False

    @property
    def _connection(self) -> PacedConnection | None:
        """Return the TLS of the connection; None after the connection was lost."""
        return cast("PacedConnection | None", self.getHandle())  # type: ignore[no-untyped-call]

    def pauseProducing(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.paused = True
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.paused = False
            if connection.cut:
                self._wait()
                return
        if not self.transport.disconnecting:  # the peer may have ended TLS behind input that waits
            self.transport.resumeProducing()

    def readConnectionLost(self) -> None:
        """Handle the end of the peer's data behind the records that wait; what it waits for is still sent."""
        connection = self._connection
        if connection is not None:
            connection.ended = True
            self.dataReceived(b"")  # type: ignore[no-untyped-call]
            if not (self._input_ended or connection.cut):  # the handshake is incomplete, or TLS is closing
                self.transport.loseConnection()

    def loseConnection(self) -> None:
        """Close the connection, without waiting for an answer of a peer that has closed its sending side."""
        super().loseConnection()
        if self._connection is not None and self._connection.ended:
            self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        """Do nothing: the server itself has closed the writing side."""

    def end_input(self) -> None:
        """Tell the protocol that the peer sends no more, or close the connection if the protocol cannot handle that."""
        half = IHalfCloseableProtocol(self.wrappedProtocol, None)
        if half is None:
            self.loseConnection()
        elif not self._input_ended:
            self._input_ended = True
            half.readConnectionLost()

    def charge(self, seconds: float) -> None:
        """Let the peer's network pay for *seconds* of decryption."""
        if isinstance(self.wrappedProtocol, SessionProtocol):
            waiting = self.wrappedProtocol.waiting_input
            waiting.turns.charge(waiting.share, seconds)

    def may_decrypt(self) -> bool:
        """Return whether records may be decrypted now: the network has time left, or has a turn; else wait for one."""
        session = self.wrappedProtocol
        if not self._has_turn and isinstance(session, SessionProtocol):
            waiting = session.waiting_input
            if not waiting.turns.open(waiting.share):
                self._wait()
                return False
        self._has_turn = False
        return True

    def _wait(self) -> None:
        """Wait for a turn, and read nothing meanwhile."""
        if not self._waits:
            self._waits = True
            waiting = self.wrappedProtocol.waiting_input
            waiting.turns.ready(self, waiting.share)
            self.wrappedProtocol.reading.pause_for("decryption")

    # Called by the server's turns.

    def take_turn(self) -> int:
        """Decrypt up to RECORDS of the records that wait, unless the connection is paused for another reason."""
        self._waits, connection = False, self._connection
        if connection is not None:
            connection.cut = False
            self.wrappedProtocol.reading.resume_after("decryption")
            self._has_turn = not connection.paused
            self.dataReceived(b"")  # type: ignore[no-untyped-call]
            self._has_turn = False
        return 0

    def failed(self, failure: Failure) -> None:
        self.wrappedProtocol.failed(failure)


class TLSFactory(TLSMemoryBIOFactory):
    """A TLS factory around a factory that may refuse connections, which Twisted's own does not support."""

    def __init__(self, tls: TLS, factory: Factory, clock: Any) -> None:
        super().__init__(tls, False, cast("IProtocolFactory", factory), clock)
        self.tls, self.clock = tls, clock

    noisy = False
    protocol = PacedTLS

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


@attrs.frozen
class EndpointReactor:
    """The reactor with which an ``ssl:`` endpoint listens, so that its connections are those of :class:`TLSFactory`."""

    reactor: Any

    def listenSSL(
        self, port: int, factory: Factory, contextFactory: Any, backlog: int = 50, interface: str = ""
    ) -> IListeningPort:
        # Twisted reads the files into objects of pyOpenSSL, which does not want them any more.
        contextFactory.certificate = contextFactory.certificate.to_cryptography()
        contextFactory.privateKey = contextFactory.privateKey.to_cryptography_key()
        contextFactory.extraCertChain = [each.to_cryptography() for each in contextFactory.extraCertChain]
        tls = TLS(TLSSettings(), "ssl", TLSFiles(contextFactory.getContext(), {}))
        around = TLSFactory(tls, factory, self.reactor)
        return cast("IListeningPort", self.reactor.listenTCP(port, around, backlog, interface))


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
