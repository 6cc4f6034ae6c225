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


def test_default_port_is_that_of_the_protocol() -> None:
    assert str(server("backbone", ("127.0.0.1", None)).contacts) == "backbone at 127.0.0.1:2323"
    assert str(server("figg", ("::1", 5)).contacts) == "figg at [::1]:5"


@pytest.mark.parametrize("tls", ["", ",", "ca.pem,", "ca.pem,,key.pem"])
def test_empty_tls_file_name_is_refused(tls: str) -> None:
    with pytest.raises(ConfigError, match="invalid --tls"):
        server("figg", ("127.0.0.1", None), tls)


def test_missing_publisher_or_subscriber_of_a_protocol_is_reported() -> None:
    nothing = Server("lumberjack", "h", 1, clients())
    with pytest.raises(ConfigError, match="protocol lumberjack has no publisher"):
        nothing.publisher(None, None, 1)
    with pytest.raises(ConfigError, match="protocol lumberjack has no subscriber"):
        nothing.tailer(None, None, 0, print, print)
    both = Server("figg", "h", 1, clients(publisher=1, tailer=2))
    assert (both.publisher(None, None, 1), both.contacts.wanted) == (1, "publish")
    assert (both.tailer(None, "a\x1b", 0, print, print), both.contacts.wanted) == (2, r"read 'a\x1b'")


@pytest.mark.parametrize("stream", ["", "x" * 256, "\u00e4" * 128])
def test_invalid_stream_name_is_refused(stream: str) -> None:
    both = Server("figg", "h", 1, clients(publisher=1, tailer=2))
    with pytest.raises(ConfigError, match=r"the name has (0|256) bytes; expected 1 to 255 bytes"):
        both.publisher(None, stream, 1)
    with pytest.raises(ConfigError, match="expected 1 to 255 bytes"):
        both.tailer(None, stream, 0, print, print)


def test_protocol_without_clients_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "load_clients", lambda name: None)
    with pytest.raises(ConfigError, match="protocol relink has no command-line client"):
        server("relink", ("h", None))


@pytest.mark.parametrize("name", plugins.names())
def test_clients_of_every_protocol_provide_the_interface(name: str) -> None:
    found = plugins.load_clients(name)
    assert found is None or IClients.providedBy(found)
