"""The records that a worker has by one link, without I/O."""

from __future__ import annotations

import json

import pytest

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.relink.working import HEAD, HeldRecord, HeldRecords, notices_of, read_request
from fyrehose.subscriptions.settling import Result, Settling
from fyrehose.subscriptions.work import Item


def held(seq: int, number: int = 1, stream: str = "") -> HeldRecord:
    return HeldRecord(stream, seq, (3, number))


def holding(*records: HeldRecord, most: int = 10) -> HeldRecords:
    found = HeldRecords(most)
    for message, record in enumerate(records):
        found.sent(message, record)
    return found


def test_head_of_a_record_has_number_token_failures_lease_and_stream() -> None:
    head = HeldRecord("logs.a", 7, (3, 2), 1).head(30)
    golden = "0700000000000000 0300000000000000 02000000 01000000 1e000000 6c6f67732e61"
    assert head == bytes.fromhex(golden)
    assert HEAD.size == len(HeldRecord("", 7, (3, 2)).head(30))


def test_consumed_settles_consecutive_records_with_one_action() -> None:
    records = holding(held(1), held(2), held(4), held(5, 2), held(6, 2, "b"))
    assert records.room == 5
    assert records.consumed(0, 4) == [
        Item("done", 1, 2, (3, 1)),
        Item("done", 4, 4, (3, 1)),
        Item("done", 5, 5, (3, 2)),
        Item("done", 6, 6, (3, 2), "b"),
    ]
    assert (records.room, records.released()) == (10, [])


@pytest.mark.parametrize("kind", ["done", "failed", "untried", "reject"])
def test_consumed_does_not_settle_records_that_a_request_has_ended(kind: str) -> None:
    records = holding(held(1), held(2), held(3))
    records.taken(Settling([Item(kind, 2, 2, (3, 1))], []))
    assert records.room == 8
    assert records.consumed(0, 2) == [Item("done", 1, 1, (3, 1)), Item("done", 3, 3, (3, 1))]


def test_an_extended_record_and_one_of_another_token_are_still_held() -> None:
    records = holding(held(1), held(2))
    records.taken(Settling([Item("extend", 1, 1, (3, 1)), Item("failed", 2, 2, (2, 1))], []))
    assert records.consumed(0, 1) == [Item("done", 1, 2, (3, 1))]


def test_old_message_of_a_record_leased_again_does_not_settle_it() -> None:
    records = holding(held(1), held(1, 2))
    assert records.consumed(0, 0) == []
    assert records.consumed(1, 1) == [Item("done", 1, 1, (3, 2))]


def test_records_still_leased_at_the_end_are_returned_as_not_tried() -> None:
    records = holding(held(1), held(2))
    records.consumed(0, 0)
    assert records.released() == [Item("untried", 2, 2, (3, 1), delay=0.0)]
    assert records.room == 10


def test_request_has_the_same_json_as_over_http() -> None:
    body = b'{"done": [[7, "3.1"]], "publish": [{"stream": "r", "payload": "x"}]}'
    wanted = Settling([Item("done", 7, 7, (3, 1))], [Result("r", b"x")])
    assert read_request((body,)) == read_request((body[:9], body[9:])) == wanted


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"done": 1}', b'{"lease": []}', b"[" * 100_000])
def test_messages_that_are_no_request_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="request-invalid"):
        read_request((body,))


def test_a_notice_names_the_message_and_what_was_refused() -> None:
    refused = [{"seq": 7, "why": "final"}]
    answer = {"refused": refused, "settled": [], "extended": []}
    assert [json.loads(each) for each in notices_of((1, 4), answer)] == [
        {"channel": 1, "message": 4, "refused": refused}
    ]
    assert [json.loads(each) for each in notices_of(None, answer)] == [{"refused": refused}]
    failed = {"error": "the disk is full", "retry": True}
    assert [json.loads(each) for each in notices_of(None, failed)] == [failed]
    assert list(notices_of((1, 4), {"refused": [], "settled": [7], "extended": []})) == []
