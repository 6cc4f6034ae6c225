"""A disk that does not end a write is said while it lasts, by a journal whose reactor continues to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import Queue
from random import Random
from threading import Event
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.journal.commit import Far
from fyrehose.journal.files import Files, SteppedFiles
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.slow_disk import SlowDisk
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


def test_disk_that_hangs_is_logged_while_publishers_wait(
    tmp_path: Path, log_lines: list[str], logged_errors: Any
) -> None:
    server = Server(tmp_path / "data")
    settled: list[Any] = []
    server.files.answers.clear()
    server.broker.publish([Run.of("s", [b"x"], source="test")]).addBoth(settled.append)
    assert server.files.hangs.wait(PATIENCE_S)
    server.passes(LONGEST_WRITE + 0.5)
    (line,) = (line for line in log_lines if "has not ended a write" in line)
    assert f"the disk of {tmp_path / 'data'} has not ended a write for 2.5 s; no message is acknowledged" in line
    assert settled == []
    server.files.answers.set()
    server.reactor.run_until(lambda: settled)
    server.reactor.run_until(lambda: server.broker.journal.idle)
    assert (settled, server.broker.journal.meters.write_age) == ([(1,)], 0.0)
    assert len(logged_errors.take()) == 1
    server.close()


@pytest.mark.parametrize("seed", range(20))
def test_each_stall_is_logged_when_it_is_long_when_that_doubles_and_when_it_ends(
    seed: int, log_lines: list[str], logged_errors: Any
) -> None:
    dice, now, stalls = Random(seed), 0.0, 0
    meters = JournalMeters(seconds=lambda: now)
    slow_disk = SlowDisk(Path("data"), meters)
    for _ in range(10):
        began, wanted, logged, looked = now, list[str](), 0.0, 0.0
        meters.write_began = began
        log_lines.clear()
        for _ in range(dice.randint(0, 8)):
            now += dice.choice((0.5, 1.0, 3.0, 20.0))
            slow_disk.look()
            looked = now - began
            if looked >= LONGEST_WRITE and looked >= 2 * logged:
                wanted.append(f"has not ended a write for {looked:.1f} s")
                logged = looked
        # The next write may have begun already.
        meters.write_began = now if dice.random() < 0.5 else None
        slow_disk.look()
        if logged:
            wanted.append(f"answers again; it took more than {looked:.1f} s")
            stalls += 1
        assert len(log_lines) == len(wanted), f"lines {log_lines} instead of {wanted}"
        assert all(text in line for text, line in zip(wanted, log_lines, strict=True)), f"{log_lines}, not {wanted}"
    assert stalls > 2, "the disk stalls often"
    assert logged_errors.take(), "a stall is an error"


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
