"""The rights of a peer over named subscriptions."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.consuming import NoSubscriptions
from fyrehose.broker.guard import Guard
from fyrehose.broker.policy import Policy, parse
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Forbidden
from fyrehose.identity import Identity
from fyrehose.interfaces import FileLag
from fyrehose.subscriptions.progress import SubscriptionOptions
from fyrehose.testing import MemoryJournal

POLICY = parse(
    {
        "allow": [
            {"network": "10.0.0.1", "subscribe": "*", "consume": "logs.*"},
            {"network": "10.0.0.2", "subscribe": "*"},
            {"network": "10.0.0.3", "consume": "*"},
        ]
    }
)


def make() -> Broker:
    broker = Broker(Clock(), MemoryJournal(), Sequencer(), guard=Guard(POLICY))
    broker.open()
    broker.journal.keeper.kept.append(FileLag("archive", 5, 6))
    for stream in ("logs.a", "audit"):
        broker.named.open(f"of-{stream}", stream, 0)
    return broker


def named_of(broker: Broker, host: str) -> Any:
    return broker.identified(Identity(host=host)).named


def refused(deferred: Any) -> bool:
    failures: list[Any] = []
    deferred.addErrback(failures.append)
    return bool(failures and failures[0].check(Forbidden))


def test_consuming_needs_the_right_to_consume() -> None:
    broker = make()
    consumer, reader = named_of(broker, "10.0.0.1"), named_of(broker, "10.0.0.2")
    assert not refused(consumer.open("mine", "logs.b", 0))
    assert refused(consumer.open("mine", "audit", 0))
    assert refused(reader.open("mine", "logs.b", 0))
    with pytest.raises(Forbidden, match=r"may not consume stream .logs\.a"):
        reader.find("of-logs.a")
    with pytest.raises(Forbidden, match="may not consume subscription 'of-audit'") as hidden:
        named_of(broker, "10.0.0.4").find("of-audit")
    assert "stream" not in str(hidden.value), "which this peer must not know"
    named = broker.named.find("of-audit")
    for call in (consumer.acknowledge(named, 0), consumer.rewind(named, 0), consumer.delete(named)):
        assert refused(call)
    with pytest.raises(Forbidden):
        consumer.attach(named, None)


def test_consuming_needs_the_right_to_subscribe_to_the_stream() -> None:
    assert refused(named_of(make(), "10.0.0.3").open("mine", "audit", 0))


def test_a_peer_sees_the_subscriptions_that_it_may_consume() -> None:
    broker = make()
    assert [each["name"] for each in named_of(broker, "10.0.0.1").listed()] == ["of-logs.a"]
    assert [each["name"] for each in named_of(broker, "10.0.0.2").listed()] == []
    every = list(named_of(broker, "10.0.0.3").listed())
    assert [(each["name"], each["kind"]) for each in every] == [
        ("of-logs.a", "stream"),
        ("of-audit", "stream"),
        ("archive", "files"),
    ]


def test_subscriptions_to_files_are_removed_by_peers_that_may_consume_everything() -> None:
    broker = make()
    with pytest.raises(Forbidden):
        named_of(broker, "10.0.0.1").forget("archive")
    assert named_of(broker, "10.0.0.3").forget("archive")
    assert not named_of(broker, "10.0.0.3").forget("archive")


def test_subscriptions_count_for_the_network_of_their_creator() -> None:
    broker = make()
    opened = named_of(broker, "10.0.0.1").open("mine", "logs.b", 0)
    assert opened.result.options.creator.network == "10.0.0.1"


@pytest.mark.parametrize("lost", [("subscribe",), ("consume",), ("subscribe", "consume"), ()])
def test_a_request_that_waits_for_records_ends_with_any_of_its_rights(lost: tuple[str, ...]) -> None:
    """The rights may come from several rules, each of which another policy may lack."""
    broker = Broker(Clock(), MemoryJournal(), Sequencer(), guard=Guard(policy()))
    broker.open()
    named = named_of(broker, "10.0.0.1")
    named.create("work", SubscriptionOptions(stream="s"), 1)
    waiting = named.lease(named.shared("work"), "w", None, 1, 30.0)
    broker.guard.change(policy(*lost))
    broker.clock.pump([0] * 10)
    assert refused(waiting) == bool(lost), f"without the right to {lost} it {'waits' if lost else 'has ended'}"
    assert len(broker.waiting) == (not lost), "what has ended waits no longer"


def policy(*lost: str) -> Policy:
    """Return a policy of a rule for each right but the *lost* ones."""
    left = [right for right in ("subscribe", "consume", "publish") if right not in lost]
    return parse({"allow": [{"network": "10.0.0.1", right: "*"} for right in left]})


def test_a_server_without_messages_has_no_subscriptions() -> None:
    named = NoSubscriptions()
    assert refused(named.open("n", "s", 0))
    assert refused(named.create("n", SubscriptionOptions(stream="s"), 1))
    assert list(named.listed()) == []
    for find in (named.find, named.exclusive, named.shared, named.forget):
        with pytest.raises(Forbidden):
            find("n")
