"""Signed tokens: what their holders may do and until when, signed with a key that the access policy names.

    rights, an end, a key -> a token
    a token, a key        -> a Grant, if the key has signed the token

A token is a JSON Web Token with HMAC-SHA256 (RFC 7519, RFC 7515 "HS256"), so a program in any language can sign one.
The server keeps no table of tokens: everybody who can read the key can sign, and a token is valid until its end, or
until the policy no longer names the key.

    {"alg":"HS256","typ":"JWT"} . {"exp": 1795304875, "subscribe": ["logs.*"]} . signature
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs

from fyrehose.identity import Action
from fyrehose.options import secret_in
from fyrehose.patterns import Pattern, compiled

#: The longest token, in characters; the server keeps the token of each connection in memory.
MAX_TOKEN = 2_048
#: The shortest key, in characters; a shorter one could be guessed from one token.
SHORTEST_KEY = 32
#: The latest end of a token, in seconds since 1970 UTC: the end of the year 9999.
LATEST = 253_402_300_799
#: How many patterns one token may have.
MAX_PATTERNS = 64
_HEADER = b'{"alg":"HS256","typ":"JWT"}'
_SIGNED = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{43}")


def _compiled(rights: Mapping[Action, Iterable[str | Pattern]]) -> dict[Action, tuple[Pattern, ...]]:
    return {action: compiled(patterns) for action, patterns in rights.items()}


@attrs.frozen(kw_only=True)
class Rights:
    """The actions that a rule or a token allows, and on which streams.

    :ivar rights: the patterns of the streams, by action
    """

    rights: Mapping[Action, tuple[Pattern, ...]] = attrs.field(factory=dict, converter=_compiled)

    def has(self, action: Action) -> bool:
        """Return whether *action* on some stream is among the rights."""
        return bool(self.rights.get(action))

    def covers(self, action: Action, stream: str) -> bool:
        """Return whether *action* on *stream* is among the rights."""
        return any(pattern.covers(stream) for pattern in self.rights.get(action, ()))

    def covers_every(self, action: Action) -> bool:
        """Return whether *action* on every stream but the server's own is among the rights."""
        return any(pattern.everything for pattern in self.rights.get(action, ()))


@attrs.frozen(kw_only=True)
class Grant(Rights):
    """The rights that a token grants its holder.

    :ivar expires: when the rights end, in seconds since 1970 UTC
    :ivar flaw: why the token grants nothing, although its signature is valid; empty: it grants its rights
    """

    expires: float = 0.0
    flaw: str = ""


def is_signed(token: str) -> bool:
    """Return whether *token* has the form of a signed token; the signature is not checked."""
    return len(token) <= MAX_TOKEN and _SIGNED.fullmatch(token) is not None


def read_key(path: Path) -> bytes:
    """Return the key in the first line of the file at *path*.

    :raises ConfigError: the key cannot be read, or is too short
    """
    return secret_in(path, "the key", "key", SHORTEST_KEY).encode()


def sign(rights: Mapping[Action, Sequence[str]], expires: int, key: bytes) -> str:
    """Return a token that grants *rights* until *expires*, signed with *key*.

    :param rights: patterns of streams, by action
    :param expires: when the token ends, in seconds since 1970 UTC
    :raises ValueError: the server would not accept the token, because it is too long or ends too late
    """
    claims = {"exp": expires, **{action.value: list(patterns) for action, patterns in rights.items()}}
    signed = f"{_encoded(_HEADER)}.{_encoded(json.dumps(claims, separators=(',', ':')).encode())}"
    token = f"{signed}.{_signature(signed, key)}"
    if expires > LATEST:
        raise ValueError("a token cannot end after the year 9999; choose an earlier end")
    if len(token) > MAX_TOKEN or sum(map(len, rights.values())) > MAX_PATTERNS:
        raise ValueError(
            f"token of {len(token)} characters: expected at most {MAX_TOKEN}, and {MAX_PATTERNS} patterns; grant fewer "
            "streams, or use patterns such as logs.*"
        )
    return token


@lru_cache(1_024)
def grant_of(token: str, key: bytes) -> Grant | None:
    """Return the rights that *token* grants, even if it has expired; None if *key* has not signed it."""
    signed, _, signature = token.rpartition(".")
    if not hmac.compare_digest(_signature(signed, key), signature):
        return None
    header, _, claims = signed.partition(".")
    try:
        fields = json.loads(_decoded(header))
        if fields.get("alg") != "HS256":
            return Grant(flaw='its "alg" is not HS256')
        if "crit" in fields:
            return Grant(flaw='its header has "crit", an extension that must be understood, and this server knows none')
        return _grant(json.loads(_decoded(claims)))
    except (ValueError, TypeError, AttributeError) as error:
        return Grant(flaw=f"it cannot be read: {error}")


def _grant(claims: Mapping[str, Any]) -> Grant:
    expires = claims.get("exp")
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 <= expires <= LATEST:
        return Grant(flaw=f'it has no end: "exp" must be a number of seconds since 1970 UTC, at most {LATEST}')
    if claims.keys() & {"nbf", "aud"}:
        return Grant(flaw='it has "nbf" or "aud", which this server does not check')
    rights: dict[Action, list[str]] = {}
    for action in Action:
        patterns = claims.get(action.value, [])
        patterns = patterns if isinstance(patterns, list) else [patterns]
        if not all(isinstance(each, str) and each for each in patterns):
            return Grant(flaw=f'its "{action.value}" is no list of patterns')
        rights[action] = patterns
    if sum(map(len, rights.values())) > MAX_PATTERNS:
        return Grant(flaw=f"it has more than {MAX_PATTERNS} patterns")
    return Grant(rights=rights, expires=float(expires))


def _signature(signed: str, key: bytes) -> str:
    return _encoded(hmac.digest(key, signed.encode(), "sha256"))


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
