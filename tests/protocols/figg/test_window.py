"""The sliding window: messages are sent, resent and acknowledged in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from fyrehose.errors import Closed, LocalProtocolError
from fyrehose.protocols.figg.window import PublishWindow
from fyrehose.records import Run


def run(*payloads: bytes) -> Run:
    return Run.of("t", payloads, source="figg")


def sent(window: PublishWindow) -> list[tuple[int, int]]:
    return [(first, len(part)) for first, part in window.to_send()]


def test_fail_fails_every_pending_deferred() -> None:
    window = PublishWindow(max_messages=1, max_bytes=1000)
    failures: list[Any] = []
    for deferred in (window.add(run(b"a")), window.add(run(b"b"))):
        deferred.addErrback(failures.append)
    sent(window)
    window.fail(Closed("over"))
    assert len(failures) == 2
    assert window.empty


@given(
    st.integers(1, 5),
    st.integers(1, 40),
    st.lists(
        st.one_of(st.tuples(st.just("add"), st.integers(0, 4)), st.tuples(st.just("ack"), st.integers(0, 3))),
        min_size=5,
    ),
)
@settings(max_examples=200, deadline=None)
def test_window_matches_its_model(messages: int, most: int, steps: list[tuple[str, int]]) -> None:
    """Every message is sent once and in order; exactly the unacknowledged messages are resent, and take room."""
    window = PublishWindow(max_messages=messages, max_bytes=most)
    wire: list[bytes] = []
    added: list[bytes] = []
    done: list[tuple[int, Deferred[None]]] = []
    acked = 0
    for what, value in steps:
        held = sum(run(each).size for each in added[acked:])
        if what == "ack":
            acked = min(acked + value, len(wire))  # often within the messages of one call
            window.acknowledged(acked)
        elif held > most:
            with pytest.raises(LocalProtocolError, match=f"{held} unacknowledged bytes"):
                window.add(run(b"y"))
        else:
            added += (batch := [b"%d" % (len(added) + i) * i for i in range(value)])
            done.append((len(added) if batch else 0, window.add(run(*batch))))
        for first, part in window.to_send():
            assert first == len(wire) + 1
            wire += map(bytes, part.payloads())
        assert len(wire) - acked == min(messages, len(added) - acked), "the window is as full as possible"
        again = [bytes(p) for _, part in window.to_resend() for p in part.payloads()]
        assert again == wire[acked:]
        assert wire == added[: len(wire)]
        assert window.empty == (acked == len(added))
        assert [deferred.called for _, deferred in done] == [end <= acked for end, _ in done]
        held = sum(run(each).size for each in added[acked:])
        room = len(wire) == len(added) and len(wire) - acked < messages and held < most
        assert window.has_room == room, f"{held} of {most} bytes, {len(wire) - acked} of {messages} messages"
    while not window.empty:
        wire += [bytes(payload) for _, part in window.to_send() for payload in part.payloads()]
        window.acknowledged(len(wire))
    if run(b"").size <= most:
        window.add(run(bytes(most - run(b"").size)))  # it fits exactly, so another call is accepted
        assert not window.add(run(b"y")).called
