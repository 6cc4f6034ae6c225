"""The server of a simulation: the real service, its real broker and journal, on a disk that forgets what it may.

What blocks is done at once and answered later, so that everything else happens in between.  A crash leaves one of the
states that a power cut may leave, no older than the last answer: what was answered may have been told to somebody.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from history import History
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from world import Host, Violation, World

from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.policy import OPEN
from fyrehose.service import Fyrehose
from fyrehose.testing.disk import RecordingFiles, image

#: Room that the journal leaves free, in bytes.
MIN_FREE = 1 << 20


class Disk(RecordingFiles):
    """It has room, or none."""

    def __init__(self, directory: Path, server: Server) -> None:
        super().__init__(directory)
        self.server = server

    def free(self, directory: Path) -> int:
        return 0 if self.server.full else 2 * MIN_FREE


class SimulatedWorker:
    """The journal's thread: one job after the other, each answered after a while."""

    def __init__(self, host: Host, files: RecordingFiles) -> None:
        self.host, self.files = host, files
        self.jobs: deque[tuple[Callable[[], Any], Deferred[Any]]] = deque()
        self.busy = False
        #: how much of what the disk was told somebody may know of
        self.answered = len(files.log)

    def call(self, job: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.jobs.append((job, done))
        self._next()
        return done

    def stop(self) -> None:
        while self.jobs:
            job, _ = self.jobs.popleft()
            job()

    def _next(self) -> None:
        if self.busy or not self.jobs:
            return
        self.busy = True
        job, done = self.jobs.popleft()
        try:
            result: Any = job()
        except Exception:
            result = Failure()
        dice = self.host.world.random
        delay = dice.random() * dice.choice((0.001, 0.01, 0.3))
        self.host.callLater(delay, self._answer, done, result, len(self.files.log))

    def _answer(self, done: Deferred[Any], result: Any, told: int) -> None:
        self.busy = False
        self.answered = told
        self._next()
        done.callback(result)


class Server:
    """One journal and its lives.

    :ivar doors: make the service of a protocol in each life: (host, broker) -> service
    """

    def __init__(self, world: World, history: History, root: Path) -> None:
        self.world, self.history, self.root = world, history, root
        self.doors: list[Callable[[Host, Any], Any]] = []
        self.on_crash: list[Callable[[], None]] = []
        self.lives = self.crashes = 0
        self.open = self.up = False
        dice = world.random
        self.settings = JournalSettings(min_free=MIN_FREE, segment_size=dice.choice((1 << 10, 4 << 10, 64 << 10)))
        self.host: Host
        self.journal: FileJournal
        self.files: Disk
        self.full = self.was_full = False
        self.worker: SimulatedWorker
        self.service: Fyrehose
        self.left: dict[str, bytes] = {}
        self.failures: list[Exception] = []

    def start(self) -> None:
        """A new life, on what the last one left."""
        self.lives += 1
        directory = self.root / f"life-{self.lives}"
        directory.mkdir()
        for name, content in self.left.items():
            directory.joinpath(name).write_bytes(content)
        self.host = Host(self.world)
        self.files = Disk(directory, self)
        self.worker = SimulatedWorker(self.host, self.files)
        self.journal = FileJournal(
            self.host,
            directory,
            self.settings,
            files=self.files,
            now=self.world.now,
            monotonic=self.world.monotonic,
            worker=self.worker,
        )
        self.service = Fyrehose(
            self.host, self.journal, policy=OPEN, on_open=self._opened, on_failure=self.failures.append
        )
        self.service.broker.counters.seconds = self.host.seconds
        for door in self.doors:
            door(self.host, self.service.broker).setServiceParent(self.service)
        self.service.startService().addCallback(self._started).addErrback(self._failed)

    def _opened(self) -> None:
        """Before any door is."""
        self.open = True
        self.history.journal = self.journal
        self.history.recovered()

    def _started(self, _: Any) -> None:
        self.up = True
        self.world.note(f"server up, {dict(sorted(self.journal.ends().items()))}")

    def _failed(self, failure: Failure) -> None:
        self.failures.append(failure.value)

    def crash(self) -> None:
        """The power goes, even if the server is just starting or stopping; it comes back a little later."""
        if self.host.dead:
            return
        if self.open:
            self.history.look()
        dice, files = self.world.random, self.files
        upto = dice.randint(self.worker.answered, len(files.log))
        self.crashes += 1
        self.world.note(f"crash, {upto} of {len(files.log)} steps")
        killed = dice.random() < 0.3
        # Killed: the kernel has everything. Else the disk has what was synced, and whatever it likes of the rest.
        self.left = _all(files.directory) if killed else image(files, upto, dice)
        self._end()
        self.world.clock.callLater(dice.random() * dice.choice((0.1, 3.0)), self.start)

    def fill(self, seconds: float) -> None:
        """The disk has no room for a while."""
        self.world.note("full")
        self.full = self.was_full = True
        self.world.clock.callLater(seconds, setattr, self, "full", False)

    def restart(self) -> None:
        """Stop in order, and start again."""
        if not self.up:
            return
        self.up = self.open = False
        self.world.note("stopping")
        self.service.stopService().addCallback(self._stopped)

    def _stopped(self, _: Any) -> None:
        if self.host.dead:
            return
        self.world.note("stopped")
        self.left = _all(self.files.directory)
        self._end()
        self.world.clock.callLater(self.world.random.random(), self.start)

    def _end(self) -> None:
        self.up = self.open = False
        self.history.journal = None
        self.host.crash()
        self.world.listening.clear()
        for link in list(self.world.links):
            link.server_crashed()
        for tell in self.on_crash:
            tell()
        for fd in list(self.files._fds):
            self.files.close(fd)
        if self.journal._lock >= 0:
            os.close(self.journal._lock)
            self.journal._lock = -1
        shutil.rmtree(self.files.directory)

    def check(self) -> None:
        """After each step."""
        if self.failures:
            raise Violation(f"the server failed: {type(self.failures[0]).__name__}: {self.failures[0]}")
        if self.history.problems:
            raise Violation(self.history.problems[0])
        self.history.look()

    def close(self) -> None:
        """The simulation is over."""
        if self.files.directory.exists():
            self._end()


def _all(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}
