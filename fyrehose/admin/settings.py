"""The admin listener's options, and what they have to come to."""

from __future__ import annotations

import attrs

from fyrehose.errors import ConfigError
from fyrehose.options import count, option
from fyrehose.web import tokens
from fyrehose.web.hosts import is_encrypted, is_local
from fyrehose.web.server import WebSettings

PROTOCOL = "admin"


@attrs.frozen(kw_only=True)
class Settings(WebSettings):
    """The admin listener's options."""

    max_connections: int = option(100, count, "connections at a time", least=1)
    max_per_host: int = option(50, count, "connections at a time from one address", least=1)
    token_file: str = option("", str, "file whose first line is the token that everybody needs; needed off loopback")
    metric_streams: int = option(100, count, "streams that have metrics of their own")


def read_token(path: str) -> str | None:
    """Return the token that everybody has to show, or None without a file.

    :raises ConfigError: there is none that would do
    """
    return tokens.read_token(path, f"{PROTOCOL}.token-file")


def check_place(endpoint: str, settings: Settings) -> None:
    """:raises ConfigError: others could come there, and it is not kept from them"""
    if is_local(endpoint):
        return
    missing = [] if is_encrypted(endpoint) or settings.tls_certificate else [f"TLS ({PROTOCOL}.tls-certificate)"]
    missing += [] if settings.token_file else [f"a token ({PROTOCOL}.token-file)"]
    if missing:
        raise ConfigError(
            f"refusing to listen at --listen {PROTOCOL}={endpoint}, where other machines could see everything: "
            f"pass {' and '.join(missing)}, or add interface=127.0.0.1"
        )
