"""A disk that does not end a write is said while it lasts, by a journal whose reactor continues to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any

import attrs
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.journal.commit import Far
from fyrehose.journal.files import Files, SteppedFiles
from fyrehose.journal.journal import FileJournal
from fyrehose.observe.meters import LONGEST_WRITE, JournalMeters
from fyrehose.records import Run

#: How long a test waits for the writer thread before it fails, in seconds.
PATIENCE_S = 30.0


class HangingFiles(SteppedFiles):
    """Files whose syncs hang while :attr:`answers` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers, self.hangs = Event(), Event()
        self.answers.set()

    def sync(self, fd: int) -> None:
        if not self.answers.is_set():
            self.hangs.set()
        assert self.answers.wait(PATIENCE_S), "the test lets the disk answer"
        super().sync(fd)


class Turns(Clock):
    """A reactor whose turns a test runs, with calls from the writer thread."""

    def __init__(self) -> None:
        super().__init__()
        self.from_threads: Queue[tuple[Callable[..., object], tuple[Any, ...]]] = Queue()

    def callFromThread(self, call: Callable[..., object], *args: Any) -> None:
        self.from_threads.put((call, args))

    def run_until(self, condition: Callable[[], object]) -> None:
        while not condition():
            call, args = self.from_threads.get(timeout=PATIENCE_S)
            call(*args)


@attrs.define
class Server:
    """A broker with a journal on a disk that hangs when the test says so, and clocks that the test sets."""

    directory: Path
    now: float = 100.0
    reactor: Turns = attrs.field(factory=Turns)
    files: HangingFiles = attrs.field(factory=HangingFiles)
    broker: Broker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        files: Files = self.files
        meters = JournalMeters(seconds=lambda: self.now)
        journal = FileJournal(self.reactor, self.directory, files=files, meters=meters, pace=Far())
        self.broker = Broker(self.reactor, journal, Sequencer())
        opened: list[Any] = []
        self.broker.open().addBoth(opened.append)
        self.reactor.run_until(lambda: opened)
        assert opened == [None]

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.reactor.advance(1)

    def close(self) -> None:
        closed: list[Any] = []
        self.broker.close().addBoth(closed.append)
        self.reactor.run_until(lambda: closed)


def test_disk_that_hangs_is_logged_while_it_lasts_and_when_it_answers(
    tmp_path: Path, log_lines: list[str], logged_errors: Any
) -> None:
    server = Server(tmp_path / "data")
    meters = server.broker.journal.meters
    settled: list[Any] = []

    def said() -> list[str]:
        return [line for line in log_lines if "has not ended a write" in line or "answers again" in line]

    server.files.answers.clear()
    server.broker.publish([Run.of("s", [b"x"], source="test")]).addBoth(settled.append)
    assert server.files.hangs.wait(PATIENCE_S)
    assert meters.write_age == 0.0
    server.passes(LONGEST_WRITE - 0.5)
    assert (meters.write_age, said()) == (LONGEST_WRITE - 0.5, [])
    server.passes(1)
    (line,) = said()
    assert f"the disk of {tmp_path / 'data'} has not ended a write for 2.5 s; no message is acknowledged" in line
    server.passes(2)
    assert len(said()) == 1, "the next line comes when the time has doubled"
    server.passes(1)
    assert "for 5.5 s" in said()[1]
    assert settled == []
    server.files.answers.set()
    server.reactor.run_until(lambda: settled)
    server.reactor.run_until(lambda: server.broker.journal.idle)
    assert (settled, meters.write_age) == ([(1,)], 0.0)
    server.passes(1)
    assert "answers again; it took more than 5.5 s" in said()[2]
    server.passes(60)
    assert len(said()) == 3
    assert len(logged_errors.take()) == 2
    server.close()


def test_sync_of_an_interval_that_hangs_counts_as_well(tmp_path: Path) -> None:
    """The writer thread has more to do than commits, and each of these jobs makes the next commit wait."""
    server = Server(tmp_path / "data")
    server.files.answers.clear()
    noted: list[int] = []
    server.broker.journal.note().addBoth(noted.append)
    assert server.files.hangs.wait(PATIENCE_S)
    server.now += 60
    assert server.broker.journal.meters.write_age == 60
    server.files.answers.set()
    server.reactor.run_until(lambda: noted)
    server.close()
