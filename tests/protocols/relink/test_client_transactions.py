"""A client's transactions."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from fyrehose.broker.streams import StreamRule, StreamRules
from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink.events import MessageOutcome, Uncommitted, UnknownOutcome
from fyrehose.protocols.relink.link import LinkLimits

from .test_client import outcome


def opened(client: Any, channel: int = 0) -> Any:
    transaction = client.transaction(channel)
    assert outcome(transaction.begin()) == ["done"]
    return transaction


def test_context_manager_commits(make_client: Any) -> None:
    client, wire = make_client(transactional=True)

    async def work() -> None:
        async with client.transaction() as transaction:
            await transaction.send(b"1")
            await transaction.send([b"2", b"3"])

    done = outcome(ensureDeferred(work()))
    assert done == []
    wire.pump()
    assert done == ["done"]
    assert len(wire.server.records()) == 2


def test_exception_rolls_back(make_client: Any) -> None:
    client, wire = make_client(transactional=True)

    async def work() -> None:
        async with client.transaction() as transaction:
            await transaction.send(b"1")
            raise KeyError("no")

    assert outcome(ensureDeferred(work())) == [KeyError]
    wire.pump()
    assert wire.server.records() == []
    assert client.link.sending[0].base == 1


def test_exception_after_the_commit_is_raised_unchanged(make_client: Any) -> None:
    client, wire = make_client(transactional=True)

    async def work() -> None:
        async with client.transaction() as transaction:
            await transaction.send(b"1")
            await transaction.commit()
            raise KeyError("later")

    done = outcome(ensureDeferred(work()))
    wire.pump()
    assert done == [KeyError]
    assert wire.server.payloads() == [b"1"]


@pytest.mark.parametrize("counts", [True, False])
def test_messages_and_their_decision_are_written_together(make_client: Any, counts: bool) -> None:
    client, wire = make_client(transactional=True)
    transaction = opened(client)
    transaction.send(b"1")
    wire.pump()
    (entry,) = wire.server.registry.entries.values()
    assert entry.link.receiving[0].undecided == 1
    if counts:
        done = outcome(transaction.commit())
        wire.pump()
        assert done == ["done"]
    else:
        transaction.rollback()
        wire.pump()
    assert entry.link.receiving[0].consumed == 0
    assert wire.server.payloads() == [b"1"] * counts


def test_one_transaction_per_channel_is_open(make_client: Any) -> None:
    client, wire = make_client(transactional=True)
    first = opened(client)
    second = client.transaction()
    waiting = outcome(second.begin())
    elsewhere = opened(client, 1)
    first.send(b"1")
    elsewhere.send(b"other")
    assert waiting == []
    committed = outcome(first.commit())
    assert waiting == ["done"]
    second.send(b"2")
    again = outcome(second.commit())
    wire.pump()
    assert (committed, again) == (["done"], ["done"])
    assert wire.server.payloads() == [b"1", b"2"]
    elsewhere.rollback()


def test_decision_may_begin_and_decide_the_next_transaction(make_client: Any) -> None:
    client, wire = make_client(transactional=True)
    holder = opened(client)

    async def work(payload: bytes, counts: bool) -> None:
        transaction = client.transaction()
        await transaction.begin()
        await transaction.send(payload)
        if counts:
            await transaction.commit()
        else:
            transaction.rollback()

    done = [outcome(ensureDeferred(work(*one))) for one in ((b"1", False), (b"2", True), (b"3", False), (b"4", True))]
    holder.send(b"0")
    holder.rollback()
    wire.pump()
    assert wire.server.payloads() == [b"2", b"4"]
    assert done == [["done"]] * 4


def test_message_waiting_for_room_is_not_sent_after_the_decision(make_client: Any) -> None:
    client, wire = make_client(transactional=True, limits=LinkLimits(window=2))
    before = opened(client)
    before.send(b"1")
    before.commit()
    transaction = opened(client)
    transaction.send(b"2")
    late = outcome(transaction.send(b"3"))
    assert late == []
    transaction.commit()
    wire.pump()
    assert late == [LocalProtocolError]
    assert wire.server.payloads() == [b"1", b"2"]


def test_waiting_transactions_fail_when_the_client_is_closed(make_client: Any) -> None:
    client, wire = make_client(transactional=True)
    opened(client)
    waiting = [outcome(client.transaction().begin()) for _ in range(3)]
    closed = outcome(client.close())
    wire.pump()
    assert waiting == [[LocalProtocolError]] * 3
    assert closed == ["done"]


def test_refused_transaction_does_not_affect_others(make_client: Any) -> None:
    client, wire = make_client(transactional=True)
    wire.server.broker.restrict("s", 5)
    outcomes = []
    for payloads in ([b"1"], [b"2", b"too large"], [b"3"], []):
        transaction = opened(client)
        for payload in payloads:
            transaction.send(payload)
        outcomes.append(outcome(transaction.commit()))
    wire.pump()
    assert outcomes == [["done"], [Uncommitted], ["done"], ["done"]]
    assert wire.server.payloads() == [b"1", b"3"]


def test_transaction_into_a_forbidden_new_stream_is_not_committed(make_client: Any, make_server: Any) -> None:
    server = make_server(rules=StreamRules((StreamRule(names=("s",), new_streams=False),)))
    client, wire = make_client(server=server, transactional=True)
    transaction = opened(client)
    transaction.send(b"1")
    refused = outcome(transaction.commit())
    wire.pump()
    assert refused == [Uncommitted]
    assert server.payloads() == []
    assert opened(client), "the link is still usable"


def test_transaction_survives_a_lost_connection(make_client: Any) -> None:
    client, wire = make_client(transactional=True)
    transaction = opened(client)
    transaction.send(b"1")
    wire.pump()
    wire.cut()
    transaction.send(b"2")
    done = outcome(transaction.commit())
    wire.reconnect()
    assert done == ["done"]
    assert wire.server.payloads() == [b"1", b"2"]


def test_transactions_fail_when_the_link_is_lost(make_client: Any) -> None:
    lost: list[Any] = []
    client, wire = make_client(transactional=True, on_lost=lost.extend)
    committed = opened(client)
    committed.send(b"1")
    wire.pump()
    done = outcome(committed.commit())
    open_ = opened(client)
    open_.send(b"2")
    wire.lose_link()
    wire.reconnect()
    assert done == [UnknownOutcome]
    assert [(one.parts, one.outcome) for one in lost] == [
        ((b"1",), MessageOutcome.UNKNOWN),
        ((b"2",), MessageOutcome.NOT_PROCESSED),
    ]
    assert outcome(open_.send(b"3")) == [UnknownOutcome]
    with pytest.raises(LocalProtocolError, match="not open"):
        open_.rollback()
    again = opened(client)
    again.send(b"4")
    assert outcome(again.commit()) == []
    wire.pump()
    assert wire.server.payloads() == [b"4"]


def test_transaction_is_limited_by_the_window(make_client: Any) -> None:
    client, wire = make_client(transactional=True, limits=LinkLimits(window=2))
    first = opened(client)
    for payload in (b"1", b"2"):
        assert outcome(first.send(payload)) == ["done"]
    with pytest.raises(LocalProtocolError, match="window"):
        first.send(b"3")
    first.commit()
    second = client.transaction()
    began = outcome(second.begin())
    assert began == []
    wire.pump()
    assert began == ["done"]
    second.rollback()


def test_close_rolls_back_open_transactions(make_client: Any) -> None:
    client, wire = make_client(transactional=True)
    transaction = opened(client)
    transaction.send(b"1")
    closed = outcome(client.close())
    wire.pump()
    wire.pump()
    assert closed == ["done"]
    assert wire.server.records() == []


def test_decided_transaction_cannot_be_used(make_client: Any) -> None:
    client, _ = make_client(transactional=True)
    transaction = opened(client)
    transaction.rollback()
    unopened = client.transaction()
    for wrong in (unopened.rollback, unopened.commit, lambda: unopened.send(b"x")):
        with pytest.raises(LocalProtocolError, match="not open"):
            wrong()
    for wrong in (transaction.rollback, transaction.commit, lambda: transaction.send(b"x")):
        with pytest.raises(LocalProtocolError, match="not open"):
            wrong()
