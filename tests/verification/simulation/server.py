"""The server of a simulation: the real service, broker and journal, on a disk that loses unsynced data in a crash.

What blocks is done at once and answered later, so that everything else happens in between.  A crash leaves one of the
states that a power cut may leave, no older than the last answer: what was answered may have been told to somebody.  Or
only the process is killed: then everything is left, and what was not synced can still be lost by a power cut later.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs
from damage import Damage, flip
from history import History
from synced import Seen, SyncedFiles
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from world import BELIEVED, Host, Violation, World

from fyrehose.broker.policy import OPEN
from fyrehose.errors import JournalCorrupt
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.scan import SUFFIX, read_mark
from fyrehose.journal.settings import JournalSettings, durability
from fyrehose.server.service import Fyrehose
from tests.doubles.disk import Kept, Tree, image, what_stays

#: Room that the journal leaves free, in bytes.
MIN_FREE = 1 << 20
#: How long a sync that is due may wait for the worker's other jobs, in seconds.
QUEUE = 3.0
#: How long a wall clock has to run steadily after a large step to be believed, in seconds; a little less.
SETTLED = 590.0


class Disk(SyncedFiles):
    """A disk that has free space, or none."""

    def __init__(self, directory: Path, kept: Kept, server: Server) -> None:
        super().__init__(directory, kept, server.world.clock.seconds, server.written, server.check_deletion)
        self.server = server

    def free(self, directory: Path) -> int:
        # Enough for the copy of another server's journal, too.
        return 0 if self.server.full else 64 * MIN_FREE


class SimulatedWorker:
    """The journal's thread: one job after the other, each answered after a while."""

    def __init__(self, host: Host, files: SyncedFiles) -> None:
        self.host, self.files = host, files
        self.jobs: deque[tuple[Callable[[], Any], Deferred[Any]]] = deque()
        self.busy = False
        #: how much of what the disk was told somebody may know of
        self.answered = len(files.log)
        #: what of that no power cut can take: the last number of each stream
        self.certain = dict(files.ends())

    def call(self, job: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.jobs.append((job, done))
        self._next()
        return done

    @property
    def idle(self) -> bool:
        return not self.busy and not self.jobs

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
        self._known(told)
        self._next()
        done.callback(result)

    def _known(self, told: int) -> None:
        self.answered, self.certain = told, dict(self.files.ends())

    # The journal's pace: a disk that is fast at times, so that commits run here and there.

    @property
    def near(self) -> bool:
        return bool(self.host.world.random.random() < 0.5)

    def took(self, seconds: float) -> None:
        if not self.busy:  # the reactor did it, and what was told to the disk is known at once
            self._known(len(self.files.log))


@attrs.frozen
class Watcher:
    """The observer of a journal, and somebody else who looks at each commit before it."""

    observer: Any
    look: Callable[[], None]

    def durable(self, ends: Any) -> None:
        self.look()
        self.observer.durable(ends)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.observer, name)


