"""Read a bearer token from a file, find the token of a request, and compare tokens in constant time."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode
from binascii import Error as Base64Error

from fyrehose.options import secret_in

#: Minimum length of a token, in characters, because shorter tokens are too easy to guess.
SHORTEST_TOKEN = 16


def read_token(path: str, option: str) -> str | None:
    """Return the token in the first line of the file at ``path``, or None without a path.

    :param option: how the user named the file, for the error
    :raises ConfigError: the file cannot be read, or its token is too short to be a secret
    """
    return secret_in(path, option, least=SHORTEST_TOKEN) if path else None


def token_in(authorization: str) -> str | None:
    """Return the token in the Authorization header *authorization*, or None if the header has no token.

    The header may have the form ``Bearer TOKEN`` or, for browsers, ``Basic`` with the token as the password of any
    user.
    """
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "bearer":
        # The header is bytes, decoded as Latin-1; the token in the file is UTF-8.
        return value.strip().encode("latin-1", "replace").decode(errors="surrogateescape") or None
    if kind.lower() == "basic":
        try:
            return b64decode(value, validate=True).decode().partition(":")[2] or None
        except (Base64Error, UnicodeDecodeError):
            return None
    return None


def authorization(token: str) -> str:
    """Return the Authorization header for *token*, as a string that HTTP clients encode as Latin-1."""
    return f"Bearer {token}".encode().decode("latin-1")


def same(token: str | None, secret: str) -> bool:
    """Return whether *token* equals *secret*, in a time that does not depend on where the two differ."""
    digests = [hashlib.sha256(text.encode(errors="surrogateescape")).digest() for text in (token or "", secret)]
    return token is not None and hmac.compare_digest(*digests)
