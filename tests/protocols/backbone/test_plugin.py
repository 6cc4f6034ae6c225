"""The plugin: endpoints, the service, and the clients."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import ConfigError
from fyrehose.interfaces import IClientPlugin, IPublisher, ITailer
from fyrehose.net import udp
from fyrehose.net.clients import ClientTarget
from fyrehose.protocols.backbone import plugin as module
from fyrehose.protocols.backbone.client import BackboneClient
from fyrehose.protocols.backbone.frames import MAX_DATA, TOKEN, Deliver, Flags, KeepAlive, Push
from fyrehose.protocols.backbone.plugin import plugin
from fyrehose.protocols.backbone.settings import BackboneSettings
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal


class SilentReactor(Clock):
    """A clock with readers that are never called."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[object] = set()

    def addReader(self, reader: object) -> None:
        self.readers.add(reader)

    def removeReader(self, reader: object) -> None:
        self.readers.discard(reader)

    def removeWriter(self, writer: object) -> None:
        """Do nothing."""


@pytest.fixture
def broker() -> Broker:
    broker = Broker(Clock(), MemoryJournal(), Sequencer())
    broker.open()
    return broker


def test_plugin_provides_the_interface() -> None:
    assert verifyObject(IClientPlugin, plugin)
    assert (plugin.name, plugin.default_endpoint, plugin.settings) == (
        "backbone",
        "udp:2323:interface=127.0.0.1",
        BackboneSettings,
    )


def test_other_protocols_cannot_publish_oversized_payloads(broker: Broker) -> None:
    plugin.make_service(SilentReactor(), broker, plugin.default_endpoint, BackboneSettings(stream="news"))
    failures: list[Any] = []
    broker.publish([Run.of("news", [bytes(MAX_DATA + 1)], source="figg")]).addErrback(failures.append)
    assert "exceeds the limit of 65498 bytes" in str(failures[0].value)
    broker.publish([Run.of("news", [bytes(MAX_DATA)], source="figg")])
    assert broker.bounds("news") == (1, 1)


def test_service_binds_on_start_and_closes_on_stop(broker: Broker) -> None:
    reactor = SilentReactor()
    service = plugin.make_service(reactor, broker, "udp:0:interface=127.0.0.1", BackboneSettings(receive_buffer=4_096))
    assert reactor.readers == set()
    assert service.stopService().called  # not started: nothing to stop
    started: list[Any] = []
    service.startService().addCallback(started.append)
    port = started[0]
    at = (port.getHost().host, port.getHost().port)
    assert reactor.readers == {port}
    assert port.getHost().host == "127.0.0.1"
    assert service.connections == 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.sendto(KeepAlive(address=peer.getsockname(), flags=Flags(0), token=bytes(TOKEN)).serialize(), at)
        assert select.select([port], [], [], 30)[0]
        port.doRead()
    assert service.connections == 1
    reactor.advance(6)
    assert service.connections == 0, "the subscriber has expired"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other, pytest.raises(OSError) as taken:
        other.bind(at)
    assert taken.value.errno == errno.EADDRINUSE
    assert service.stopService().called
    assert reactor.readers == set()
    assert reactor.getDelayedCalls() == []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(at)


def test_port_in_use_fails_the_start(broker: Broker) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        endpoint = f"udp:{other.getsockname()[1]}:interface=127.0.0.1"
        service = plugin.make_service(SilentReactor(), broker, endpoint, BackboneSettings())
        failures: list[Any] = []
        service.startService().addErrback(failures.append)
        assert failures[0].check(CannotListenError)
        assert service.stopService().called


def test_local_addresses_are_recognised() -> None:
    assert udp.is_local("127.0.0.1")
    assert not udp.is_local("192.0.2.1")


# Clients.


