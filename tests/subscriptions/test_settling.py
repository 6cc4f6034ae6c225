"""What workers say of their records, as JSON, and the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fyrehose.subscriptions.pool import Item, WorkOutcome
from fyrehose.subscriptions.settling import Result, Settling, answer_to, settling


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


@pytest.mark.parametrize(
    "fields",
    [
        {"done": 5},
        {"done": [[5, "x"]]},
        {"done": [[5, "1.x"]]},
        {"done": [[[9, 5], "1.1"]]},
        {"done": [[[1, 20_000], "1.1"]]},
        {"failed": [[5, "1.1", {"delay": -1}]]},
        {"reject": [[5, "1.1", {"why": 7}]]},
        {"publish": [{"stream": "s", "payload": "x"}]},
        {"settle": []},
    ],
)
def test_invalid_requests_say_what_is_expected(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|needs|use|at most"):
        settling(fields)


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
    assert json.loads(json.dumps(answer_to(work, False, outcome))) == {
        "refused": [{"seq": 2, "why": "final"}, {"seq": 3, "why": "final"}],
        "settled": [1, 4, 6],
        "extended": [{"seq": 9, "token": "2.1"}],
    }
    named = answer_to(settling({"done": [["s", 1, "1.1"]]}), True, WorkOutcome(settled={"s": [(1, 1)]}))
    assert named["settled"] == [{"stream": "s", "seq": 1}]


def test_a_request_with_results_does_nothing_if_any_record_is_refused() -> None:
    work = settling({"done": [[1, "1.1"]], "publish": [{"stream": "r", "payload": "x"}]})
    answer = answer_to(work, False, WorkOutcome(refused=[(Item("done", 1, 1, (1, 1)), "final")]))
    assert answer.keys() == {"error", "refused"}
