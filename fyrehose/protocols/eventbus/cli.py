"""The event bus for ``fyrehose publish`` and ``fyrehose tail``.

A bus has one stream, so what the commands call a stream is a topic here: ``notes`` is the topic ``/notes/``, and to
follow it is to follow everything below it, too.  The bus carries msgpack, so each message is packed as bytes, and
unpacked again where it is exactly that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from struct import pack
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred
from zope.interface import implementer, moduleProvides

from fyrehose.errors import ConfigError
from fyrehose.interfaces import IClients, IPublisher, ITailer
from fyrehose.protocols.eventbus.client_session import Options
from fyrehose.protocols.eventbus.encoding import PROTOCOL, msgpack_bytes, unpacked
from fyrehose.protocols.eventbus.frames import Broadcast
from fyrehose.protocols.eventbus.labels import read_labels
from fyrehose.protocols.eventbus.plugin import require_zmq
from fyrehose.records import MAX_NAME, Run

if TYPE_CHECKING:
    from fyrehose.protocols.eventbus.client import EventBusClient

moduleProvides(IClients)

default_port = 5556

#: What is published to when nobody says.
DEFAULT_TOPIC = "/"


def publisher(reactor: Any, host: str, port: int, stream: str | None, window: int) -> EventBusPublisher:
    """A client that publishes to one topic, and knows what has come back."""
    topic = DEFAULT_TOPIC if stream is None else _topic(stream)
    client = _client(reactor, host, port, options=Options(subscribe=False, window=window), topics=(topic,))
    return EventBusPublisher(client, topic)


def tailer(
    reactor: Any,
    host: str,
    port: int,
    stream: str | None,
    after: int | None,
    take: Callable[[Run], object],
    lost: Callable[[int, int], object],
) -> EventBusTailer:
    """A client that follows some topics (separated by ``;``), or all."""
    subtrees = () if stream is None else tuple(_topic(part) for part in stream.split(";"))

    def take_events(events: tuple[Broadcast, ...]) -> None:
        for run in runs_of(events):
            take(run)

    options = Options(subtrees=subtrees, after=after)
    return EventBusTailer(_client(reactor, host, port, options=options, on_events=take_events, on_lost=lost))


@implementer(IPublisher)
@attrs.frozen
class EventBusPublisher:
    """Publishes messages as msgpack's bytes to one topic."""

    client: EventBusClient
    topic: str

    def connect(self) -> Deferred[None]:
        return self.client.connect()

    def publish(self, payload: bytes) -> Deferred[int]:
        return self.client.publish(self.topic, msgpack_bytes(payload))

    def ready(self) -> Deferred[None]:
        return self.client.ready()

    def close(self) -> Deferred[None]:
        return self.client.close()


@implementer(ITailer)
@attrs.frozen
class EventBusTailer:
    """Follows topics."""

    client: EventBusClient

    def connect(self) -> Deferred[None]:
        return self.client.connect()

    def pause(self) -> None:
        self.client.pause()

    def resume(self) -> None:
        self.client.resume()

    def shortfall(self, complete: bool) -> str:
        return ""  # records come in order over one connection

    def close(self) -> Deferred[None]:
        return self.client.close()


def runs_of(events: tuple[Broadcast, ...]) -> Iterator[Run]:
    """Events as runs; their time is their producer's, because the bus does not say when it accepted them."""
    numbered = ((event, at) for at, event in enumerate(events))
    # Consecutive numbers keep their distance from their place in the row.
    for _, group in groupby(numbered, lambda item: (item[0].topic, item[0].producer, item[0].sequence - item[1])):
        row = [event for event, _ in group]
        labels = [read_labels(event.producer, event.timestamp, event.uuid) for event in row]
        ids = [label.event_id for label in labels]
        times = [label.event_time for label in labels]
        yield Run.of(
            PROTOCOL,
            [unpacked(bytes(event.data)) for event in row],
            source=PROTOCOL,
            producer=labels[0].producer,
            topic=row[0].topic,
            event_ids=None if None in ids else b"".join(each for each in ids if each is not None),
            event_times=None if None in times else pack(f"<{len(times)}q", *times),
            first_seq=row[0].sequence,
            time=times[0] or 0,
        )


def _client(*args: Any, **options: Any) -> EventBusClient:
    require_zmq()
    from fyrehose.protocols.eventbus.client import EventBusClient

    return EventBusClient(*args, **options)


def _topic(stream: str) -> str:
    topic = stream if stream.startswith("/") else f"/{stream}"
    topic = topic if topic.endswith("/") else f"{topic}/"
    if len(topic.encode()) > MAX_NAME:
        raise ConfigError(f"a topic has {MAX_NAME} bytes at the most, its slashes included")
    return topic
