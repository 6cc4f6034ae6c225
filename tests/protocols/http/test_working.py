"""Bodies of requests about shared subscriptions."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.broker.consumers.progress import ShareOptions
from fyrehose.protocols.http.working import (
    Creation,
    LeaseRequest,
    creation,
    lease_request,
    paused,
)

from .test_leasing import World


def test_a_creation_has_defaults() -> None:
    assert creation({"stream": "s", "shared": True}) == Creation(ShareOptions(stream="s"), 1)
    fields = {"match": "l.*", "shared": True, "lease": 9, "limit": 0, "dead": "d", "key": "topic", "from": 7}
    options = ShareOptions(stream="l.*", pattern=True, lease=9, limit=0, dead="d", key="topic")
    assert creation(fields) == Creation(options, 7)


def test_a_request_for_records_has_defaults() -> None:
    assert lease_request({"consumer": "w"}) == LeaseRequest("w", None, 1, 0.0)
    fields = {"consumer": "w", "request": 3, "most": 9, "wait": 0.5}
    assert lease_request(fields) == LeaseRequest("w", 3, 9, 0.5)


def test_a_pause_is_true_or_false() -> None:
    assert paused({"paused": True}) is True
    assert paused({"paused": False}) is False


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("PUT /subscriptions/x", {"stream": "orders"}),
        ("PUT /subscriptions/x", {"shared": True}),
        ("PUT /subscriptions/x", {"stream": "a", "match": "a*", "shared": True}),
        ("PUT /subscriptions/x", {"stream": "a", "shared": True, "dead": "a"}),
        ("PUT /subscriptions/x", {"stream": "a", "shared": True, "lease": 0}),
        ("PUT /subscriptions/x", {"stream": "a", "shared": True, "limit": True}),
        ("PUT /subscriptions/x", {"stream": "a", "shared": True, "leese": 3}),
        ("PUT /subscriptions/x", []),
        ("POST /subscriptions/work/lease", {}),
        ("POST /subscriptions/work/lease", {"consumer": ""}),
        ("POST /subscriptions/work/lease", {"consumer": "w", "most": 0}),
        ("POST /subscriptions/work/lease", {"consumer": "w", "wait": 301}),
        ("POST /subscriptions/work/settle", {"done": 5}),
        ("POST /subscriptions/work/settle", {"done": [5]}),
        ("POST /subscriptions/work/settle", {"done": [[5]]}),
        ("POST /subscriptions/work/settle", {"done": [[5, "x"]]}),
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
    ],
)
def test_invalid_bodies_are_refused(line: str, body: Any) -> None:
    world = World()
    world.create()
    status, refusal = world.ask(line, body)
    assert status == 400, refusal
    assert (
        "expected" in refusal["error"] or "use" in refusal["error"] or "needs" in refusal["error"] or refusal["error"]
    )
