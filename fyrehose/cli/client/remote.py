"""Requests to a running server: its admin listener for the status, its http listener for streams and subscriptions."""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import wraps
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import attrs
import click

from fyrehose.cli.client.values import DEFAULT_URL, HTTP_URL
from fyrehose.errors import ConfigError, FyrehoseError, os_reason
from fyrehose.imports import ADMIN
from fyrehose.options import why_unreadable

#: Timeout of one request, in seconds, and the largest response that is read, in bytes.
TIMEOUT = 10.0
LARGEST = 64 << 20


@attrs.frozen
class RemoteServer:
    """HTTP client of the server at ``url``.

    :ivar token: the bearer token that is sent, if any
    :ivar context: for https, the TLS context that trusts the certificates in the file ``authorities``
    :ivar default: the default address of the listener: :data:`~fyrehose.cli.client.values.DEFAULT_URL` or HTTP_URL
    """

    url: str
    token: str | None = attrs.field(default=None, repr=False)
    context: ssl.SSLContext | None = None
    default: str = DEFAULT_URL
    authorities: Path | None = None

    @classmethod
    def of(
        cls,
        url: str,
        token_file: Path | None = None,
        authorities: Path | None = None,
        default: str = DEFAULT_URL,
    ) -> RemoteServer:
        """Build a client from the values of ``--url``, ``--token-file`` and ``--ca``.

        :raises ConfigError: the URL is invalid, or a file cannot be read or used
        """
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            usable = usable and parts.username is None and url.isascii() and not re.search(r"[\s\0-\x20\x7f?#]", url)
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(f"invalid --url {url!r}: expected a URL with a host and a port, such as {default}")
        context = _context(authorities) if parts.scheme == "https" else None
        return cls(url.rstrip("/"), None if token_file is None else _token(token_file), context, default, authorities)

    def status(self, match: str = "", limit: int = 200) -> dict[str, Any]:
        """Return the server's status: see :mod:`fyrehose.admin.status`.

        :param match: list only streams and subscribers whose name contains this
        :param limit: list this many streams and subscribers at most
        :raises FyrehoseError: the server does not answer, refuses, or is not Fyrehose
        """
        return self._get("status", "journal", match=match, limit=limit)

    def streams(self, match: str, page: int, limit: int) -> dict[str, Any]:
        """Return page *page* (the first page is 0) of the streams whose name contains *match*.

        :raises FyrehoseError: the server does not answer, refuses, or is not Fyrehose
        """
        return self._get("streams", "listed", match=match, page=page, limit=limit)

    def retire(self, stream: str) -> None:
        """Retire *stream*.

        :raises FyrehoseError: the server refuses, or does not answer
        """
        self._send("DELETE", f"/streams/{quote(stream, safe='', errors='surrogateescape')}")

    def subscriptions(self) -> list[dict[str, Any]]:
        """Return the named subscriptions that the server shows to this client.

        :raises FyrehoseError: the server does not answer, refuses, or is not Fyrehose
        """
        listed: list[dict[str, Any]] = self._parsed("subscriptions", self._send("GET", "/subscriptions"))[
            "subscriptions"
        ]
        return listed

    def subscription(self, name: str) -> dict[str, Any]:
        """Return the named subscription *name*.

        :raises FyrehoseError: the server refuses, or does not answer
        """
        return self._parsed("lag", self._send("GET", _subscription_path(name)))

    def create_shared(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Create the shared subscription *name*, and return it.

        :param fields: see docs/protocols/http.md
        :raises FyrehoseError: the server refuses, or does not answer
        """
        body = json.dumps({**fields, "shared": True}).encode()
        return self._parsed("lag", self._send("PUT", _subscription_path(name), body))

    def act(self, name: str, action: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Send *fields* to an action of the subscription *name*, and return the answer: see docs/protocols/http.md.

        :param action: ``lease``, ``settle``, ``pause``, ``redrive`` or ``rewind``
        :raises FyrehoseError: the server refuses, or does not answer
        """
        expected = {"lease": "records", "settle": "refused", "redrive": "redriven"}.get(action, "lag")
        path = f"{_subscription_path(name)}/{action}"
        return self._parsed(expected, self._send("POST", path, json.dumps(fields).encode()))

    def delete_subscription(self, name: str) -> None:
        """Delete the subscription *name*.

        :raises FyrehoseError: the server refuses, or does not answer
        """
        self._send("DELETE", _subscription_path(name))

    def _get(self, resource: str, expected: str, **query: str | int) -> dict[str, Any]:
        return self._parsed(expected, self._send("GET", f"/api/{resource}?{urlencode(query)}"))

    def _parsed(self, expected: str, answer: bytes) -> dict[str, Any]:
        """Return the JSON object in *answer*; an object without the key *expected* does not come from Fyrehose."""
        try:
            parsed = json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise FyrehoseError(self._not_fyrehose()) from error
        if not isinstance(parsed, dict) or expected not in parsed:
            raise FyrehoseError(self._not_fyrehose())
        return parsed

    def _send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, body, method=method)
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}".encode().decode("latin-1"))
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT, context=self.context) as response:
                answer: bytes = response.read(LARGEST)
                return answer
        except urllib.error.HTTPError as error:
            raise FyrehoseError(self._refused(error)) from error
        except urllib.error.URLError as error:
            raise FyrehoseError(self._unreachable(error.reason)) from error
        except OSError as error:
            raise FyrehoseError(self._unreachable(error)) from error
        except HTTPException as error:
            raise FyrehoseError(self._not_fyrehose()) from error

    @property
    def _protocol(self) -> str:
        return "admin" if self.default == DEFAULT_URL else "http"

    def _not_fyrehose(self) -> str:
        return f"{self.url} is not a Fyrehose {self._protocol} listener; check --url"

    def _refused(self, error: urllib.error.HTTPError) -> str:
        if error.code == 401:
            if self.token is None:
                return f"the server at {self.url} requires a token; pass --token-file FILE"
            return f"the server at {self.url} does not accept the token in --token-file"
        try:
            # A Fyrehose server answers 404 only if a stream or subscription does not exist.  The admin listener is
            # never asked for these, so there a 404 means another program.
            detail = (
                "" if error.code == 404 and self._protocol == "admin" else str(json.loads(error.read(LARGEST))["error"])
            )
        except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
            detail = ""
        if not detail:
            return f"{self._not_fyrehose()} (it answered with HTTP status {error.code})"
        return f"the server at {self.url} refused the request: {detail}"

    def _unreachable(self, reason: object) -> str:
        if isinstance(reason, ssl.SSLCertVerificationError):
            why = reason.verify_message or reason
            return f"certificate verification failed for {self.url}: {why}; pass --ca FILE"
        if isinstance(reason, ssl.SSLError) and reason.reason == "WRONG_VERSION_NUMBER":
            return f"the server at {self.url} does not speak TLS; pass --url http{self.url.removeprefix('https')}"
        cause = os_reason(reason)
        extra = f"; {ADMIN.missing('the admin listener')}" if self._protocol == "admin" else ""
        return (
            f"cannot connect to {self.url}: {cause}; is the server running with its default listeners, or with "
            f"--listen {self._protocol}=tcp:{urlsplit(self.default).port}:interface=127.0.0.1?{extra}"
        )


