"""Endpoint strings: who can come, and under which names."""

from __future__ import annotations

import pytest

from fyrehose.web.places import hosts_of, is_encrypted, is_local


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
def test_who_can_come(endpoint: str, local: bool) -> None:
    assert is_local(endpoint) is local


def test_on_this_machine_a_server_has_the_names_of_this_machine() -> None:
    assert hosts_of("tcp:1:interface=127.0.0.7", ("fyrehose.test",)) == {
        "localhost",
        "127.0.0.1",
        "127.0.0.7",
        "::1",
        "fyrehose.test",
    }
    assert hosts_of("tcp:1", ()) is None
    assert hosts_of("tcp:1", ("a.example",)) == {"a.example"}


def test_endpoints_that_speak_tls_themselves() -> None:
    assert is_encrypted("ssl:1:privateKey=x")
    assert not is_encrypted("tcp:1")
