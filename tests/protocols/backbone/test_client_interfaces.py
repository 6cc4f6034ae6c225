"""The clients that the plugin makes, as publishers and tailers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from zope.interface.verify import verifyObject

from fyrehose.errors import ConfigError
from fyrehose.interfaces import IClientPlugin, IPublisher, ITailer
from fyrehose.protocols.backbone import plugin as module
from fyrehose.protocols.backbone.client import BackboneClient
from fyrehose.protocols.backbone.frames import Push
from fyrehose.protocols.backbone.plugin import plugin
from fyrehose.records import Run


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
        self.tailer = plugin.tailer(world.clock, *world.address)
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
    assert verifyObject(IClientPlugin, plugin)
    assert verifyObject(ITailer, Subscriber(world, None).tailer)
    assert verifyObject(IPublisher, plugin.publisher(world.clock, *world.address, 5))
    assert plugin.default_port == 2323


def test_publisher_confirms_messages(world: Any) -> None:
    publisher = plugin.publisher(world.clock, *world.address, 5)
    connected = publisher.connect()
    world.run(0.1)
    assert fired(connected)
    published = [publisher.publish(None, b"%d" % i) for i in range(10)]
    world.run(0.5)
    assert all(map(fired, published))
    assert world.payloads() == [b"%d" % i for i in range(10)]
    assert fired(publisher.close())


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
    assert fired(subscriber.tailer.close())
    assert subscriber.lost == []


def test_tailer_paused_before_the_first_record_keeps_its_start(world: Any) -> None:
    world.send(Push(data=b"1"))
    subscriber = Subscriber(world, 0)
    subscriber.tailer.connect().addErrback(lambda why: None)
    subscriber.tailer.pause()
    subscriber.tailer.resume()
    world.run(1)
    assert subscriber.payloads == [b"1"]
    subscriber.tailer.close()


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


def test_shortfall_is_empty_for_a_complete_tail(world: Any) -> None:
    world.send(Push(data=b"1"))
    subscriber = Subscriber(world, 0)
    subscriber.tailer.connect()
    world.run(3)
    assert (subscriber.tailer.shortfall(False), subscriber.tailer.shortfall(True)) == ("", "")
    subscriber.tailer.close()


def test_publisher_waits_for_the_server(world: Any) -> None:
    world.stop()
    publisher = plugin.publisher(world.clock, *world.address, 5)
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


def test_port_in_use_at_resume_closes_the_tailer(world: Any, logged_errors: Any) -> None:
    subscriber = Subscriber(world, 0)
    subscriber.tailer.connect()
    world.run(1)
    subscriber.tailer.pause()

    def taken(*_: object) -> None:
        raise CannotListenError("10.0.1.1", 5000, OSError("in use"))

    subscriber.tailer.open_port = taken
    subscriber.tailer.resume()
    assert "{why}" in logged_errors.take()[0]["log_format"]
    world.run(1)
    assert world.clock.getDelayedCalls() == []


def test_stream_option_is_refused(world: Any) -> None:
    message = "unexpected --stream 'news': a backbone has one stream"
    publisher = plugin.publisher(world.clock, *world.address, 1)
    with pytest.raises(ConfigError, match=message):
        publisher.prepare("news")
    with pytest.raises(ConfigError, match=message):
        publisher.publish("news", b"x")
    with pytest.raises(ConfigError, match=message):
        plugin.tailer(world.clock, *world.address).subscribe("news", print)
