"""A service listens at an endpoint, with what was put around its factory."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
from twisted.internet.testing import MemoryReactorClock
from twisted.protocols.policies import WrappingFactory

from fyrehose.errors import ConfigError
from fyrehose.net.endpoints import TCPService

sys.path.insert(0, str(Path(__file__).parent))

make = import_module("test_tcp").make  # a server of a toy protocol


def test_an_endpoint_that_is_none() -> None:
    server = make()
    for endpoint in ("nonsense:1", "tcp", "tcp:http:x=y", "ssl:1"):
        with pytest.raises(ConfigError, match="not a Twisted endpoint"):
            TCPService(server.clock, "toy", endpoint, server.factory)


def test_what_listens_in_the_place_of_a_factory_hands_its_connections_on() -> None:
    server, reactor = make(), MemoryReactorClock()
    around = WrappingFactory(server.factory)
    service = TCPService(reactor, "toy", "tcp:0:interface=127.0.0.1", server.factory, around)
    assert service.factory is server.factory
    service.startService()
    assert reactor.tcpServers[0][1] is around
    service.stopService()
