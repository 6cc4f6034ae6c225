"""Endpoints: whether other machines can reach them, whether they imply TLS, and the host names they accept."""

from __future__ import annotations

import pytest

from fyrehose.web.hosts import hosts_of, is_encrypted, is_local


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("tcp:8118:interface=127.0.0.1", True),
        ("tcp:8118:interface=127.9.9.9", True),
        ("tcp:8118:interface=localhost", True),
        ("tcp6:8118:interface=\\:\\:1", True),
        ("ssl:8118:interface=127.0.0.1:privateKey=k.pem", True),
        ("unix:/run/admin", True),
        ("tcp:8118", False),
        ("tcp:8118:interface=", False),
        ("tcp:8118:interface=0.0.0.0", False),
        ("tcp6:8118:interface=\\:\\:", False),
        ("tcp:8118:interface=10.0.0.1", False),
        ("tcp:8118:interface=nonsense", False),
        ("systemd:domain=INET:name=admin", False),
    ],
)
def test_only_loopback_and_unix_endpoints_are_local(endpoint: str, local: bool) -> None:
    assert is_local(endpoint) is local


def test_loopback_endpoint_accepts_the_names_of_this_machine_only() -> None:
    assert hosts_of("tcp:1:interface=127.0.0.7", ("fyrehose.test",)) == {
        "localhost",
        "127.0.0.1",
        "127.0.0.7",
        "::1",
        "fyrehose.test",
    }
    assert hosts_of("tcp:1", ()) is None
    assert hosts_of("tcp:1", ("a.example",)) == {"a.example"}


def test_ssl_endpoint_is_encrypted() -> None:
    assert is_encrypted("ssl:1:privateKey=x")
    assert not is_encrypted("tcp:1")
