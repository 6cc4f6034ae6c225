"""The protocol plugin; tests/conformance tests what holds for every plugin."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import ConfigError
from fyrehose.protocols.lumberjack.plugin import plugin
from fyrehose.protocols.lumberjack.server import LumberjackSettings
from fyrehose.testing import MemoryJournal


@pytest.fixture
def broker() -> Broker:
    broker = Broker(Clock(), MemoryJournal(), Sequencer())
    broker.open()
    return broker


def test_plugin_has_its_defaults() -> None:
    assert (plugin.name, plugin.default_endpoint) == ("lumberjack", "tcp:5044:interface=127.0.0.1")
    settings = plugin.settings()
    assert (settings.stream, settings.topic, settings.idle_timeout) == ("lumberjack", "@metadata.beat", 6 * 3600)


def test_listener_without_a_certificate_is_plain_tcp(broker: Broker) -> None:
    reactor = MemoryReactorClock()
    service = plugin.make_service(reactor, broker, "tcp:5044:interface=127.0.0.1", LumberjackSettings())
    service.startService()
    (port, factory, _, interface) = reactor.tcpServers[0]
    assert (port, interface) == (5044, "127.0.0.1")
    assert factory.wrappedFactory is service.factory
    service.stopService()


def test_missing_certificate_file_is_refused(broker: Broker) -> None:
    with pytest.raises(ConfigError, match=r"lumberjack.*nowhere\.pem"):
        plugin.make_service(MemoryReactorClock(), broker, "tcp:5044", LumberjackSettings(tls_certificate="nowhere.pem"))
