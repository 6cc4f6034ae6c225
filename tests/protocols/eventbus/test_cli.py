"""The event bus clients of the command line."""

from __future__ import annotations

from typing import Any

import pytest
from zope.interface.verify import verifyObject

from fyrehose import plugins
from fyrehose.errors import ConfigError
from fyrehose.interfaces import IClients, IPublisher, ITailer
from fyrehose.protocols.eventbus import cli
from fyrehose.protocols.eventbus.frames import Broadcast, Dialect


def event(sequence: int, data: bytes, topic: str = "/a/", **labels: bytes) -> Broadcast:
    every: dict[str, Any] = {
        "producer": b"me",
        "timestamp": b"2024-05-01T10:20:30.123Z",
        "uuid": b"7d444840-9dc0-41d1-b245-5ffdce74fad2",
        **labels,
    }
    return Broadcast(topic=topic, sequence=sequence, dialect=Dialect.BINARY, data=data, **every)


def test_module_provides_clients() -> None:
    clients = plugins.load_clients("eventbus")
    assert verifyObject(IClients, clients)
    assert clients.default_port == 5556


def test_stream_option_names_a_topic() -> None:
    one = cli.publisher(None, "127.0.0.1", 5556, "notes", 10)
    assert verifyObject(IPublisher, one)
    assert (one.topic, one.client.topics, one.client.options.window) == ("/notes/", ("/notes/",), 10)
    assert not one.client.options.subscribe
    assert cli.publisher(None, "127.0.0.1", 5556, None, 10).topic == "/"
    assert cli.publisher(None, "127.0.0.1", 5556, "/a/b/", 10).topic == "/a/b/"
    with pytest.raises(ConfigError):
        cli.publisher(None, "127.0.0.1", 5556, "x" * 254, 10)


def test_tailer_yields_runs_of_events() -> None:
    taken: list[Any] = []
    follower = cli.tailer(None, "127.0.0.1", 5556, "a;/b/c", 7, taken.append, lambda first, last: None)
    assert verifyObject(ITailer, follower)
    assert follower.client.options.subtrees == ("/a/", "/b/c/")
    assert follower.client.options.after == 7
    follower.client.on_events((event(8, b"\xc4\x02hi"),))
    (run,) = taken
    (record,) = run.records()
    assert (record.seq, record.topic, record.producer, record.payload) == (8, "/a/", "me", b"hi")
    assert record.event_time == record.time == 1_714_558_830_123_000
    everything = cli.tailer(None, "127.0.0.1", 5556, None, None, taken.append, lambda first, last: None)
    assert everything.client.options.subtrees == ()


def test_consecutive_events_become_one_run() -> None:
    events = (
        event(1, b"\x01"),
        event(2, b"\xc4\x01x"),
        event(4, b""),
        event(5, b"a", topic="/b/"),
        event(6, b"b", topic="/b/", producer=b"you", uuid=b"none", timestamp=b"never"),
    )
    runs = list(cli.runs_of(events))
    assert [(run.first_seq, len(run), run.topic, run.producer) for run in runs] == [
        (1, 2, "/a/", "me"),
        (4, 1, "/a/", "me"),
        (5, 1, "/b/", "me"),
        (6, 1, "/b/", "you"),
    ]
    assert [bytes(payload) for run in runs for payload in run.payloads()] == [b"\x01", b"x", b"", b"a", b"b"]
    assert runs[3].event_ids is None
    assert runs[3].event_times is None


class FakeClient:
    """Records calls."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *words: self.asked.append((name, *words))


def test_publisher_packs_messages_as_msgpack_bytes() -> None:
    client: Any = FakeClient()
    one = cli.EventBusPublisher(client, "/a/")
    one.connect()
    one.ready()
    one.publish(b"hi")
    one.close()
    assert client.asked == [("connect",), ("ready",), ("publish", "/a/", b"\xc4\x02hi"), ("close",)]


def test_tailer_pauses_and_resumes() -> None:
    client: Any = FakeClient()
    follower = cli.EventBusTailer(client)
    follower.connect()
    follower.pause()
    follower.resume()
    follower.close()
    assert client.asked == [("connect",), ("pause",), ("resume",), ("close",)]
