"""The backbone's ends of ``fyrehose publish`` and ``fyrehose tail``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from zope.interface.verify import verifyObject

from fyrehose.errors import ConfigError
from fyrehose.interfaces import IClients, ITailer
from fyrehose.protocols.backbone import cli
from fyrehose.protocols.backbone.client import BackboneClient
from fyrehose.protocols.backbone.frames import Push
from fyrehose.records import Run


@pytest.fixture
def world(make_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server; whatever the module makes is a client on its network."""
    world = make_world()
    made = partial(BackboneClient, bind=("10.0.1.1", 5000), open_port=world.network.open)
    monkeypatch.setattr(cli, "BackboneClient", made)
    return world


class Reader:
    def __init__(self, world: Any, after: int | None) -> None:
        self.payloads: list[bytes] = []
        self.lost: list[tuple[int, int]] = []
        self.tailer = cli.tailer(world.clock, *world.address, None, after, self.take, self.lose)

    def take(self, run: Run) -> None:
        self.payloads += map(bytes, run.payloads())

    def lose(self, first: int, last: int) -> None:
        self.lost.append((first, last))


def fired(deferred: Deferred[Any]) -> bool:
    """Whether it has; a failure is none."""
    if deferred.called:
        deferred.addErrback(lambda why: pytest.fail(str(why.value)))
    return deferred.called


def test_the_module_is_what_the_command_line_wants(world: Any) -> None:
    assert verifyObject(IClients, cli)
    assert verifyObject(ITailer, Reader(world, None).tailer)
    assert cli.default_port == 2323


def test_publish(world: Any) -> None:
    publisher = cli.publisher(world.clock, *world.address, None, 5)
    connected = publisher.connect()
    world.run(0.1)
    assert fired(connected)
    published = [publisher.publish(b"%d" % i) for i in range(10)]
    world.run(0.5)
    assert all(map(fired, published))
    assert world.payloads() == [b"%d" % i for i in range(10)]
    assert fired(publisher.close())


def test_tail_from_the_start_with_a_pause(world: Any) -> None:
    world.send(Push(data=b"1"), Push(data=b"2"))
    reader = Reader(world, 0)
    assert not reader.tailer.connect().called
    world.run(1)
    assert reader.payloads == [b"1", b"2"]
    reader.tailer.pause()
    reader.tailer.pause()
    world.send(Push(data=b"3"))
    world.run(1)
    assert reader.payloads == [b"1", b"2"]
    reader.tailer.resume()
    world.send(Push(data=b"4"))
    world.run(2)
    assert reader.payloads == [b"1", b"2", b"3", b"4"]
    assert fired(reader.tailer.close())
    assert reader.lost == []


def test_a_tail_that_paused_before_anything_came_begins_where_it_was_told(world: Any) -> None:
    world.send(Push(data=b"1"))
    reader = Reader(world, 0)
    reader.tailer.connect().addErrback(lambda why: None)
    reader.tailer.pause()
    assert fired(reader.tailer.close())
    reader.tailer.resume()
    world.run(1)
    assert reader.payloads == [b"1"]
    reader.tailer.close()


def test_a_server_that_has_gone_while_the_tail_paused(world: Any) -> None:
    reader = Reader(world, None)
    reader.tailer.connect()
    world.run(0.1)
    reader.tailer.pause()
    world.server.stop()
    reader.tailer.resume()
    world.run(6)
    world.serve()
    world.run(6)
    world.send(Push(data=b"1"))
    world.run(1)
    assert reader.payloads == [b"1"], "it goes on when the server does"
    reader.tailer.close()


def test_what_a_tail_did_not_get(world: Any) -> None:
    for i in range(1, 10):
        world.send(Push(data=b"%d" % i))
    world.journal.forget("backbone", 4)
    reader = Reader(world, 0)
    reader.tailer.connect()
    world.run(1)
    missing = "nobody sent 1 to 3, because they are not kept any more or the answers were lost"
    assert reader.tailer.shortfall(False) == missing, "a gap that is still asked for"
    assert reader.tailer.shortfall(True) == ""
    world.run(12)
    assert (reader.lost, reader.payloads) == ([(1, 3)], [b"4", b"5", b"6", b"7", b"8", b"9"])
    assert reader.tailer.shortfall(True) == missing, "one that was given up"
    world.server.stop()
    world.run(6)
    gone = "the server has not answered for 5 s, so everything behind 9 may be missing"
    assert reader.tailer.shortfall(False) == f"{missing}; {gone}"
    assert reader.tailer.shortfall(True) == missing
    reader.tailer.close()


def test_a_tail_that_got_everything_misses_nothing(world: Any) -> None:
    world.send(Push(data=b"1"))
    reader = Reader(world, 0)
    reader.tailer.connect()
    world.run(3)
    assert (reader.tailer.shortfall(False), reader.tailer.shortfall(True)) == ("", "")
    reader.tailer.close()


def test_a_server_that_is_still_to_come_is_waited_for(world: Any) -> None:
    world.server.stop()
    publisher = cli.publisher(world.clock, *world.address, None, 5)
    connected = publisher.connect()
    world.run(12)
    assert not connected.called
    world.serve()
    world.run(3)
    assert fired(connected)
    publisher.close()


@pytest.mark.parametrize("make", [cli.publisher, partial(cli.tailer, after=0, take=print, lost=print)])
def test_the_stream_is_the_servers_to_name(make: Any) -> None:
    settings = {"window": 1} if make is cli.publisher else {}
    with pytest.raises(ConfigError, match="leave --stream out"):
        make(None, "127.0.0.1", 2323, "news", **settings)
