"""Compare the files that options name by their content, so that a reload notices a file that was replaced."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import attrs


@attrs.frozen
class FileContent:
    """The content of the file that an option names, so that a reload notices a file that was replaced.

    :ivar digest: the SHA-256 of what was read
    :ivar about: what the file says, as text for people; empty if that is secret or long
    """

    digest: bytes
    about: str = ""

    @classmethod
    def of(cls, data: bytes) -> FileContent:
        """Return the content *data* of a file; the first certificate in it is described by its serial and its end."""
        return cls(sha256(data).digest(), _certificate(data) if b"BEGIN CERTIFICATE" in data else "")

    @classmethod
    def at(cls, path: str) -> FileContent:
        """Return the content of the file *path*; if it cannot be read, the reason is what it says."""
        try:
            return cls.of(Path(path).read_bytes())
        except OSError as error:
            return cls(b"", f"cannot be read: {error.strerror}")


def _certificate(data: bytes) -> str:
    from cryptography.x509 import load_pem_x509_certificates  # most commands start sooner without it

    try:
        found = load_pem_x509_certificates(data)[0]
    except ValueError:
        return ""
    return f"serial {found.serial_number:X}, until {found.not_valid_after_utc:%Y-%m-%d}"
