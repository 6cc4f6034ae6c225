"""Requests about named and shared subscriptions, and the parameters of requests that consume one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fyrehose.protocols.http.managing import (
    KINDS,
    LARGEST,
    LONGEST_DELAY,
    MOST_ITEMS,
    MOST_RESULTS,
    MOST_SETTLED,
    Creation,
    LeaseRequest,
    Manage,
    Result,
    Settling,
    answer_to,
    creation,
    lease_request,
    manage,
    paused,
    settling,
)
from fyrehose.protocols.http.session import HttpSession, Live, Read, RequestLimits
from fyrehose.records import LAST_SEQ
from fyrehose.subscriptions.pool import Item, WorkOutcome
from fyrehose.subscriptions.progress import SubscriptionOptions
from fyrehose.web import origins
from fyrehose.web.session import RequestRefused

from .test_leasing import World


def events(line: str, *headers: str, body: bytes | None = None) -> list[object]:
    session = HttpSession(None, limits=RequestLimits(message=10, body=100))
    lines = [f"{line} HTTP/1.1", "Host: x", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return session.receive_data("\r\n".join([*lines, "", ""]).encode() + (body or b""))


def managed(line: str, body: bytes | None = None) -> Manage:
    (event,) = events(line, body=body)
    assert isinstance(event, Manage)
    return event


def refused(line: str, *headers: str, body: bytes | None = None) -> tuple[int, str]:
    *_, event = events(line, *headers, body=body)
    assert isinstance(event, RequestRefused)
    return event.status, event.detail


@pytest.mark.parametrize(
    ("line", "action", "name", "stream"),
    [
        ("GET /subscriptions", "list", "", None),
        ("GET /streams/s/subscriptions", "list", "", "s"),
        ("GET /subscriptions/a", "show", "a", None),
        ("GET /streams/s%2F/subscriptions/a", "show", "a", "s/"),
        ("DELETE /subscriptions/a", "delete", "a", None),
    ],
)
def test_request_without_a_body_is_parsed_from_its_path(line: str, action: str, name: str, stream: str | None) -> None:
    event = managed(line)
    assert (event.action, event.name, event.stream) == (action, name, stream)


@pytest.mark.parametrize(
    ("path", "body", "seq", "generation"),
    [
        ("subscriptions/a/ack", {"seq": 5}, 5, None),
        ("streams/s/subscriptions/a/ack", {"seq": LAST_SEQ, "generation": 3}, LAST_SEQ, 3),
        ("subscriptions/a/rewind", {"seq": 0}, 0, None),
        ("subscriptions/a/rewind", {"seq": "start"}, 0, None),
        ("subscriptions/a/rewind", {"seq": "latest"}, None, None),
    ],
)
def test_body_with_a_position_is_parsed(path: str, body: object, seq: int | None, generation: int | None) -> None:
    event = managed(f"POST /{path}", json.dumps(body).encode())
    assert (event.action, event.seq, event.generation) == (path.rpartition("/")[2], seq, generation)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"5",
        b"{}",
        b"[" * 2_000,
        b'{"seq": -1}',
        b'{"seq": true}',
        b'{"seq": 1.5}',
        b'{"seq": "start"}',
        b'{"seq": 281474976710656}',
        b'{"seq": 1, "x": 2}',
        b'{"seq": 1, "generation": "x"}',
    ],
)
def test_invalid_positions_are_refused(body: bytes) -> None:
    status, detail = refused("POST /subscriptions/a/ack", body=body)
    assert status == 400
    assert "expected" in detail
    assert '{"seq": "latest"}, or {"since": "-1h"}' in refused("POST /subscriptions/a/rewind", body=b"5")[1]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("POST /subscriptions", 405),
        ("POST /subscriptions/a", 405),
        ("GET /subscriptions/a/ack", 405),
        ("DELETE /subscriptions/a/rewind", 405),
        ("GET /subscriptions/a/other", 404),
        ("GET /subscriptions/a/", 404),
        ("DELETE /subscriptions/a/S", 404),
        ("GET /subscriptions/a/ack/b", 404),
        ("GET /subscriptions?x=1", 400),
        ("POST /subscriptions/a/ack", 411),
    ],
)
def test_unknown_paths_and_wrong_methods_of_subscriptions_are_refused(line: str, status: int) -> None:
    assert refused(line)[0] == status


def test_body_above_the_limit_of_subscription_requests_is_refused() -> None:
    large = b" " * (LARGEST + 1)
    assert refused("POST /subscriptions/a/ack", body=large)[0] == 413
    chunk = b"%x\r\n%b\r\n" % (len(large), large)
    session = HttpSession(None, limits=RequestLimits(message=10, body=100))
    head = b"POST /subscriptions/a/ack HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    *_, event = session.receive_data(head + chunk)
    assert isinstance(event, RequestRefused)
    assert (event.status, event.detail) == (413, f"body exceeds the limit of {LARGEST} bytes")
    assert refused("DELETE /subscriptions/a", body=b"x")[0] == 413


def test_paths_about_streams_are_not_treated_as_subscriptions() -> None:
    (event,) = events("GET /streams/subscriptions")
    assert isinstance(event, Read)
    assert manage(event.request) is None


def test_a_read_may_consume_a_subscription() -> None:
    (event,) = events("GET /streams/s?subscription=a&limit=5&wait=30&takeover=1&from=7")
    assert isinstance(event, Read)
    assert (event.subscription, event.limit, event.wait, event.takeover, event.after) == ("a", 5, 30, True, 6)


def test_a_live_read_may_consume_a_subscription() -> None:
    (event,) = events("GET /streams/s/live?subscription=a&from=7", "Last-Event-ID: 9")
    assert isinstance(event, Live)
    assert (event.subscription, event.after, event.last_event, event.takeover) == ("a", 6, 9, False)


@pytest.mark.parametrize(
    "query", ["wait=5", "takeover=1", "subscription=a&wait=301", "subscription=a&takeover=2", "subscription=a&x=1"]
)
def test_invalid_parameters_are_refused(query: str) -> None:
    assert refused(f"GET /streams/s?{query}")[0] == 400


def test_a_page_of_a_listed_origin_may_send_every_method_of_a_subscription() -> None:
    """A browser sends no request whose method the answer to its preflight does not list."""
    lines = ("GET /subscriptions", "GET /subscriptions/a", "POST /subscriptions/a/ack")
    used = [managed(line, b'{"seq": 1}' if line[0] == "P" else None).methods for line in lines]
    assert {method for methods in used for method in methods} <= set(origins.METHODS)


def test_request_to_create_a_shared_subscription_has_defaults() -> None:
    assert creation({"stream": "s", "shared": True}) == Creation(SubscriptionOptions(stream="s"), 1)
    fields = {"match": "l.*", "shared": True, "lease": 9, "limit": 0, "dead": "d", "key": "topic", "from": 7}
    options = SubscriptionOptions(stream="l.*", pattern=True, lease=9, limit=0, dead="d", key="topic")
    assert creation(fields) == Creation(options, 7)


@pytest.mark.parametrize(
    ("name", "least", "most"), [("lease", 1, 3_600), ("limit", 0, 1_000), ("window", 1, 100_000), ("most", 1, 10_000)]
)
def test_number_of_a_new_subscription_is_within_its_bounds(name: str, least: int, most: int) -> None:
    for number in (least, most):
        assert creation({"stream": "s", "shared": True, name: number}).options == SubscriptionOptions(
            stream="s", **{name: number}
        )
    for wrong in (least - 1, most + 1, True, float(most), str(most), None):
        with pytest.raises(ValueError, match=f'expected a number from {least} to {most} for "{name}"'):
            creation({"stream": "s", "shared": True, name: wrong})


def test_a_request_for_records_has_defaults() -> None:
    assert lease_request({"consumer": "w"}) == LeaseRequest("w", None, 1, 0.0)
    fields = {"consumer": "w", "request": 3, "most": 9, "wait": 0.5}
    assert lease_request(fields) == LeaseRequest("w", 3, 9, 0.5)


def test_request_to_pause_has_true_or_false() -> None:
    assert paused({"paused": True}) is True
    assert paused({"paused": False}) is False


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("PUT /subscriptions/x", {"stream": "orders"}),
        ("PUT /subscriptions/x", {"shared": True}),
        ("PUT /subscriptions/x", {"stream": "a", "match": "a*", "shared": True}),
        ("PUT /subscriptions/x", {"stream": "a", "shared": True, "dead": "a"}),
        ("PUT /subscriptions/x", {"stream": "a", "shared": True, "leese": 3}),
        ("PUT /subscriptions/x", []),
        ("POST /subscriptions/work/lease", {}),
        ("POST /subscriptions/work/lease", {"consumer": ""}),
        ("POST /subscriptions/work/lease", {"consumer": "w", "most": 0}),
        ("POST /subscriptions/work/lease", {"consumer": "w", "wait": 301}),
        ("POST /subscriptions/work/settle", {"done": 5}),
        ("POST /subscriptions/work/settle", {"done": [5]}),
        ("POST /subscriptions/work/settle", {"done": [[5]]}),
        ("POST /subscriptions/work/settle", {"done": [[5, "1.x"]]}),
        ("POST /subscriptions/work/settle", {"settle": []}),
        ("POST /subscriptions/work/settle", {"reject": [[5, "1.1", {"why": 7}]]}),
        ("POST /subscriptions/work/settle", {"done": [[[9, 5], "1.1"]]}),
        ("POST /subscriptions/work/settle", {"done": [[[1, 20_000], "1.1"]]}),
        ("POST /subscriptions/work/settle", {"failed": [[5, "1.1", {"delay": -1}]]}),
        ("POST /subscriptions/work/settle", {"publish": [{"stream": "s", "payload": "x"}]}),
        ("POST /subscriptions/work/settle", {"done": [[5, "1.1"]], "publish": [{"stream": "s"}]}),
        (
            "POST /subscriptions/work/settle",
            {"done": [[5, "1.1"]], "publish": [{"stream": "s", "payload_base64": "?"}]},
        ),
        ("POST /subscriptions/work/pause", {"paused": 1}),
        ("POST /subscriptions/work/report", {"rates": [1, 2]}),
        ("POST /subscriptions/work/report", {"error": None}),
        ("POST /subscriptions/work/report", {"error": "x" * 2_048}),
    ],
)
def test_invalid_bodies_are_refused(line: str, body: Any) -> None:
    world = World()
    world.create()
    status, refusal = world.ask(line, body)
    assert status == 400, refusal
    assert re.search(r"expected|needs|use|at most", refusal["error"])


def test_a_request_to_settle_may_have_numbers_ranges_streams_and_options() -> None:
    fields = {
        "done": [[7, "3.1"], [[8, 9], "3.2"], ["logs.a", 4, "3.1"]],
        "failed": [[5, "3.1", {"delay": 60}]],
        "reject": [[6, "3.1", {"why": "no address"}]],
        "publish": [
            {"stream": "s", "payload": "\u00e9"},
            {"stream": "s", "payload_base64": "AAE=", "content_type": "x/y"},
        ],
        "consumer": "w",
    }
    done = [
        Item("done", 7, 7, (3, 1)),
        Item("done", 8, 9, (3, 2)),
        Item("done", 4, 4, (3, 1), "logs.a"),
    ]
    others = [Item("failed", 5, 5, (3, 1), delay=60.0), Item("reject", 6, 6, (3, 1), why="no address")]
    results = [Result("s", b"\xc3\xa9"), Result("s", b"\0\1", "x/y")]
    assert settling(fields) == Settling([*done, *others], results, "w")


def results(count: int) -> dict[str, Any]:
    return {"done": [[1, "1.1"]], "publish": [{"stream": "s", "payload": ""}] * count}


def items(*counts: int) -> dict[str, Any]:
    """Return a request with that many items of each kind, of one record each."""
    lists = [[[10_000 * kind + seq, "1.1"] for seq in range(1, count + 1)] for kind, count in enumerate(counts)]
    return dict(zip(KINDS, lists, strict=False))


def ranges(*sizes: int) -> dict[str, Any]:
    return {"done": [[[100_000 * at + 1, 100_000 * at + size], "1.1"] for at, size in enumerate(sizes)]}


@pytest.mark.parametrize(
    ("most", "one_more"),
    [
        (items(MOST_ITEMS), items(MOST_ITEMS + 1)),
        (items(1, 0, 2, MOST_ITEMS - 3), items(1, 0, 2, MOST_ITEMS - 2)),
        (ranges(MOST_SETTLED), ranges(MOST_SETTLED + 1)),
        (ranges(1, MOST_SETTLED - 4, 3), ranges(1, MOST_SETTLED - 4, 4)),
        (results(MOST_RESULTS), results(MOST_RESULTS + 1)),
        ({"failed": [[1, "1.1", {"delay": LONGEST_DELAY}]]}, {"failed": [[1, "1.1", {"delay": LONGEST_DELAY + 1}]]}),
        ({"done": [[LAST_SEQ, "1.1"]]}, {"done": [[LAST_SEQ + 1, "1.1"]]}),
        ({"done": [[1, f"1.{10**15 - 1}"]]}, {"done": [[1, f"1.{10**15}"]]}),
    ],
)
def test_request_may_reach_each_limit_and_not_exceed_it(most: dict[str, Any], one_more: dict[str, Any]) -> None:
    """The time that a request takes depends on its items, not on the records in their ranges."""
    settling(most)
    with pytest.raises(ValueError, match=r"at most|from 0 to|expected"):
        settling(one_more)


@pytest.mark.parametrize("wrong", [0, -1, 1.0, True, "1", None, [1], {}, LAST_SEQ + 1, float("nan")], ids=repr)
def test_item_has_whole_numbers_of_records_at_both_ends(wrong: object) -> None:
    for numbers in (wrong, [wrong, 5], [1, wrong], [1, 2, wrong]):
        with pytest.raises(ValueError, match="expected"):
            settling({"done": [[numbers, "1.1"]]})


def test_results_carry_the_name_of_their_worker() -> None:
    work = settling({"done": [[1, "1.1"]], "publish": [{"stream": "r", "payload": "x"}]})
    (run,) = work.runs("http", "w")
    assert (run.stream, run.source, run.producer, [bytes(each) for each in run.payloads()]) == (
        "r",
        "http",
        "w",
        [b"x"],
    )


def test_an_answer_has_the_settled_ranges_and_the_refused_records() -> None:
    work = settling({"done": [[[1, 4], "1.1"], [6, "1.1"]], "extend": [[9, "1.1"]]})
    refused = [(Item("done", 2, 3, (1, 1)), "final")]
    extended = [(Item("extend", 9, 9, (1, 1)), (2, 1))]
    outcome = WorkOutcome(settled={"s": [(1, 1), (4, 4), (6, 6)]}, refused=refused, extended=extended)
    assert json.loads(json.dumps(answer_to(outcome, work, False))) == {
        "refused": [{"seq": 2, "why": "final"}, {"seq": 3, "why": "final"}],
        "settled": [1, 4, 6],
        "extended": [{"seq": 9, "token": "2.1"}],
    }
    named = answer_to(WorkOutcome(settled={"s": [(1, 1)]}), settling({"done": [["s", 1, "1.1"]]}), True)
    assert named["settled"] == [{"stream": "s", "seq": 1}]
    refusal = WorkOutcome(refused=[(Item("done", 2, 3, (1, 1), "s"), "final")])
    assert answer_to(refusal, settling({"done": [["s", [1, 3], "1.1"]]}), True)["refused"] == [
        {"stream": "s", "seq": seq, "why": "final"} for seq in (2, 3)
    ]


def test_a_request_with_results_does_nothing_if_any_record_is_refused() -> None:
    work = settling({"done": [[1, "1.1"]], "publish": [{"stream": "r", "payload": "x"}]})
    answer = answer_to(WorkOutcome(refused=[(Item("done", 1, 1, (1, 1)), "final")]), work, False)
    assert answer.keys() == {"error", "refused"}
