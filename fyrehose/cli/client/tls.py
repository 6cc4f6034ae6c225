"""TLS for command-line clients: an endpoint whose connections use TLS, so that clients need no code for TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from OpenSSL import SSL, crypto
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.ssl import Certificate, PrivateCertificate, optionsForClientTLS, trustRootFromCertificates

from fyrehose.errors import ConfigError


def encrypted(
    endpoint: IStreamClientEndpoint, host: str, paths: tuple[str, ...], option: str = "--tls"
) -> IStreamClientEndpoint:
    """Return an endpoint whose connections go to *endpoint* and use TLS.

    :param host: the name that the server's certificate must have
    :param paths: PEM files: the authority that issued the server's certificate; then, if the server requires one, the
        client's certificate, and its key if that is in another file.  Without any, the authorities of the system count
    :param option: the option that has the paths, for errors
    :raises ConfigError: a file cannot be read or used
    """
    made: IStreamClientEndpoint = wrapClientTLS(_options(host, paths, option), endpoint)
    return made


def _options(host: str, paths: tuple[str, ...], option: str) -> Any:
    if not paths:
        return optionsForClientTLS(host)
    authority, *own = paths
    try:
        trusted = trustRootFromCertificates(Certificate.loadPEM(pem) for pem in _certificates(Path(authority)))
        ours = None
        if own:
            ours = PrivateCertificate.loadPEM(b"".join(Path(path).read_bytes() + b"\n" for path in own))
        return optionsForClientTLS(host, trustRoot=trusted, clientCertificate=ours)
    except OSError as error:
        raise ConfigError(f"{option} {','.join(paths)}: cannot read {error.filename}: {error.strerror}") from error
    except (SSL.Error, crypto.Error, ValueError) as error:
        raise ConfigError(
            f"invalid {option} {','.join(paths)}: expected PEM files: the authority's certificate, and optionally the "
            "client's certificate and its key"
        ) from error


def _certificates(path: Path) -> list[bytes]:
    """Return each certificate of the PEM file at *path*.

    :raises ValueError: the file has no certificate
    """
    end = b"-----END CERTIFICATE-----"
    certificates = [part + end for part in path.read_bytes().split(end)[:-1]]
    if not certificates:
        raise ValueError(f"{path} holds no certificate")
    return certificates
