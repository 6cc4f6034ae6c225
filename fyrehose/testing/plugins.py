"""The conformance tests of protocol plugins, for their authors::

    from fyrehose.testing import PluginConformance

    class TestSyslog(PluginConformance):
        plugin_name = "syslog"

pytest runs this class as it is; for trial, add ``unittest.TestCase`` to its bases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest

import attrs
from twisted.application.service import IService
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from zope.interface.verify import verifyObject

from fyrehose import plugins
from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import ConfigError, MissingExtra
from fyrehose.interfaces import Abilities, IClientPlugin, IProtocolPlugin, IPublisher, ITailer
from fyrehose.net.clients import ClientTarget
from fyrehose.options import build, options_of
from fyrehose.testing.certificates import Authority
from fyrehose.testing.journal import MemoryJournal

#: Endpoint strings that no plugin may accept.
INVALID_ENDPOINTS = ("", "nonsense:1", "tcp", "tcp:many", "8119")


@contextmanager
def refused(words: str) -> Iterator[None]:
    """Check that the body of the ``with`` statement raises a ConfigError whose message contains *words*."""
    message = "no ConfigError was raised"
    try:
        yield
    except ConfigError as error:
        message = str(error)
    assert words in message


@contextmanager
def skipped_without_extra() -> Iterator[None]:
    """Skip the test if the plugin needs a package that is not installed."""
    try:
        yield
    except MissingExtra as error:
        raise SkipTest(str(error)) from error


class PluginConformance:
    """Tests that every protocol plugin must pass; they load the plugin by its name, as the server does.

    :cvar plugin_name: the name of the plugin
    """

    plugin_name: str

    @property
    def plugin(self) -> Any:
        """Return the plugin under test."""
        return plugins.load(self.plugin_name)

    def make_service(self, endpoint: str, settings: Any, reactor: Any = None) -> Any:
        """Return a service of the plugin, whose broker has a journal in memory."""
        broker = Broker(Clock(), MemoryJournal(), Sequencer())
        broker.open()
        return self.plugin.make_service(reactor or MemoryReactorClock(), broker, endpoint, settings)

    def test_plugin_provides_its_interface(self) -> None:
        assert verifyObject(IProtocolPlugin, self.plugin)
        assert isinstance(self.plugin.abilities, Abilities)
        assert self.plugin.name in plugins.names()
        assert re.fullmatch("[a-z][a-z0-9_-]*", self.plugin.name)
        assert re.fullmatch(".+", self.plugin.description), "the description is one line"

    def test_every_option_has_a_default_a_parser_and_a_help_text(self) -> None:
        settings = self.plugin.settings()
        assert attrs.asdict(settings, recurse=False).keys() == attrs.fields_dict(self.plugin.settings).keys()
        for field in options_of(self.plugin.settings):
            assert callable(field.metadata["convert"]), field.name
            assert field.metadata["help"], field.name
        assert build(self.plugin.settings, self.plugin.name, {}) == settings

    def test_default_endpoint_is_on_loopback(self) -> None:
        assert "127.0.0.1" in self.plugin.default_endpoint

    def test_service_opens_no_port_before_it_starts(self) -> None:
        reactor: Any = MemoryReactorClock()
        with skipped_without_extra():
            service = self.make_service(self.plugin.default_endpoint, self.plugin.settings(), reactor)
        assert IService.providedBy(service)
        assert not reactor.tcpServers
        assert not reactor.getReaders()
        assert not reactor.getDelayedCalls()

    def test_invalid_endpoint_is_refused_at_once(self) -> None:
        for endpoint in INVALID_ENDPOINTS:
            with refused(self.plugin.name):
                self.make_service(endpoint, self.plugin.settings())

    def test_tls_files_are_read_at_once_and_when_the_service_reloads(self) -> None:
        """Check that a service keeps its TLS settings if the files are deleted, and then refuses to reload."""
        if "tls_certificate" not in {field.name for field in attrs.fields(self.plugin.settings)}:
            return
        with TemporaryDirectory() as directory:
            own = Authority(Path(directory)).issue("server", "localhost")
            settings = self.plugin.settings(tls_certificate=own.certificate, tls_key=own.key)
            with skipped_without_extra():
                service = self.make_service(self.plugin.default_endpoint, settings)
            service.prepare(settings).apply()
            Path(own.key).unlink()
            make = partial(self.make_service, self.plugin.default_endpoint)
            for read in (service.prepare, make):
                with refused(f"invalid TLS options of {self.plugin.name}"):
                    read(settings)

    def test_clients_provide_their_interfaces(self) -> None:
        """Check that the publisher and the tailer of a plugin with clients provide their interfaces."""
        if not IClientPlugin.providedBy(self.plugin):
            return
        assert verifyObject(IClientPlugin, self.plugin)
        assert 0 < self.plugin.default_port < 65_536
        at = ClientTarget(MemoryReactorClock(), "127.0.0.1", self.plugin.default_port)
        with skipped_without_extra():
            for interface, client in ((IPublisher, self.plugin.publisher(at, 10)), (ITailer, self.plugin.tailer(at))):
                assert client is None or verifyObject(interface, client)
