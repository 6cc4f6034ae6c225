"""A client's transactions."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from fyrehose.broker.streams import StreamRule, StreamRules
from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink.events import Uncommitted
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
