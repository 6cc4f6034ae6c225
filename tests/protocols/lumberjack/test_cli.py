"""The Lumberjack client of ``fyrehose publish``."""

from __future__ import annotations

import json

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from zope.interface.verify import verifyObject

from fyrehose import plugins
from fyrehose.errors import ConfigError, LocalProtocolError
from fyrehose.interfaces import IClients, IPublisher
from fyrehose.protocols.lumberjack import cli


def test_cli_module_is_found_and_provides_IClients() -> None:
    assert plugins.load_clients("lumberjack") is cli
    assert verifyObject(IClients, cli)
    assert cli.default_port == 5044


def test_publisher_divides_its_window_by_the_pipelining() -> None:
    for window, each in ((1, 1), (2, 1), (1000, 500)):
        publisher = cli.publisher(MemoryReactorClock(), "127.0.0.1", 5044, None, window)
        assert verifyObject(IPublisher, publisher)
        assert publisher.client.window == each


def test_stream_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave --stream out"):
        cli.publisher(Clock(), "127.0.0.1", 5044, "log", 1)


def test_there_is_no_tailer() -> None:
    assert cli.tailer(Clock(), "127.0.0.1", 5044, None, None, print, print) is None


def test_objects_are_sent_unchanged_and_text_as_a_message() -> None:
    for payload in (b"{}", b'{ "a": 1 }', '{"ü":"ü"}'.encode()):
        assert cli.to_document(payload) == payload
    for text in ("plain", "", "[1]", "7", '"s"', "{cut", "ü \n\\ \x00", "[" * 100_000):
        assert json.loads(cli.to_document(text.encode())) == {"message": text}
    with pytest.raises(LocalProtocolError, match="not UTF-8"):
        cli.to_document(b"\xff")


def test_close_fails_unsent_publishes() -> None:
    reactor = MemoryReactorClock()
    publisher = cli.publisher(reactor, "127.0.0.1", 5044, None, 10)
    assert publisher.ready().called
    failures: list[object] = []
    publisher.connect().addErrback(failures.append)
    publisher.publish(b"text").addErrback(failures.append)
    publisher.close()
    assert len(failures) == 2
