"""The mechanism CURVE of ZMTP: both sides of one connection without I/O (ZeroMQ RFC 26), by libsodium.

    client -> server    HELLO      the client's short-term key C', and a proof that it is the client's
    server -> client    WELCOME    the server's short-term key S', and a cookie that comes back
    client -> server    INITIATE   the cookie; the client's long-term key C, and its vouch for C'
    server -> client    READY
    both                MESSAGE    a frame in a box; the numbers of the boxes rise

A box is readable, and can only come from, the two holders of the keys it was made with.  The short-term keys are of
this connection alone, so nothing that was recorded on another one is accepted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ClassVar

from nacl.bindings import (
    crypto_box,
    crypto_box_afternm,
    crypto_box_beforenm,
    crypto_box_open,
    crypto_box_open_afternm,
    crypto_scalarmult_base,
)
from nacl.exceptions import CryptoError

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.keys import Keys
from fyrehose.protocols.eventbus.zmtp import COMMAND, MORE, command, frame
from fyrehose.records import Buffer

#: Returns so many random bytes.
Random = Callable[[int], bytes]
#: Size of a key, of a long nonce, and by how much a box is longer than its content, in bytes.
KEY, NONCE, BOX = 32, 16, 16
#: Sizes of the data of HELLO, WELCOME and the cookie, and of INITIATE before its metadata, in bytes.
_HELLO, _WELCOME, _COOKIE = 194, 160, 96
_INITIATE = KEY + NONCE + 2 * KEY + BOX
_VERSION = b"\1\0"
_MESSAGE = b"\7MESSAGE"


class _Curve:
    """Base of both sides: boxes, and the numbers of their nonces."""

    name: ClassVar[bytes] = b"CURVE"
    as_server: ClassVar[bool]
    overhead: ClassVar[int] = len(_MESSAGE) + 8 + BOX + 1
    key: bytes | None = None
    _sent_prefix: ClassVar[bytes]
    _got_prefix: ClassVar[bytes]

    def __init__(self, public: bytes, secret: bytes, random: Random = os.urandom) -> None:
        self._public, self._secret, self._random = public, secret, random
        self._short = random(KEY)
        self._shared = b""
        self._sent = self._got = 0

    def seal(self, body: Buffer, flags: int) -> bytes:
        inner = bytes((flags & MORE | (flags & COMMAND) >> 1,))  # in a box, bit 1 says command
        return frame(_MESSAGE + self._box(self._sent_prefix, inner + body))

    def open(self, body: bytes) -> bytes:
        if body[:8] != _MESSAGE:
            raise RemoteProtocolError("bad-frame", "a frame that is no MESSAGE of CURVE")
        plain = self._open(self._got_prefix, body[8:])
        if not plain or plain[0] & ~3:
            raise RemoteProtocolError("bad-frame", "a MESSAGE of CURVE with wrong flags")
        return frame(plain[1:], plain[0] & 1 | (plain[0] & 2) << 1)

    def _box(self, prefix: bytes, data: bytes) -> bytes:
        """Return the next nonce and *data* in a box."""
        self._sent += 1
        nonce = self._sent.to_bytes(8, "big")
        return nonce + crypto_box_afternm(data, prefix + nonce, self._shared)

    def _open(self, prefix: bytes, data: bytes) -> bytes:
        """Return the content of a box behind its nonce, whose number must be higher than the one before."""
        try:
            plain = crypto_box_open_afternm(data[8:], prefix + self._fresh(data[:8]), self._shared)
        except (CryptoError, ValueError):
            raise _broken("a box that cannot be opened") from None
        return bytes(plain)

    def _fresh(self, nonce: bytes) -> bytes:
        number = int.from_bytes(nonce, "big")
        if len(nonce) < 8 or number <= self._got:
            raise _broken("the number of a box did not rise: it was sent before")
        self._got = number
        return nonce

    def _open_with(self, box: bytes, nonce: bytes, public: bytes, secret: bytes) -> bytes:
        try:
            return bytes(crypto_box_open(box, nonce, public, secret))
        except (CryptoError, ValueError, TypeError, RuntimeError):  # libsodium refuses weak keys
            raise _broken("a box that cannot be opened, as with a wrong server key") from None

    def _share(self, theirs: bytes) -> None:
        """Compute the key of the connection from both short-term keys."""
        try:
            self._shared = crypto_box_beforenm(theirs, self._short)
        except (CryptoError, ValueError, TypeError, RuntimeError):
            raise _broken("a weak key") from None


class CurveServer(_Curve):
    """The server's side.

    :param clients: the long-term keys that may connect; None: every key
    """

    as_server: ClassVar[bool] = True
    _sent_prefix: ClassVar[bytes] = b"CurveZMQMESSAGES"
    _got_prefix: ClassVar[bytes] = b"CurveZMQMESSAGEC"

    def __init__(
        self, public: bytes, secret: bytes, clients: frozenset[bytes] | None = None, random: Random = os.urandom
    ) -> None:
        super().__init__(public, secret, random)
        self._clients = clients
        self._theirs = self._cookie = b""

    def begin(self, metadata: bytes) -> bytes:
        return b""

    def answer(self, name: bytes, data: bytes, metadata: bytes) -> tuple[bytes, bytes | None]:
        if name == b"HELLO" and not self._theirs:
            return self._welcome(data), None
        if name == b"INITIATE" and self._cookie:
            theirs = self._initiated(data)
            return command(b"READY", self._box(b"CurveZMQREADY---", metadata)), theirs
        raise RemoteProtocolError("bad-handshake", f"the command {name[:20]!r} out of order")

    def _welcome(self, data: bytes) -> bytes:
        if len(data) != _HELLO or data[:2] != _VERSION or any(data[2:74]):
            raise RemoteProtocolError("bad-handshake", "HELLO is malformed")
        theirs, nonce = data[74:106], self._fresh(data[106:114])
        if any(self._open_with(data[114:], b"CurveZMQHELLO---" + nonce, theirs, self._secret)):
            raise RemoteProtocolError("bad-handshake", "HELLO is malformed")
        self._theirs, self._cookie, long_nonce = theirs, self._random(_COOKIE), self._random(NONCE)
        content = crypto_scalarmult_base(self._short) + self._cookie
        return command(b"WELCOME", long_nonce + crypto_box(content, b"WELCOME-" + long_nonce, theirs, self._secret))

    def _initiated(self, data: bytes) -> bytes:
        """Check INITIATE, and return the client's metadata."""
        cookie, self._cookie = self._cookie, b""
        if data[:_COOKIE] != cookie:
            raise _broken("the cookie of INITIATE is not the one of this connection")
        self._share(self._theirs)
        plain = self._open(b"CurveZMQINITIATE", data[_COOKIE:])
        if len(plain) < _INITIATE:
            raise RemoteProtocolError("bad-handshake", "INITIATE is malformed")
        key, nonce, box = plain[:KEY], plain[KEY : KEY + NONCE], plain[KEY + NONCE : _INITIATE]
        if self._open_with(box, b"VOUCH---" + nonce, key, self._short) != self._theirs + self._public:
            raise _broken("the client does not own its key")
        if self._clients is not None and key not in self._clients:
            raise RemoteProtocolError("unknown-key", "the client's public key is not in eventbus.client-keys")
        self.key = key
        return plain[_INITIATE:]


