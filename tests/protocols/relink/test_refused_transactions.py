"""A transaction that is too large is refused honestly: the log and the client's error name the limit."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.admin.sampling import Sampler, StreamRates
from fyrehose.admin.status import Status
from fyrehose.protocols.relink.events import Uncommitted
from fyrehose.protocols.relink.frames import Op
from tests.doubles.steps import finished


@pytest.mark.parametrize(
    ("options", "payloads", "limit"),
    [
        ({"backlog": 3}, [b"x"] * 7, "more than 6 messages of the channel were undecided"),
        (
            {"backlog_size": 1 << 10, "max_payload": "1K"},
            [b"x" * 900] * 4,
            "more than 2.0 KiB of the link",
        ),
        ({"link_memory": 4 << 10}, [b"x" * 900] * 4, "the links used more than half of the option server.memory"),
    ],
    ids=["count", "size", "memory"],
)
def test_log_names_the_limit_that_a_transaction_exceeds(
    make_server: Any, log_lines: list[str], options: dict[str, Any], payloads: list[bytes], limit: str
) -> None:
    server = make_server(**options)
    peer = server.linked(connector_transactions=True)
    for payload in payloads:
        peer.publish(payload)
    peer.link.decide(0, Op.COMMIT)
    peer.talk()
    assert server.payloads() == []
    (line,) = [line for line in log_lines if "transactions-too-large" in line]
    assert f"a transaction of {len(payloads)} messages on channel 0 is refused" in line
    assert limit in line


def test_page_counts_refused_transactions(make_server: Any) -> None:
    server = make_server(backlog=3)
    peer = server.linked(connector_transactions=True)
    for _ in range(7):
        peer.link.send((0,), (b"x",))
    peer.link.decide(0, Op.COMMIT)
    peer.talk()
    sampler = Sampler(server.clock, server.broker, lambda: 0.0)
    status = Status(server.broker, sampler, 0.0, StreamRates(server.clock.seconds, server.broker))
    assert {"protocol": "relink", "cause": "transactions-too-large", "count": 1} in finished(status.complete())[
        "refusals"
    ]


def test_error_of_the_client_names_the_limits(make_client: Any, make_server: Any) -> None:
    client, wire = make_client(server=make_server(backlog=3), transactional=True)
    transaction = client.transaction().begin().result
    for _ in range(7):
        transaction.send(b"x")
    failures: list[Any] = []
    transaction.commit().addErrback(failures.append)
    wire.pump()
    assert failures[0].check(Uncommitted)
    message = failures[0].getErrorMessage()
    assert "7 messages" in message
    assert "2048 undecided messages on a channel, and 32.0 MiB on a link" in message
    assert "32.0 MiB on a link" in message
