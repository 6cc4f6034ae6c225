"""Connect ``fyrehose publish`` and ``fyrehose tail`` to an event bus.

An event bus has one stream, so the option ``--stream`` names a topic here: ``notes`` is the topic ``/notes/``, and
``fyrehose tail`` follows it with all topics below it.  Event data is msgpack: the publisher packs each message as one
msgpack byte string, and the tailer unpacks data that is exactly one byte string.
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
from fyrehose.protocols.eventbus.encoding import PROTOCOL, msgpack_bytes, unpack_msgpack_bytes
from fyrehose.protocols.eventbus.frames import Broadcast
from fyrehose.protocols.eventbus.labels import read_labels
from fyrehose.protocols.eventbus.plugin import require_zmq
from fyrehose.records import MAX_NAME, Run

if TYPE_CHECKING:
    from fyrehose.protocols.eventbus.client import EventBusClient

moduleProvides(IClients)

default_port = 5556

#: The topic to publish to without ``--stream``.
DEFAULT_TOPIC = "/"


def publisher(reactor: Any, host: str, port: int, stream: str | None, window: int) -> EventBusPublisher:
    """Return a publisher to the topic *stream*."""
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
    """Return a tailer of all topics, or of those in *stream*, separated by ``;``."""
    subtrees = () if stream is None else tuple(_topic(part) for part in stream.split(";"))

    def take_events(events: tuple[Broadcast, ...]) -> None:
        for run in runs_of(events):
            take(run)

    options = Options(subtrees=subtrees, after=after)
    return EventBusTailer(_client(reactor, host, port, options=options, on_events=take_events, on_lost=lost))


@implementer(IPublisher)
@attrs.frozen
class EventBusPublisher:
    """Publish each message as one msgpack byte string to one topic."""

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
    """Follow the topics that the client subscribes to."""

    client: EventBusClient

    def connect(self) -> Deferred[None]:
        return self.client.connect()

    def pause(self) -> None:
        self.client.pause()

    def resume(self) -> None:
        self.client.resume()

    def shortfall(self, complete: bool) -> str:
        return ""  # events come in order over one connection, so none before the last one is missing

    def close(self) -> Deferred[None]:
        return self.client.close()


def runs_of(events: tuple[Broadcast, ...]) -> Iterator[Run]:
    """Yield consecutive events with the same topic and producer as runs.

    The time of a run is the producer's timestamp, because the protocol does not send the time of acceptance.
    """
    numbered = ((event, at) for at, event in enumerate(events))
    # Consecutive sequences differ from their index by the same amount.
    for _, group in groupby(numbered, lambda item: (item[0].topic, item[0].producer, item[0].sequence - item[1])):
        row = [event for event, _ in group]
        labels = [read_labels(event.producer, event.timestamp, event.uuid) for event in row]
        ids = [label.event_id for label in labels]
        times = [label.event_time for label in labels]
        yield Run.of(
            PROTOCOL,
            [unpack_msgpack_bytes(bytes(event.data)) for event in row],
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
        raise ConfigError(f"the topic {topic!r} exceeds {MAX_NAME} bytes, slashes included; use a shorter --stream")
    return topic
