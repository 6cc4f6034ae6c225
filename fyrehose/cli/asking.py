"""A running server asked for its state, at its admin listener, or told to retire a stream, at its http listener."""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import attrs

from fyrehose.errors import ConfigError, FyrehoseError

#: Where servers have their admin listener when nobody says.
DEFAULT_URL = "http://127.0.0.1:8118"
#: Where they have their http listener.
HTTP_URL = "http://127.0.0.1:8117"
#: How long one answer may take, in seconds, and the most that it may come to, in bytes.
PATIENCE = 10.0
LARGEST = 64 << 20


@attrs.frozen
class Asker:
    """Asks the server at ``url``.

    :ivar token: what it wants to see, if it does
    :ivar context: whose certificates are believed
    :ivar default: where such a listener is if nobody says: of the admin page, or of HTTP
    """

    url: str
    token: str | None = attrs.field(default=None, repr=False)
    context: ssl.SSLContext | None = None
    default: str = DEFAULT_URL

    @classmethod
    def of(
        cls,
        url: str,
        token_file: Path | None = None,
        authorities: Path | None = None,
        default: str = DEFAULT_URL,
    ) -> Asker:
        """:raises ConfigError: one of them cannot be used"""
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            usable = usable and parts.username is None and url.isascii() and not re.search(r"[\s\0-\x20\x7f?#]", url)
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(f"--url is {url!r}, and should be such as {default}")
        try:
            token = None if token_file is None else token_file.read_text(encoding="utf-8").partition("\n")[0].strip()
            if token is not None and not token.isprintable():
                raise ConfigError(f"the token in {token_file} has letters that no request can carry")
            context = None
            if parts.scheme == "https":
                context = ssl.create_default_context(cafile=None if authorities is None else str(authorities))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file or --ca cannot be used: {error}") from error
        return cls(url.rstrip("/"), token, context, default)

    def status(self, match: str = "", limit: int = 200) -> dict[str, Any]:
        """What the server says of itself: see :mod:`fyrehose.admin.status`.

        :raises FyrehoseError: it says nothing, or something else
        """
        return self._ask("status", "journal", match=match, limit=limit)

    def streams(self, match: str, page: int, limit: int) -> dict[str, Any]:
        """Return page *page*, the first being 0, of the streams whose name has *match* in it.

        :raises FyrehoseError: it says nothing, or something else
        """
        return self._ask("streams", "listed", match=match, page=page, limit=limit)

    def retire(self, stream: str) -> None:
        """Retire *stream*.

        :raises FyrehoseError: the server refuses, or does not answer
        """
        self._send("DELETE", f"/streams/{quote(stream, safe='', errors='surrogateescape')}")

    def _ask(self, what: str, expected: str, **query: str | int) -> dict[str, Any]:
        try:
            said = json.loads(self._send("GET", f"/api/{what}?{urlencode(query)}"))
        except (ValueError, RecursionError) as error:
            raise FyrehoseError(self._strange()) from error
        if not isinstance(said, dict) or expected not in said:
            raise FyrehoseError(self._strange())
        return said

    def _send(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(self.url + path, method=method)
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}".encode().decode("latin-1"))
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=self.context) as answer:
                said: bytes = answer.read(LARGEST)
                return said
        except urllib.error.HTTPError as error:
            raise FyrehoseError(self._refused(error)) from error
        except urllib.error.URLError as error:
            raise FyrehoseError(self._silent(error.reason)) from error
        except OSError as error:
            raise FyrehoseError(self._silent(error)) from error
        except HTTPException as error:
            raise FyrehoseError(self._strange()) from error

    @property
    def _protocol(self) -> str:
        return "admin" if self.default == DEFAULT_URL else "http"

    def _strange(self) -> str:
        return f"what answers at {self.url} is no {self._protocol} listener of Fyrehose's"

    def _refused(self, error: urllib.error.HTTPError) -> str:
        if error.code == 401:
            hint = "give it with --token-file FILE" if self.token is None else "the one in --token-file is another"
            return f"the server at {self.url} wants a token: {hint}"
        try:
            # Of the paths that are asked for here only a stream may be missing.
            detail = (
                "" if error.code == 404 and self._protocol == "admin" else str(json.loads(error.read(LARGEST))["error"])
            )
        except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
            detail = ""
        if not detail:
            return f"{self._strange()} (it says {error.code})"
        return f"the server at {self.url} refuses: {detail}"

    def _silent(self, reason: object) -> str:
        if isinstance(reason, ssl.SSLCertVerificationError):
            return f"the certificate of {self.url} is not believed: {reason}; see --ca"
        said = getattr(reason, "strerror", None) or reason
        return (
            f"{self.url} cannot be reached: {said}; is the server running, with --listen {self._protocol}=tcp:"
            f"{urlsplit(self.default).port}:interface=127.0.0.1 (or every default listener)"
            + (", and the extra admin installed?" if self._protocol == "admin" else "?")
        )
