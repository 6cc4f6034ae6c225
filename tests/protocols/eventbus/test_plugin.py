"""The plugin: endpoints, keys, and a missing PyNaCl."""

from __future__ import annotations

import subprocess
import sys

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from zope.interface.verify import verifyObject

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import ConfigError, MissingExtra
from fyrehose.interfaces import IClientPlugin
from fyrehose.net.clients import ClientTarget
from fyrehose.protocols.eventbus.plugin import parse_endpoint, plugin
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.testing import MemoryJournal


@pytest.fixture
def broker() -> Broker:
    return Broker(Clock(), MemoryJournal(), Sequencer())


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [
        ("tcp:5556:interface=127.0.0.1", ("127.0.0.1", 5556)),
        ("tcp:0:interface=10.1.2.3", ("10.1.2.3", 0)),
        ("tcp:65533", ("0.0.0.0", 65533)),
        (r"tcp:5556:interface=\:\:1", ("::1", 5556)),
    ],
)
def test_valid_endpoint_is_parsed_into_host_and_port(endpoint: str, place: tuple[str, int]) -> None:
    assert parse_endpoint(endpoint) == place


@pytest.mark.parametrize(
    "endpoint",
    ["", "tcp", "udp:5556", "tcp:65534", "tcp:-1", "tcp:²", "tcp:1:host=1.2.3.4", "tcp:1:interface=here", "ssl:5556"],
)
def test_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"expected tcp:PORT or tcp:PORT:interface=IP"):
        parse_endpoint(endpoint)


def test_missing_key_file_is_reported(broker: Broker) -> None:
    settings = EventBusSettings(server_key="nowhere.key_secret", client_keys="any")
    with pytest.raises(ConfigError, match=r"cannot read the key in nowhere.key_secret"):
        plugin.make_service(MemoryReactorClock(), broker, "tcp:5556", settings)


class TestWithoutPyNaCl:
    """Everything but CURVE works without PyNaCl."""

    @pytest.fixture(autouse=True)
    def without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "nacl", None)

    def test_missing_package_is_one_clear_error_for_a_listener_with_a_key(self, broker: Broker) -> None:
        settings = EventBusSettings(server_key="key.key_secret", client_keys="any")
        expected = r"^eventbus.server-key encrypts with PyNaCl: pip install 'fyrehose\[eventbus\]'$"
        with pytest.raises(MissingExtra, match=expected):
            plugin.make_service(MemoryReactorClock(), broker, plugin.default_endpoint, settings)

    def test_listener_without_keys_needs_no_package(self, broker: Broker) -> None:
        service = plugin.make_service(MemoryReactorClock(), broker, plugin.default_endpoint, EventBusSettings())
        assert service.connections == 0
        assert plugin.publisher(ClientTarget(Clock(), "127.0.0.1", 5556), 1).options.window == 1


def test_plugin_makes_clients() -> None:
    assert verifyObject(IClientPlugin, plugin)
    publisher = plugin.publisher(ClientTarget(Clock(), "127.0.0.1", plugin.default_port), 10)
    assert (publisher.options.subscribe, publisher.options.window, publisher.port) == (False, 10, 5556)
    assert plugin.tailer(ClientTarget(Clock(), "127.0.0.1", 5556)).options.subscribe


def test_importing_the_plugin_imports_no_cryptography() -> None:
    code = "import sys\nimport fyrehose.protocols.eventbus.plugin, fyrehose.cli.command\nprint('nacl' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
