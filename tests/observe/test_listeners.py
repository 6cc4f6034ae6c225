"""The encryption that a listener reports, by the settings of its protocol."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose import plugins
from fyrehose.observe.listeners import encryption


@pytest.mark.parametrize(
    ("protocol", "endpoint", "options", "expected"),
    [
        ("figg", "tcp:1", {}, ""),
        ("figg", "ssl:1", {}, "TLS"),
        ("figg", "tcp:1", {"tls_certificate": "c"}, "TLS"),
        (
            "relink",
            "tcp:1",
            {"tls_certificate": "c", "tls_client_auth": "required"},
            "TLS, client certificates required",
        ),
        ("eventbus", "tcp:1", {}, ""),
        ("eventbus", "tcp:1", {"server_key": "k", "client_keys": "any"}, "CURVE"),
        ("backbone", "udp:1", {}, ""),
    ],
)
def test_encryption_is_described_for_each_protocol(
    protocol: str, endpoint: str, options: dict[str, Any], expected: str
) -> None:
    assert encryption(endpoint, plugins.load(protocol).settings(**options)) == expected
