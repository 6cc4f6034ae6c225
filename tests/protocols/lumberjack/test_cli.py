"""Lumberjack for the command line."""

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


def test_it_is_found() -> None:
    assert plugins.load_clients("lumberjack") is cli
    assert verifyObject(IClients, cli)
    assert cli.default_port == 5044


def test_a_publisher_has_no_more_under_way_than_it_may() -> None:
    for window, each in ((1, 1), (2, 1), (1000, 500)):
        publisher = cli.publisher(MemoryReactorClock(), "127.0.0.1", 5044, None, window)
        assert verifyObject(IPublisher, publisher)
        assert publisher.client.window == each


def test_the_server_says_which_stream() -> None:
    with pytest.raises(ConfigError, match="leave --stream out"):
        cli.publisher(Clock(), "127.0.0.1", 5044, "log", 1)


def test_there_is_nothing_to_tail() -> None:
    assert cli.tailer(Clock(), "127.0.0.1", 5044, None, None, print, print) is None


def test_an_object_goes_as_it_is_and_text_as_a_message() -> None:
    for payload in (b"{}", b'{ "a": 1 }', '{"ü":"ü"}'.encode()):
        assert cli.to_document(payload) == payload
    for text in ("plain", "", "[1]", "7", '"s"', "{cut", "ü \n\\ \x00", "[" * 100_000):
        assert json.loads(cli.to_document(text.encode())) == {"message": text}
    with pytest.raises(LocalProtocolError, match="not UTF-8"):
        cli.to_document(b"\xff")


def test_what_is_published_goes_out() -> None:
    reactor = MemoryReactorClock()
    publisher = cli.publisher(reactor, "127.0.0.1", 5044, None, 10)
    assert publisher.ready().called
    failures: list[object] = []
    publisher.connect().addErrback(failures.append)
    publisher.publish(b"text").addErrback(failures.append)
    publisher.close()
    assert len(failures) == 2
