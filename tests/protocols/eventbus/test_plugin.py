"""The plugin: endpoints, keys, and a missing pyzmq."""

from __future__ import annotations

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
from fyrehose.server.config import resolve
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


class TestWithoutPyzmq:
    """Everything but the event bus works without pyzmq."""

    @pytest.fixture(autouse=True)
    def without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fyrehose.imports.find_spec", lambda name: None)

    def test_missing_pyzmq_is_one_clear_error(self, broker: Broker) -> None:
        with pytest.raises(MissingExtra, match=r"^eventbus needs pyzmq: pip install 'fyrehose\[eventbus\]'$"):
            plugin.make_service(MemoryReactorClock(), broker, plugin.default_endpoint, EventBusSettings())

    def test_clients_report_missing_pyzmq(self) -> None:
        with pytest.raises(MissingExtra):
            plugin.publisher(ClientTarget(None, "127.0.0.1", 5556), 1)

    def test_options_are_parsed_without_pyzmq(self) -> None:
        config = resolve("data", [], {"eventbus": {"dedup": "yes"}})
        assert "eventbus" in [listener.name for listener in config.listeners]


def test_plugin_makes_clients() -> None:
    assert verifyObject(IClientPlugin, plugin)
    publisher = plugin.publisher(ClientTarget(Clock(), "127.0.0.1", plugin.default_port), 10)
    assert (publisher.options.subscribe, publisher.options.window, publisher.port) == (False, 10, 5556)
    assert plugin.tailer(ClientTarget(Clock(), "127.0.0.1", 5556)).options.subscribe


def test_the_plugin_and_the_command_line_do_not_import_pyzmq() -> None:
    import subprocess

    code = "import sys\nimport fyrehose.protocols.eventbus.plugin, fyrehose.cli.command\nprint('zmq' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
