"""Following a stream: standard output may be slow, or gone, and nothing piles up."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.cli.client.failures import FinalFailures
from fyrehose.cli.client.formats import text
from fyrehose.cli.client.tail import HIGH, LOW, MOST_NAMED, NamedTail, Tailing
from fyrehose.errors import FyrehoseError
from fyrehose.net.clients import ConnectionFailed
from fyrehose.records import Run


class Tailer:
    """A client whose connection, records and failures the test decides on."""

    absent = False

    def __init__(self) -> None:
        self.problem = ""
        self.connecting: Deferred[None] = Deferred()
        self.told: list[str] = []
        self.missing = ""
        self.closing: Deferred[None] = succeed(None)

    def subscribe(
        self,
        stream: str | None,
        take: Any,
        after: int | None = None,
        lost: Any = None,
        restarted: Any = None,
        **named: Any,
    ) -> None:
        self.stream, self.take, self.after, self.lost, self.named = stream, take, after, lost, named
        self.restarted = restarted

    def connect(self) -> Deferred[None]:
        return self.connecting

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    def shortfall(self, complete: bool) -> str:
        return "" if complete else self.missing

    def close(self) -> Deferred[None]:
        self.told.append("close")
        return self.closing


class Follower:
    """One run of the command ``tail``, whose writes to standard output the test completes or fails."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        count: int | None = None,
        idle: float | None = None,
        since: int | None = None,
        named: NamedTail | None = None,
    ) -> None:
        self.clock = Clock()
        self.jobs: list[tuple[Callable[[], None], Deferred[None]]] = []
        self.written: list[bytes] = []
        self.outcome: list[Any] = []
        monkeypatch.setattr("fyrehose.cli.client.tail.worker", lambda reactor: self)
        monkeypatch.setattr("fyrehose.cli.client.tail._write", lambda fd, data: self.written.append(data))
        self.failures = FinalFailures("figg at h:1")
        self.tailer = Tailer()
        made = Tailing(self.clock, self.tailer, "notes", text, count, idle, 5.0, self.failures, since, named)
        self.deferred = Deferred.fromCoroutine(made.run())
        self.deferred.addCallbacks(self.outcome.append, lambda failure: self.outcome.append(failure.value))

    def connect(self) -> None:
        """Complete the connection, and let the reactor turn once."""
        self.tailer.connecting.callback(None)
        self.clock.advance(0)

    def call(self, job: Callable[[], None]) -> Deferred[None]:
        self.jobs.append((job, Deferred()))
        return self.jobs[-1][1]

    def write(self, error: Exception | None = None) -> None:
        """Complete the oldest write to standard output, or let it fail with *error*."""
        job, done = self.jobs.pop(0)
        if error is None:
            job()
            done.callback(None)
        else:
            done.errback(Failure(error))

    def records(self, *payloads: bytes) -> None:
        self.tailer.take(Run.of("s", payloads, source="x").numbered(1, 0))


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> Follower:
    follower = Follower(monkeypatch)
    follower.connect()
    return follower


class Expected:
    """The output and the messages of a run of ``tail`` after each event, and its end, in plain Python."""

    def __init__(self, count: int | None, idle: float | None, since: int | None) -> None:
        self.left, self.idle, self.since = count, idle, since
        self.connected = self.ended = False
        self.quiet = 0.0
        self.pending: list[tuple[bytes, int]] = []
        self.written: list[bytes] = []
        self.consumed: list[int] = []
        self.told: list[str] = []
        self.missing: list[str] = []

    @property
    def waiting(self) -> int:
        return sum(len(data) for data, _ in self.pending)

    def records(self, payloads: list[bytes], first: int) -> None:
        if self.ended:
            return
        self.quiet = 0.0
        taken = payloads if self.left is None else payloads[: self.left]
        self.pending.append((b"".join(each + b"\n" for each in taken), first + len(taken) - 1))
        if self.waiting > HIGH and self.told[-1:] != ["pause"]:
            self.told.append("pause")
        if self.left is not None:
            self.left -= len(taken)
            self.ended = not self.left

    def write(self) -> None:
        data, last = self.pending.pop(0)
        self.written.append(data)
        self.consumed.append(last)
        if self.waiting <= LOW and self.told[-1:] == ["pause"] and not self.ended:
            self.told.append("resume")

    def passed(self, seconds: float) -> None:
        self.quiet += seconds
        self.ended |= self.idle is not None and self.quiet >= self.idle

    def lost(self, first: int, last: int) -> None:
        if not (self.since == 0 and first == 1):
            self.missing.append(f"{first} to {last}")

    def outcome(self) -> list[str]:
        if not (self.connected and self.ended) or self.pending:
            return []
        missing = ", ".join(self.missing[:MOST_NAMED])
        return [f"records are missing: {missing} are no longer kept" if missing else "0"]


