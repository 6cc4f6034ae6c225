"""Every plugin passes the conformance tests for authors of plugins, and all of them have the same TLS options."""

from __future__ import annotations

import unittest
from typing import Any

import attrs
import pytest

from fyrehose import plugins
from fyrehose.options import options_of
from fyrehose.testing import PluginConformance
from fyrehose.testing import plugins as conformance


class TestPlugins(PluginConformance):
    @pytest.fixture(params=plugins.names(), autouse=True)
    def named(self, request: pytest.FixtureRequest) -> None:
        self.plugin_name = request.param


@pytest.mark.parametrize("name", plugins.names())
def test_every_listener_of_tcp_has_the_options_of_tls(name: str) -> None:
    """The event bus has keys of its own instead of TLS, and datagrams have neither."""
    names = {field.name for field in options_of(plugins.load(name).settings)}
    assert ("tls_certificate" in names) == (name not in ("backbone", "eventbus"))


@attrs.frozen
class Careless:
    """A plugin that breaks every rule except those without which it cannot be loaded."""

    name: str = "Careless Plugin"
    description: str = ""
    default_endpoint: str = "tcp:1"
    settings: Any = attrs.make_class("Settings", {"some": attrs.field(default=1, metadata={"convert": int})})

    def make_service(self, reactor: Any, broker: Any, endpoint: str, settings: Any) -> object:
        reactor.listenTCP(1, None)
        return self


def test_a_plugin_that_breaks_the_rules_fails_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    class TestCareless(PluginConformance, unittest.TestCase):
        plugin_name = "Careless Plugin"

    monkeypatch.setattr(conformance.plugins, "load", lambda name: Careless())
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(TestCareless)
    result = unittest.TestResult()
    suite.run(result)
    failed = {str(test).partition(" ")[0] for test, _ in [*result.failures, *result.errors]}
    assert failed == {
        "test_plugin_provides_its_interface",
        "test_every_option_has_a_default_a_parser_and_a_help_text",
        "test_default_endpoint_is_on_loopback",
        "test_service_opens_no_port_before_it_starts",
        "test_invalid_endpoint_is_refused_at_once",
    }
