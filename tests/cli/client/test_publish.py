"""Publishing: a window that is kept, a count that is true, and a server that may never answer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, suppress
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred, DeferredQueue, succeed
from twisted.internet.task import Clock

from fyrehose.cli.client.failures import FinalFailures
from fyrehose.cli.client.publish import publish_from
from fyrehose.errors import FyrehoseError, PayloadTooLarge
from fyrehose.options import counted, shown_size


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


class Fed:
    """A source of *messages*, and of batches that the test adds; None is its end, an error that it cannot be read."""

    total = None

    def __init__(self, *messages: bytes, ended: bool = False) -> None:
        self.added: DeferredQueue[list[bytes] | Exception | None] = DeferredQueue()
        for batch in ([*messages], *([None] if ended else [])):
            self.added.put(batch)

    async def batches(self, call: Any) -> AsyncIterator[tuple[int, list[bytes]]]:
        while (batch := await self.added.get()) is not None:
            if isinstance(batch, Exception):
                raise batch
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


@attrs.define
class Model:
    """The command with a window and a timeout; ``summary`` begins with what it says at its end."""

    window: int
    timeout: int
    unread: list[list[bytes] | Exception | None] = attrs.field(factory=list)
    rest: list[bytes] = attrs.field(factory=list)
    published: list[bytes] = attrs.field(factory=list)
    under_way: int = 0
    refused: int = 0
    reason: str = ""
    now: int = 0
    changed: int = 0
    ended: bool = False
    summary: str | None = None

    def work(self) -> None:
        """Read and publish as much as the window allows."""
        while self.summary is None and not self.ended and (self.rest or self.unread):
            if not self.rest:
                batch = self.unread.pop(0)
                self.ended = batch is None
                if isinstance(batch, Exception):
                    self.end(str(batch))
                self.rest = list(batch) if isinstance(batch, list) else []
            elif self.under_way == self.window:
                return
            else:
                self.changed = self.changed if self.under_way else self.now
                self.published.append(self.rest.pop(0))
                self.under_way += 1
                if self.published[-1] == b"unfit":
                    self.settle("unfit is too large")
        if self.ended and not self.under_way:
            self.end("")

    def settle(self, refusal: str = "") -> None:
        self.under_way, self.changed, self.reason = self.under_way - 1, self.now, self.reason or refusal
        self.refused += bool(refusal)

    def advance(self) -> None:
        self.now += 1
        if self.under_way and self.now - self.changed > self.timeout:
            self.end(f"figg at h:1 has not acknowledged anything for {self.timeout} s; ")

    def end(self, reason: str, head: str = "") -> None:
        count, size = len(self.published), sum(map(len, self.published))
        missing, because = self.refused + self.under_way, self.reason or reason
        self.summary = f"fyrehose: {head}{counted(count, 'message')} ({shown_size(size)}) published"
        if not missing and because:
            self.summary += f" and acknowledged, and no more: {because}"
        elif missing:
            self.summary += f", {count - missing} acknowledged, {missing} not acknowledged{because and f': {because}'}"
        else:
            rate = f", {count / self.now:,.0f}/s" if self.now else ""
            self.summary += f" and acknowledged in {self.now:.1f} s{rate}"


STEPS = ("add", "wait", "acknowledge", "refuse", "unfit", "end", "unreadable", "cancel")


def test_random_schedules_of_input_answers_and_silence_end_as_in_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    dice, happened = Random(1), Counter[str]()
    for number in range(300):
        model = Model(dice.randint(1, 4), dice.randint(4, 6))
        publisher, source = connected(Publisher(model.window)), Fed(b"first")
        run = Run(publisher, source, model.timeout)
        model.unread.append([b"first"])
        model.work()
        weights = [*dice.choices(range(8, 72), k=3), *dice.choices(range(1, 9), k=4), 1]
        while model.summary is None:
            (step,) = dice.choices(STEPS, weights)
            added: dict[str, list[bytes] | Exception | None] = {
                "add": [b"x" * dice.randint(1, 9) for _ in range(dice.randint(1, 3))],
                "unfit": [b"unfit", b"fits"],
                "end": None,
                "unreadable": FyrehoseError("x cannot be read"),
            }
            if step in added:
                source.added.put(added[step])
                model.unread.append(added[step])
            elif step == "wait":
                model.advance()
                run.clock.advance(1)
            elif step == "cancel":
                model.end("", "interrupted; ")
                run.deferred.cancel()
            elif model.under_way:
                model.settle("too late" * (step == "refuse"))
                publisher.acknowledge(FyrehoseError("too late") if step == "refuse" else None)
            model.work()
            sent = [message for message in model.published if message != b"unfit"]
            assert publisher.published == sent, f"other messages after {step} in schedule {number}"
            assert len(source.added.pending) == len(model.unread), f"input is read too soon or too late after {step}"
            assert bool(run.outcome) is (model.summary is not None), f"{step} in schedule {number}: {run.outcome}"
            happened[step] += 1
        said = capsys.readouterr().err
        assert said.startswith(model.summary), f"{said!r} in place of {model.summary!r} in schedule {number}"
        silent, whole = "has not acknowledged" in said, "acknowledged in" in said
        assert isinstance(run.outcome[0], CancelledError) if step == "cancel" else run.outcome == [int(not whole)]
        happened.update({"silent": silent, "whole": whole})
        assert publisher.closed
        assert not run.clock.getDelayedCalls(), "a timer runs on"
    assert (+happened).keys() == {*STEPS, "silent", "whole"}, f"not all happened: {happened}"


def test_unreachable_server_is_an_error() -> None:
    publisher = Publisher()
    run = Run(publisher, Fed(b"a"))
    publisher.connecting.errback(ConnectionRefusedError("Connection refused"))
    assert [str(error) for error in run.outcome] == ["cannot connect to figg at h:1: Connection refused"]
    assert publisher.closed


def test_silent_server_is_an_error_after_the_timeout() -> None:
    publisher = Publisher()
    run = Run(publisher, Fed(b"a"), timeout=5)
    run.clock.advance(5)
    assert [str(error) for error in run.outcome] == [
        (
            "figg at h:1 did not answer within 5 s; no connection yet; is the server running and reachable, "
            "and does its access policy allow this client?"
        )
    ]


def test_empty_input_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert Run(connected(Publisher()), Fed(ended=True)).outcome == [0]
    assert capsys.readouterr().err == "fyrehose: 0 messages (0 bytes) published and acknowledged in 0.0 s\n"


def test_terminal_shows_a_progress_bar() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, redirect_stderr(terminal):
        publisher = connected(Publisher())
        run = Run(publisher, Fed(b"a", b"b", ended=True))
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
