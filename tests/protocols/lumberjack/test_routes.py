"""Routes of a listener: events go to the streams of their content, from the session to the broker."""

from __future__ import annotations

import json
from struct import pack
from typing import Any

import attrs
import pytest

from fyrehose.broker.streams import StreamRule, StreamRules
from fyrehose.protocols.lumberjack.frames import MAX_EVENT, Data, Json, Window
from fyrehose.routes import routes
from tests.doubles.compressed import compressed_frame


def event(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def streams(made: Any) -> dict[str, list[bytes]]:
    made.settle()
    return {name: [bytes(record.payload) for record in made.records_of(name)] for name in made.journal.ends()}


ROUTES = {"routes": routes("logs.{fields.service}")}


def test_events_go_to_the_streams_of_their_fields_and_are_acknowledged_together(server: Any) -> None:
    made = server(**ROUTES)
    sent = [event(fields={"service": name}, n=n) for n, name in enumerate(["web", "web", "db", "web"])]
    sent += [event(n=4), event(fields={"service": 7}), event(fields={"service": ""}), b"no JSON"]
    peer = made.connect()
    frames = b"".join(Json(sequence=n, payload=each).serialize() for n, each in enumerate(sent, 1))
    peer.send(Window(number=len(sent)).serialize() + compressed_frame(frames))
    assert streams(made) == {"logs.web": [*sent[:2], sent[3]], "logs.db": [sent[2]], "lumberjack": sent[4:]}
    assert peer.acks == [(2, len(sent))]


def test_routes_use_strings_of_pairs_and_strings_with_escapes(server: Any) -> None:
    made = server(routes=routes("{service}"))
    peer = made.connect()
    pairs = Data(sequence=1, pairs=((b"service", b'a"b'), (b"line", b"x")))
    raw = Data(sequence=2, pairs=((b"service", b"web"), (b"line", b"\xff")))
    escaped = Json(sequence=3, payload=b'{"service":"\\u00fc"}')
    peer.send(Window(number=3).serialize() + b"".join(each.serialize() for each in (pairs, raw, escaped)))
    assert list(streams(made)) == ['a"b', "lumberjack", "ü"]


@pytest.mark.parametrize("filler", ["y", "\n", "ü"], ids=["plain", "escapes", "beyond ASCII"])
def test_field_is_found_however_late_it_is(server: Any, filler: str) -> None:
    made = server(**ROUTES)
    peer = made.connect()
    late = event(x=filler * 100_000, fields={"service": "web"})
    peer.send(Window(number=1).serialize() + Json(sequence=1, payload=late).serialize())
    assert (list(streams(made)), made.count("unrouted")) == (["logs.web"], 0)


@pytest.mark.parametrize("size", [1, MAX_EVENT], ids=["one record", "parts"])
def test_routes_of_a_reload_choose_the_stream_of_the_next_event_on_open_connections(server: Any, size: int) -> None:
    made = server(routes=routes("0.{service}"))
    peer, sent = made.connect(), event(service="web", x="y" * size)
    frames = Window(number=1).serialize() + Json(sequence=1, payload=sent).serialize()
    for number in range(1, 4):
        peer.send(frames[:-1])
        made.settle()
        made.factory.configure(attrs.evolve(made.factory.settings, routes=routes(f"{number}.{{service}}")))
        peer.send(frames[-1:])
        made.settle()
    found = {name: b"".join(parts) == sent for name, parts in streams(made).items()}
    first = 1 if size == 1 else 0  # the stream of parts is that of the first one
    assert found == {f"{number}.web": True for number in range(first, first + 3)}


def test_events_of_a_listener_without_routes_are_not_counted_as_unrouted(server: Any) -> None:
    made = server()
    made.connect().send(Window(number=1).serialize() + b"2J" + pack(">II", 1, 2) + b"{}")
    assert (list(streams(made)), made.count("unrouted")) == (["lumberjack"], 0)


def test_order_within_a_stream_is_kept_however_topics_and_services_mix(server: Any) -> None:
    made = server(routes=routes("{a}, {b}"))
    fields = [{"a": "s"}, {"b": "s"}, {"a": "t"}, {"a": "s", "@metadata": {"beat": "x"}}, {}, {"b": "s"}, {"a": "s"}]
    sent = [event(n=n, **each) for n, each in enumerate(fields)]
    frames = b"".join(Json(sequence=n, payload=each).serialize() for n, each in enumerate(sent, 7))
    made.connect().send(Window(number=len(sent)).serialize() + frames)
    assert streams(made) == {"s": [sent[n] for n in (0, 1, 3, 5, 6)], "t": [sent[2]], "lumberjack": [sent[4]]}
    assert [record.producer_seq for record in made.records_of("s")] == [7, 8, 10, 12, 13]


def test_alternating_events_of_two_services_become_one_run_each(server: Any) -> None:
    made = server(**ROUTES)
    sent = [event(fields={"service": "web" if n % 2 else "db"}) for n in range(100)]
    frames = b"".join(Json(sequence=n, payload=each).serialize() for n, each in enumerate(sent, 1))
    made.connect().send(Window(number=len(sent)).serialize() + frames)
    made.settle()
    assert [len(made.journal.read(name, 1, 1 << 20)) for name in ("logs.web", "logs.db")] == [1, 1]


def test_only_the_event_for_a_forbidden_new_stream_becomes_a_dead_letter(server: Any) -> None:
    rules = StreamRules((StreamRule(names=("logs.unwanted",), new_streams=False),))
    made = server(rules=rules, **ROUTES)
    good, bad = event(fields={"service": "web"}), event(fields={"service": "unwanted"})
    peer = made.connect()
    for first in (good, bad):
        frames = b"".join(Json(sequence=n, payload=each).serialize() for n, each in enumerate((first, good), 1))
        peer.send(Window(number=2).serialize() + frames)
        made.settle()
    assert (streams(made), peer.acks) == ({"logs.web": [good] * 3, "dead.lumberjack": [bad]}, [(2, 2)] * 2)
