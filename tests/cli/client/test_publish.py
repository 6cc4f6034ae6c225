"""Publishing: a window that is kept, a count that is true, and a server that may never answer."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, suppress
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from fyrehose.cli.client.failures import FinalFailures
from fyrehose.cli.client.publish import publish_from
from fyrehose.errors import FyrehoseError, PayloadTooLarge


class Publisher:
    """A publisher that acknowledges messages when the test calls :meth:`acknowledge`."""

    problem = "no connection yet"

    def __init__(self, window: int = 3) -> None:
        self.window = window
        self.connecting: Deferred[None] = Deferred()
        self.published: list[bytes] = []
        self.under_way: list[Deferred[None]] = []
        self.waiting: list[Deferred[None]] = []
        self.most = 0
        self.closed = False

    def connect(self) -> Deferred[None]:
        return self.connecting

    def publish(self, stream: str | None, payload: bytes) -> Deferred[None]:
        assert stream == "notes"
        if payload == b"unfit":
            raise PayloadTooLarge("unfit is too large")
        self.published.append(payload)
        self.under_way.append(Deferred())
        self.most = max(self.most, len(self.under_way))
        return self.under_way[-1]

    def ready(self) -> Deferred[None]:
        if len(self.under_way) < self.window:
            return succeed(None)
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def close(self) -> Deferred[None]:
        self.closed = True
        for published in self.under_way:
            published.errback(FyrehoseError("closed"))
        return succeed(None)

    def acknowledge(self, error: Exception | None = None) -> None:
        """Acknowledge the oldest pending message, or refuse it with *error*."""
        published = self.under_way.pop(0)
        if error is None:
            published.callback(None)
        else:
            published.errback(error)
        while self.waiting and len(self.under_way) < self.window:
            self.waiting.pop(0).callback(None)


class Messages:
    """A source that hands out its messages in pairs, and counts how far it was read."""

    total = None

    def __init__(self, *messages: bytes) -> None:
        self.messages = messages
        self.read = 0

    async def batches(self, call: Any) -> AsyncIterator[tuple[int, list[bytes]]]:
        for n in range(0, len(self.messages), 2):
            batch = list(self.messages[n : n + 2])
            self.read += len(batch)
            yield sum(map(len, batch)), batch


class Run:
    """One run of the command ``publish``, its outcome, and its clock."""

    def __init__(self, publisher: Publisher, source: Any, timeout: float = 10.0) -> None:
        self.clock = Clock()
        self.outcome: list[Any] = []
        self.failures = FinalFailures("figg at h:1", "publish")
        self.deferred = Deferred.fromCoroutine(
            publish_from(self.clock, publisher, "notes", source, timeout, self.failures)
        )
        self.deferred.addCallbacks(self.outcome.append, lambda failure: self.outcome.append(failure.value))


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        call = None

    monkeypatch.setattr("fyrehose.cli.client.publish.worker", lambda reactor: Worker)


def connected(publisher: Publisher) -> Publisher:
    publisher.connecting.callback(None)
    return publisher


def test_publish_succeeds_when_every_message_is_acknowledged(capsys: pytest.CaptureFixture[str]) -> None:
    publisher = connected(Publisher())
    run = Run(publisher, Messages(b"a", b"bc", b"d"))
    for _ in range(3):
        assert not run.outcome
        run.clock.advance(1)
        publisher.acknowledge()
    assert run.outcome == [0]
    assert publisher.published == [b"a", b"bc", b"d"]
    assert publisher.closed
    assert capsys.readouterr().err == "fyrehose: 3 messages (4 bytes) published and acknowledged in 3.0 s, 1/s\n"


def test_input_is_read_only_as_the_window_allows() -> None:
    publisher = connected(Publisher(window=3))
    source = Messages(*[b"x"] * 100)
    run = Run(publisher, source)
    assert source.read == 4
    for n in range(100):
        assert len(publisher.published) <= n + 3
        publisher.acknowledge()
    assert publisher.most == 3
    assert run.outcome == [0]


def test_refused_message_is_a_failure_but_others_are_published(capsys: pytest.CaptureFixture[str]) -> None:
    publisher = connected(Publisher())
    run = Run(publisher, Messages(b"a", b"unfit", b"b", b"c"))
    publisher.acknowledge(PayloadTooLarge("a is too large"))
    publisher.acknowledge()
    publisher.acknowledge()
    assert run.outcome == [1]
    said = capsys.readouterr().err
    assert said == "fyrehose: 4 messages (8 bytes) published, 2 acknowledged, 2 not acknowledged: unfit is too large\n"


def test_unreachable_server_is_an_error() -> None:
    publisher = Publisher()
    run = Run(publisher, Messages(b"a"))
    publisher.connecting.errback(ConnectionRefusedError("Connection refused"))
    assert [str(error) for error in run.outcome] == ["cannot connect to figg at h:1: Connection refused"]
    assert publisher.closed


def test_silent_server_is_an_error_after_the_timeout() -> None:
    publisher = Publisher()
    run = Run(publisher, Messages(b"a"), timeout=5)
    run.clock.advance(5)
    assert [str(error) for error in run.outcome] == [
        (
            "figg at h:1 did not answer within 5 s; no connection yet; is the server running and reachable, "
            "and does its access policy allow this client?"
        )
    ]


def test_final_failure_after_publishing_is_reported_with_counts(capsys: pytest.CaptureFixture[str]) -> None:
    publisher = connected(Publisher())
    run = Run(publisher, Messages(b"a", b"b"))
    for _ in range(2):
        publisher.acknowledge(FyrehoseError("figg at h:1 closes each connection at once"))
    assert run.outcome == [1]
    assert "0 acknowledged, 2 not acknowledged: figg at h:1 closes each connection at once" in capsys.readouterr().err
    assert not run.clock.getDelayedCalls()


def test_missing_acknowledgements_are_an_error_after_the_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    publisher = connected(Publisher())
    run = Run(publisher, Messages(b"a", b"b", b"c", b"d"))
    publisher.acknowledge()
    run.clock.pump([1] * 10)
    assert not run.outcome
    run.clock.pump([1] * 2)
    assert run.outcome == [1]
    assert "has not acknowledged anything for 10 s" in capsys.readouterr().err
    assert not run.clock.getDelayedCalls()


def test_timeout_does_not_count_waiting_for_input() -> None:
    more: Deferred[None] = Deferred()

    class Slow:
        total = None

        async def batches(self, call: Any) -> AsyncIterator[tuple[int, list[bytes]]]:
            yield 1, [b"a"]
            await more
            yield 1, [b"b"]

    publisher = connected(Publisher())
    run = Run(publisher, Slow())
    publisher.acknowledge()
    run.clock.pump([1] * 100)
    assert not run.outcome
    more.callback(None)
    publisher.acknowledge()
    assert run.outcome == [0]


def test_interrupt_prints_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    publisher = connected(Publisher())
    run = Run(publisher, Messages(b"a", b"b"))
    publisher.acknowledge()
    run.deferred.cancel()
    assert len(run.outcome) == 1
    said = capsys.readouterr().err
    assert said == "fyrehose: interrupted; 2 messages (2 bytes) published, 1 acknowledged, 1 not acknowledged\n"
    assert publisher.closed


def test_unreadable_input_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        total = None

        async def batches(self, call: Any) -> AsyncIterator[tuple[int, list[bytes]]]:
            yield 1, [b"a"]
            raise FyrehoseError("x cannot be read")

    publisher = connected(Publisher())
    run = Run(publisher, Broken())
    assert run.outcome == [1]
    assert capsys.readouterr().err.endswith("0 acknowledged, 1 not acknowledged: x cannot be read\n")


def test_empty_input_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert Run(connected(Publisher()), Messages()).outcome == [0]
    assert capsys.readouterr().err == "fyrehose: 0 messages (0 bytes) published and acknowledged in 0.0 s\n"


def test_terminal_shows_a_progress_bar() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, redirect_stderr(terminal):
        publisher = connected(Publisher())
        run = Run(publisher, Messages(b"a", b"b"))
        publisher.acknowledge()
        run.clock.advance(0.1)
        publisher.acknowledge()
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as screen, suppress(OSError):  # EIO: nobody writes any more
        while more := screen.read(1 << 16):
            shown += more
    assert b"1 acknowledged" in shown
    assert run.outcome == [0]
    assert not run.clock.getDelayedCalls()
