"""What every plugin is, found as the framework finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.application.service import IService
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from zope.interface.verify import verifyObject

from fyrehose import plugins
from fyrehose.core.broker import Broker
from fyrehose.core.sequencer import Sequencer
from fyrehose.errors import ConfigError, MissingExtra
from fyrehose.interfaces import IProtocolPlugin
from fyrehose.options import build
from fyrehose.testing import MemoryJournal
from fyrehose.testing.certificates import Authority


@pytest.fixture
def broker() -> Broker:
    broker = Broker(Clock(), MemoryJournal(), Sequencer())
    broker.open()
    return broker


@pytest.fixture(params=plugins.names())
def plugin(request: pytest.FixtureRequest) -> Any:
    return plugins.load(request.param)


def test_plugin_provides_its_interface(plugin: Any) -> None:
    assert verifyObject(IProtocolPlugin, plugin)
    assert plugin.name in plugins.names()
    assert plugin.description
    assert "\n" not in plugin.description


def test_every_option_has_a_default_a_parser_and_a_help_text(plugin: Any) -> None:
    settings = plugin.settings()
    for field in attrs.fields(plugin.settings):
        assert callable(field.metadata["convert"]), field.name
        assert field.metadata["help"], field.name
        getattr(settings, field.name)
    assert build(plugin.settings, plugin.name, {}) == settings


def test_its_default_is_on_loopback(plugin: Any) -> None:
    assert "127.0.0.1" in plugin.default_endpoint


def test_service_opens_no_port_before_it_starts(plugin: Any, broker: Broker) -> None:
    reactor = MemoryReactorClock()
    try:
        service = plugin.make_service(reactor, broker, plugin.default_endpoint, plugin.settings())
    except MissingExtra:
        pytest.skip("an extra is not installed")
    assert IService.providedBy(service)
    assert not reactor.tcpServers
    assert not reactor.udpPorts if hasattr(reactor, "udpPorts") else True
    assert not reactor.getDelayedCalls()


@pytest.mark.parametrize("endpoint", ["", "nonsense:1", "tcp", "tcp:many", "8119"])
def test_invalid_endpoint_is_refused_at_once(plugin: Any, broker: Broker, endpoint: str) -> None:
    with pytest.raises(ConfigError, match=plugin.name):
        plugin.make_service(MemoryReactorClock(), broker, endpoint, plugin.settings())


def test_every_listener_of_tcp_speaks_tls_by_the_same_options(plugin: Any, broker: Broker, tmp_path: Path) -> None:
    """The event bus has keys of its own, and datagrams have none."""
    names = {field.name for field in attrs.fields(plugin.settings)}
    assert ("tls_certificate" in names) == (plugin.name not in ("backbone", "eventbus"))
    if "tls_certificate" not in names:
        return
    own = Authority(tmp_path).issue("server", "localhost")
    settings = plugin.settings(tls_certificate=own.certificate, tls_key=own.key)
    try:
        service = plugin.make_service(MemoryReactorClock(), broker, plugin.default_endpoint, settings)
    except MissingExtra:
        pytest.skip("an extra is not installed")
    service.reload()
    Path(own.key).unlink()
    with pytest.raises(ConfigError, match=f"invalid TLS options of {plugin.name}"):
        service.reload()
    with pytest.raises(ConfigError, match=f"invalid TLS options of {plugin.name}"):
        plugin.make_service(MemoryReactorClock(), broker, plugin.default_endpoint, settings)