@pytest.mark.parametrize("seed", range(60))
def test_any_schedule_of_records_writes_and_silence_is_that_of_a_model(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice, seq, done = Random(seed), 1, list[int]()
    count, idle = dice.choice((None, dice.randint(1, 8))), dice.choice((None, 2.0))
    since, takeover = dice.choice((None, 0, 1)), {"takeover": True} if dice.random() < 0.5 else {}
    named = dice.choice((None, NamedTail("billing", **takeover)))
    follower, expected = Follower(monkeypatch, count, idle, since, named), Expected(count, idle, since)
    follower.tailer.closing = Deferred()
    assert follower.tailer.named == ({} if named is None else {"name": "billing", "takeover": bool(takeover)})
    while not follower.outcome and seq < 60:
        match dice.choice(("records", "records", "write", "lost", "time")):
            case "records":
                payloads = [bytes(dice.choice((1, LOW // 2, HIGH // 3))) for _ in range(dice.randint(1, 3))]
                expected.records(payloads, seq)
                taken = follower.tailer.take(Run.of("s", payloads, source="x").numbered(seq, 0))
                if named is not None:
                    taken.addCallback(done.append)
                seq += len(payloads)
            case "write" if expected.pending:
                expected.write()
                follower.write()
            case "lost" if dice.random() < 0.2:
                expected.lost(seq, seq + 1)
                follower.tailer.lost(seq, seq + 1)
                seq += 2
            case "time" if expected.connected:
                seconds = dice.choice((0.5, 1.5))
                expected.passed(seconds)
                follower.clock.advance(seconds)
        if not expected.connected and dice.random() < 0.3:
            expected.connected = True
            follower.connect()
        follower.clock.advance(0)
        assert follower.written == expected.written
        assert [each for each in follower.tailer.told if each != "close"] == expected.told
        assert done == (expected.consumed if named is not None else [])
        if expected.outcome() and named is not None:
            # The client sends the last acknowledgement before it closes.
            assert (follower.outcome, follower.tailer.told[-1]) == ([], "close")
            follower.tailer.closing.callback(None)
        assert list(map(str, follower.outcome)) == expected.outcome()
    if not follower.tailer.closing.called:
        follower.tailer.closing.callback(None)
    assert not follower.outcome or (follower.tailer.told[-1], follower.clock.getDelayedCalls()) == ("close", [])


def test_stream_that_does_not_exist_is_announced_once(follower: Follower, capsys: pytest.CaptureFixture[str]) -> None:
    follower.tailer.absent = True
    follower.clock.advance(0.9)
    assert capsys.readouterr().err == ""
    follower.clock.advance(60)
    said = capsys.readouterr().err
    assert said == "fyrehose: stream 'notes' does not exist yet; waiting for its first message\n"


def test_stream_with_messages_is_not_announced(follower: Follower, capsys: pytest.CaptureFixture[str]) -> None:
    follower.tailer.absent = True
    follower.records(b"the first one, within a second")
    follower.clock.advance(60)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("count", [None, 1])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), ""),
        (OSError(errno.ENOSPC, "No space left on device"), "cannot write to standard output: [Errno 28] No space left"),
    ],
)
def test_unwritable_output_is_an_error_and_its_records_are_not_consumed(
    monkeypatch: pytest.MonkeyPatch, count: int | None, error: OSError, said: str
) -> None:
    follower = Follower(monkeypatch, count, named=NamedTail("billing"))
    follower.connect()
    done = consumed(follower, b"a")
    for _ in follower.jobs[:]:
        follower.write(error)
    follower.clock.advance(0)
    assert not done
    assert [type(each) for each in follower.outcome] == [FyrehoseError if said else BrokenPipeError]
    assert str(follower.outcome[0]).startswith(said)


def test_silent_server_is_an_error_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch)
    follower.clock.advance(5)
    assert [str(error) for error in follower.outcome] == [
        (
            "figg at h:1 did not answer within 5 s; the connection is open: the disk of the server may be full (see "
            "its log, or `fyrehose doctor` there), or that is no port of protocol figg"
        )
    ]
    assert follower.tailer.told == ["close"]


def test_refused_connections_are_an_error(follower: Follower) -> None:
    for _ in range(3):
        follower.failures(ConnectionFailed(ConnectionDone(), 0.1))
    assert [str(error) for error in follower.outcome] == [str(follower.failures.final)]
    assert follower.tailer.told == ["close"]


def test_lost_records_are_reported(follower: Follower, capsys: pytest.CaptureFixture[str]) -> None:
    follower.tailer.lost(3, 7)
    assert capsys.readouterr().err == "fyrehose: records 3 to 7 are no longer kept\n"


def test_restart_is_reported(follower: Follower, capsys: pytest.CaptureFixture[str]) -> None:
    follower.tailer.restarted(5)
    said = capsys.readouterr().err
    assert said.startswith("fyrehose: the numbers of stream 'notes' have begun again: the server has another journal")
    assert "which ends at 5; reading it from its start" in said


def test_shortfall_of_the_protocol_is_an_error_unless_count_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for count, outcome in ((None, "records are missing: 3 to 7 did not come"), (1, "0")):
        follower = Follower(monkeypatch, count=count, idle=1)
        follower.tailer.missing = "3 to 7 did not come"
        follower.connect()
        follower.records(b"a")
        follower.write()
        follower.clock.advance(1)
        assert [str(each) for each in follower.outcome] == [outcome]


def test_idle_on_a_lost_connection_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, idle=3)
    follower.connect()
    follower.tailer.problem = "the connection was lost"
    follower.clock.advance(3)
    [error] = follower.outcome
    assert isinstance(error, FyrehoseError)
    assert str(error) == "records are missing: connection to figg at h:1 lost: the connection was lost"


def consumed(follower: Follower, payload: bytes) -> list[Any]:
    """Return a list that is not empty when the record of *payload* was consumed."""
    done: list[Any] = []
    taken = follower.tailer.take(Run.of("s", [payload], source="x").numbered(1, 0))
    taken.addCallback(done.append)
    return done


def test_missing_records_of_a_pattern_name_their_stream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follower = Follower(monkeypatch, count=1)
    follower.connect()
    follower.tailer.lost(3, 7, "logs.a")
    assert capsys.readouterr().err == "fyrehose: records 3 to 7 of stream 'logs.a' were not received\n"
    follower.records(b"a")
    follower.write()
    assert [str(error) for error in follower.outcome] == [
        "records are missing: 3 to 7 of stream 'logs.a' were not received"
    ]
