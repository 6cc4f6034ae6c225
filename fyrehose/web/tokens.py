"""Bearer tokens: read from a file, found in a request, compared in constant time.

in: a file, an Authorization header      out: the token, and whether it is the right one
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode
from binascii import Error as Base64Error
from pathlib import Path

from fyrehose.errors import ConfigError

#: A token that could be guessed keeps nobody out.
SHORTEST_TOKEN = 16


def read_token(path: str, option: str) -> str | None:
    """Return the token in the first line of the file at ``path``, or None without a path.

    :param option: how the user named the file, for the error
    :raises ConfigError: the file cannot be read, or its token is too short to be a secret
    """
    if not path:
        return None
    try:
        token = Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} cannot be read: {error}") from error
    if len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"the token in {path} has {len(token)} characters, "
            f"{SHORTEST_TOKEN} are the least: openssl rand -hex 32 > {path}"
        )
    return token


def token_in(authorization: str) -> str | None:
    """Return the token of an Authorization header: ``Bearer TOKEN``, or as the password of anybody, for browsers."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "bearer":
        # What is sent is bytes, and a token in a file is UTF-8.
        return value.strip().encode("latin-1", "replace").decode(errors="surrogateescape") or None
    if kind.lower() == "basic":
        try:
            return b64decode(value, validate=True).decode().partition(":")[2] or None
        except (Base64Error, UnicodeDecodeError):
            return None
    return None


def authorization(token: str) -> str:
    """Return the Authorization header that :func:`token_in` reads, as HTTP clients take it."""
    return f"Bearer {token}".encode().decode("latin-1")


def same(token: str | None, secret: str) -> bool:
    """Return whether they are equal, in a time that says nothing of how much of them is."""
    digests = [hashlib.sha256(text.encode(errors="surrogateescape")).digest() for text in (token or "", secret)]
    return token is not None and hmac.compare_digest(*digests)