class CurveClient(_Curve):
    """The client's side.

    :param server: the server's public key
    """

    as_server: ClassVar[bool] = False
    _sent_prefix: ClassVar[bytes] = b"CurveZMQMESSAGEC"
    _got_prefix: ClassVar[bytes] = b"CurveZMQMESSAGES"

    def __init__(self, server: bytes, public: bytes, secret: bytes, random: Random = os.urandom) -> None:
        super().__init__(public, secret, random)
        self._server = server
        self._welcomed = False

    def begin(self, metadata: bytes) -> bytes:
        self._sent += 1
        nonce = self._sent.to_bytes(8, "big")
        try:
            box = crypto_box(bytes(64), b"CurveZMQHELLO---" + nonce, self._server, self._short)
        except (CryptoError, ValueError, TypeError, RuntimeError):  # libsodium refuses weak keys
            raise RemoteProtocolError("weak-key", "CURVE: no box can be made with the server's public key") from None
        return command(b"HELLO", _VERSION + bytes(72) + crypto_scalarmult_base(self._short) + nonce + box)

    def answer(self, name: bytes, data: bytes, metadata: bytes) -> tuple[bytes, bytes | None]:
        if name == b"WELCOME" and not self._welcomed:
            self._welcomed = True
            return self._initiate(data, metadata), None
        if name == b"READY" and self._shared:
            theirs = self._open(b"CurveZMQREADY---", data)
            self.key = self._server
            return b"", theirs
        raise RemoteProtocolError("bad-handshake", f"the command {name[:20]!r} out of order")

    def _initiate(self, data: bytes, metadata: bytes) -> bytes:
        if len(data) != _WELCOME:
            raise RemoteProtocolError("bad-handshake", "WELCOME is malformed")
        plain = self._open_with(data[NONCE:], b"WELCOME-" + data[:NONCE], self._server, self._short)
        theirs, cookie = plain[:KEY], plain[KEY:]
        self._share(theirs)
        nonce = self._random(NONCE)
        content = crypto_scalarmult_base(self._short) + self._server
        vouch = nonce + crypto_box(content, b"VOUCH---" + nonce, theirs, self._secret)
        return command(b"INITIATE", cookie + self._box(b"CurveZMQINITIATE", self._public + vouch + metadata))


def new_keys(random: Random = os.urandom) -> Keys:
    """Return a new key pair."""
    secret = random(KEY)
    return Keys(crypto_scalarmult_base(secret), secret)


def _broken(why: str) -> RemoteProtocolError:
    return RemoteProtocolError("bad-handshake", f"CURVE: {why}")
