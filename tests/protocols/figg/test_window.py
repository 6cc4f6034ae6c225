"""The sliding window: messages are sent, resent and acknowledged in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.errors import Closed, LocalProtocolError
from fyrehose.protocols.figg.window import PublishWindow
from fyrehose.records import Run


def run(*payloads: bytes) -> Run:
    return Run.of("t", payloads, source="figg")


def sent(window: PublishWindow) -> list[tuple[int, int]]:
    return [(first, len(part)) for first, part in window.to_send()]


def test_messages_wait_while_the_window_is_full() -> None:
    window = PublishWindow(max_messages=2, max_bytes=1000)
    first, second, third = window.add(run(b"a")), window.add(run(b"b")), window.add(run(b"c"))
    assert sent(window) == [(1, 1), (2, 1)]
    window.acknowledged(1)
    assert first.called
    assert not second.called
    assert sent(window) == [(3, 1)]
    window.acknowledged(3)
    assert second.called
    assert third.called
    assert window.empty


def test_large_publish_slides_through_the_window() -> None:
    window = PublishWindow(max_messages=2, max_bytes=1000)
    done = window.add(run(b"a", b"bb", b"ccc", b"dddd", b"eeeee"))
    assert sent(window) == [(1, 2)]
    window.acknowledged(1)
    ((first, rest),) = window.to_resend()
    assert (first, list(map(bytes, rest.payloads()))) == (2, [b"bb"])
    assert sent(window) == [(3, 1)]
    window.acknowledged(3)
    rest = list(window.to_send())
    assert rest[0][0] == 4
    assert [bytes(p) for _, part in rest for p in part.payloads()] == [b"dddd", b"eeeee"]
    assert not done.called
    window.acknowledged(5)
    assert done.called
    assert window.empty
    assert window._held == 0


def test_old_ack_is_ignored() -> None:
    window = PublishWindow(max_messages=5, max_bytes=1000)
    window.add(run(b"a"))
    sent(window)
    window.acknowledged(1)
    window.acknowledged(0)
    window.acknowledged(1)
    assert window.empty


def test_room_and_empty_deferreds_fire_on_acknowledgement() -> None:
    window = PublishWindow(max_messages=1, max_bytes=1000)
    assert window.when_room().called
    window.add(run(b"a"))
    sent(window)
    ready, flushed = window.when_room(), window.when_empty()
    assert not ready.called
    window.acknowledged(1)
    assert ready.called
    assert flushed.called


def test_add_is_refused_beyond_max_bytes() -> None:
    window = PublishWindow(max_messages=1, max_bytes=100)
    window.add(run(b"x" * 200))
    with pytest.raises(LocalProtocolError, match=r"wait for ready\(\)"):
        window.add(run(b"y"))


def test_empty_publish_fires_immediately() -> None:
    window = PublishWindow(max_messages=1, max_bytes=100)
    assert window.add(run()).called
    assert window.empty


def test_fail_fails_every_pending_deferred() -> None:
    window = PublishWindow(max_messages=1, max_bytes=1000)
    failures: list[Any] = []
    for deferred in (window.add(run(b"a")), window.add(run(b"b"))):
        deferred.addErrback(failures.append)
    sent(window)
    for deferred in (window.when_room(), window.when_empty()):
        deferred.addErrback(failures.append)
    window.fail(Closed("over"))
    assert len(failures) == 4
    assert window.empty


@given(
    st.integers(1, 5),
    st.lists(st.one_of(st.tuples(st.just("add"), st.integers(0, 4)), st.tuples(st.just("ack"), st.integers(0, 30)))),
)
@settings(max_examples=200, deadline=None)
def test_window_matches_its_model(messages: int, steps: list[tuple[str, int]]) -> None:
    """Every message is sent once and in order; exactly the unacknowledged messages are resent."""
    window = PublishWindow(max_messages=messages, max_bytes=1 << 20)
    wire: list[bytes] = []
    added: list[bytes] = []
    acked = 0
    for what, value in steps:
        if what == "add":
            batch = [b"%d" % (len(added) + i) for i in range(value)]
            added += batch
            window.add(run(*batch))
        else:
            acked = max(acked, min(value, len(wire)))
            window.acknowledged(acked)
        for first, part in window.to_send():
            assert first == len(wire) + 1
            wire += map(bytes, part.payloads())
        assert len(wire) - acked == min(messages, len(added) - acked), "the window is as full as possible"
        again = [bytes(p) for _, part in window.to_resend() for p in part.payloads()]
        assert again == wire[acked:]
        assert wire == added[: len(wire)]
        assert window.empty == (acked == len(added))
