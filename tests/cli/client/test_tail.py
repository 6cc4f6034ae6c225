"""Following a stream: standard output may be slow, or gone, and nothing piles up."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.cli.client.failures import FinalFailures
from fyrehose.cli.client.formats import text
from fyrehose.cli.client.tail import HIGH, LOW, NamedTail, Tailing
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
        return succeed(None)


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


def test_each_run_is_written_at_once_and_in_order(follower: Follower) -> None:
    follower.records(b"a", b"b")
    follower.records(b"c")
    follower.write()
    follower.write()
    assert follower.written == [b"a\nb\n", b"c\n"]
    assert not follower.outcome


def test_slow_output_pauses_and_resumes_the_tailer(follower: Follower) -> None:
    size = HIGH // 8
    for _ in range(8):
        assert follower.tailer.told == []
        follower.records(b"x" * size)
    assert follower.tailer.told == ["pause"]
    while len(follower.jobs) * (size + 1) > LOW:
        assert follower.tailer.told == ["pause"]
        follower.write()
    assert follower.tailer.told == ["pause", "resume"]


def test_tail_stops_after_count_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, count=3)
    follower.connect()
    follower.records(b"a", b"b")
    follower.records(b"c", b"d")
    follower.records(b"e")
    assert not follower.outcome, "what it has is not written yet"
    follower.write()
    follower.write()
    assert follower.outcome == [0]
    assert follower.written == [b"a\nb\n", b"c\n"]
    assert not follower.jobs
    assert follower.tailer.told[-1] == "close"


def test_tail_stops_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, idle=2)
    follower.clock.advance(3)
    follower.connect()
    follower.clock.advance(1.9)
    follower.records(b"a")
    follower.write()
    follower.clock.advance(1.9)
    assert not follower.outcome
    follower.clock.advance(0.1)
    assert follower.outcome == [0]
    assert not follower.clock.getDelayedCalls()


def test_ending_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, count=1, idle=2)
    follower.connect()
    follower.records(b"a")
    follower.write()
    assert follower.outcome == [0]
    assert not follower.clock.getDelayedCalls()


def test_records_before_connect_returns_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, count=1)
    follower.records(b"a")
    follower.write()
    follower.connect()
    assert follower.outcome == [0]


def test_closed_pipe_ends_the_tail_at_once(follower: Follower, capsys: pytest.CaptureFixture[str]) -> None:
    follower.records(b"a")
    follower.records(b"b")
    follower.write(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    follower.write(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert [type(error) for error in follower.outcome] == [BrokenPipeError]
    assert capsys.readouterr().err == ""


def test_unwritable_output_is_an_error(follower: Follower) -> None:
    follower.records(b"a")
    follower.write(OSError(errno.ENOSPC, "No space left on device"))
    assert [type(error) for error in follower.outcome] == [FyrehoseError]
    assert "No space left on device" in str(follower.outcome[0])


def test_unwritable_last_output_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, count=1)
    follower.connect()
    follower.records(b"a")
    follower.write(OSError(errno.EBADF, "Bad file descriptor"))
    assert "Bad file descriptor" in str(follower.outcome[0])


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


@pytest.mark.parametrize("since", [None, 0, 2])
def test_error_at_the_end_names_missing_records(monkeypatch: pytest.MonkeyPatch, since: int | None) -> None:
    follower = Follower(monkeypatch, count=1, since=since)
    follower.connect()
    follower.tailer.lost(3, 7)
    follower.tailer.lost(9, 9)
    follower.records(b"a")
    follower.write()
    assert follower.written == [b"a\n"], "what came is written all the same"
    assert [str(error) for error in follower.outcome] == ["records are missing: 3 to 7, 9 to 9 are no longer kept"]


def test_tail_from_start_begins_with_the_oldest_kept_record(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, count=1, since=0)
    follower.connect()
    follower.tailer.lost(1, 499)
    follower.records(b"a")
    follower.write()
    assert follower.outcome == [0]


def test_error_lists_a_limited_number_of_lost_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, idle=1)
    follower.connect()
    for seq in range(2, 2_000, 2):
        follower.tailer.lost(seq, seq)
    follower.clock.advance(1)
    [error] = follower.outcome
    assert isinstance(error, FyrehoseError)
    assert len(str(error)) < 200


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


def test_a_record_of_a_named_subscription_is_consumed_when_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, named=NamedTail("billing", takeover=True), count=2)
    follower.connect()
    assert follower.tailer.named == {"name": "billing", "takeover": True}
    first, second, third = (consumed(follower, payload) for payload in (b"a", b"b", b"c"))
    assert not first
    follower.write()
    assert first
    follower.write()
    follower.clock.advance(0)
    assert (len(second), len(third)) == (1, 0)
    assert follower.written == [b"a\n", b"b\n"]
    assert follower.outcome == [0]


def test_records_beyond_count_are_not_consumed(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, named=NamedTail("billing"), count=2)
    follower.connect()
    done: list[Any] = []
    follower.tailer.take(Run.of("s", [b"a", b"b", b"c"], source="x").numbered(7, 0)).addCallback(done.append)
    follower.write()
    assert done == [8]


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


def test_a_record_that_cannot_be_written_is_not_consumed(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, named=NamedTail("billing"))
    follower.connect()
    done = consumed(follower, b"a")
    follower.write(BrokenPipeError())
    follower.clock.advance(0)
    assert not done
    assert [type(error) for error in follower.outcome] == [BrokenPipeError]