class Server:
    """One journal, and the server that is started on it again and again (its *lives*).

    :ivar name: of the server
    :ivar names: of all servers that clients know
    :ivar listeners: make the service of a protocol in each life: (host, broker) -> service; and whether it is for a
        leader only
    :ivar on_crash: called with the name of the server when a life has ended
    :ivar written: when the last record of each segment was synced, by the segment's base
    :param gaps: whether numbers may be lost, by the options, by damage, or by retention
    """

    def __init__(self, world: World, history: History, root: Path, gaps: bool = False, name: str = "") -> None:
        self.world, self.history, self.root, self.gaps, self.name = world, history, root, gaps, name
        self.names = (name,)
        self.listeners: list[tuple[Callable[[Host, Any], Any], bool]] = []
        self.on_crash: list[Callable[[str], None]] = []
        self.lives = self.crashes = self.damages = 0
        self.open = self.up = False
        self.settings = self._settings()
        self.again = world.random.choice((0.0, 0.0, 0.3))  #: how often it crashes while it starts
        self.host: Host
        self.journal: FileJournal
        self.files: Disk
        self.full = self.was_full = False
        self.worker: SimulatedWorker
        self.service: Fyrehose
        self.left = Kept(Tree())
        self.written: dict[int, float] = {}
        self.failures: list[Exception] = []
        self.watching = False
        self.damage: Damage | None = None
        self.to_be_damaged = self.quarantine = False
        #: whether the power went since the server ran last, and what no power cut could take by then
        self.power_cut = False
        self.certain: dict[str, int] = {}
        #: whether it began with a clock that may be wrong, and no log that tells the time, or had to believe it later
        self.misled = False
        history.may_be_lost, history.right_time = self._may_be_lost, self._is_right_time
        history.seconds = world.clock.seconds
        history.synced = self.settings.durability.mode == "batch"

    def _settings(self) -> JournalSettings:
        dice = self.world.random
        settings = JournalSettings(
            min_free=MIN_FREE,
            segment_size=dice.choice((1 << 10, 4 << 10, 64 << 10)),
        )
        if not self.gaps:
            return settings
        mode = dice.choice(("batch", "batch", "batch", "interval:5", "interval:700", "never"))
        retention = dice.choice(({}, {}, {"keep_bytes": 3 << 10}, {"keep_bytes": 16 << 10}, {"keep_age": 3.0}))
        return attrs.evolve(settings, durability=durability(mode), **retention)

    def retain(self, dice: Random) -> None:
        """Choose how retention deletes, of a server that loses nothing else; no record is deleted unseen."""
        self.watching = True
        kept = dice.choice(({}, {}, {"keep_bytes": 3 << 10}, {"keep_bytes": 16 << 10}, {"keep_age": 3.0}))
        waiting = dice.choice(({}, {"subscription_timeout": 2.0}, {"subscription_bytes": 1 << 10}))
        self.settings = attrs.evolve(self.settings, **kept, **waiting)

    def listen(self, make: Callable[[Host, Any], Any], only_leading: bool = False) -> None:
        """Add a listener that each life of the server opens.

        :param only_leading: whether it is closed on a server that follows another one
        """
        self.listeners.append((make, only_leading))

    def start(self) -> None:
        """A new life, on what the last one left."""
        self.lives += 1
        untold = not any(name.endswith(SUFFIX) for name in self.left.files())
        self.misled = self.misled or (untold and abs(self.world.lie) > BELIEVED)
        directory = self.root / f"{self.name}life-{self.lives}"
        directory.mkdir()
        for name, content in self.left.files().items():
            directory.joinpath(name).write_bytes(content)
        if self.to_be_damaged and self.damage is None and not self.left.pending:
            self._hurt(directory)
        self.host = Host(self.world, self.name)
        self.files = self._make_disk(directory)
        self._serve()
        if self.world.random.random() < self.again:
            self.host.callLater(0, self.crash)

    def _serve(self) -> None:
        """Open the journal, and the listeners."""
        self.worker = SimulatedWorker(self.host, self.files)
        self.journal = self._make_journal(self.files.directory)
        self.service = Fyrehose(self.host, self.journal, policy=OPEN, on_open=self._opened, on_failure=self._ended)
        self.service.broker.counters.seconds = self.host.seconds
        for make, only_leading in self.listeners:
            service = make(self.host, self.service.broker)
            if only_leading:
                self.service.add_for_leader(service)
            else:
                service.setServiceParent(self.service)
        self.service.startService().addCallback(self._started).addErrback(self._failed)

    def _make_disk(self, directory: Path) -> Disk:
        return Disk(directory, self.left, self)

    def _make_journal(self, directory: Path) -> FileJournal:
        return FileJournal(
            self.host,
            directory,
            attrs.evolve(self.settings, quarantine=self.quarantine),
            files=self.files,
            now=self.world.now,
            monotonic=self.world.monotonic,
            worker=self.worker,
            pace=self.worker,
        )

    def _ended(self, reason: Exception) -> None:
        """Handle the end of a server that cannot continue."""
        self.failures.append(reason)

    def _hurt(self, directory: Path) -> None:
        """Change bits in one of the files in *directory*, which the last life has left."""
        self.to_be_damaged = False
        tree = self.left.synced
        self.damage = flip(tree, read_mark(directory), self.world.random)
        if self.damage is not None:
            self.damages += 1
            self.world.note(f"damaged: {self.damage}")
            directory.joinpath(self.damage.name).write_bytes(tree.contents[tree.names[self.damage.name]])

    def _opened(self) -> None:
        """Check the recovered journal, before any listener is open."""
        self.open = self.files.running = True
        self.history.attach(self.name, self.journal, self.files)
        if self.watching:
            self.journal._observer = Watcher(self.journal._observer, self.history.look)
        if self.damage is not None and self.damage.matters:
            if not self.quarantine:
                self.history.wrong(f"the server starts in spite of damage: {self.damage}")
            if not self.damage.is_set_aside(self.files.directory):
                self.history.wrong(f"quarantine has replaced damage without keeping it: {self.damage}")
        self.history.recovered()
        self.damage, self.quarantine, self.power_cut = None, False, False

    def _started(self, _: Any) -> None:
        self.up = True
        self.world.note(f"server up, {dict(sorted(self.journal.ends().items()))}")

    def _failed(self, failure: Failure) -> None:
        if self.damage is None or not self.damage.matters or not failure.check(JournalCorrupt) or self.open:
            self.failures.append(failure.value)
            return
        if self.quarantine:
            self.failures.append(Violation(f"quarantine of {self.damage}: {failure.getErrorMessage()}"))
            return
        # Somebody looks at it: the file is put back, or what is damaged is given up.
        why = failure.getErrorMessage().replace(f"{self.files.directory}/", "")  # another one in each run of a seed
        self.world.note(f"the server does not start: {why}")
        self.left = what_stays(self.files, len(self.files.log))
        if self.gaps and self.world.random.random() < 0.7:
            self.quarantine = True
        else:
            self.damage.undo(self.left.synced)
            self.damage = None
        self._end()
        self.world.clock.callLater(self.world.random.random(), self.start)

    def leading_broker(self) -> Any:
        """Return the broker that accepts messages; None if there is none."""
        return self.service.broker if self.open else None

    def crash(self) -> None:
        """Cut the power, even while the server starts or stops; it comes back a little later."""
        if self.host.dead:
            return
        if self.open:
            self.history.look()
            self.history.note_deleted()
        dice, files = self.world.random, self.files
        upto = dice.randint(self.worker.answered, len(files.log))
        self.crashes += 1
        killed = dice.random() < 0.3 and not self.to_be_damaged
        self.world.note(f"{'kill' if killed else 'power cut'}, {upto} of {len(files.log)} steps")
        # Killed: the kernel has everything. Else the disk has what was synced, and whatever it likes of the rest.
        self.left = what_stays(files, upto) if killed else Kept(Tree.of(image(files, upto, dice)))
        self.power_cut = self.power_cut or not killed
        if self.open or self.lives == 1:
            self.certain = self.worker.certain
        self._end()
        self.world.clock.callLater(dice.random() * dice.choice((0.1, 3.0)), self.start)

    def hurt(self) -> None:
        """Cut the power, and change bits of durable data before it comes back."""
        self.to_be_damaged = True
        self.crash()

    def fill(self, seconds: float) -> None:
        """Let the disk be full for *seconds*."""
        self.world.note("full")
        self.full = self.was_full = True
        self.world.clock.callLater(seconds, setattr, self, "full", False)

    def restart(self) -> None:
        """Stop in order, and start again."""
        if not self.up:
            return
        self.history.note_deleted()
        self.up = self.open = False
        self.world.note("stopping")
        self.service.stopService().addCallback(self._stopped)

    def _stopped(self, _: Any) -> None:
        if self.host.dead:
            return
        self.world.note("stopped")
        self.left, self.certain = what_stays(self.files, len(self.files.log)), dict(self.files.ends())
        self._end()
        self.world.clock.callLater(self.world.random.random(), self.start)

    def _end(self) -> None:
        self.up = self.open = False
        self.history.detach(self.name)
        self.host.crash()
        for tell in self.on_crash:
            tell(self.name)
        self.files.close_all()
        if self.journal._lock >= 0:
            os.close(self.journal._lock)
            self.journal._lock = -1
        shutil.rmtree(self.files.directory)

    # What must be true.

    def check(self) -> None:
        """Check the rules after a step."""
        if self.failures:
            raise Violation(f"the server failed: {type(self.failures[0]).__name__}: {self.failures[0]}")
        if self.history.problems:
            raise Violation(self.history.problems[0])
        self.history.look()
        if self.open and self.settings.durability.mode == "interval":
            since = self.history.oldest_unsynced()
            late = 0.0 if since is None else self.world.clock.seconds() - since
            if late > self.settings.durability.seconds + QUEUE:
                raise Violation(f"a record is not synced {late:.1f} s after it was durable: {self.settings.durability}")

    def _may_be_lost(self, stream: str, seq: int) -> bool:
        if self.damage is not None and self.damage.has(stream, seq):
            return True
        batch = self.settings.durability.mode == "batch"
        return self.power_cut and not batch and seq > self.certain.get(stream, 0)

    def _believed(self) -> bool:
        """Return whether the time of records can be told: no large step of the clock may have been believed."""
        world = self.world
        settled = world.clock.seconds() - world.steady_since > SETTLED
        self.misled = self.misled or (world.leapt and settled)
        return not self.misled

    def _is_right_time(self, time: int) -> bool:
        world = self.world
        return not self._believed() or abs(time - world.honest()) <= world.stepped + 2 * BELIEVED

    def check_deletion(self, seen: Seen, end: int) -> None:
        """A segment is about to be deleted.

        :raises Violation: it is to be kept
        """
        settings, seconds, end = self.settings, self.world.clock.seconds(), max(end, self.journal.status().position)
        # A server that stops says so nowhere else: its journal is closed when its last records are looked at.
        self.history.note_deletion(seen.ends)
        if settings.keep_bytes and end - seen.base > settings.keep_bytes:
            return
        age = seconds - self.written.get(seen.base, 0.0) + (self.world.stepped + BELIEVED * self.world.leapt) / 1e6
        if settings.keep_age and (age >= settings.keep_age or not self._believed() or not self.history.synced):
            return
        raise Violation(f"the segment at {seen.base} of {end} is deleted, {age:.1f} s old: it is to be kept")

    def close(self) -> None:
        """End the simulation."""
        if self.files.directory.exists():
            self._end()