def asks(listener: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options that name a running server to a command, whose function gets a client of that server as
    ``server``.

    :param listener: the listener that the command asks: ``admin`` or ``http``
    """
    default = {"admin": DEFAULT_URL, "http": HTTP_URL}[listener]
    options = (
        click.option("--ca", type=click.Path(path_type=Path), help="PEM file of the certificate authority (https)."),
        click.option("--token-file", type=click.Path(path_type=Path), help="File with the server's token."),
        click.option(
            "--url", default=default, show_default=True, metavar="URL", help=f"URL of its {listener} listener."
        ),
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(*args: Any, url: str, token_file: Path | None, ca: Path | None, **values: Any) -> Any:
            return command(*args, server=RemoteServer.of(url, token_file, ca, default), **values)

        for option in options:
            run = option(run)
        return run

    return add


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --token-file {path}: {why_unreadable(error)}") from error
    if not token.isprintable():
        raise ConfigError(
            f"the token in {path} contains control characters, which an HTTP header cannot carry; write the token "
            "alone on the first line"
        )
    return token


def _context(authorities: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if authorities is None else str(authorities))
    except ssl.SSLError as error:
        raise ConfigError(f"invalid --ca {authorities}: expected a PEM file of certificates") from error
    except OSError as error:
        raise ConfigError(f"cannot read --ca {authorities}: {why_unreadable(error)}") from error


def _subscription_path(name: str) -> str:
    return f"/subscriptions/{quote(name, safe='', errors='surrogateescape')}"
