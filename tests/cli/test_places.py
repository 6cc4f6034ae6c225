"""Servers: which protocol, where, and whether it has what is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fyrehose import plugins
from fyrehose.cli.places import Server, server
from fyrehose.errors import ConfigError
from fyrehose.interfaces import IClients


def clients(**made: Any) -> Any:
    return SimpleNamespace(
        default_port=7, publisher=lambda *a: made.get("publisher"), tailer=lambda *a: made.get("tailer")
    )


def test_a_port_that_nobody_says_is_the_protocols_own() -> None:
    assert str(server("backbone", ("127.0.0.1", None)).contacts) == "backbone at 127.0.0.1:2323"
    assert str(server("figg", ("::1", 5)).contacts) == "figg at [::1]:5"


@pytest.mark.parametrize("tls", ["", ",", "ca.pem,", "ca.pem,,key.pem"])
def test_nothing_goes_in_the_clear_because_a_name_is_empty(tls: str) -> None:
    with pytest.raises(ConfigError, match="--tls is"):
        server("figg", ("127.0.0.1", None), tls)


def test_what_a_protocol_does_not_have_is_said() -> None:
    nothing = Server("lumberjack", "h", 1, clients())
    with pytest.raises(ConfigError, match="nothing can be published by lumberjack"):
        nothing.publisher(None, None, 1)
    with pytest.raises(ConfigError, match="nothing can be read by lumberjack"):
        nothing.tailer(None, None, 0, print, print)
    both = Server("figg", "h", 1, clients(publisher=1, tailer=2))
    assert (both.publisher(None, None, 1), both.contacts.wanted) == (1, "publish")
    assert (both.tailer(None, "a\x1b", 0, print, print), both.contacts.wanted) == (2, r"read 'a\x1b'")


@pytest.mark.parametrize("stream", ["", "x" * 256, "\u00e4" * 128])
def test_names_that_no_stream_has(stream: str) -> None:
    both = Server("figg", "h", 1, clients(publisher=1, tailer=2))
    with pytest.raises(ConfigError, match=r"a stream's name is 1 to 255 bytes long, and this one has (0|256)"):
        both.publisher(None, stream, 1)
    with pytest.raises(ConfigError, match="bytes long"):
        both.tailer(None, stream, 0, print, print)


def test_a_protocol_without_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "load_clients", lambda name: None)
    with pytest.raises(ConfigError, match="relink has no client that this command could use"):
        server("relink", ("h", None))


@pytest.mark.parametrize("name", plugins.names())
def test_the_clients_of_every_protocol_say_what_they_are(name: str) -> None:
    found = plugins.load_clients(name)
    assert found is None or IClients.providedBy(found)
