"""Certificates for tests: a certificate authority that issues PEM files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

#: The key of an authority signs certificates and revocation lists, nothing else.
_OF_AN_AUTHORITY = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@attrs.frozen(kw_only=True)
class Issued:
    """The names of the files of a certificate and its key."""

    certificate: str
    key: str


@attrs.define(eq=False)
class Authority:
    """A certificate authority that issues certificates into a directory.

    :ivar issuer: the authority that issued this authority's certificate; None if that is self-signed
    :ivar key_usage: whether its certificate has the extension keyUsage, which RFC 5280 requires; many old ones lack it
    :ivar certificate: the file of this authority's certificate
    """

    directory: Path
    name: str = "authority"
    issuer: Authority | None = None
    key_usage: bool = True
    certificate: str = attrs.field(init=False)
    _key: ec.EllipticCurvePrivateKey = attrs.field(factory=lambda: ec.generate_private_key(ec.SECP256R1()), init=False)
    _own: x509.Certificate = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        issuer = self.issuer or self
        self._own = issuer._issue(self.name, self._key, (), authority=True)
        self.certificate = self._write(f"{self.name}.pem", self._own.public_bytes(Encoding.PEM))

    def issue(self, name: str | None, *others: str, passphrase: str = "", chain: bool = False) -> Issued:
        """Issue a certificate.

        :param name: the common name; None for none
        :param others: hosts and addresses that are alternative names
        :param passphrase: encrypt the key with this passphrase
        :param chain: append the authority's own certificate
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._issue(name, key, others, authority=False).public_bytes(Encoding.PEM)
        if chain:
            certificate += self._own.public_bytes(Encoding.PEM)
        encryption: KeySerializationEncryption = NoEncryption()
        if passphrase:
            encryption = BestAvailableEncryption(passphrase.encode())
        stem = f"{self.name}-{name}"
        return Issued(
            certificate=self._write(f"{stem}.pem", certificate),
            key=self._write(f"{stem}.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)),
        )

    def _write(self, name: str, data: bytes) -> str:
        path = self.directory / name
        path.write_bytes(data)
        return str(path)

    def _issue(
        self, name: str | None, key: ec.EllipticCurvePrivateKey, others: tuple[str, ...], authority: bool
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(signer, critical=False)
        )
        if authority and self.key_usage:
            builder = builder.add_extension(_OF_AN_AUTHORITY, critical=True)
        if others:
            builder = builder.add_extension(x509.SubjectAlternativeName([_other(each) for each in others]), False)
        return builder.sign(self._key, hashes.SHA256())


def _named(name: str | None) -> x509.Name:
    return x509.Name([] if name is None else [x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _other(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
