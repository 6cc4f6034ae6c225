"""Load the key pairs of CURVE from the files that ``zmq.auth.create_certificates`` writes.

    curve
        public-key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
        secret-key = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"

A key is 32 bytes, written as 40 characters in Z85 (ZeroMQ RFC 32).
"""

from __future__ import annotations

import base64
import re
import string
from pathlib import Path

import attrs

from fyrehose.errors import ConfigError

_LINE = re.compile(r'^\s*(public|secret)-key\s*=\s*"([^"]*)"\s*$', re.MULTILINE)
#: The digits of Z85, and those of Python's base85.
_Z85 = (string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#").encode()
_B85 = (string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~").encode()
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)
#: Characters of a key.
_SIZE = 40


def z85(key: bytes) -> str:
    """Return *key*, whose size is a multiple of four, in Z85."""
    return base64.b85encode(key).translate(_TO_Z85).decode()


def from_z85(text: str) -> bytes:
    """Return the bytes of *text*.

    :raises ValueError: *text* is not Z85
    """
    raw = text.encode()
    if set(raw) - set(_Z85):
        raise ValueError(f"{text!r} is not Z85")
    return base64.b85decode(raw.translate(_FROM_Z85))


@attrs.frozen(slots=True)
class Keys:
    """A key pair of CURVE."""

    public: bytes
    secret: bytes = attrs.field(repr=False)

    @classmethod
    def load(cls, path: str) -> Keys:
        """Load the pair from a file NAME.key_secret.

        :raises ConfigError: the file cannot be read, or has no valid key pair
        """
        found = _load(path)
        if "secret" not in found:
            raise ConfigError(f"{path} has no secret key; pass the file that ends in .key_secret")
        return cls(found["public"], found["secret"])


def load_public(path: str) -> bytes:
    """Load the public key from a file NAME.key.

    :raises ConfigError: the file cannot be read, or has no valid key
    """
    return _load(path)["public"]


def load_clients(directory: str) -> frozenset[bytes]:
    """Load the public keys from all files NAME.key in *directory*.

    :raises ConfigError: the keys cannot be read, or there is none
    """
    if not Path(directory).is_dir():
        raise ConfigError(f"cannot read the client keys in {directory}: it is no directory")
    keys = frozenset(load_public(str(path)) for path in Path(directory).glob("*.key"))
    if not keys:
        raise ConfigError(f"no client key in {directory}; copy the public key file NAME.key of each client there")
    return keys


def _load(path: str) -> dict[str, bytes]:
    try:
        found = dict(_LINE.findall(Path(path).read_text()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the key in {path}: {error}") from error
    if "public" not in found:
        raise ConfigError(f"cannot read the key in {path}: it has no public key")
    if any(len(key) != _SIZE for key in found.values()):
        raise ConfigError(f"the key in {path} is damaged: a key has {_SIZE} characters")
    try:
        return {kind: from_z85(key) for kind, key in found.items()}
    except ValueError as error:
        raise ConfigError(f"the key in {path} is damaged: {error}") from error
