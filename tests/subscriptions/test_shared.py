"""The rights of a peer over shared subscriptions."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.guard import Guard
from fyrehose.broker.policy import parse
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Forbidden, InvalidPosition, SubscriptionConflict
from fyrehose.identity import Identity
from fyrehose.records import Run
from fyrehose.subscriptions.pool import Item
from fyrehose.subscriptions.progress import SubscriptionOptions
from fyrehose.testing import MemoryJournal

POLICY = parse(
    {
        "allow": [
            {"network": "10.0.0.1", "subscribe": "*", "consume": "logs.*", "publish": "out"},
            {"network": "10.0.0.2", "subscribe": "*"},
            {"network": "10.0.0.3", "consume": "*"},
        ]
    }
)


def make() -> Broker:
    broker = Broker(Clock(), MemoryJournal(), Sequencer(), guard=Guard(POLICY))
    broker.open()
    for stream in ("logs.a", "audit"):
        broker.publish([Run.of(stream, [b"x"], source="test")])
    broker.named.create("work", SubscriptionOptions(stream="logs.a"), 1)
    return broker


def sharing_of(broker: Broker, host: str) -> Any:
    return broker.identified(Identity(host=host)).named


def failed(deferred: Any, error: type[Exception]) -> bool:
    found: list[Any] = []
    deferred.addErrback(found.append)
    return bool(found and isinstance(found[0].value, error))


def test_creating_needs_the_rights_to_subscribe_consume_and_publish_dead_letters() -> None:
    broker = make()
    for host, options in (
        ("10.0.0.1", SubscriptionOptions(stream="audit")),
        ("10.0.0.2", SubscriptionOptions(stream="logs.a")),
        ("10.0.0.3", SubscriptionOptions(stream="logs.a")),
        ("10.0.0.1", SubscriptionOptions(stream="logs.a", dead="dead")),
    ):
        assert failed(sharing_of(broker, host).create("x", options, 1), Forbidden)
    created = sharing_of(broker, "10.0.0.1").create("x", SubscriptionOptions(stream="logs.a", dead="out"), 1)
    assert created.result.options.creator.network == "10.0.0.1"


def test_leasing_needs_the_right_to_subscribe_too() -> None:
    broker = make()
    shared = sharing_of(broker, "10.0.0.3").find("work")
    with pytest.raises(Forbidden):
        sharing_of(broker, "10.0.0.3").lease(shared, "w", None, 1, 0)
    assert len(sharing_of(broker, "10.0.0.1").lease(shared, "w", None, 1, 0).result) == 1


def test_results_need_the_right_to_publish() -> None:
    broker = make()
    sharing = sharing_of(broker, "10.0.0.1")
    shared = sharing.find("work")
    (leased,) = (part.lease for part in sharing.lease(shared, "w", None, 1, 0).result)
    item = Item("done", leased.first, leased.last, leased.token)
    assert failed(sharing.act(shared, [item], "w", [Run.of("audit", [b"x"], source="test")]), Forbidden)
    assert broker.bounds("audit") == (1, 1)
    assert sharing.act(shared, [item], "w", [Run.of("out", [b"x"], source="test")]).result.refused == []
    assert broker.bounds("out") == (1, 1)


def test_position_beyond_the_end_of_the_stream_is_refused() -> None:
    sharing = make().named
    assert failed(sharing.rewind(sharing.find("work"), 7), InvalidPosition)
    assert failed(sharing.act(sharing.find("work"), [Item("done", 1, 1, (1, 1), "other")], "w"), InvalidPosition)


def test_a_stream_of_dead_letters_is_never_one_of_the_servers_own() -> None:
    for dead in (".subscriptions", ".published"):
        created = make().named.create("x", SubscriptionOptions(stream="logs.a", dead=dead), 1)
        assert failed(created, SubscriptionConflict)
