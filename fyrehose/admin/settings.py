"""The admin door's options, and what they have to come to."""

from __future__ import annotations

from pathlib import Path

import attrs

from fyrehose.errors import ConfigError
from fyrehose.settings import count, option
from fyrehose.web.places import is_encrypted, is_local
from fyrehose.web.server import WebSettings

KIT = "admin"
#: A token that could be guessed keeps nobody out.
SHORTEST_TOKEN = 16


@attrs.frozen(kw_only=True)
class Settings(WebSettings):
    """The admin door's options."""

    max_connections: int = option(100, count, "connections at a time", least=1)
    max_per_host: int = option(50, count, "connections at a time from one address", least=1)
    token_file: str = option("", str, "file whose first line is the token that everybody needs; needed off loopback")
    metric_streams: int = option(100, count, "streams that have metrics of their own")


def read_token(path: str) -> str | None:
    """The token in the first line of the file at ``path``; None without a path.

    :raises ConfigError: there is none that would do
    """
    if not path:
        return None
    try:
        token = Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{KIT}.token-file cannot be read: {error}") from error
    if len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"the token in {path} has {len(token)} characters, "
            f"{SHORTEST_TOKEN} are the least: openssl rand -hex 32 > {path}"
        )
    return token


def check_place(endpoint: str, settings: Settings) -> None:
    """:raises ConfigError: others could come there, and it is not kept from them"""
    if is_local(endpoint):
        return
    missing = [] if is_encrypted(endpoint) or settings.tls_certificate else [f"TLS ({KIT}.tls-certificate)"]
    missing += [] if settings.token_file else [f"a token ({KIT}.token-file)"]
    if missing:
        raise ConfigError(
            f"--listen {KIT}={endpoint} is open to others, who would see everything: it needs {' and '.join(missing)}, "
            "or interface=127.0.0.1"
        )
