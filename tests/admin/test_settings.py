"""Options of the admin listener: which endpoints and tokens are refused."""

from __future__ import annotations

import pytest

from fyrehose.admin.settings import AdminSettings, check_place
from fyrehose.errors import ConfigError


@pytest.mark.parametrize(
    ("endpoint", "settings", "missing"),
    [
        ("tcp:8118:interface=127.0.0.1", {}, ""),
        ("unix:/run/admin", {}, ""),
        ("tcp:8118", {}, "TLS .* and a token"),
        ("tcp:8118:interface=10.0.0.1", {"token_file": "t"}, "pass TLS"),
        ("tcp:8118", {"tls_certificate": "c"}, "pass a token"),
        ("ssl:8118:privateKey=k", {}, "pass a token"),
        ("ssl:8118:privateKey=k", {"token_file": "t"}, ""),
        ("tcp:8118", {"tls_certificate": "c", "token_file": "t"}, ""),
        ("systemd:domain=INET:name=admin", {}, "TLS .* and a token"),
    ],
)
def test_endpoint_off_loopback_requires_tls_and_a_token(endpoint: str, settings: dict[str, str], missing: str) -> None:
    made = AdminSettings(**settings)
    if not missing:
        check_place(endpoint, made)
        return
    with pytest.raises(ConfigError, match=missing):
        check_place(endpoint, made)
