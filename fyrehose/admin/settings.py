"""The options of the admin listener, and their checks."""

from __future__ import annotations

import attrs

from fyrehose.errors import ConfigError
from fyrehose.options import count, file_path, option
from fyrehose.web.hosts import is_encrypted, is_local
from fyrehose.web.shell import WebSettings

PROTOCOL = "admin"
#: The option that names the file with the token.
TOKEN_FILE = f"{PROTOCOL}.token-file"


@attrs.frozen(kw_only=True)
class AdminSettings(WebSettings):
    """The admin listener's options."""

    max_connections: int = option(100, count, "simultaneous connections", least=1)
    max_per_host: int = option(50, count, "simultaneous connections from one address", least=1)
    token_file: str = option("", file_path, "file whose first line is the token of all clients; required off loopback")
    metric_streams: int = option(100, count, "streams with metrics of their own, the oldest first")


def check_place(endpoint: str, settings: AdminSettings) -> None:
    """Check that *endpoint* is on loopback, or that TLS and a token protect it.

    :raises ConfigError: the endpoint is neither on loopback nor protected
    """
    if is_local(endpoint):
        return
    missing = [] if is_encrypted(endpoint) or settings.tls_certificate else [f"TLS ({PROTOCOL}.tls-certificate)"]
    missing += [] if settings.token_file else [f"a token ({TOKEN_FILE})"]
    if missing:
        raise ConfigError(
            f"refusing to listen at --listen {PROTOCOL}={endpoint}, where other machines could see everything; "
            f"pass {' and '.join(missing)}, or add interface=127.0.0.1"
        )
