"""TLS for the clients of the command line: a reactor whose TCP connections speak it, so that no client has to know.

in: PEM files      out: what is handed to a client in the reactor's place
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from OpenSSL import SSL, crypto
from twisted.internet.ssl import Certificate, PrivateCertificate, optionsForClientTLS, trustRootFromCertificates
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import directlyProvides, providedBy

from fyrehose.errors import ConfigError


class Encrypted:
    """A reactor that connects by TLS.

    :param words: the file of the authority that has issued the server's certificate; then, where the server wants to
        know who we are, that of our own certificate, and that of its key if it is another
    :raises ConfigError: a file cannot be used
    """

    def __init__(self, reactor: Any, host: str, words: tuple[str, ...]) -> None:
        self._reactor = reactor
        self._options = _options(host, words)
        directlyProvides(self, providedBy(reactor))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def connectTCP(self, host: str, port: int, factory: Any, *args: Any, **more: Any) -> Any:
        around = TLSMemoryBIOFactory(self._options, True, factory, self._reactor)
        return self._reactor.connectTCP(host, port, around, *args, **more)


def _options(host: str, words: tuple[str, ...]) -> Any:
    authority, *own = words
    try:
        trusted = trustRootFromCertificates(Certificate.loadPEM(pem) for pem in _pieces(Path(authority)))
        ours = None
        if own:
            ours = PrivateCertificate.loadPEM(b"".join(Path(path).read_bytes() + b"\n" for path in own))
        return optionsForClientTLS(host, trustRoot=trusted, clientCertificate=ours)
    except OSError as error:
        raise ConfigError(f"--tls {','.join(words)}: {error.filename} cannot be read: {error.strerror}") from error
    except (SSL.Error, crypto.Error, ValueError) as error:
        raise ConfigError(
            f"--tls {','.join(words)} should be PEM files: the authority's certificate, ours, and its key"
        ) from error


def _pieces(path: Path) -> list[bytes]:
    """The certificates in one file."""
    end = b"-----END CERTIFICATE-----"
    pieces = [piece + end for piece in path.read_bytes().split(end)[:-1]]
    if not pieces:
        raise ValueError(f"{path} holds no certificate")
    return pieces
