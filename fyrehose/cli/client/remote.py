"""Requests to a running server: its admin listener for the status, its http listener for streams and subscriptions."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import attrs
import click

from fyrehose.cli.client.values import DEFAULT_URL, HTTP_URL
from fyrehose.client_tls import client_context
from fyrehose.errors import ConfigError, FyrehoseError, RemoteProtocolError, os_reason
from fyrehose.imports import ADMIN
from fyrehose.net.clients import ServerUnavailable
from fyrehose.options import secret_in, why_unreadable
from fyrehose.web.blocking_client import BlockingClient, is_address
from fyrehose.web.client_session import TEMPORARY, ServerAnswer

#: Timeout of one request, in seconds.
TIMEOUT = 10.0

TOKEN_FILE = click.option("--token-file", type=click.Path(path_type=Path), help="File with the server's token.")


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
        if not is_address(url):
            raise ConfigError(f"invalid --url {url!r}: expected a URL with a host and a port, such as {default}")
        context = _context(authorities) if url.startswith("https:") else None
        return cls(url.rstrip("/"), None if token_file is None else token_in(token_file), context, default, authorities)

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
        self._ask("", "DELETE", f"/streams/{quote(stream, safe='', errors='surrogateescape')}")

    def subscriptions(self) -> list[dict[str, Any]]:
        """Return the named subscriptions that the server shows to this client.

        :raises FyrehoseError: the server does not answer, refuses, or is not Fyrehose
        """
        listed: list[dict[str, Any]] = self._ask("subscriptions", "GET", "/subscriptions")["subscriptions"]
        return listed

    def subscription(self, name: str) -> dict[str, Any]:
        """Return the named subscription *name*.

        :raises FyrehoseError: the server refuses, or does not answer
        """
        return self._ask("lag", "GET", _subscription_path(name))

    def create_shared(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Create the shared subscription *name*, and return it.

        :param fields: see docs/protocols/http.md
        :raises FyrehoseError: the server refuses, or does not answer
        """
        return self._ask("lag", "PUT", _subscription_path(name), {**fields, "shared": True})

    def act(self, name: str, action: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Send *fields* to an action of the subscription *name*, and return the answer: see docs/protocols/http.md.

        :param action: ``lease``, ``settle``, ``pause``, ``redrive`` or ``rewind``
        :raises FyrehoseError: the server refuses, or does not answer
        """
        expected = {"lease": "records", "settle": "refused", "redrive": "redriven"}.get(action, "lag")
        return self._ask(expected, "POST", f"{_subscription_path(name)}/{action}", fields)

    def before(self, stream: str, since: int | str | None) -> int | None:
        """Return the number before the first record of *stream* from *since* on, which may be a time as text.

        :raises FyrehoseError: the server refuses, or does not answer
        """
        if not isinstance(since, str):
            return since
        if "*" in stream:
            raise ConfigError(f"a time has another number in each stream that matches {stream!r}; name one stream")
        path = f"/streams/{quote(stream, safe='', errors='surrogateescape')}"
        answer = self._answer("GET", f"{path}?{urlencode({'from': since, 'limit': 0})}", None)
        if b"fyrehose-from" not in answer.headers:
            raise self._refused(answer)
        return int(answer.headers[b"fyrehose-from"]) - 1

    def delete_subscription(self, name: str) -> None:
        """Delete the subscription *name*.

        :raises FyrehoseError: the server refuses, or does not answer
        """
        self._ask("", "DELETE", _subscription_path(name))

    def _get(self, resource: str, expected: str, **query: str | int) -> dict[str, Any]:
        return self._ask(expected, "GET", f"/api/{resource}?{urlencode(query)}")

    def _ask(self, expected: str, method: str, path: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request, and return the JSON object of its answer.

        :param expected: a key of the object, without which it does not come from Fyrehose; "": it may be any
        :param fields: the JSON object that is sent, if any
        """
        answer = self._answer(method, path, None if fields is None else json.dumps(fields).encode())
        found = answer.json_object
        if answer.status >= 400 or found is None:
            raise self._refused(answer)
        if expected and expected not in found:
            raise ServerUnavailable(self._not_fyrehose())
        return found

    def _answer(self, method: str, path: str, body: bytes | None) -> ServerAnswer:
        with BlockingClient(self.url, self.token, self.context, TIMEOUT) as client:
            try:
                return client.ask(method, path, body)
            except RemoteProtocolError as error:
                raise ServerUnavailable(self._not_fyrehose()) from error
            except OSError as error:
                raise ServerUnavailable(self._unreachable(error)) from error

    @property
    def _protocol(self) -> str:
        return "admin" if self.default == DEFAULT_URL else "http"

    def _not_fyrehose(self) -> str:
        return f"{self.url} is not a Fyrehose {self._protocol} listener; check --url"

    def _refused(self, answer: ServerAnswer) -> FyrehoseError:
        """Return the error for an answer that is a refusal, or that another program has sent."""
        if answer.status == 401:
            if self.token is None:
                return FyrehoseError(f"the server at {self.url} requires a token; pass --token-file FILE")
            return FyrehoseError(f"the server at {self.url} does not accept the token in --token-file")
        # A Fyrehose server answers 404 only if a stream or subscription does not exist.  The admin listener is
        # never asked for these, so there a 404 means another program.
        own = answer.json_object is not None and (answer.status != 404 or self._protocol == "http")
        if own and answer.status not in TEMPORARY:
            return FyrehoseError(f"the server at {self.url} refused the request: {answer.detail}")
        reason = f"{self._not_fyrehose()} (it answered with HTTP status {answer.status})"
        if own:
            reason = f"the server at {self.url} refused the request: {answer.detail}"
        elif answer.status in TEMPORARY:
            reason = f"no server answers behind {self.url}: a proxy sent HTTP status {answer.status}; try again"
        return ServerUnavailable(reason, answer.retry_after)

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
        TOKEN_FILE,
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


def token_in(path: Path) -> str:
    """Return the token in a file, which is its first line.

    :raises ConfigError: the file cannot be read, others may read it, or a header cannot carry what it has
    """
    token = secret_in(path, "--token-file")
    if not token.isprintable():
        raise ConfigError(
            f"the token in {path} contains control characters, which an HTTP header cannot carry; write the token "
            "alone on the first line"
        )
    return token


def _context(authorities: Path | None) -> ssl.SSLContext:
    try:
        return client_context(None if authorities is None else str(authorities))
    except ssl.SSLError as error:
        raise ConfigError(f"invalid --ca {authorities}: expected a PEM file of certificates") from error
    except OSError as error:
        raise ConfigError(f"cannot read --ca {authorities}: {why_unreadable(error)}") from error


def _subscription_path(name: str) -> str:
    return f"/subscriptions/{quote(name, safe='', errors='surrogateescape')}"