@pytest.fixture
def world(make_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a server, and make the plugin's clients use its network."""
    world = make_world()
    tailer = partial(BackboneClient, bind=("10.0.1.1", 5000), open_port=world.network.open)
    monkeypatch.setattr(module, "BackboneClient", tailer)
    return world


class Subscriber:
    def __init__(self, world: Any, after: int | None) -> None:
        self.payloads: list[bytes] = []
        self.lost: list[tuple[int, int]] = []
        self.tailer = plugin.tailer(ClientTarget(world.clock, *world.address))
        self.tailer.subscribe(None, self.take, after, self.lose)

    def take(self, run: Run) -> None:
        self.payloads += map(bytes, run.payloads())

    def lose(self, first: int, last: int) -> None:
        self.lost.append((first, last))


def fired(deferred: Deferred[Any]) -> bool:
    """Return whether the Deferred has fired with a result."""
    if deferred.called:
        deferred.addErrback(lambda why: pytest.fail(str(why.value)))
    return deferred.called


def test_plugin_makes_publishers_and_tailers(world: Any) -> None:
    assert verifyObject(ITailer, Subscriber(world, None).tailer)
    assert verifyObject(IPublisher, plugin.publisher(ClientTarget(world.clock, *world.address), 5))
    assert plugin.default_port == 2323


def test_tailer_pauses_and_resumes(world: Any) -> None:
    world.send(Push(data=b"1"), Push(data=b"2"))
    subscriber = Subscriber(world, 0)
    assert not subscriber.tailer.connect().called
    world.run(1)
    assert subscriber.payloads == [b"1", b"2"]
    subscriber.tailer.pause()
    subscriber.tailer.pause()
    world.send(Push(data=b"3"))
    world.run(1)
    assert subscriber.payloads == [b"1", b"2"]
    subscriber.tailer.resume()
    world.send(Push(data=b"4"))
    world.run(2)
    assert subscriber.payloads == [b"1", b"2", b"3", b"4"]
    assert (subscriber.tailer.shortfall(False), subscriber.tailer.shortfall(True)) == ("", "")
    assert fired(subscriber.tailer.close())
    assert subscriber.lost == []


def test_tailer_resumes_when_the_server_returns(world: Any) -> None:
    subscriber = Subscriber(world, None)
    subscriber.tailer.connect()
    world.run(0.1)
    subscriber.tailer.pause()
    world.stop()
    subscriber.tailer.resume()
    world.run(6)
    world.serve()
    world.run(6)
    world.send(Push(data=b"1"))
    world.run(1)
    assert subscriber.payloads == [b"1"], "it continues when the server returns"
    subscriber.tailer.close()


def test_shortfall_names_the_first_missing_ranges_and_counts_the_others(world: Any) -> None:
    subscriber, named = Subscriber(world, 0), ", ".join(f"{seq} to {seq}" for seq in range(2, 22, 2))
    missing = f"records {named} and 19 more ranges did not arrive: no longer kept, or the answers were lost"
    subscriber.tailer.connect()
    world.run(1)
    for seq in range(1, 61, 2):
        datagram = Deliver(seq=seq, data=b"x").serialize()
        subscriber.tailer.datagrams_received(memoryview(datagram), len(datagram), world.address)
    assert subscriber.tailer.shortfall(False) == missing, "gaps that are still requested"
    world.run(12)
    assert len(subscriber.lost) == 29
    assert subscriber.tailer.shortfall(True) == missing, "gaps that were given up"
    subscriber.tailer.close()


def test_shortfall_names_missing_records(world: Any) -> None:
    for i in range(1, 10):
        world.send(Push(data=b"%d" % i))
    world.journal.forget("backbone", 4)
    subscriber = Subscriber(world, 0)
    subscriber.tailer.connect()
    world.run(1)
    missing = "records 1 to 3 did not arrive: no longer kept, or the answers were lost"
    assert subscriber.tailer.shortfall(False) == missing, "a gap that is still requested"
    assert subscriber.tailer.shortfall(True) == ""
    world.run(12)
    assert (subscriber.lost, subscriber.payloads) == ([(1, 3)], [b"4", b"5", b"6", b"7", b"8", b"9"])
    assert subscriber.tailer.shortfall(True) == missing, "a gap that was given up"
    world.stop()
    world.run(6)
    gone = "the server has not answered for 5 s: the records after 9 may be missing"
    assert subscriber.tailer.shortfall(False) == f"{missing}; {gone}"
    assert subscriber.tailer.shortfall(True) == missing
    subscriber.tailer.close()


def test_publisher_waits_for_the_server(world: Any) -> None:
    world.stop()
    publisher = plugin.publisher(ClientTarget(world.clock, *world.address), 5)
    connected = publisher.connect()
    world.run(12)
    assert not connected.called
    world.serve()
    world.run(3)
    assert fired(connected)
    publisher.close()


def test_tailer_paused_before_its_server_is_resolved_stays_paused(world: Any) -> None:
    world.send(Push(data=b"1"))
    subscriber = Subscriber(world, 0)
    subscriber.tailer.pause()
    subscriber.tailer.connect()
    world.run(1)
    assert subscriber.payloads == []
    subscriber.tailer.resume()
    world.run(1)
    assert subscriber.payloads == [b"1"]
    subscriber.tailer.close()
    subscriber.tailer.resume()
    assert world.network.ports.keys() == {world.address}


def test_tailer_subscribes_again_while_it_is_connected(world: Any) -> None:
    world.send(Push(data=b"1"), Push(data=b"2"))
    first, again = Subscriber(world, 1), []
    first.tailer.connect()
    world.run(1)
    first.tailer.subscribe(None, lambda run: again.extend(map(bytes, run.payloads())), 0)
    world.run(1)
    assert (first.payloads, again) == ([b"2"], [b"1", b"2"])
    first.tailer.close()


def test_port_in_use_at_resume_is_tried_again(world: Any) -> None:
    subscriber = Subscriber(world, 0)
    subscriber.tailer.connect()
    world.run(1)
    subscriber.tailer.pause()
    world.send(Push(data=b"meanwhile"))
    open_port = subscriber.tailer.open_port

    def taken(*_: object) -> None:
        raise CannotListenError("10.0.1.1", 5000, OSError("in use"))

    subscriber.tailer.open_port = taken
    subscriber.tailer.resume()
    world.run(4)
    assert subscriber.payloads == []
    subscriber.tailer.open_port = open_port
    world.run(6)
    assert subscriber.payloads == [b"meanwhile"]
    subscriber.tailer.close()
    assert world.clock.getDelayedCalls() == []


def test_stream_option_is_refused(world: Any) -> None:
    message = "unexpected --stream 'news': a backbone has one stream"
    publisher = plugin.publisher(ClientTarget(world.clock, *world.address), 1)
    with pytest.raises(ConfigError, match=message):
        publisher.prepare("news")
    with pytest.raises(ConfigError, match=message):
        publisher.publish("news", b"x")
    with pytest.raises(ConfigError, match=message):
        plugin.tailer(ClientTarget(world.clock, *world.address)).subscribe("news", print)
